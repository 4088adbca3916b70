//! What a time limit costs that is over before or behind the handler itself.

use super::*;

/// Defect: the wait for a transaction used up a message's attempts, although no handler had begun.
#[tokio::test]
async fn an_outage_that_is_longer_than_the_time_limit_costs_no_attempt() {
    let write = |store: &Fickle| {
        in_transaction_fn(
            store.clone(),
            |mut lent: LentTransaction<Fragile>, context: Context| async move {
                lent.write(&context).await.map_err(Failure::retry)
            },
        )
    };
    let write_all = |store: &Fickle| {
        batch_in_transaction_fn(
            store.clone(),
            |mut lent: LentTransaction<Fragile>, batch: Batch| async move {
                for context in &batch {
                    lent.write(context).await.map_err(Failure::retry)?;
                }
                Ok::<_, Failure>(())
            },
        )
    };
    let write_each = |store: &Fickle| one_by_one_in_transaction(store.clone(), Ledger);
    for kind in ["one", "batch", "one by one"] {
        let place = Place::new([message("fine-1"), message("fine-2")]).await;
        place.store.outage.store(8, SeqCst);
        let (router, store) = (Router::new(billing()), &place.store);
        let router = match kind {
            "one" => router.on("order.placed", write(store)),
            "batch" => router.on_batch("order.placed", write_all(store)),
            _ => router.on_batch("order.placed", write_each(store)),
        };
        let builder = place.processor_of(router.timeout(Duration::from_millis(100)));
        let summary = until_idle(builder.retry(at_once(2))).await;
        assert_eq!(
            (summary.processed, summary.retried, summary.dead),
            (2, 0, 0),
            "{kind}: {summary:?}"
        );
        assert!(summary.released > 0, "{kind}: {summary:?}");
        assert_eq!(place.effects().await, ["fine-1", "fine-2"], "{kind}");
    }
}

/// Defect: only the wait for the first transaction cost nothing.
#[tokio::test]
async fn a_wait_for_another_transaction_after_a_conflict_costs_no_attempt() {
    let place = Place::new([message("1")]).await;
    let (ran, outage) = (Arc::new(AtomicUsize::new(0)), place.store.outage.clone());
    let write = move |mut lent: LentTransaction<Fragile>, context: Context| {
        let is_first = ran.fetch_add(1, SeqCst) == 0;
        if is_first {
            outage.store(8, SeqCst);
            lent.commit = Commit::Conflicts;
        }
        async move { lent.write(&context).await.map_err(Failure::retry) }
    };
    let handler = in_transaction_fn(place.store.clone(), write);
    let router = Router::new(billing()).on("order.placed", handler);
    let builder = place.processor_of(router.timeout(Duration::from_millis(500)));
    let summary = until_idle(builder.retry(at_once(1))).await;
    assert_eq!((summary.processed, summary.dead), (1, 0), "{summary:?}");
    assert!(summary.released > 0, "{summary:?}");
    assert_eq!(place.effects().await, ["1"]);
}

/// Defect: what a handler had decided was forgotten when the rollback outlasted its time limit.
#[tokio::test]
async fn a_rollback_that_outlasts_the_time_limit_changes_no_decision() {
    for kind in ["one", "one by one"] {
        let place = Place::new([message("dead-1")]).await;
        *place.store.hangs.lock().unwrap() = Some("roll back");
        let router = Router::new(billing());
        let store = place.store.clone();
        let router = match kind {
            "one" => router.on("order.placed", in_transaction(store, Ledger)),
            _ => router.on_batch("order.placed", one_by_one_in_transaction(store, Ledger)),
        };
        let builder = place
            .processor_of(router.timeout(Duration::from_millis(200)))
            .store_timeout(Duration::from_secs(1));
        let summary = until_idle(builder).await;
        assert_eq!(
            (summary.dead, summary.retried),
            (1, 0),
            "{kind}: {summary:?}"
        );
        let record = place.record("dead-1").await;
        assert_eq!(record.last_error.as_deref(), Some("after writing"));
    }
}
