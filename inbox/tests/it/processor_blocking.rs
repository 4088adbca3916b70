//! Handlers that block their thread: they hold up their own worker, and cost no message an
//! attempt.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use inbox::{Context, Failure, Router, State, Summary};

use crate::{logged::Log, processor_support::*};

const LEASE: Duration = Duration::from_millis(100);

/// Runs as many messages with a handler that blocks for three leases; returns how often it ran.
async fn block(messages: usize) -> (Arc<Spy>, usize, Summary) {
    let spy = Arc::new(Spy::new());
    spy.receive_all((0..messages).map(message)).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let router = Router::new(billing()).on("order.placed", move |_: Context| {
        let runs = counted.clone();
        async move {
            runs.fetch_add(1, SeqCst);
            thread::sleep(LEASE * 3);
            Ok::<_, Failure>(())
        }
    });
    let summary = until_idle(processor(&spy, router).lease(LEASE)).await;
    let runs = runs.load(SeqCst);
    (spy, runs, summary)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_runs_once_although_its_lease_runs_out() {
    let (spy, runs, summary) = block(8).await;
    assert_eq!((runs, summary.processed, summary.lease_lost), (8, 8, 0));
    for record in spy.records().await {
        assert_eq!(record.state, State::Processed);
        assert_eq!(record.attempts.started, 1);
    }
}

#[tokio::test]
async fn a_message_whose_lease_is_gone_before_its_turn_is_handed_back() {
    let (log, _guard) = Log::of(tracing::Level::WARN);
    let (_, runs, summary) = block(2).await;
    assert_eq!((runs, summary.processed), (2, 2));
    assert!(summary.released >= 1, "{summary:?}");
    let warnings = log.lines(&["blocks its thread", "handler=\"billing\""]);
    assert_eq!(warnings.len(), 1, "{}", log.text());
}
