//! Leases that run out, come back and are lost while several calls of the store are under way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use inbox::{
    CancellationToken, Completion, Context, ErrorKind, Failure, Handler, Key, Outcome, Processor,
    ProcessorBuilder, Router, Settled, State, StoreExt as _, Summary, WorkerName,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use crate::{logged::Log, processor_support::*};

/// Of every lease here. Without renewals it runs out then.
const LEASE: Duration = Duration::from_secs(60);

/// A store in the time of the test's runtime, and a processor at it.
struct Bench {
    spy: Arc<Spy>,
    told: Told,
    began: Instant,
    shutdown: CancellationToken,
    running: Option<JoinHandle<inbox::Result<Summary>>>,
}

impl Bench {
    fn new() -> Self {
        let spy = Arc::new(Spy::new());
        spy.follow_the_runtime();
        Self {
            spy,
            told: Told::default(),
            began: Instant::now(),
            shutdown: CancellationToken::new(),
            running: None,
        }
    }

    fn start(&mut self, handler: impl Handler, set: impl Fn(ProcessorBuilder) -> ProcessorBuilder) {
        let router = Router::new(billing()).on("order.placed", handler);
        let builder = Processor::builder(self.spy.clone())
            .router(router)
            .lease(LEASE)
            .retry(at_once(5))
            .hooks(self.told.clone())
            .store_timeout(Duration::from_secs(3600));
        let processor = set(builder).build().unwrap();
        let stop = self.shutdown.clone();
        self.running = Some(tokio::spawn(async move { processor.run(stop).await }));
    }

    /// Goes on to so many milliseconds after the beginning.
    async fn at(&self, millis: u64) {
        sleep_until(self.began + Duration::from_millis(millis)).await;
    }

    async fn stop(&mut self) -> Summary {
        self.shutdown.cancel();
        self.running.take().unwrap().await.unwrap().unwrap()
    }

    /// Another worker takes a message, and never comes back to it.
    async fn other_takes_one(&self, length: Duration) -> Key {
        let worker = WorkerName::new("other").unwrap();
        let inner = &self.spy.inner;
        let claims = inner.claim_for(&billing(), 1, length, &worker).await;
        claims.unwrap().leased[0].lease.key.clone()
    }

    /// Attempts of a message: started, and finished.
    async fn attempts(&self, id: &str) -> (State, u32, u32) {
        let record = self.spy.record(id).await;
        (
            record.state,
            record.attempts.started,
            record.attempts.finished,
        )
    }
}

/// The claim under way takes a message that is handed back meanwhile. Both answers are there at
/// once, and the lease of another message has run out.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_claimed_again_before_its_settlement_is_answered_is_run() {
    for is_taken_by_another in [false, true] {
        let (log, _guard) = Log::of(tracing::Level::WARN);
        let mut bench = Bench::new();
        bench.spy.receive_all([message("long")]).await;
        let runs = Arc::new(AtomicUsize::new(0));
        let (count, began) = (runs.clone(), bench.began);
        let handler = move |context: Context| {
            let count = count.clone();
            async move {
                if context.message().id().as_str() == "long" {
                    sleep(Duration::from_secs(100)).await;
                    return Ok(());
                }
                if count.fetch_add(1, SeqCst) > 0 {
                    return Ok(());
                }
                sleep_until(began + Duration::from_millis(59_500)).await;
                Err(Failure::retry_after(Duration::ZERO, "again"))
            }
        };
        // The lease of the long one runs out.
        bench
            .spy
            .disturb("extend", Trouble::Refuse(ErrorKind::Unavailable));
        bench.start(handler, |builder| builder);
        bench.at(30_000).await;
        bench.spy.receive_all([message("again")]).await;
        bench.at(50_000).await;
        bench.spy.disturb("settle", Trouble::HoldAnswer);
        bench.spy.disturb("claim", Trouble::Hold);
        bench.at(60_000).await;
        if is_taken_by_another {
            // And lost by its crash.
            let taken = bench.other_takes_one(Duration::from_millis(1)).await;
            assert_eq!(taken, key("again"));
        }
        bench.at(61_000).await;
        bench.spy.calm("claim");
        bench.spy.calm("settle");
        bench.at(63_000).await;
        bench.spy.calm("extend");
        bench.at(66_000).await;
        assert_eq!(runs.load(SeqCst), 2, "it waits for its lease to run out");
        bench.at(110_000).await;
        let summary = bench.stop().await;
        let crashed = u32::from(is_taken_by_another);
        assert_eq!(
            bench.attempts("again").await,
            (State::Processed, 2 + crashed, 2)
        );
        assert_eq!(bench.attempts("long").await.0, State::Processed);
        assert_eq!(
            (summary.processed, summary.retried, summary.lease_lost),
            (2, 1, 0)
        );
        if !is_taken_by_another {
            let wrong = log.lines(&["taken again", "billing/again"]);
            assert!(wrong.is_empty(), "{wrong:?}");
        }
    }
}

