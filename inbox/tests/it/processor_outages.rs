//! What handlers depend on fails: circuits, pauses and messages that are put off.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    CancellationToken, CircuitBreaker, Context, Failure, Fallback, HandlerName, Hooks, Remedy,
    Router, State,
};
use tokio::time::{Instant, sleep};

use crate::processor_support::*;

const SECOND: Duration = Duration::from_secs(1);

fn spy() -> Arc<Spy> {
    let spy = Spy::new();
    spy.follow_the_runtime();
    Arc::new(spy)
}

/// Something that handlers call, and that may be away.
#[derive(Clone, Default)]
struct Downstream {
    is_away: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    /// Of these messages it always refuses to hear.
    poison: &'static str,
}

impl Downstream {
    fn router(&self) -> Router {
        let downstream = self.clone();
        Router::new("billing").on("order.placed", move |context: Context| {
            let downstream = downstream.clone();
            async move {
                sleep(Duration::from_millis(10)).await;
                downstream.calls.fetch_add(1, SeqCst);
                let is_poison = context.message().id().as_str() == downstream.poison;
                if downstream.is_away.load(SeqCst) || is_poison {
                    return Err(std::io::Error::other("downstream is away"));
                }
                Ok(())
            }
        })
    }
}

/// Keeps what a processor told of its pauses.
#[derive(Clone, Default)]
struct Pauses(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Hooks for Pauses {
    async fn paused(&self, handler: &HandlerName, error: &str, length: Duration) {
        self.0
            .lock()
            .unwrap()
            .push(format!("{handler} {error} {length:?}"));
    }

    async fn resumed(&self, handler: &HandlerName) {
        self.0.lock().unwrap().push(format!("{handler} goes on"));
    }
}

impl Pauses {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_any_length_kills_no_message_behind_a_circuit() {
    let (spy, pauses) = (spy(), Pauses::default());
    spy.receive_all((0..200).map(message)).await;
    let downstream = Downstream::default();
    downstream.is_away.store(true, SeqCst);
    let router = downstream.router().circuit_breaker(CircuitBreaker::new());
    let processor = processor(&spy, router)
        .retry(at_once(3))
        .hooks(pauses.clone())
        .build()
        .unwrap();
    let shutdown = CancellationToken::new();
    let run = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { processor.run(shutdown).await }
    });
    sleep(7200 * SECOND).await;
    assert_eq!(spy.count(State::Dead).await, 0);
    let records = spy.records().await;
    let most = records.iter().map(|record| record.attempts.started).max();
    assert!(most.unwrap() <= 2, "attempts are not counted: {most:?}");
    // Trials leave what is kept of a message's own failures.
    let mut most = 0;
    for record in records {
        let whole = spy.inner.get(&record.key).await.unwrap().unwrap();
        most = most.max(whole.history.len());
    }
    assert!((1..=2).contains(&most), "{most} are kept");
    // One trial in ten seconds, and what ran when the circuit opened.
    let calls = downstream.calls.load(SeqCst);
    assert!((600..900).contains(&calls), "{calls} calls in two hours");
    downstream.is_away.store(false, SeqCst);
    eventually("all are processed", async || {
        spy.count(State::Processed).await == 200
    })
    .await;
    shutdown.cancel();
    let summary = run.await.unwrap().unwrap();
    assert!(
        summary.deferred > 600 && summary.retried < 12,
        "{summary:?}"
    );
    let told = pauses.all();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("billing ") && told[0].contains("downstream is away"));
    assert_eq!(told[1], "billing goes on");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_fails_by_itself_does_not_keep_a_circuit_open() {
    let spy = spy();
    spy.receive_all((0..100).map(message)).await;
    let downstream = Downstream {
        poison: "0",
        ..Downstream::default()
    };
    downstream.is_away.store(true, SeqCst);
    let router = downstream.router().circuit_breaker(CircuitBreaker::new());
    let processor = processor(&spy, router).retry(at_once(3)).build().unwrap();
    let shutdown = CancellationToken::new();
    let run = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { processor.run(shutdown).await }
    });
    sleep(60 * SECOND).await;
    downstream.is_away.store(false, SeqCst);
    let begin = Instant::now();
    eventually("all but one are processed", async || {
        spy.count(State::Processed).await == 99
    })
    .await;
    assert!(begin.elapsed() < 60 * SECOND, "{:?}", begin.elapsed());
    eventually("that one is dead", async || {
        spy.count(State::Dead).await == 1
    })
    .await;
    assert_eq!(spy.record("0").await.attempts.started, 3);
    shutdown.cancel();
    run.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_no_fault_of_what_is_behind_opens_no_circuit() {
    let spy = spy();
    spy.receive_all((0..100).map(|n| message_of("dead", n, "")))
        .await;
    spy.receive_all((100..200).map(|n| message_of("later", n, "")))
        .await;
    spy.receive_all((200..300).map(|n| message_of("unknown", n, "")))
        .await;
    let router = Router::new("billing")
        .on("dead", |_: Context| async {
            Err::<(), _>(Failure::dead("no"))
        })
        .on("later", |_: Context| async {
            Err::<(), _>(Failure::defer(3600 * SECOND, "later"))
        })
        .fallback(Fallback::Retry)
        .circuit_breaker(CircuitBreaker::new());
    let pauses = Pauses::default();
    let builder = processor(&spy, router).hooks(pauses.clone());
    let summary = until_idle(builder).await;
    assert_eq!(
        (summary.dead, summary.deferred, summary.retried),
        (100, 100, 100)
    );
    assert_eq!(pauses.all(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_deferred_message_waits_without_losing_an_attempt() {
    let spy = spy();
    spy.receive_all([message(1)]).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let router = Router::new("billing").on("order.placed", move |context: Context| {
        let run = count.fetch_add(1, SeqCst);
        async move {
            assert_eq!(context.attempts().started, 1);
            if run < 50 {
                return Err(Failure::defer(60 * SECOND, "closed until noon"));
            }
            Ok(())
        }
    });
    let builder = processor(&spy, router).retry(at_once(2));
    let processor = builder.build().unwrap();
    let shutdown = CancellationToken::new();
    let run = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { processor.run(shutdown).await }
    });
    sleep(30 * SECOND).await;
    let record = spy.record(1).await;
    assert_eq!(record.state, State::Pending);
    assert_eq!((record.attempts.started, record.attempts.finished), (0, 0));
    assert_eq!(record.last_error.as_deref(), Some("closed until noon"));
    let wait = record.due_at.duration_since(record.accepted_at).unwrap();
    assert_eq!(wait.as_secs(), 60);
    sleep(3600 * SECOND).await;
    assert_eq!(spy.record(1).await.state, State::Processed);
    assert_eq!(runs.load(SeqCst), 51);
    shutdown.cancel();
    run.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_the_whole_routers_and_nobody_elses() {
    let (spy, pauses) = (spy(), Pauses::default());
    spy.receive_all((0..20).map(message)).await;
    let starts = Arc::new(Mutex::new(Vec::new()));
    let seen = starts.clone();
    let router = Router::new("billing")
        .on("order.placed", move |context: Context| {
            let at = Instant::now();
            seen.lock().unwrap().push(at);
            let is_first = seen.lock().unwrap().len() == 1;
            async move {
                let _ = context;
                if is_first {
                    return Err(Failure::pause(100 * SECOND, "too many requests"));
                }
                Ok(())
            }
        })
        .concurrency(1);
    let begin = Instant::now();
    let builder = processor(&spy, router).hooks(pauses.clone()).look_ahead(32);
    let summary = until_idle_by_a_paused_clock(builder.retry(at_once(1))).await;
    assert_eq!(
        (summary.processed, summary.deferred, summary.dead),
        (20, 1, 0)
    );
    let starts = starts.lock().unwrap().clone();
    assert_eq!(starts.len(), 21);
    assert!(starts[1] - begin >= 100 * SECOND, "{:?}", starts[1] - begin);
    let expected = ["billing too many requests 100s", "billing goes on"];
    assert_eq!(pauses.all(), expected);
}

/// No sooner than it was asked for, an open circuit or not.
#[tokio::test(start_paused = true)]
async fn an_open_circuit_makes_no_wait_shorter() {
    let spy = spy();
    spy.receive_all((0..20).map(message)).await;
    let router = Router::new("billing")
        .on("order.placed", |_: Context| async {
            Err::<(), _>(Failure::retry_after(3600 * SECOND, "closed"))
        })
        .circuit_breaker(CircuitBreaker::new());
    let processor = processor(&spy, router).build().unwrap();
    let shutdown = CancellationToken::new();
    let run = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { processor.run(shutdown).await }
    });
    sleep(60 * SECOND).await;
    for record in spy.records().await {
        let wait = record.due_at.duration_since(record.accepted_at).unwrap();
        assert!(wait.is_zero() || wait >= 3600 * SECOND, "{wait:?}");
    }
    shutdown.cancel();
    run.await.unwrap().unwrap();
}

