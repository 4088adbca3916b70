//! Leases of a batch's messages: lost, renewed, and handed back.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use inbox::{Completion, Failure, Outcome, State, StoreExt as _, WorkerName};
use tokio::{sync::Notify, time::sleep};

use super::*;

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn one_lost_lease_ends_that_message_and_no_other() {
    let (spy, told) = (spy(), Told::default());
    spy.receive_all((0..5).map(message)).await;
    let store = spy.clone();
    let handler = move |batch: Batch| {
        let store = store.clone();
        async move {
            // Another worker has it, as far as the store goes.
            let lost = &batch[2];
            let outcome = Outcome::Defer {
                after: LEASE * 100,
                error: None,
            };
            let _ = store
                .inner
                .settle_one(&lost.leased().lease, outcome)
                .await
                .unwrap();
            lost.cancellation().cancelled().await;
            // Longer than the handler of a lost message may go on.
            sleep(LEASE).await;
            let is_told = |context: &inbox::Context| context.cancellation().is_cancelled();
            assert_eq!(batch.iter().filter(|context| is_told(context)).count(), 1);
            Ok::<_, Failure>(vec![
                Ok::<_, Failure>(Completion::with_result("r"));
                batch.len()
            ])
        }
    };
    let builder = processor(&spy, router(handler))
        .lease(LEASE)
        .hooks(told.clone());
    let summary = until_idle_by_a_paused_clock(builder).await;
    assert_eq!(
        (summary.processed, summary.lease_lost),
        (4, 1),
        "{summary:?}"
    );
    assert_eq!((summary.retried, summary.released), (0, 0));
    assert_eq!(told.all(), ["lost 2"]);
    assert_eq!(spy.record(2).await.state, State::Pending);
    assert_eq!(spy.count(State::Processed).await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_batch_all_of_whose_leases_are_lost_is_dropped() {
    let spy = spy();
    spy.receive_all((0..5).map(message)).await;
    let (store, dropped) = (spy.clone(), Arc::new(AtomicUsize::new(0)));
    let count = dropped.clone();
    let handler = move |batch: Batch| {
        let (store, guard) = (store.clone(), Counts(count.clone()));
        async move {
            for context in &batch {
                let outcome = Outcome::Defer {
                    after: LEASE * 100,
                    error: None,
                };
                let lease = &context.leased().lease;
                let _ = store.inner.settle_one(lease, outcome).await.unwrap();
            }
            std::future::pending::<()>().await;
            drop(guard);
            Ok::<_, Failure>(())
        }
    };
    let builder = processor(&spy, router(handler)).lease(LEASE);
    let summary = until_idle_by_a_paused_clock(builder).await;
    assert_eq!((summary.lease_lost, summary.processed), (5, 0));
    assert_eq!(dropped.load(SeqCst), 1);
}

/// Counts when it is dropped.
struct Counts(Arc<AtomicUsize>);

impl Drop for Counts {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_for_as_long_as_a_batch_and_its_halves_run() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(with_one("bad", 15)).await;
    let seen = runs.clone();
    let handler = move |batch: Batch| {
        seen.add(&batch);
        async move {
            sleep(LEASE).await;
            match has(&batch, "bad") {
                true => Err(Failure::dead("bad")),
                false => Ok(()),
            }
        }
    };
    let builder = processor(&spy, router(handler)).lease(LEASE);
    let summary = until_idle_by_a_paused_clock(builder).await;
    assert_eq!(
        (summary.processed, summary.dead, summary.lease_lost),
        (15, 1, 0)
    );
    assert!(runs.len() > 5);
    assert!(*spy.extends.lock().unwrap() > runs.len());
}

#[tokio::test(start_paused = true)]
async fn halves_that_are_done_do_not_wait_for_the_others() {
    let spy = spy();
    spy.receive_all((0..8).map(message)).await;
    let store = spy.clone();
    let handler = move |batch: Batch| {
        let store = store.clone();
        async move {
            match (batch.len(), has(&batch, "0")) {
                (8, _) => return Err(Failure::retry("in halves, please")),
                (_, true) => {}
                (_, false) => {
                    while store.count(State::Processed).await < 4 {
                        sleep(Duration::from_millis(5)).await;
                    }
                }
            }
            Ok(())
        }
    };
    let summary = until_idle_by_a_paused_clock(processor(&spy, router(handler))).await;
    assert_eq!((summary.processed, summary.retried), (8, 0));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_batch_or_hands_its_messages_back_without_an_attempt() {
    for is_soon in [true, false] {
        let spy = spy();
        spy.receive_all((0..5).map(message)).await;
        let started = Arc::new(Notify::new());
        let signal = started.clone();
        let handler = move |batch: Batch| {
            let signal = signal.clone();
            async move {
                signal.notify_one();
                sleep(Duration::from_secs(10)).await;
                let answers = batch.iter().map(|context| {
                    let id = context.message().id();
                    if id.as_str() == "3" {
                        Err(Failure::dead("three"))
                    } else {
                        Ok(())
                    }
                });
                Ok::<_, Failure>(answers.collect::<Vec<_>>())
            }
        };
        let limit = Duration::from_secs(if is_soon { 20 } else { 1 });
        let processor = processor(&spy, router(handler))
            .lease(LEASE)
            .drain_limit(limit)
            .build()
            .unwrap();
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let run = tokio::spawn(async move { processor.run(stop).await.unwrap() });
        started.notified().await;
        shutdown.cancel();
        let summary = run.await.unwrap();
        if is_soon {
            assert_eq!((summary.processed, summary.dead), (4, 1));
        } else {
            assert_eq!((summary.processed, summary.released), (0, 5), "{summary:?}");
            for record in spy.records().await {
                assert_eq!((record.state, record.attempts.started), (State::Pending, 0));
            }
        }
        assert_eq!((summary.retried, summary.abandoned), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_during_the_halves_hands_back_only_what_is_not_done() {
    let spy = spy();
    spy.receive_all((0..8).map(message)).await;
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let handler = move |batch: Batch| {
        let stop = stop.clone();
        async move {
            match (batch.len(), has(&batch, "0")) {
                (8, _) => Err(Failure::retry("in halves, please")),
                (_, true) => Ok(()),
                (_, false) => {
                    stop.cancel();
                    batch[0].cancellation().cancelled().await;
                    Err(Failure::retry("stopped"))
                }
            }
        }
    };
    let builder = processor(&spy, router(handler)).drain_limit(Duration::from_secs(1));
    let summary = builder.build().unwrap().run(shutdown).await.unwrap();
    assert_eq!((summary.processed, summary.released), (4, 4), "{summary:?}");
    assert_eq!(summary.retried, 0);
    let worker = WorkerName::new("next").unwrap();
    let claims = spy
        .inner
        .claim_for(&billing(), 10, LEASE, &worker)
        .await
        .unwrap();
    assert!(
        claims
            .leased
            .iter()
            .all(|leased| leased.attempts.started == 1)
    );
    assert_eq!(claims.leased.len(), 4);
}

/// Also when more of them are ended in a row than failures say that the fault is not in the messages.
#[tokio::test(start_paused = true)]
async fn what_a_stop_ends_one_by_one_costs_no_attempt() {
    let spy = spy();
    spy.receive_all((0..20).map(message)).await;
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let handler = move |batch: Batch| {
        let stop = stop.clone();
        async move {
            if batch.len() > 1 {
                return Err::<(), _>(Failure::retry("in halves, please"));
            }
            stop.cancel();
            Err(Failure::interrupted("terminated"))
        }
    };
    let processor = processor(&spy, router(handler)).build().unwrap();
    let summary = processor.run(shutdown).await.unwrap();
    assert_eq!((summary.released, summary.retried), (20, 0), "{summary:?}");
    for record in spy.records().await {
        assert_eq!((record.state, record.attempts.started), (State::Pending, 0));
    }
}

/// A handler with a transaction of its own, which has committed before it fails.
#[tokio::test(start_paused = true)]
async fn what_is_settled_already_is_not_run_again_in_halves() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..6).map(message)).await;
    let (store, seen) = (spy.clone(), runs.clone());
    let handler = move |batch: Batch| {
        seen.add(&batch);
        let (store, is_first) = (store.clone(), seen.len() == 1);
        async move {
            for context in batch.iter().take(4).filter(|_| is_first) {
                let outcome = Outcome::Processed { result: None };
                let lease = &context.leased().lease;
                let _ = store.inner.settle_one(lease, outcome).await.unwrap();
                context.mark_settled();
            }
            assert!(!is_first, "after the commit");
            Ok::<_, Failure>(())
        }
    };
    let summary = until_idle_by_a_paused_clock(processor(&spy, router(handler))).await;
    assert_eq!(
        (summary.processed, summary.lease_lost),
        (6, 0),
        "{summary:?}"
    );
    let again = runs.all().into_iter().skip(1).collect::<Vec<_>>().concat();
    assert_eq!(again, ["4", "5"]);
}