/// Its retry is stored and not answered, another worker has tried since, and this one claims it again.
#[tokio::test(start_paused = true)]
async fn what_others_have_tried_since_runs_again() {
    let mut bench = Bench::new();
    bench.spy.receive_all([message("again")]).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let handler = move |_: Context| {
        let is_first = count.fetch_add(1, SeqCst) == 0;
        async move {
            match is_first {
                true => Err(Failure::retry_after(Duration::ZERO, "again")),
                false => Ok(()),
            }
        }
    };
    bench.spy.disturb("settle", Trouble::HoldAnswer);
    let spy = bench.spy.clone();
    let handler = move |context: Context| {
        // The next claim waits for the other worker.
        spy.disturb("claim", Trouble::Hold);
        handler(context)
    };
    bench.start(handler, |builder| builder);
    bench.at(1_000).await;
    let inner = bench.spy.inner.clone();
    let worker = WorkerName::new("other").unwrap();
    let claims = inner
        .claim_for(&billing(), 1, LEASE, &worker)
        .await
        .unwrap();
    let outcome = Outcome::Retry {
        after: Duration::ZERO,
        error: "by another".into(),
    };
    let settled = inner.settle_one(&claims.leased[0].lease, outcome).await;
    assert_eq!(settled.unwrap(), Settled::Done);
    bench.spy.calm("claim");
    bench.at(2_000).await;
    assert_eq!(runs.load(SeqCst), 2);
    bench.spy.calm("settle");
    bench.at(3_000).await;
    let summary = bench.stop().await;
    assert_eq!((summary.processed, summary.retried), (1, 1));
    assert_eq!(bench.attempts("again").await, (State::Processed, 3, 3));
}

/// The message is claimed again by this worker, so that the repeated settlement finds another lease.
#[tokio::test(start_paused = true)]
async fn an_outcome_whose_reply_is_lost_is_no_lost_lease() {
    for is_claim_answered_last in [false, true] {
        let mut bench = Bench::new();
        bench.spy.receive_all([message("again")]).await;
        bench.spy.disturb("settle", Trouble::LoseReply);
        let handler = |context: Context| async move {
            if context.attempts().started == 1 {
                sleep(Duration::from_secs(2)).await;
                return Err(Failure::retry_after(Duration::ZERO, "again"));
            }
            sleep(Duration::from_secs(10)).await;
            Ok(())
        };
        bench.start(handler, |builder| builder);
        if is_claim_answered_last {
            bench.at(100).await;
            bench.spy.disturb("claim", Trouble::Hold);
            bench.at(2_020).await;
            assert_eq!(bench.attempts("again").await, (State::Pending, 1, 1));
            bench.spy.disturb("claim", Trouble::HoldAnswer);
        }
        bench.at(4_000).await;
        assert_eq!(bench.attempts("again").await, (State::Leased, 2, 1));
        bench.spy.calm("settle");
        bench.at(10_000).await;
        bench.spy.calm("claim");
        bench.at(30_000).await;
        let summary = bench.stop().await;
        assert_eq!(
            (summary.processed, summary.retried, summary.lease_lost),
            (1, 1, 0)
        );
        assert_eq!(bench.attempts("again").await, (State::Processed, 2, 2));
        assert!(bench.told.all().is_empty(), "{:?}", bench.told.all());
        let failures = bench.told.failures.lock().unwrap().clone();
        assert_eq!(failures, ["failed again: again"]);
    }
}

