//! Leases, outages, crashes and shutdown of the processor.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use inbox::{
    CancellationToken, Context, CorruptRow, ErrorKind, Failure, Handler, HandlerName, Outcome,
    Processor, ProcessorBuilder, Result, Router, Settled, State, StoreExt as _, Summary,
    WorkerName,
};
use tokio::{sync::Semaphore, task::JoinHandle};

use crate::processor_support::*;

fn spy() -> Arc<Spy> {
    Arc::new(Spy::new())
}

fn router(handler: impl Handler) -> Router {
    Router::new(billing()).on("order.placed", handler)
}

/// Counts its runs, tells when it has begun, and runs until it is let go.
#[derive(Clone, Default)]
struct Gated {
    runs: Arc<AtomicUsize>,
    go: CancellationToken,
}

impl Gated {
    fn handler(&self) -> impl Handler + use<> {
        let this = self.clone();
        move |_: Context| {
            let this = this.clone();
            async move {
                this.runs.fetch_add(1, SeqCst);
                this.go.cancelled().await;
                Ok::<_, Failure>(())
            }
        }
    }

    async fn begun(&self, runs: usize) {
        eventually("begun", async || self.runs.load(SeqCst) >= runs).await;
    }
}

/// Runs a processor in the background.
struct Background {
    shutdown: CancellationToken,
    task: JoinHandle<Result<Summary>>,
}

impl Background {
    fn start(builder: ProcessorBuilder) -> Self {
        let processor = builder.build().unwrap();
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let task = tokio::spawn(async move { processor.run(stop).await });
        Self { shutdown, task }
    }

    async fn end(self) -> Result<Summary> {
        tokio::time::timeout(Duration::from_secs(60), self.task)
            .await
            .unwrap()
            .unwrap()
    }

    async fn stop(self) -> Result<Summary> {
        self.shutdown.cancel();
        self.end().await
    }
}

#[tokio::test]
async fn the_lease_of_a_long_handler_is_renewed() {
    let spy = spy();
    spy.receive_all([message(1)]).await;
    let handler = Gated::default();
    let length = Duration::from_millis(600);
    // It polls once: however late a renewal is, nobody claims the message in between.
    let hour = Duration::from_secs(3600);
    let builder = processor(&spy, router(handler.handler())).lease(length);
    let running = Background::start(builder.poll_intervals(hour, hour));
    handler.begun(1).await;
    // At the latest.
    let first = SystemTime::now() + length;
    eventually("renewed twice", async || *spy.extends.lock().unwrap() >= 2).await;
    eventually("longer", async || {
        let until = spy.record(1).await.lease_until;
        until.is_some_and(|until| until > first + length / 2)
    })
    .await;
    handler.go.cancel();
    eventually("processed", async || {
        spy.record(1).await.state == State::Processed
    })
    .await;
    running.stop().await.unwrap();
    assert_eq!(spy.record(1).await.attempts.started, 1);
}

#[tokio::test]
async fn a_handler_whose_lease_is_lost_is_told_and_its_outcome_discarded() {
    let spy = spy();
    spy.receive_all([message(1)]).await;
    let (begun, told) = (CancellationToken::new(), Told::default());
    let started = begun.clone();
    let router = router(move |context: Context| {
        let started = started.clone();
        async move {
            started.cancel();
            context.cancellation().cancelled().await;
            Ok::<_, Failure>(b"too late".to_vec())
        }
    });
    let length = Duration::from_millis(300);
    // It polls once: nothing is to be claimed again by this processor.
    let hour = Duration::from_secs(3600);
    let builder = processor(&spy, router).lease(length).hooks(told.clone());
    let running = Background::start(builder.poll_intervals(hour, hour));
    begun.cancelled().await;
    let other = WorkerName::new("other").unwrap();
    let mut stolen = Vec::new();
    while stolen.is_empty() {
        spy.clock.advance(Duration::from_secs(60));
        let claims = spy
            .inner
            .claim_for(&billing(), 1, Duration::from_secs(3600), &other)
            .await;
        stolen = claims.unwrap().leased;
    }
    eventually("told", async || told.all() == ["lost 1"]).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.lease_lost, summary.processed), (1, 0));
    let record = spy.record(1).await;
    assert_eq!((record.state, record.result), (State::Leased, None));
    let settled = spy
        .inner
        .settle_one(&stolen[0].lease, Outcome::Release)
        .await
        .unwrap();
    assert_eq!(settled, Settled::Done);
}

