//! Commits whose answer is late, lost or never comes: what is told of them is what became of them.

use super::*;

/// It has taken place: what is told and counted says so.
#[tokio::test]
async fn a_commit_whose_reply_is_lost_is_a_completion() {
    for id in ["reply-1", "hang-1"] {
        let place = Place::new([message(id)]).await;
        let told = Told::default();
        let builder = place
            .processor(Ledger)
            .hooks(told.clone())
            .store_timeout(Duration::from_secs(1));
        let summary = until_idle(builder).await;
        assert_eq!(
            (summary.processed, summary.retried, summary.lease_lost),
            (1, 0, 0),
            "{id}"
        );
        assert!(told.all().is_empty(), "{:?}", told.all());
        assert!(told.failures.lock().unwrap().is_empty());
        assert_eq!(place.effects().await, [id]);
    }
}

/// A batch handler that writes for all messages, in a transaction whose commit goes so.
fn batch_of(place: &Place, commit: Commit) -> impl BatchHandler + use<> {
    let write = move |mut lent: LentTransaction<Fragile>, batch: Batch| async move {
        for context in &batch {
            lent.write(context).await?;
        }
        lent.commit = commit;
        Ok::<_, sqlx::Error>(())
    };
    batch_in_transaction_fn(place.store.clone(), write)
}

/// What is told of messages, and what their processor counts.
async fn told_of(builder: ProcessorBuilder) -> (Vec<String>, Summary) {
    let told = Told::default();
    let summary = until_idle(builder.hooks(told.clone())).await;
    let failures = told.failures.lock().unwrap().clone();
    ([told.all(), failures].concat(), summary)
}

/// What may be durable already does not fail by the handler's time limit.
#[tokio::test]
async fn a_commit_that_outlasts_the_time_limit_is_a_completion() {
    let ids = ["late-1", "late-2", "late-3"];
    for is_batch in [false, true] {
        let ids = if is_batch { &ids[..] } else { &ids[..1] };
        let place = Place::new(ids.iter().map(message)).await;
        let builder = match is_batch {
            true => {
                let batch = batch_of(&place, Commit::Outlasts);
                place.processor_of(Router::new(billing()).on_batch("order.placed", batch))
            }
            false => place.processor(Ledger),
        };
        let (told, summary) = told_of(builder.handler_timeout(LIMIT)).await;
        let count = ids.len() as u64;
        assert_eq!(
            (summary.claimed, summary.processed),
            (count, count),
            "{summary:?}"
        );
        assert!(told.is_empty(), "{told:?}");
        assert_eq!(place.effects().await, ids);
    }
}

/// Something around the transaction gives it up in its commit, which has taken place: nothing that is not so is told.
#[tokio::test]
async fn a_commit_that_is_dropped_is_told_neither_as_a_failure_nor_as_a_lost_lease() {
    for failure in [Failure::retry("given up"), Failure::dead("given up")] {
        let place = Place::new([message("hang-1")]).await;
        let ledger = Arc::new(in_transaction(place.store.clone(), Ledger));
        let committed = place.store.committed.clone();
        let handler = move |context: Context| {
            let (ledger, committed) = (ledger.clone(), committed.clone());
            let failure = failure.clone();
            async move {
                tokio::select! {
                    ended = ledger.handle(&context) => ended,
                    () = committed.notified() => Err(failure),
                }
            }
        };
        let builder = place.processor_of(Router::new(billing()).on("order.placed", handler));
        let (told, summary) = told_of(builder).await;
        assert_eq!((summary.claimed, summary.abandoned), (1, 1), "{summary:?}");
        assert!(told.is_empty(), "{told:?}");
        assert_eq!(place.record("hang-1").await.state, State::Processed);
        assert_eq!(place.effects().await, ["hang-1"]);
    }
}

#[tokio::test]
async fn a_batch_that_is_dropped_in_its_commit_does_not_run_again() {
    let ids = ["1", "2", "3"];
    let place = Place::new(ids.map(message)).await;
    let batch = Arc::new(batch_of(&place, Commit::Hangs));
    let (committed, runs) = (place.store.committed.clone(), Arc::new(AtomicUsize::new(0)));
    let count = runs.clone();
    let handler = move |messages: Batch| {
        count.fetch_add(1, SeqCst);
        let (batch, committed) = (batch.clone(), committed.clone());
        async move {
            tokio::select! {
                ended = batch.handle(&messages) => ended,
                () = committed.notified() => Err(Failure::retry("given up")),
            }
        }
    };
    let builder = place.processor_of(Router::new(billing()).on_batch("order.placed", handler));
    let (told, summary) = told_of(builder).await;
    assert_eq!((summary.claimed, summary.abandoned), (3, 3), "{summary:?}");
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(runs.load(SeqCst), 1);
    assert_eq!(place.effects().await, ids);
}

/// Its answer is lost, and no transaction can be opened that would tell.
#[tokio::test]
async fn a_commit_that_cannot_be_looked_up_ends_within_the_time_of_a_call() {
    let place = Place::new([message("1")]).await;
    let store = place.store.clone();
    let write = move |mut lent: LentTransaction<Fragile>, context: Context| {
        let store = store.clone();
        async move {
            lent.write(&context).await?;
            lent.commit = Commit::LosesReply;
            store.outage.store(usize::MAX, SeqCst);
            Ok::<_, sqlx::Error>(())
        }
    };
    let handler = in_transaction_fn(place.store.clone(), write);
    let router = Router::new(billing()).on("order.placed", handler);
    let builder = place.processor_of(router);
    let (told, summary) = told_of(builder.store_timeout(Duration::from_secs(1))).await;
    assert_eq!((summary.claimed, summary.abandoned), (1, 1), "{summary:?}");
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(place.record("1").await.state, State::Processed);
    assert_eq!(place.effects().await, ["1"]);
}