/// A renewal begins just before the lease runs out and is done after the claim under way has taken
/// the message.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_answered_before_this_workers_own_claim_loses_no_lease() {
    let mut bench = Bench::new();
    bench.spy.receive_all([message("one")]).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let (count, began) = (runs.clone(), bench.began);
    let handler = move |_: Context| {
        count.fetch_add(1, SeqCst);
        async move {
            sleep_until(began + Duration::from_millis(61_500)).await;
            Ok::<_, Failure>(())
        }
    };
    bench.start(handler, |builder| builder);
    bench.at(10).await;
    bench.spy.disturb("extend", Trouble::Hold);
    bench.spy.disturb("claim", Trouble::Hold);
    bench.at(61_000).await;
    // The claim is done first, and answered last.
    bench.spy.disturb("claim", Trouble::HoldAnswer);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(bench.spy.record("one").await.attempts.started, 2);
    bench.spy.calm("extend");
    sleep(Duration::from_millis(1)).await;
    bench.spy.calm("claim");
    bench.at(70_000).await;
    let summary = bench.stop().await;
    assert_eq!((summary.processed, summary.lease_lost), (1, 0));
    assert_eq!(runs.load(SeqCst), 1);
    assert_eq!(bench.spy.record("one").await.state, State::Processed);
}

/// The renewal finds the lease lost while a claim is under way that may have taken it. It has not, and no later renewal
/// is answered.
#[tokio::test(start_paused = true)]
async fn a_lease_that_the_claim_under_way_has_not_taken_is_lost_at_once() {
    let mut bench = Bench::new();
    bench.spy.receive_all([message("one")]).await;
    let in_use = Arc::new(());
    let held = in_use.clone();
    let handler = move |_: Context| {
        let held = held.clone();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok::<_, Failure>(())
        }
    };
    bench.start(handler, |builder| builder);
    bench.at(10).await;
    bench.spy.disturb("extend", Trouble::Hold);
    bench.spy.disturb("claim", Trouble::Hold);
    bench.at(61_000).await;
    bench.spy.follow();
    bench.other_takes_one(10 * LEASE).await;
    bench.spy.calm("extend");
    sleep(Duration::from_millis(1)).await;
    let away = Trouble::Refuse(ErrorKind::Unavailable);
    bench.spy.disturb("extend", away);
    bench.spy.calm("claim");
    // The handler itself has one, and the test; the running attempt had a third.
    assert_eq!(Arc::strong_count(&in_use), 3);
    bench.at(120_000).await;
    assert_eq!(Arc::strong_count(&in_use), 2);
    assert_eq!(bench.stop().await.lease_lost, 1);
}

/// Another worker takes a message over and vanishes; this one finishes it and claims it again.
#[tokio::test(start_paused = true)]
async fn what_is_finished_and_held_again_is_not_run_again() {
    let mut bench = Bench::new();
    bench.spy.receive_all([message("one")]).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let (count, began) = (runs.clone(), bench.began);
    let handler = move |_: Context| {
        count.fetch_add(1, SeqCst);
        async move {
            sleep_until(began + Duration::from_millis(61_800)).await;
            Ok::<_, Failure>(())
        }
    };
    bench.spy.disturb("extend", Trouble::Hold);
    bench.start(handler, |builder| {
        // Not in the last moments of the lease, and not while the other one holds it.
        let now_and_then = Duration::from_millis(700);
        builder.poll_intervals(now_and_then, now_and_then)
    });
    bench.at(61_000).await;
    bench.spy.follow();
    let taken = bench.other_takes_one(Duration::from_millis(100)).await;
    assert_eq!(taken, key("one"));
    bench.spy.calm("extend");
    bench.at(70_000).await;
    bench.stop().await;
    assert_eq!(bench.told.all(), ["lost one"]);
    assert_eq!(runs.load(SeqCst), 1);
    assert_eq!(bench.spy.record("one").await.state, State::Processed);
}

/// Renewals fail for longer than a lease, so handlers are told to stop, and heed it.
#[tokio::test(start_paused = true)]
async fn an_outage_costs_a_handler_that_heeds_cancellation_no_attempt() {
    let mut bench = Bench::new();
    let ways = ["error", "panic", "time-out"];
    bench.spy.receive_all(ways.map(message)).await;
    bench
        .spy
        .disturb("extend", Trouble::Refuse(ErrorKind::Unavailable));
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let handler = move |context: Context| {
        let is_first = count.fetch_add(1, SeqCst) < ways.len();
        async move {
            if !is_first {
                return Ok(());
            }
            context.cancellation().cancelled().await;
            match context.message().id().as_str() {
                "error" => Err(Failure::retry("told to stop")),
                "panic" => panic!("told to stop"),
                _ => std::future::pending().await,
            }
        }
    };
    bench.start(handler, |builder| {
        builder
            .retry(at_once(1))
            .handler_timeout(Duration::from_secs(70))
    });
    bench.at(90_000).await;
    bench.spy.calm("extend");
    bench.at(100_000).await;
    let summary = bench.stop().await;
    assert_eq!(
        (summary.processed, summary.released, summary.dead),
        (3, 3, 0)
    );
    for way in ways {
        assert_eq!(bench.attempts(way).await, (State::Processed, 1, 1), "{way}");
    }
    assert_eq!(runs.load(SeqCst), 6);
}