#[tokio::test]
async fn a_handler_that_ignores_the_loss_of_its_lease_is_dropped() {
    let spy = spy();
    spy.receive_all([message(1)]).await;
    let (handler, told) = (Gated::default(), Told::default());
    let builder = processor(&spy, router(handler.handler())).hooks(told.clone());
    let hour = Duration::from_secs(3600);
    let builder = builder
        .lease(Duration::from_millis(120))
        .poll_intervals(hour, hour);
    let running = Background::start(builder);
    handler.begun(1).await;
    // An operator's replay is refused while it is leased, so let the lease run out first.
    eventually("discarded", async || {
        spy.clock.advance(Duration::from_secs(60));
        spy.inner.discard(&key(1)).await.unwrap() == inbox::Intervention::Done
    })
    .await;
    eventually("told", async || told.all() == ["lost 1"]).await;
    // The gate stays closed. The processor can end all the same, long before its drain limit.
    let summary = running.stop().await.unwrap();
    assert_eq!(summary.lease_lost, 1);
    assert_eq!(summary.abandoned, 0);
    assert_eq!(spy.record(1).await.state, State::Discarded);
}

#[tokio::test]
async fn outcomes_outlive_an_outage_and_their_leases_are_renewed_meanwhile() {
    let spy = spy();
    spy.receive_all((0..20).map(message)).await;
    spy.disturb("settle", Trouble::Refuse(ErrorKind::Unavailable));
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let handler = move |_: Context| {
        count.fetch_add(1, SeqCst);
        async { Ok::<_, Failure>(b"kept".to_vec()) }
    };
    let length = Duration::from_millis(240);
    let builder = processor(&spy, router(handler))
        .lease(length)
        .concurrency(8);
    let running = Background::start(builder);
    eventually("renewed", async || *spy.extends.lock().unwrap() >= 10).await;
    // Messages whose outcome is not stored keep their slots: nothing more was claimed or run.
    assert_eq!(runs.load(SeqCst), 8);
    assert_eq!(spy.count(State::Leased).await, 8);
    spy.disturb("settle", Trouble::Refuse(ErrorKind::Conflict));
    tokio::time::sleep(Duration::from_millis(100)).await;
    spy.disturb("settle", Trouble::LoseReply);
    eventually("stored", async || spy.count(State::Processed).await >= 8).await;
    spy.calm("settle");
    eventually("all", async || spy.count(State::Processed).await == 20).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.lease_lost), (20, 0));
    assert_eq!(runs.load(SeqCst), 20);
    for record in spy.records().await {
        assert_eq!(record.attempts.started, 1);
        assert_eq!(
            spy.record(record.key.id.as_str()).await.result.unwrap(),
            "kept"
        );
    }
}

#[tokio::test]
async fn claiming_goes_on_after_an_outage() {
    let spy = spy();
    spy.receive_all((0..20).map(message)).await;
    spy.disturb("claim", Trouble::Refuse(ErrorKind::Unavailable));
    spy.disturb("extend", Trouble::Refuse(ErrorKind::Unavailable));
    let running = Background::start(processor(
        &spy,
        router(|_: Context| async { Ok::<_, Failure>(()) }),
    ));
    eventually("tried", async || {
        spy.claim_limits.lock().unwrap().len() >= 3
    })
    .await;
    spy.calm("claim");
    eventually("all", async || spy.count(State::Processed).await == 20).await;
    assert_eq!(running.stop().await.unwrap().processed, 20);
}

#[tokio::test]
async fn a_claim_whose_reply_is_lost_costs_an_attempt_but_no_message() {
    let spy = spy();
    spy.receive_all((0..5).map(message)).await;
    spy.disturb("claim", Trouble::LoseReply);
    let running = Background::start(processor(
        &spy,
        router(|_: Context| async { Ok::<_, Failure>(()) }),
    ));
    eventually("claimed", async || spy.count(State::Leased).await == 5).await;
    spy.calm("claim");
    spy.clock.advance(Duration::from_secs(61));
    eventually("all", async || spy.count(State::Processed).await == 5).await;
    running.stop().await.unwrap();
    assert_eq!(spy.record(1).await.attempts.crashed(false), 1);
}

