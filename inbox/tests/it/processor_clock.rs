//! The store's clock runs ahead of the worker's, which stands still while its machine sleeps: leases
//! run out although the worker has not counted half of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use inbox::{
    CancellationToken, Context, Failure, Processor, Result, Router, State, StoreExt as _, Summary,
    WorkerName,
};
use tokio::{task::JoinHandle, time::sleep};

use crate::processor_support::*;

const LEASE: Duration = Duration::from_secs(60);

/// A store, a processor at it, and how often a message was run, and how often twice at a time.
struct Bench {
    spy: Arc<Spy>,
    told: Told,
    runs: Arc<AtomicUsize>,
    shutdown: CancellationToken,
    running: JoinHandle<Result<Summary>>,
}

impl Bench {
    /// Each of `ids` is run for 20 seconds.
    async fn of<const N: usize>(ids: [&str; N]) -> Self {
        let spy = Arc::new(Spy::new());
        spy.follow_the_runtime();
        spy.receive_all(ids.map(message)).await;
        let runs = Arc::new(AtomicUsize::new(0));
        let count = runs.clone();
        let handler = move |context: Context| {
            count.fetch_add(1, SeqCst);
            async move {
                tokio::select! {
                    () = sleep(Duration::from_secs(20)) => Ok(()),
                    () = context.cancellation().cancelled() => Err(Failure::retry("told to stop")),
                }
            }
        };
        let router = Router::new(billing()).on("order.placed", handler);
        let (told, shutdown) = (Told::default(), CancellationToken::new());
        let processor = Processor::builder(spy.clone())
            .router(router)
            .lease(LEASE)
            .retry(at_once(5))
            .hooks(told.clone())
            .store_timeout(Duration::from_secs(3600))
            .build()
            .unwrap();
        let stop = shutdown.clone();
        let running = tokio::spawn(async move { processor.run(stop).await });
        // Now everything runs.
        sleep(Duration::from_secs(1)).await;
        assert_eq!(runs.load(SeqCst), N);
        Self {
            spy,
            told,
            runs,
            shutdown,
            running,
        }
    }

    /// The worker's machine sleeps for two leases.
    fn sleep(&self) {
        self.spy.clock.advance(LEASE * 2);
    }

    /// Each message was run once, and is processed.
    async fn ends_well(self, ids: u64) {
        sleep(Duration::from_secs(60)).await;
        self.shutdown.cancel();
        let summary = self.running.await.unwrap().unwrap();
        assert_eq!(self.spy.count(State::Processed).await, ids);
        assert_eq!(self.runs.load(SeqCst) as u64, ids, "run twice at a time");
        assert_eq!((summary.processed, summary.lease_lost), (ids, 0));
        assert_eq!((summary.retried, summary.released), (0, 0));
        assert!(self.told.all().is_empty(), "{:?}", self.told.all());
    }
}

#[tokio::test(start_paused = true)]
async fn what_runs_is_not_run_twice_at_a_time() {
    let bench = Bench::of(["1", "2", "3"]).await;
    bench.sleep();
    bench.ends_well(3).await;
}

/// Its completion finds another lease, which is this worker's own.
#[tokio::test(start_paused = true)]
async fn what_has_ended_and_is_not_settled_is_not_run_again() {
    let bench = Bench::of(["1", "2", "3"]).await;
    bench.spy.disturb("settle", Trouble::Hold);
    sleep(Duration::from_secs(20)).await;
    bench.sleep();
    sleep(Duration::from_secs(10)).await;
    bench.spy.calm("settle");
    bench.ends_well(3).await;
}

/// The claim is done before the settlement or renewal, and answered after it.
#[tokio::test(start_paused = true)]
async fn what_a_claim_takes_whose_answer_is_late_is_not_lost() {
    for (operation, after) in [("settle", 20), ("extend", 12)] {
        let bench = Bench::of(["1", "2"]).await;
        bench.spy.disturb(operation, Trouble::Hold);
        sleep(Duration::from_secs(after)).await;
        bench.spy.disturb("claim", Trouble::HoldAnswer);
        bench.sleep();
        sleep(Duration::from_secs(6)).await;
        let record = bench.spy.record("1").await;
        assert_eq!(record.attempts.started, 2, "{operation}");
        bench.spy.calm(operation);
        sleep(Duration::from_millis(10)).await;
        bench.spy.calm("claim");
        bench.ends_well(2).await;
    }
}

/// A handler whose message another worker has is told so, though claims are always under way.
#[tokio::test(start_paused = true)]
async fn a_lease_that_another_has_is_lost_however_slow_the_claims() {
    let bench = Bench::of(["1"]).await;
    bench.spy.disturb("claim", Trouble::Hold);
    sleep(Duration::from_secs(5)).await;
    bench.sleep();
    let worker = WorkerName::new("other").unwrap();
    let inner = &bench.spy.inner;
    let claims = inner.claim_for(&billing(), 1, LEASE * 10, &worker).await;
    assert_eq!(claims.unwrap().leased.len(), 1);
    bench.spy.calm("claim");
    sleep(Duration::from_millis(1)).await;
    bench.spy.disturb("claim", Trouble::Hold);
    sleep(Duration::from_secs(13)).await;
    bench.spy.calm("claim");
    sleep(Duration::from_secs(40)).await;
    bench.shutdown.cancel();
    let summary = bench.running.await.unwrap().unwrap();
    assert_eq!((summary.lease_lost, summary.processed), (1, 0));
    assert_eq!(bench.told.all(), ["lost 1"]);
    assert_eq!(bench.runs.load(SeqCst), 1);
}