/// What a rule says of an error in words counts, also when the rule itself fails.
#[tokio::test]
async fn a_rule_that_panics_is_a_failed_attempt() {
    let spy = spy();
    spy.receive_all([message(1)]).await;
    let router = Router::new("billing")
        .on("order.placed", |_: Context| async {
            Err::<(), _>(std::io::Error::other("broken"))
        })
        .classify(|_: &std::io::Error| -> Remedy { panic!("a mistake in the rule") });
    let summary = until_idle(processor(&spy, router)).await;
    assert_eq!(summary.retried, 1);
    let error = spy.record(1).await.last_error.unwrap();
    assert_eq!(error, "panicked: a mistake in the rule");
}

#[tokio::test(start_paused = true)]
async fn rules_for_errors_decide_what_handlers_do_not() {
    #[derive(Debug, thiserror::Error)]
    enum ChargeError {
        #[error("declined")]
        Declined,
        #[error("the bank is closed")]
        Closed,
        #[error("io")]
        Io(#[from] std::io::Error),
    }

    #[derive(Debug, thiserror::Error)]
    #[error("charging failed")]
    struct Wrapped(#[source] ChargeError);

    async fn charge(context: Context) -> Result<(), ChargeError> {
        match context.message().id().as_str() {
            "declined" => Err(ChargeError::Declined),
            "closed" => Err(ChargeError::Closed),
            _ => Err(std::io::Error::other("connection reset"))?,
        }
    }

    async fn wrapped(context: Context) -> Result<(), Wrapped> {
        charge(context).await.map_err(Wrapped)
    }

    let spy = spy();
    for kind in ["plain", "wrapped"] {
        let ids = ["declined", "closed", "io"];
        let messages = ids.map(|id| message_of(kind, format!("{kind}-{id}"), ""));
        spy.receive_all(messages).await;
    }
    let strip = |context: Context| async move {
        let id = context.message().id().as_str();
        let id = id.rsplit('-').next().unwrap();
        let message = message_of("plain", id, "");
        let leased = inbox::Leased {
            message,
            ..context.leased().clone()
        };
        Context::new(leased, CancellationToken::new())
    };
    let router = Router::new("billing")
        .on("plain", move |context: Context| async move {
            charge(strip(context).await).await
        })
        .on("wrapped", move |context: Context| async move {
            wrapped(strip(context).await).await
        })
        .classify(|error: &ChargeError| match error {
            ChargeError::Declined => Remedy::Dead,
            ChargeError::Closed => Remedy::Defer(1000 * SECOND),
            ChargeError::Io(_) => Remedy::RetryAfter(100 * SECOND),
        })
        // Never asked: the first rule has an answer to all.
        .classify(|_: &std::io::Error| Remedy::Dead);
    let summary = until_idle(processor(&spy, router)).await;
    assert_eq!((summary.dead, summary.deferred, summary.retried), (2, 2, 2));
    for kind in ["plain", "wrapped"] {
        let record = async |id| spy.record(format!("{kind}-{id}")).await;
        assert_eq!(record("declined").await.state, State::Dead);
        assert_eq!(record("closed").await.attempts.started, 0);
        let io = record("io").await;
        let wait = io.due_at.duration_since(io.accepted_at).unwrap();
        assert!((100..=110).contains(&wait.as_secs()), "{wait:?}");
        let error = io.last_error.unwrap();
        assert!(error.ends_with(": io: connection reset"), "{error}");
        let name = if kind == "plain" {
            "ChargeError"
        } else {
            "Wrapped: charging failed"
        };
        assert!(error.contains(name), "{error}");
    }
}