#[tokio::test]
async fn an_error_that_is_not_worth_repeating_stops_the_processor() {
    for operation in ["claim", "settle", "extend"] {
        let spy = spy();
        spy.receive_all((0..4).map(message)).await;
        spy.disturb(operation, Trouble::Refuse(ErrorKind::Denied));
        let ended = Arc::new(AtomicUsize::new(0));
        let count = ended.clone();
        let handler = move |context: Context| {
            let count = count.clone();
            async move {
                // The first is settled while the others still run.
                if context.message().id().as_str() != "0" {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
                count.fetch_add(1, SeqCst);
                Ok::<_, Failure>(())
            }
        };
        // It polls once: a lease that is renewed too late is nobody else's.
        let hour = Duration::from_secs(3600);
        let builder = processor(&spy, router(handler)).lease(Duration::from_millis(250));
        let builder = builder.poll_intervals(hour, hour);
        let error = Background::start(builder).end().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.operation()),
            (ErrorKind::Denied, Some(operation))
        );
        let expected = if operation == "claim" { 0 } else { 4 };
        assert_eq!(
            ended.load(SeqCst),
            expected,
            "{operation}: what runs is finished"
        );
        let processed = if operation == "extend" { 4 } else { 0 };
        assert_eq!(spy.count(State::Processed).await, processed, "{operation}");
    }
}

#[tokio::test]
async fn corrupt_rows_are_told_and_stop_nobody() {
    let (spy, told) = (spy(), Told::default());
    spy.receive_all([message(1)]).await;
    spy.corrupt.lock().unwrap().push(CorruptRow {
        place: "row 7".into(),
        reason: "no such state".into(),
    });
    let router = router(|_: Context| async { Ok::<_, Failure>(()) });
    let summary = until_idle(processor(&spy, router).hooks(told.clone())).await;
    assert_eq!(summary.processed, 1);
    assert_eq!(told.all(), ["corrupt row 7"]);
}

#[tokio::test]
async fn shutdown_lets_running_handlers_finish_and_claims_nothing_more() {
    let spy = spy();
    spy.receive_all((0..10).map(message)).await;
    let handler = Gated::default();
    let builder = processor(&spy, router(handler.handler())).concurrency(4);
    let running = Background::start(builder);
    handler.begun(4).await;
    running.shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!running.task.is_finished());
    handler.go.cancel();
    let summary = running.end().await.unwrap();
    assert_eq!(
        (summary.claimed, summary.processed, summary.abandoned),
        (4, 4, 0)
    );
    assert_eq!(spy.count(State::Pending).await, 6);
}

#[tokio::test]
async fn messages_whose_claim_is_answered_after_shutdown_are_handed_back_untouched() {
    let gate = Arc::new(Semaphore::new(0));
    let mut spy = Spy::new();
    spy.claim_gate = Some(gate.clone());
    let spy = Arc::new(spy);
    spy.receive_all((0..10).map(message)).await;
    let handler = Gated::default();
    let running = Background::start(processor(&spy, router(handler.handler())));
    eventually("claimed", async || spy.count(State::Leased).await == 10).await;
    running.shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(30)).await;
    gate.add_permits(1);
    let summary = running.end().await.unwrap();
    assert_eq!(
        (summary.claimed, summary.released, summary.abandoned),
        (10, 10, 0)
    );
    assert_eq!(handler.runs.load(SeqCst), 0);
    for record in spy.records().await {
        assert_eq!((record.state, record.attempts.started), (State::Pending, 0));
    }
}

