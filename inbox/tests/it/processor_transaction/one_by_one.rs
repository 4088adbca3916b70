//! Messages that share a transaction: when it is committed, and what a commit that goes wrong does to them.

use super::*;

const COUNT: usize = 20;

/// A place with messages, which are all new and have no ordering key.
async fn place() -> Place {
    Place::new((0..COUNT).map(message)).await
}

fn router(handler: impl BatchHandler) -> Router {
    Router::new(billing()).on_batch("order.placed", handler)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_in_shared_transactions_happen_exactly_once() {
    let router = |store| router(one_by_one_in_transaction(store, Ledger));
    // How a commit ends, the last of its messages says.
    let repeated = ["error", "panic", "slow"];
    effects_of_each_fate_happen_exactly_once(2, &repeated, router).await;
}

#[tokio::test]
async fn quick_messages_share_a_transaction() {
    let place = place().await;
    let write = |mut lent: LentTransaction<Fragile>, context: Context| async move {
        lent.write(&context).await
    };
    let handler = one_by_one_in_transaction_fn(place.store.clone(), write);
    let summary = until_idle(place.processor_of(router(handler))).await;
    assert_eq!(summary.processed, COUNT as u64);
    assert_eq!(place.effects().await.len(), COUNT);
    // One, but on a machine that is slow.
    let opened = place.store.opened.load(SeqCst);
    assert!(opened < COUNT, "{opened} transactions");
}

/// What a slow handler has locked is not kept for those behind it.
#[tokio::test]
async fn a_transaction_that_has_been_open_for_long_is_committed() {
    let place = place().await;
    let (ran, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let write = {
        let (ran, seen, opened) = (ran.clone(), seen.clone(), place.store.opened.clone());
        move |mut lent: LentTransaction<Fragile>, context: Context| {
            let (ran, seen, opened) = (ran.clone(), seen.clone(), opened.clone());
            async move {
                lent.write(&context).await?;
                if ran.fetch_add(1, SeqCst) == 4 {
                    tokio::time::sleep(Duration::from_millis(120)).await;
                    seen.store(opened.load(SeqCst), SeqCst);
                }
                Ok::<_, sqlx::Error>(())
            }
        }
    };
    let handler = one_by_one_in_transaction_fn(place.store.clone(), write);
    let summary = until_idle(place.processor_of(router(handler))).await;
    assert_eq!(summary.processed, COUNT as u64);
    assert_eq!(
        (ran.load(SeqCst), place.effects().await.len()),
        (COUNT, COUNT)
    );
    assert!(place.store.opened.load(SeqCst) > seen.load(SeqCst));
}

/// Whatever becomes of the first commit, and whether that is known.
#[tokio::test]
async fn a_commit_that_goes_wrong_costs_no_effect_and_makes_none_twice() {
    for commit in [
        Commit::Fails,
        Commit::Vanishes,
        Commit::LosesReply,
        Commit::Hangs,
        Commit::Conflicts,
    ] {
        let place = place().await;
        let is_first = Arc::new(AtomicBool::new(true));
        let write = move |mut lent: LentTransaction<Fragile>, context: Context| {
            let is_first = is_first.clone();
            async move {
                lent.write(&context).await?;
                if is_first.swap(false, SeqCst) {
                    lent.commit = commit;
                }
                Ok::<_, sqlx::Error>(())
            }
        };
        let handler = one_by_one_in_transaction_fn(place.store.clone(), write);
        let builder = place.processor_of(router(handler));
        let told = Told::default();
        let builder = builder.store_timeout(Duration::from_secs(1));
        let summary = until_idle(builder.hooks(told.clone())).await;
        assert_eq!(
            (summary.processed, summary.lease_lost, summary.dead),
            (COUNT as u64, 0, 0),
            "{summary:?}"
        );
        assert!(told.all().is_empty(), "{:?}", told.all());
        let mut effects = place.effects().await;
        effects.dedup();
        assert_eq!(effects.len(), COUNT);
        assert_eq!(place.effects().await.len(), COUNT);
    }
}

/// Those before the one that fails are slow when they run again, and share no transaction with it.
#[tokio::test]
async fn what_fails_does_not_run_again_with_those_it_has_failed_behind() {
    let place = place().await;
    let ran = Arc::new(Mutex::new(vec![0; COUNT]));
    let seen = ran.clone();
    let write = move |mut lent: LentTransaction<Fragile>, context: Context| {
        let seen = seen.clone();
        async move {
            lent.write(&context).await?;
            let number: usize = context.message().id().as_str().parse()?;
            let times = {
                let mut seen = seen.lock().unwrap();
                seen[number] += 1;
                seen[number]
            };
            if number == 5 {
                return Err(Failure::dead("always"));
            }
            if times == 2 {
                tokio::time::sleep(Duration::from_millis(60)).await;
            }
            Ok(())
        }
    };
    let handler = one_by_one_in_transaction_fn(place.store.clone(), write);
    let summary = until_idle(place.processor_of(router(handler))).await;
    assert_eq!((summary.processed, summary.dead), (COUNT as u64 - 1, 1));
    assert_eq!(place.effects().await.len(), COUNT - 1);
    let ran = ran.lock().unwrap();
    assert!(ran.iter().all(|times| *times <= 2), "{ran:?}");
}

/// Defect: it counted as abandoned.
#[tokio::test]
async fn what_was_committed_counts_though_its_batch_does_not_end() {
    let place = Place::new((0..2).map(message)).await;
    let write = |mut lent: LentTransaction<Fragile>, context: Context| async move {
        if context.message().id().as_str().ends_with('1') {
            std::future::pending::<()>().await;
        }
        lent.write(&context).await?;
        // So long that what comes behind has a transaction of its own.
        tokio::time::sleep(Duration::from_millis(120)).await;
        Ok::<_, sqlx::Error>(())
    };
    let handler = one_by_one_in_transaction_fn(place.store.clone(), write);
    let builder = place.processor_of(router(handler));
    let processor = builder.drain_limit(Duration::ZERO).build().unwrap();
    let shutdown = CancellationToken::new();
    let stop = async {
        let is_done = async || place.record("0").await.state == State::Processed;
        eventually("committed", is_done).await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), stop);
    let summary = summary.unwrap();
    assert_eq!(
        (summary.processed, summary.abandoned + summary.released),
        (1, 1)
    );
}