/// Tells how it was told to stop, in the only attempt that it has.
async fn until_told(context: Context) -> Result<(), Failure> {
    tokio::select! {
        () = sleep(LEASE * 2) => Ok(()),
        () = context.cancellation().cancelled() => Err(Failure::retry("told to stop")),
    }
}

/// Little is left of the lease when the answer comes. It is renewed at once.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_late_costs_no_attempt() {
    let mut bench = Bench::new();
    bench.spy.receive_all([message("one")]).await;
    bench.spy.disturb("claim", Trouble::HoldAnswer);
    bench.start(until_told, |builder| builder.retry(at_once(1)));
    bench.at(59_500).await;
    bench.spy.calm("claim");
    bench.at(200_000).await;
    let summary = bench.stop().await;
    assert_eq!((summary.processed, summary.dead), (1, 0));
    assert_eq!(bench.attempts("one").await, (State::Processed, 1, 1));
}

/// The processor stops, and renews nothing any more.
#[tokio::test(start_paused = true)]
async fn an_error_that_stops_the_processor_costs_no_attempt() {
    let mut bench = Bench::new();
    bench.spy.receive_all([message("one")]).await;
    bench.start(until_told, |builder| {
        builder.retry(at_once(1)).drain_limit(LEASE * 3)
    });
    bench.at(1_000).await;
    bench
        .spy
        .disturb("extend", Trouble::Refuse(ErrorKind::Denied));
    let stopped = bench.running.take().unwrap().await.unwrap();
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(bench.attempts("one").await, (State::Pending, 0, 0));
}

/// Within the second that it has after the drain limit.
#[tokio::test(start_paused = true)]
async fn a_stop_costs_no_attempt_however_the_handler_ends() {
    let mut bench = Bench::new();
    let ways = ["error", "panic", "time-out"];
    bench.spy.receive_all(ways.map(message)).await;
    let handler = |context: Context| async move {
        let way = context.message().id().to_string();
        context.cancellation().cancelled().await;
        match way.as_str() {
            "error" => Err::<(), _>(Failure::retry("told to stop")),
            "panic" => panic!("told to stop"),
            _ => std::future::pending().await,
        }
    };
    bench.start(handler, |builder| {
        builder
            .retry(at_once(1))
            .drain_limit(Duration::from_secs(10))
            .handler_timeout(Duration::from_millis(15_500))
    });
    bench.at(5_000).await;
    let summary = bench.stop().await;
    assert_eq!(
        (summary.released, summary.dead, summary.abandoned),
        (3, 0, 0)
    );
    for way in ways {
        assert_eq!(bench.attempts(way).await, (State::Pending, 0, 0), "{way}");
    }
}

/// Otherwise it would be run for ever.
#[tokio::test]
async fn a_handler_that_blocks_its_thread_for_longer_than_its_lease_pays_for_it() {
    let mut bench = Bench::new();
    bench.spy.receive_all([message("blocking")]).await;
    let handler = |context: Context| async move {
        std::thread::sleep(Duration::from_millis(400));
        context.cancellation().cancelled().await;
        Err::<(), _>(Failure::retry("too late"))
    };
    bench.start(handler, |builder| {
        builder.lease(Duration::from_millis(300)).retry(at_once(2))
    });
    eventually("dead", async || bench.spy.count(State::Dead).await == 1).await;
    let summary = bench.stop().await;
    assert_eq!((summary.retried, summary.dead, summary.released), (1, 1, 0));
}