#[tokio::test]
async fn handlers_that_outlive_the_drain_limit_are_told_then_dropped_and_cost_no_attempt() {
    let spy = spy();
    let ids = ["polite", "giving-up", "hopeless", "stubborn"];
    spy.receive_all(ids.map(message)).await;
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    let handler = move |context: Context| {
        let count = count.clone();
        async move {
            count.fetch_add(1, SeqCst);
            let id = context.message().id().as_str();
            if id == "stubborn" {
                return std::future::pending().await;
            }
            context.cancellation().cancelled().await;
            match id {
                "polite" => Ok(()),
                "giving-up" => Err(Failure::retry("told to stop")),
                _ => Err(Failure::dead("hopeless all the same")),
            }
        }
    };
    // On their last attempt.
    let builder = processor(&spy, router(handler)).retry(at_once(1));
    let running = Background::start(builder.drain_limit(Duration::from_millis(20)));
    eventually("begun", async || begun.load(SeqCst) == 4).await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.dead), (1, 1));
    assert_eq!((summary.released, summary.abandoned), (2, 0));
    for id in ["giving-up", "stubborn"] {
        let record = spy.record(id).await;
        assert_eq!((record.state, record.attempts.started), (State::Pending, 0));
    }
    assert_eq!(spy.record("hopeless").await.state, State::Dead);
}

/// Kubernetes kills 30 seconds after it has asked a process to stop.
#[tokio::test(start_paused = true)]
async fn a_shutdown_with_default_settings_is_over_within_30_seconds() {
    let spy = spy();
    spy.receive_all([message(1)]).await;
    let router = router(|_: Context| std::future::pending::<std::result::Result<(), Failure>>());
    let builder = Processor::builder(spy.clone()).router(router);
    let running = Background::start(builder);
    eventually("claimed", async || spy.count(State::Leased).await == 1).await;
    spy.disturb("settle", Trouble::Refuse(ErrorKind::Unavailable));
    let asked = tokio::time::Instant::now();
    let summary = running.stop().await.unwrap();
    assert_eq!(summary.abandoned, 1);
    assert!(
        asked.elapsed() < Duration::from_secs(28),
        "{:?}",
        asked.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_without_a_running_handler_does_not_wait_for_the_drain_limit() {
    for operation in ["settle", "claim"] {
        let spy = spy();
        spy.receive_all([message(1)]).await;
        let handler = Gated::default();
        let router = router(handler.handler());
        let builder = Processor::builder(spy.clone()).router(router);
        let running = Background::start(builder.concurrency(2));
        handler.begun(1).await;
        // One operation never ends.
        spy.disturb(operation, Trouble::Hold);
        tokio::time::sleep(Duration::from_secs(2)).await;
        handler.go.cancel();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let asked = tokio::time::Instant::now();
        running.stop().await.unwrap();
        assert!(
            asked.elapsed() < Duration::from_secs(6),
            "{:?}",
            asked.elapsed()
        );
    }
}

#[tokio::test]
async fn shutdown_during_an_outage_ends_and_leaves_the_leases_to_run_out() {
    let spy = spy();
    spy.receive_all([message(1)]).await;
    spy.disturb("settle", Trouble::Refuse(ErrorKind::Unavailable));
    let router = router(|_: Context| async { Ok::<_, Failure>(()) });
    let running = Background::start(processor(&spy, router).drain_limit(Duration::ZERO));
    eventually("tried", async || {
        !spy.settle_sizes.lock().unwrap().is_empty()
    })
    .await;
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.processed, summary.abandoned), (0, 1));
    assert_eq!(spy.record(1).await.state, State::Leased);
}

/// Set when it is dropped.
struct OnDrop(CancellationToken);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[tokio::test]
async fn dropping_the_processor_drops_its_handlers() {
    let spy = spy();
    spy.receive_all([message(1)]).await;
    let (begun, dropped) = (CancellationToken::new(), CancellationToken::new());
    let tokens = (begun.clone(), dropped.clone());
    let handler = move |_: Context| {
        let (begun, guard) = (tokens.0.clone(), OnDrop(tokens.1.clone()));
        async move {
            begun.cancel();
            std::future::pending::<()>().await;
            drop(guard);
            Ok::<_, Failure>(())
        }
    };
    let running = Background::start(processor(&spy, router(handler)));
    begun.cancelled().await;
    running.task.abort();
    tokio::time::timeout(Duration::from_secs(60), dropped.cancelled())
        .await
        .unwrap();
    assert_eq!(spy.record(1).await.state, State::Leased);
}

