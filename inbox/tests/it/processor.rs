//! Handlers, routing, failures and bounds of the processor, on a real store in memory.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Bytes, CancellationToken, Completion, Context, Due, Failure, Fallback, Handler, HandlerName,
    Hooks, Invalid, Leased, OrderingKey, Outcome, Processor, Router, State, StoreExt as _,
};
use inbox_memory::MemoryOptions;

use crate::processor_support::*;

#[derive(serde::Deserialize)]
struct OrderPlaced {
    order: u64,
}

fn spy() -> Arc<Spy> {
    Arc::new(Spy::new())
}

/// A router whose only handler is `handler`.
fn router(handler: impl Handler) -> Router {
    Router::new(billing()).on("order.placed", handler)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_is_processed_once() {
    let spy = spy();
    spy.receive_all((0..1000).map(message)).await;
    let runs = Arc::new(Mutex::new(Vec::new()));
    let seen = runs.clone();
    let summary = until_idle(processor(
        &spy,
        router(move |context: Context| {
            seen.lock()
                .unwrap()
                .push(context.message().id().to_string());
            async { Ok::<_, Failure>(()) }
        }),
    ))
    .await;
    assert_eq!((summary.claimed, summary.processed), (1000, 1000));
    assert_eq!(spy.count(State::Processed).await, 1000);
    let mut runs = runs.lock().unwrap().clone();
    runs.sort();
    runs.dedup();
    assert_eq!(runs.len(), 1000);
}

#[tokio::test]
async fn results_are_stored() {
    let spy = spy();
    spy.receive_all([
        message(1),
        message_of("raw", 2, ""),
        message_of("none", 3, ""),
    ])
    .await;
    let router = Router::new(billing())
        .on_json("order.placed", |event: OrderPlaced, _| async move {
            Ok::<_, Failure>(event.order.to_string().into_bytes())
        })
        .on("raw", |_: Context| async {
            Ok::<_, Failure>(Bytes::from_static(b"raw"))
        })
        .on("none", |_: Context| async { Ok::<_, Failure>(()) });
    until_idle(processor(&spy, router)).await;
    assert_eq!(spy.record(1).await.result.unwrap(), "7");
    assert_eq!(spy.record(2).await.result.unwrap(), "raw");
    assert_eq!(spy.record(3).await.result, None);
}

#[tokio::test]
async fn a_payload_that_is_not_the_expected_json_is_dead_and_not_repeated() {
    let spy = spy();
    let payloads = [
        ("form", r#"{"order": "secret-text"}"#, "(line 1, column 23)"),
        ("name", r#"{"secret-text": 1}"#, "(line 1, column 18)"),
        ("syntax", "{\n secret-text", "(line 2, column 2)"),
        ("short", r#"{"order": "#, "(line 1, column 10)"),
        ("empty", "", "(line 1, column 0)"),
    ];
    spy.receive_all(payloads.map(|(id, payload, _)| message_of("order.placed", id, payload)))
        .await;
    let router =
        Router::new(billing()).on_json("order.placed", |event: OrderPlaced, _| async move {
            Err::<(), _>(Failure::retry(format!("ran with {}", event.order)))
        });
    // By hand, as in a transaction.
    let router = router.on("order.moved", |context: Context| async move {
        let event: OrderPlaced = context.json()?;
        Err::<(), _>(Failure::retry(format!("ran with {}", event.order)))
    });
    spy.receive_all([message_of("order.moved", "hand", "secret")])
        .await;
    let summary = until_idle(processor(&spy, router)).await;
    assert_eq!((summary.dead, summary.claimed), (6, 6));
    let reason = spy.record("hand").await.last_error;
    let told = "unreadable payload: it is not JSON (line 1, column 1)";
    assert_eq!(reason.as_deref(), Some(told));
    for (id, _, place) in payloads {
        let record = spy.record(id).await;
        assert_eq!(record.state, State::Dead);
        let reason = record.last_error.unwrap();
        assert!(reason.contains(place), "{id}: {reason}");
        assert!(!reason.contains("secret"), "{id}: {reason}");
    }
}

#[tokio::test]
async fn messages_of_unknown_kinds_go_where_they_are_told() {
    let fallbacks = [
        (Router::new(billing()), State::Pending),
        (
            Router::new(billing()).fallback(Fallback::DeadLetter),
            State::Dead,
        ),
        (
            Router::new(billing()).fallback(Fallback::Retry),
            State::Pending,
        ),
        (
            Router::new(billing()).fallback(Fallback::Ignore),
            State::Processed,
        ),
        (
            Router::new(billing()).fallback_handler(|context: Context| async move {
                assert_eq!(context.message().kind().as_str(), "new");
                Ok::<_, Failure>(Completion::with_result("handled"))
            }),
            State::Processed,
        ),
    ];
    for (i, (router, state)) in fallbacks.into_iter().enumerate() {
        let spy = spy();
        spy.receive_all([message_of("new", i, "")]).await;
        until_idle(processor(&spy, router)).await;
        let record = spy.record(i).await;
        assert_eq!(record.state, state, "{i}");
        let is_handled = i == 4;
        assert_eq!(record.result.is_some(), is_handled);
        // What is left for others costs no attempt.
        let wait = record.due_at.duration_since(record.accepted_at).unwrap();
        let is_left = record.attempts.started == 0 && wait >= Duration::from_secs(30);
        assert_eq!(is_left, i == 0, "{record:?}");
    }
}

#[tokio::test]
async fn failures_are_settled_as_they_ask() {
    let spy = spy();
    let kinds = [
        "retry",
        "converted",
        "later",
        "dead",
        "panic",
        "text panic",
        "slow",
    ];
    spy.receive_all(kinds.map(|kind| message_of(kind, kind, "")))
        .await;
    let router = Router::new(billing())
        .on("retry", |_: Context| async {
            Err::<(), _>(Failure::retry("try again"))
        })
        .on("converted", |_: Context| async {
            "seven".parse::<u64>()?;
            Ok::<_, Failure>(())
        })
        .on("later", |_: Context| async {
            Err::<(), _>(Failure::retry_after(Duration::from_secs(5000), "closed"))
        })
        .on("dead", |_: Context| async {
            Err::<(), _>(Failure::dead("hopeless"))
        })
        .on("panic", |_: Context| async {
            panic!("static") as Result<(), Failure>
        })
        .on("text panic", |context: Context| {
            assert!(context.attempts().started > 7, "before the future: {}", 7);
            async { Ok::<_, Failure>(()) }
        })
        .on("slow", |_: Context| async {
            std::future::pending::<()>().await;
            Ok::<_, Failure>(())
        });
    let builder = processor(&spy, router).handler_timeout(Duration::from_millis(50));
    let summary = until_idle(builder).await;
    assert_eq!((summary.retried, summary.dead), (6, 1));
    let expected = [
        ("retry", "try again", 5),
        (
            "converted",
            "core::num::error::ParseIntError: invalid digit found in string",
            5,
        ),
        ("later", "closed", 5000),
        ("panic", "panicked: static", 5),
        ("text panic", "panicked: before the future: 7", 5),
        ("slow", "timed out", 5),
    ];
    for (id, error, seconds) in expected {
        let record = spy.record(id).await;
        assert_eq!(record.state, State::Pending, "{id}");
        assert_eq!(record.last_error.as_deref(), Some(error));
        assert_eq!((record.attempts.started, record.attempts.finished), (1, 1));
        let delay = record.due_at.duration_since(record.accepted_at).unwrap();
        assert!(delay >= Duration::from_secs(seconds) / 2, "{id}: {delay:?}");
        assert!(
            delay <= Duration::from_secs(seconds * 11 / 10 + 60),
            "{id}: {delay:?}"
        );
    }
    let dead = spy.record("dead").await;
    assert_eq!(dead.state, State::Dead);
    assert_eq!(dead.last_error.as_deref(), Some("hopeless"));
}

#[tokio::test]
async fn the_last_failed_attempt_is_the_death_of_a_message() {
    let spy = spy();
    spy.receive_all([message(1), message(2)]).await;
    let told = Told::default();
    let router = router(|context: Context| async move {
        let attempt = context.attempts().started;
        if context.message().id().as_str() == "1" {
            return Err::<(), _>(Failure::retry_after(
                Duration::ZERO,
                format!("no. {attempt}"),
            ));
        }
        Err(Failure::retry(format!("no. {attempt}")))
    });
    let summary = until_idle(
        processor(&spy, router)
            .retry(at_once(3))
            .hooks(told.clone()),
    )
    .await;
    assert_eq!((summary.claimed, summary.retried, summary.dead), (6, 4, 2));
    let mut told = told.all();
    told.sort();
    assert_eq!(told, ["dead 1: no. 3", "dead 2: no. 3"]);
}

#[tokio::test]
async fn attempts_that_crashed_their_worker_use_a_message_up_without_running_it() {
    let spy = spy();
    spy.receive_all([message(1)]).await;
    for _ in 0..3 {
        assert_eq!(spy.crash(1).await.len(), 1);
    }
    let router = router(|_: Context| async { panic!("must not run") as Result<(), Failure> });
    let summary = until_idle(processor(&spy, router).retry(at_once(3))).await;
    assert_eq!((summary.claimed, summary.dead), (1, 1));
    let reason = spy.record(1).await.last_error.unwrap();
    assert!(reason.contains("of 3, 3 began and never ended"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_is_claimed_than_there_are_free_slots_and_claims_are_batches() {
    let spy = spy();
    spy.receive_all((0..2000).map(message)).await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let held = spy.clone();
    let shared = (running.clone(), most.clone());
    let router = router(move |context: Context| {
        let (running, most, spy) = (shared.0.clone(), shared.1.clone(), held.clone());
        async move {
            most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::task::yield_now().await;
            if context.message().id().as_str().ends_with('7') {
                assert!(spy.count(State::Leased).await <= 16);
            }
            running.fetch_sub(1, SeqCst);
            Ok::<_, Failure>(())
        }
    });
    let summary = until_idle(processor(&spy, router).concurrency(16).batch(10)).await;
    assert_eq!((summary.processed, summary.retried), (2000, 0));
    assert!(most.load(SeqCst) <= 16);
    let limits = spy.claim_limits.lock().unwrap().clone();
    assert!(limits.iter().all(|limit| *limit <= 10));
    // One by one it would be 2000.
    assert!(limits.len() < 600, "{} claims", limits.len());
    assert!(spy.settle_sizes.lock().unwrap().len() < 1000);
}

#[tokio::test]
async fn a_single_free_slot_is_used_although_the_others_are_busy() {
    let spy = spy();
    spy.receive_all((0..8).map(message)).await;
    let release = CancellationToken::new();
    let (waiting, quick) = (release.clone(), Arc::new(AtomicUsize::new(0)));
    let count = quick.clone();
    let router = router(move |context: Context| {
        let (waiting, count) = (waiting.clone(), count.clone());
        async move {
            if context.message().id().as_str() < "3" {
                waiting.cancelled().await;
            } else if count.fetch_add(1, SeqCst) == 4 {
                // The fifth and last quick one: all of them went through one slot.
                waiting.cancel();
            }
            Ok::<_, Failure>(())
        }
    });
    let summary = until_idle(processor(&spy, router).concurrency(4)).await;
    assert_eq!(summary.processed, 8);
    assert!(release.is_cancelled());
}

#[tokio::test]
async fn messages_of_an_ordering_key_are_run_in_order_through_retries() {
    let spy = spy();
    let keyed = |n: usize| {
        let ordering_key = OrderingKey::new(format!("customer-{}", n % 3)).unwrap();
        message(format!("{n:02}")).with_ordering_key(ordering_key)
    };
    spy.receive_all((0..60).map(keyed)).await;
    let done = Arc::new(Mutex::new(Vec::new()));
    let log = done.clone();
    let router = router(move |context: Context| {
        let log = log.clone();
        async move {
            let id = context.message().id().to_string();
            if id.ends_with('5') && context.attempts().started < 3 {
                return Err(Failure::retry("not yet"));
            }
            log.lock()
                .unwrap()
                .push((context.message().ordering_key().cloned(), id));
            Ok(())
        }
    });
    let summary = until_idle(processor(&spy, router).retry(at_once(5))).await;
    assert_eq!((summary.processed, summary.retried), (60, 12));
    let done = done.lock().unwrap();
    for customer in 0..3 {
        let ordering_key = OrderingKey::new(format!("customer-{customer}")).unwrap();
        let ids: Vec<_> = done
            .iter()
            .filter(|(key, _)| key.as_ref() == Some(&ordering_key))
            .collect();
        assert_eq!(ids.len(), 20);
        assert!(ids.is_sorted(), "{ids:?}");
    }
}

#[tokio::test]
async fn draining_waits_for_scheduled_retries_and_due_times() {
    let spy = spy();
    spy.receive_all([
        message(1),
        message(2).with_due(Due::After(Duration::from_secs(60))),
    ])
    .await;
    let router = router(|context: Context| async move {
        if context.attempts().started == 1 && context.message().id().as_str() == "1" {
            return Err(Failure::retry_after(Duration::from_secs(50), "later"));
        }
        Ok(())
    });
    let processor = processor(&spy, router).build().unwrap();
    let shutdown = CancellationToken::new();
    let idle = processor.run_until_idle(shutdown.clone()).await.unwrap();
    assert_eq!((idle.processed, idle.retried), (0, 1));
    let later = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        spy.clock.advance(Duration::from_secs(61));
    };
    let (drained, ()) = tokio::join!(
        processor.run_until_drained(spy.inner.clone(), shutdown),
        later
    );
    let drained = drained.unwrap();
    assert_eq!((drained.processed, drained.retried), (2, 0));
}

#[tokio::test]
async fn an_idle_processor_is_woken_without_polling() {
    let spy = spy();
    let router = router(|_: Context| async { Ok::<_, Failure>(()) });
    let hour = Duration::from_secs(3600);
    let processor = processor(&spy, router)
        .poll_intervals(hour, hour)
        .build()
        .unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let task = tokio::spawn(async move { processor.run(stop).await });
    eventually("the first look", async || {
        !spy.claim_limits.lock().unwrap().is_empty()
    })
    .await;
    for id in 0..3 {
        spy.receive_all([message(id)]).await;
        eventually("woken", async || {
            spy.record(id).await.state == State::Processed
        })
        .await;
    }
    shutdown.cancel();
    assert_eq!(task.await.unwrap().unwrap().processed, 3);
}

#[tokio::test]
async fn polling_finds_work_when_there_are_no_wakeups() {
    let spy = spy();
    spy.disturb("subscribe", Trouble::Refuse(inbox::ErrorKind::Denied));
    let processor = processor(&spy, router(|_: Context| async { Ok::<_, Failure>(()) }))
        .build()
        .unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let task = tokio::spawn(async move { processor.run(stop).await });
    tokio::time::sleep(Duration::from_millis(30)).await;
    spy.receive_all([message(1)]).await;
    eventually("found", async || {
        spy.record(1).await.state == State::Processed
    })
    .await;
    shutdown.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_handler_can_settle_by_itself() {
    let spy = spy();
    spy.receive_all([message(1)]).await;
    let store = spy.inner.clone();
    let router = router(move |context: Context| {
        let store = store.clone();
        async move {
            let result = Some(Bytes::from_static(b"mine"));
            let outcome = Outcome::Processed { result };
            let _ = store.settle_one(&context.leased().lease, outcome).await?;
            Ok::<_, Failure>(Completion::already_settled())
        }
    });
    let summary = until_idle(processor(&spy, router)).await;
    assert_eq!(summary.processed, 1);
    assert_eq!(spy.record(1).await.result.unwrap(), "mine");
    assert!(spy.settle_sizes.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_result_over_the_limit_is_left_out() {
    let spy = Arc::new(Spy::with(MemoryOptions::new().payload_limit(100)));
    spy.receive_all([message(1), message(2)]).await;
    let router = router(|context: Context| async move {
        let length = if context.message().id().as_str() == "1" {
            101
        } else {
            100
        };
        Ok::<_, Failure>(vec![b'x'; length])
    });
    let summary = until_idle(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.dead), (2, 0));
    assert_eq!(spy.record(1).await.result, None);
    assert_eq!(spy.record(2).await.result.unwrap().len(), 100);
}

struct PanickingHooks(Arc<AtomicBool>);

#[async_trait]
impl Hooks for PanickingHooks {
    async fn dead_lettered(&self, _: &Leased, _: &str) {
        self.0.store(true, SeqCst);
        panic!("a hook's own fault");
    }
}

#[tokio::test]
async fn a_hook_that_panics_breaks_nothing() {
    let spy = spy();
    spy.receive_all((0..10).map(message)).await;
    let is_called = Arc::new(AtomicBool::new(false));
    let router = router(|_: Context| async { Err::<(), _>(Failure::dead("no")) });
    let hooks = PanickingHooks(is_called.clone());
    let summary = until_idle(processor(&spy, router).hooks(hooks)).await;
    assert_eq!(summary.dead, 10);
    assert!(is_called.load(SeqCst));
}

/// Waits in each call, and keeps the first from ending.
#[derive(Clone, Default)]
struct WaitingHooks {
    failed: Arc<AtomicUsize>,
    dead: Arc<AtomicUsize>,
}

#[async_trait]
impl Hooks for WaitingHooks {
    async fn attempt_failed(&self, _: &Leased, error: &str, after: Duration) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!((error, after), ("no", Duration::ZERO));
        self.failed.fetch_add(1, SeqCst);
    }

    async fn dead_lettered(&self, _: &Leased, _: &str) {
        if self.dead.fetch_add(1, SeqCst) == 0 {
            std::future::pending::<()>().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_may_wait_and_hold_claims_up_only_when_they_are_far_behind() {
    let spy = spy();
    spy.receive_all((0..1500).map(message)).await;
    let hooks = WaitingHooks::default();
    let router = router(|_: Context| async { Err::<(), _>(Failure::retry("no")) });
    let builder = Processor::builder(spy.clone())
        .router(router)
        .retry(at_once(2))
        .hooks(hooks.clone());
    let run = builder.build().unwrap();
    let summary = run.run_until_idle(CancellationToken::new()).await.unwrap();
    assert_eq!((summary.retried, summary.dead), (1500, 1500));
    assert_eq!(hooks.failed.load(SeqCst), 1500);
    assert_eq!(hooks.dead.load(SeqCst), 1500);
}

#[tokio::test]
async fn an_old_backlog_is_told() {
    let spy = spy();
    let told = Told::default();
    let router = router(|_: Context| async { Ok::<_, Failure>(()) });
    let builder = processor(&spy, router).hooks(told.clone());
    // Nothing can be claimed, so what is due stays due.
    spy.disturb("claim", Trouble::Refuse(inbox::ErrorKind::Unavailable));
    let operate = spy.inner.clone();
    let limit = Duration::from_secs(100);
    let every = Duration::from_millis(5);
    let processor = builder
        .backlog_monitor(operate, limit, every)
        .build()
        .unwrap();
    let other = message(1).for_handler(HandlerName::new("other").unwrap());
    spy.receive_all([message(1), other]).await;
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let task = tokio::spawn(async move { processor.run(stop).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(told.all().is_empty());
    spy.clock.advance(Duration::from_secs(200));
    eventually("told", async || !told.all().is_empty()).await;
    assert!(told.all().iter().all(|text| text == "backlog billing"));
    shutdown.cancel();
    task.await.unwrap().unwrap();
}

struct Shared;

#[async_trait]
impl Handler for Shared {
    async fn handle(&self, _: &Context) -> Result<Completion, Failure> {
        Ok(Completion::default())
    }
}

#[tokio::test]
async fn one_processor_serves_several_handlers() {
    let spy = spy();
    let audit = HandlerName::new("audit").unwrap();
    let copies = [message(1), message(1).for_handler(audit.clone())];
    spy.receive_all(copies).await;
    // Also: a shared handler object can be registered several times.
    let shared: Arc<dyn Handler> = Arc::new(Shared);
    let first = Router::new(billing()).on("order.placed", shared.clone());
    let second = Router::new(audit).fallback_handler(shared);
    let summary = until_idle(processor(&spy, first).router(second)).await;
    assert_eq!(summary.processed, 2);
    assert!(
        spy.records()
            .await
            .iter()
            .all(|record| record.state == State::Processed)
    );
}

#[test]
fn bad_settings_are_refused_when_the_processor_is_built() {
    let spy = spy();
    let plain = || processor(&spy, router(Shared));
    assert!(plain().build().is_ok());
    let bad = [
        Processor::builder(spy.clone()),
        plain().router(Router::new(billing())),
        plain().router(Router::new(HandlerName::new("other").unwrap()).on("a\nb", Shared)),
        plain().concurrency(0),
        plain().concurrency(1 << 40),
        plain().batch(0),
        plain().settle_batching(0, Duration::ZERO),
        plain().lease(Duration::ZERO),
        plain().lease(Duration::MAX),
        plain().poll_intervals(Duration::ZERO, Duration::ZERO),
        plain().poll_intervals(Duration::from_secs(2), Duration::from_secs(1)),
        plain().backlog_monitor(spy.inner.clone(), Duration::ZERO, Duration::ZERO),
    ];
    for (i, builder) in bad.into_iter().enumerate() {
        let refused: Result<_, Invalid> = builder.build();
        assert!(refused.is_err(), "{i}");
    }
}