/// In its own transaction, which the processor does not see. It stops when told to.
#[tokio::test(start_paused = true)]
async fn a_handler_that_has_settled_by_itself_has_lost_no_lease() {
    let (log, _guard) = Log::of(tracing::Level::WARN);
    let mut bench = Bench::new();
    bench.spy.receive_all([message("one")]).await;
    let store = bench.spy.inner.clone();
    let handler = move |context: Context| {
        let store = store.clone();
        async move {
            let lease = &context.leased().lease;
            let outcome = Outcome::Processed { result: None };
            assert_eq!(store.settle_one(lease, outcome).await?, Settled::Done);
            context.cancellation().cancelled().await;
            Ok::<_, Failure>(Completion::already_settled())
        }
    };
    bench.start(handler, |builder| builder);
    bench.at(60_000).await;
    let summary = bench.stop().await;
    assert_eq!((summary.processed, summary.lease_lost), (1, 0));
    assert!(bench.told.all().is_empty(), "{:?}", bench.told.all());
    assert!(log.text().is_empty(), "{}", log.text());
}

/// The same, and says so: it may go on for as long as it likes, whatever becomes of it.
#[tokio::test(start_paused = true)]
async fn a_handler_that_says_that_it_has_settled_is_let_finish() {
    let mut bench = Bench::new();
    let ids = ["fine", "fails", "dropped"];
    bench.spy.receive_all(ids.map(message)).await;
    let store = bench.spy.inner.clone();
    let handler = move |context: Context| {
        let store = store.clone();
        async move {
            if context.message().id().as_str() == "late" {
                return Ok(Completion::default());
            }
            let lease = &context.leased().lease;
            let outcome = Outcome::Processed { result: None };
            assert_eq!(store.settle_one(lease, outcome).await?, Settled::Done);
            context.mark_settled();
            tokio::select! {
                () = context.cancellation().cancelled() => std::future::pending().await,
                () = sleep(LEASE * 4) => {}
            }
            match context.message().id().as_str() {
                "fails" => Err(Failure::retry("after it was settled")),
                "dropped" => std::future::pending().await,
                _ => Ok(Completion::already_settled()),
            }
        }
    };
    bench.start(handler, |builder| {
        builder.drain_limit(Duration::from_secs(1))
    });
    bench.at(100_000).await;
    // Nothing waits for them.
    bench.spy.receive_all([message("late")]).await;
    bench.at(110_000).await;
    assert_eq!(bench.attempts("late").await.0, State::Processed);
    bench.at(250_000).await;
    let summary = bench.stop().await;
    assert_eq!((summary.processed, summary.lease_lost), (4, 0));
    assert_eq!((summary.retried, summary.released), (0, 0));
    assert_eq!(summary.abandoned, 0);
    assert!(bench.told.all().is_empty(), "{:?}", bench.told.all());
}

/// What it took is not known, so the end is no orderly one.
#[tokio::test(start_paused = true)]
async fn a_claim_without_an_answer_at_the_end_is_told_and_handed_back_later() {
    let (log, _guard) = Log::of(tracing::Level::WARN);
    let mut bench = Bench::new();
    bench.spy.receive_all([message("one")]).await;
    bench.spy.disturb("claim", Trouble::HoldAnswer);
    bench.start(
        |_: Context| async { Ok::<_, Failure>(Completion::default()) },
        |builder| builder,
    );
    bench.at(1_000).await;
    let summary = bench.stop().await;
    assert_eq!((summary.claimed, summary.abandoned), (0, 1));
    assert_eq!(
        log.lines(&["claim", "no answer"]).len(),
        1,
        "{}",
        log.text()
    );
    assert_eq!(bench.attempts("one").await, (State::Leased, 1, 0));
    // The process lives on, and so does the call.
    bench.spy.calm("claim");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.attempts("one").await, (State::Pending, 0, 0));
}

/// As by a signal to all processes of a service; otherwise it is a failure like any other.
#[tokio::test(start_paused = true)]
async fn what_is_interrupted_by_a_stop_pays_nothing() {
    for is_stopped in [true, false] {
        let mut bench = Bench::new();
        bench.spy.receive_all([message("one")]).await;
        let stop = bench.shutdown.clone();
        let handler = move |_: Context| {
            let stop = stop.clone();
            async move {
                sleep(Duration::from_secs(1)).await;
                if is_stopped {
                    stop.cancel();
                }
                Err::<(), _>(Failure::interrupted("signal 15"))
            }
        };
        bench.start(handler, |builder| builder.retry(at_once(1)));
        bench.at(10_000).await;
        let summary = bench.stop().await;
        let expected = if is_stopped {
            (State::Pending, 0, 0)
        } else {
            (State::Dead, 1, 1)
        };
        assert_eq!(bench.attempts("one").await, expected);
        assert_eq!(summary.released, u64::from(is_stopped));
        assert_eq!(summary.dead, u64::from(!is_stopped));
    }
}