/// Some messages kill their worker. However the others are mixed with them, only the killers use
/// up their attempts.
///
/// On one thread: who dies between a claim and the return of what it took too many of takes their attempts
/// along. A slow machine with several threads makes that moment long.
#[tokio::test]
async fn only_the_message_that_kills_its_worker_dies() {
    let spy = spy();
    let is_killer = |id: &str| id == "k7" || id == "k23";
    let ids = (0..40).map(|n| {
        if n == 7 || n == 23 {
            format!("k{n}")
        } else {
            format!("m{n:02}")
        }
    });
    spy.receive_all(ids.map(message)).await;
    let finished = Arc::new(Mutex::new(BTreeSet::new()));
    let mut deaths = 0;
    loop {
        let killed = Arc::new(tokio::sync::Notify::new());
        let (kill, done, watch) = (killed.clone(), finished.clone(), spy.clone());
        let handler = move |context: Context| {
            let (kill, done, watch) = (kill.clone(), done.clone(), watch.clone());
            async move {
                let id = context.message().id().to_string();
                let attempts = context.attempts();
                if attempts.crashed(true) > 0 && attempts.started == 3 {
                    assert_eq!(watch.count(State::Leased).await, 1, "a suspect runs alone");
                }
                if is_killer(&id) {
                    kill.notify_one();
                    std::future::pending::<()>().await;
                }
                // Long enough for some to be caught together with a killer.
                tokio::time::sleep(Duration::from_millis(1)).await;
                done.lock().unwrap().insert(id);
                Ok::<_, Failure>(())
            }
        };
        let builder = processor(&spy, router(handler))
            .retry(at_once(3))
            .concurrency(16);
        let processor: Processor = builder.build().unwrap();
        let end = tokio::select! {
            end = processor.run_until_idle(CancellationToken::new()) => Some(end),
            // The process is killed: nothing is settled any more.
            () = killed.notified() => None,
        };
        match end {
            Some(summary) => break assert!(summary.is_ok()),
            None => deaths += 1,
        }
        assert!(deaths < 50);
        spy.clock.advance(Duration::from_secs(120));
    }
    assert!(deaths >= 3, "{deaths}");
    for record in spy.records().await {
        let id = record.key.id.as_str();
        let expected = if is_killer(id) {
            State::Dead
        } else {
            State::Processed
        };
        assert_eq!(record.state, expected, "{id}: {:?}", record.last_error);
    }
    assert_eq!(finished.lock().unwrap().len(), 38);
}

/// A handler name whose message has crashed a worker holds up nobody but itself.
#[tokio::test]
async fn a_suspect_is_alone_among_the_messages_of_its_own_handler_only() {
    let spy = spy();
    spy.receive_all([message("suspect")]).await;
    assert_eq!(spy.crash(1).await.len(), 1);
    let other = HandlerName::new("other").unwrap();
    let others = (0..30).map(|id| message(id).for_handler(other.clone()));
    spy.receive_all(others.chain([message("neighbour")])).await;
    let suspect = Gated::default();
    let neighbour = Arc::new(AtomicUsize::new(0));
    let (gated, counted) = (Arc::new(suspect.handler()), neighbour.clone());
    let routed = router(move |context: Context| {
        let (gated, counted) = (gated.clone(), counted.clone());
        async move {
            if context.message().id().as_str() == "suspect" {
                return gated.handle(&context).await;
            }
            counted.fetch_add(1, SeqCst);
            Ok(().into())
        }
    });
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    let served = Router::new(other).on("order.placed", move |_: Context| {
        count.fetch_add(1, SeqCst);
        async { Ok::<_, Failure>(()) }
    });
    let builder = processor(&spy, routed).router(served).retry(at_once(2));
    let running = Background::start(builder.concurrency(8));
    suspect.begun(1).await;
    eventually("others are served", async || handled.load(SeqCst) == 30).await;
    // All that could run has run; what shares the suspect's handler has not, or ran before it.
    let before = neighbour.load(SeqCst);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(neighbour.load(SeqCst), before);
    suspect.go.cancel();
    eventually("all", async || spy.count(State::Processed).await == 32).await;
    assert_eq!(neighbour.load(SeqCst), 1);
    running.stop().await.unwrap();
}

/// What was claimed with suspects might kill the worker before these are handed back, and would so cost them
/// their last attempt.
#[tokio::test]
async fn nothing_that_came_with_a_suspect_runs_before_it_is_handed_back() {
    let spy = spy();
    spy.receive_all([message("first")]).await;
    let first = Gated::default();
    let others = Arc::new(Mutex::new(Vec::new()));
    let (gated, ran, watch) = (Arc::new(first.handler()), others.clone(), spy.clone());
    let routed = router(move |context: Context| {
        let (gated, ran, watch) = (gated.clone(), ran.clone(), watch.clone());
        async move {
            let id = context.message().id().to_string();
            if id == "first" {
                return gated.handle(&context).await;
            }
            let leased = watch.count(State::Leased).await;
            ran.lock().unwrap().push((id, leased));
            Ok(().into())
        }
    });
    let builder = processor(&spy, routed).retry(at_once(2)).concurrency(8);
    let running = Background::start(builder);
    first.begun(1).await;
    // One that has crashed a worker, and others, while the first one runs. Nothing can be handed back.
    spy.disturb("settle", Trouble::Hold);
    spy.disturb("claim", Trouble::Hold);
    spy.receive_all([message("suspect")]).await;
    assert_eq!(spy.crash(1).await.len(), 1);
    spy.receive_all([message("other"), message("another")])
        .await;
    spy.calm("claim");
    eventually("handed back", async || {
        !spy.settle_sizes.lock().unwrap().is_empty()
    })
    .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(others.lock().unwrap().is_empty(), "{others:?}");
    spy.calm("settle");
    first.go.cancel();
    eventually("all", async || spy.count(State::Processed).await == 4).await;
    let others = others.lock().unwrap().clone();
    let alone = others.iter().find(|(id, _)| id == "suspect");
    assert_eq!(alone.map(|(_, leased)| *leased), Some(1), "{others:?}");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_suspect_that_waits_is_handed_back_at_shutdown() {
    let spy = spy();
    spy.receive_all([message("suspect")]).await;
    assert_eq!(spy.crash(1).await.len(), 1);
    spy.receive_all([message("neighbour")]).await;
    // The neighbour's release cannot be stored, so the suspect has to wait.
    spy.disturb("settle", Trouble::Refuse(ErrorKind::Unavailable));
    let handler = Gated::default();
    let running = Background::start(processor(&spy, router(handler.handler())).retry(at_once(2)));
    eventually("tried", async || {
        !spy.settle_sizes.lock().unwrap().is_empty()
    })
    .await;
    assert_eq!(handler.runs.load(SeqCst), 0);
    running.shutdown.cancel();
    spy.calm("settle");
    let summary = running.end().await.unwrap();
    assert_eq!((summary.released, summary.abandoned), (2, 0));
    assert_eq!(spy.record("suspect").await.attempts.started, 1);
    assert_eq!(spy.record("neighbour").await.attempts.started, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processors_share_the_work() {
    let spy = spy();
    spy.receive_all((0..600).map(message)).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let builder = || {
        let count = runs.clone();
        let handler = move |context: Context| {
            let first =
                count.fetch_add(1, SeqCst).is_multiple_of(5) && context.attempts().started == 1;
            async move {
                if first {
                    Err(Failure::retry("again"))
                } else {
                    Ok(())
                }
            }
        };
        processor(&spy, router(handler))
            .concurrency(10)
            .retry(at_once(3))
    };
    let (one, two, three) = tokio::join!(
        until_idle(builder()),
        until_idle(builder()),
        until_idle(builder())
    );
    // One may look while another still holds the last messages, and stop.
    let rest = until_idle(builder()).await;
    let all = [one, two, three, rest];
    assert_eq!(all.iter().map(|s| s.processed).sum::<u64>(), 600);
    let retried: u64 = all.iter().map(|s| s.retried).sum();
    assert_eq!(runs.load(SeqCst) as u64, 600 + retried);
}
