//! Which handler a message goes to, and what runs around it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox::{
    Batch, Batches, Completion, Context, Event, Failure, Fallback, Message, Next, Outcome, Remedy,
    RetryPolicy, Router, State, json,
};

use crate::processor_support::*;

/// What ran, in order.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<String>>>);

impl Ran {
    fn add(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn handler(&self, name: &'static str) -> impl inbox::Handler {
        let ran = self.clone();
        move |context: Context| {
            ran.add(format!("{name} {}", context.message().kind()));
            async { Ok::<_, Failure>(()) }
        }
    }

    fn middleware(&self, name: &'static str) -> impl inbox::Middleware {
        let ran = self.clone();
        move |context: Context, next: Next| {
            let ran = ran.clone();
            async move {
                ran.add(format!("{name} before"));
                let ended = next.run(&context).await;
                ran.add(format!("{name} after"));
                ended
            }
        }
    }
}

#[tokio::test]
async fn the_very_kind_goes_first_then_the_longest_prefix_then_the_fallback() {
    let (spy, ran) = (Arc::new(Spy::new()), Ran::default());
    let router = || {
        Router::new("billing")
            .on_prefix("order.", ran.handler("short"))
            .on_prefix("order.paid.", ran.handler("replaced"))
            .on_prefix("order.paid.", ran.handler("long"))
            .on("order.paid.twice", ran.handler("exact"))
            .fallback_handler(ran.handler("rest"))
    };
    let kinds = [
        ("order.paid.twice", "exact"),
        ("order.paid.late", "long"),
        ("order.paid.", "long"),
        ("order.placed", "short"),
        ("order", "rest"),
        ("Order.placed", "rest"),
    ];
    for (kind, handler) in kinds {
        spy.receive_all([message_of(kind, kind, "")]).await;
        until_idle(processor(&spy, router())).await;
        assert_eq!(ran.take(), [format!("{handler} {kind}")]);
    }
}

#[tokio::test]
async fn a_prefix_may_have_a_handler_of_batches() {
    let (spy, ran) = (Arc::new(Spy::new()), Ran::default());
    let seen = ran.clone();
    let batches = move |batch: Batch| {
        let kinds = batch.iter().map(|one| one.message().kind().to_string());
        seen.add(kinds.collect::<Vec<_>>().join(" "));
        async { Ok::<_, Failure>(()) }
    };
    let router = Router::new("billing")
        .on_batch_prefix("order.", batches)
        .on("order.paid", ran.handler("exact"))
        .batches(Batches::up_to(10));
    spy.receive_all(["order.a", "order.paid", "order.b"].map(|kind| message_of(kind, kind, "")))
        .await;
    until_idle(processor(&spy, router)).await;
    let mut all = ran.take();
    all.sort();
    assert_eq!(all, ["exact order.paid", "order.a order.b"]);
}

#[tokio::test(start_paused = true)]
async fn an_error_may_have_a_retry_policy_of_its_own() {
    let spy = Arc::new(Spy::new());
    let router = Router::new("billing")
        .on("bank", |_: Context| async {
            Err::<(), _>(std::io::Error::other("no answer"))
        })
        .on("limit", |_: Context| async {
            Err::<(), _>(std::fmt::Error)
        })
        .retry_on::<std::io::Error>(RetryPolicy::schedule([1, 2].map(Duration::from_secs)))
        .retry(RetryPolicy::schedule([60; 4].map(Duration::from_secs)));
    let processor = processor(&spy, router).build().unwrap();
    let delays = async |kind: &str| {
        let message = message_of(kind, 1, "");
        let outcomes = processor.rehearse_to_the_end(&message);
        let delays = outcomes
            .await
            .into_iter()
            .filter_map(|outcome| match outcome {
                Outcome::Retry { after, .. } => Some(after.as_secs_f64().ceil()),
                _ => None,
            });
        delays.collect::<Vec<_>>()
    };
    let soon = delays("bank").await;
    assert!(
        soon.len() == 2 && soon.iter().all(|seconds| *seconds <= 2.0),
        "{soon:?}"
    );
    let usual = delays("limit").await;
    assert!(
        usual.len() == 4 && usual.iter().all(|seconds| *seconds >= 30.0),
        "{usual:?}"
    );
}

#[tokio::test]
async fn events_need_no_name_where_they_are_handled() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct OrderPlaced {
        order: u64,
    }

    impl Event for OrderPlaced {
        const KIND: &'static str = "order.placed";
    }

    async fn place(event: OrderPlaced, _: Context) -> Result<Vec<u8>, std::io::Error> {
        Ok(event.order.to_string().into_bytes())
    }

    let spy = Arc::new(Spy::new());
    let sent = Message::json("billing", "1", &OrderPlaced { order: 7 }).unwrap();
    spy.receive_all([sent, message_of("order.shipped", "2", r#"{"order": 8}"#)])
        .await;
    let router = Router::new("billing")
        .on_event(place)
        .on_prefix("order.", json(place));
    until_idle(processor(&spy, router)).await;
    assert_eq!(spy.record("1").await.result.unwrap(), "7");
    assert_eq!(spy.record("2").await.result.unwrap(), "8");
}

#[tokio::test]
async fn middleware_runs_around_all_handlers_the_first_outermost() {
    let (spy, ran) = (Arc::new(Spy::new()), Ran::default());
    spy.receive_all([message_of("known", "1", "")]).await;
    let router = || {
        Router::new("billing")
            .on("known", ran.handler("handler"))
            .fallback_handler(ran.handler("fallback"))
            .middleware(ran.middleware("third"))
            .middleware(ran.middleware("fourth"))
    };
    let build = || {
        processor(&spy, router())
            .middleware(ran.middleware("first"))
            .middleware(ran.middleware("second"))
    };
    let expected = |handler: &str| {
        let names = ["first", "second", "third", "fourth"];
        let before = names.iter().map(|name| format!("{name} before"));
        let after = names.iter().rev().map(|name| format!("{name} after"));
        let handler = std::iter::once(handler.to_owned());
        before.chain(handler).chain(after).collect::<Vec<_>>()
    };
    until_idle(build()).await;
    assert_eq!(ran.take(), expected("handler known"));
    spy.receive_all([message_of("new", "2", "")]).await;
    until_idle(build()).await;
    assert_eq!(ran.take(), expected("fallback new"));
}

#[tokio::test]
async fn middleware_may_answer_for_the_handler_and_judge_its_errors() {
    let spy = Arc::new(Spy::new());
    let kinds = ["skipped", "refused", "mended", "seen", "slow", "panics"];
    spy.receive_all(kinds.map(|kind| message_of(kind, kind, "")))
        .await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let see = seen.clone();
    let router = Router::new("billing")
        .fallback_handler(|context: Context| async move {
            match context.message().kind().as_str() {
                "slow" => std::future::pending().await,
                "panics" => panic!("as planned"),
                _ => Err::<(), _>(std::io::Error::other("broken")),
            }
        })
        .middleware(move |context: Context, next: Next| {
            let see = see.clone();
            async move {
                match context.message().kind().as_str() {
                    "skipped" => return Ok(Completion::with_result("kept")),
                    "refused" => return Err(Failure::dead("not for this tenant")),
                    _ => {}
                }
                let ended = next.run(&context).await;
                let failure = match ended {
                    Ok(completion) => return Ok(completion),
                    Err(failure) => failure,
                };
                if context.message().kind().as_str() == "mended" {
                    return Ok(Completion::default());
                }
                let is_io = failure.find::<std::io::Error>().is_some();
                see.lock().unwrap().push((failure.remedy(), is_io));
                Err(failure)
            }
        })
        .classify(|_: &std::io::Error| Remedy::Dead)
        .timeout(Duration::from_millis(50));
    let summary = until_idle(processor(&spy, router)).await;
    assert_eq!(
        (summary.processed, summary.dead, summary.retried),
        (2, 2, 2)
    );
    assert_eq!(spy.record("skipped").await.result.unwrap(), "kept");
    assert_eq!(spy.record("mended").await.state, State::Processed);
    let error = async |id| spy.record(id).await.last_error.unwrap();
    assert_eq!(error("refused").await, "not for this tenant");
    assert!(error("seen").await.ends_with("io::error::Error: broken"));
    assert_eq!(error("slow").await, "timed out");
    assert_eq!(error("panics").await, "panicked: as planned");
    // The rules of the router apply behind it.
    assert_eq!(*seen.lock().unwrap(), [(None, true)]);
}

#[tokio::test]
async fn a_kind_that_is_left_is_taken_by_a_worker_that_knows_it() {
    let spy = Arc::new(Spy::new());
    spy.receive_all([message_of("new", "1", ""), message_of("old", "2", "")])
        .await;
    let ran = Ran::default();
    let old = Router::new("billing").on("old", ran.handler("old"));
    let summary = until_idle(processor(&spy, old).retry(at_once(1))).await;
    assert_eq!((summary.processed, summary.deferred), (1, 1));
    let new = || Router::new("billing").on("new", ran.handler("new"));
    assert_eq!(until_idle(processor(&spy, new())).await.claimed, 0);
    spy.clock.advance(Duration::from_secs(31));
    let summary = until_idle(processor(&spy, new()).retry(at_once(1))).await;
    assert_eq!(summary.processed, 1);
    assert_eq!(spy.record("1").await.attempts.started, 1);
    assert_eq!(Fallback::default(), Fallback::Leave);
}

#[tokio::test]
async fn a_kind_that_is_left_keeps_what_became_of_it_before() {
    let spy = Arc::new(Spy::new());
    spy.receive_all([message_of("new", "1", "")]).await;
    let fails = Router::new("billing").on("new", |_: Context| async {
        Err::<(), _>(Failure::retry("no funds"))
    });
    let summary = until_idle(processor(&spy, fails)).await;
    assert_eq!(summary.retried, 1);
    let before = spy.record("1").await;
    assert_eq!(before.history.len(), 1);
    spy.clock.advance(Duration::from_secs(3600));
    for _ in 0..12 {
        let old = Router::new("billing").on("old", |_: Context| async { Ok::<_, Failure>(()) });
        assert_eq!(until_idle(processor(&spy, old)).await.deferred, 1);
        spy.clock.advance(Duration::from_secs(31));
    }
    let after = spy.record("1").await;
    assert_eq!(after.history, before.history);
    assert_eq!(after.last_error.as_deref(), Some("no funds"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_single_messages_cannot_hand_them_back_for_ever() {
    let spy = Arc::new(Spy::new());
    spy.receive_all([message_of("new", "1", "")]).await;
    let router = Router::new("billing").on("new", |_: Context| async {
        Err::<(), _>(Failure::not_reached())
    });
    let running = until_idle(processor(&spy, router).retry(at_once(3)));
    let summary = tokio::time::timeout(Duration::from_secs(60), running).await;
    let summary = summary.expect("it comes again and again");
    assert_eq!((summary.released, summary.dead), (0, 1));
    assert_eq!(spy.record("1").await.attempts.started, 3);
}

#[tokio::test]
async fn handlers_are_rehearsed_without_a_store() {
    let spy = Arc::new(Spy::new());
    let router = Router::new("billing")
        .on("fails", |context: Context| async move {
            let attempt = context.attempts().started;
            Err::<(), _>(std::io::Error::other(format!("no. {attempt}")))
        })
        .on("defers", |_: Context| async {
            Err::<(), _>(Failure::defer(Duration::from_secs(7), "later"))
        })
        .on("slow", |_: Context| async {
            std::future::pending::<()>().await;
            Ok::<_, Failure>(())
        })
        .on("works", |_: Context| async {
            Ok::<_, Failure>(b"done".to_vec())
        })
        .retry(RetryPolicy::schedule([1, 60].map(Duration::from_secs)))
        .timeout(Duration::from_millis(20));
    let processor = processor(&spy, router).build().unwrap();
    let run =
        async |kind: &str, attempt| processor.rehearse(&message_of(kind, 1, ""), attempt).await;
    let result = Some(b"done".to_vec().into());
    assert_eq!(run("works", 1).await, Outcome::Processed { result });
    assert!(matches!(run("slow", 1).await, Outcome::Retry { error, .. } if error == "timed out"));
    assert!(matches!(run("slow", 3).await, Outcome::Dead { .. }));
    let left = run("unknown", 1).await;
    assert!(matches!(left, Outcome::Defer { after, .. } if after == Duration::from_secs(30)));
    let deferred = Outcome::Defer {
        after: Duration::from_secs(7),
        error: Some("later".into()),
    };
    assert_eq!(run("defers", 1).await, deferred);

    let all = processor
        .rehearse_to_the_end(&message_of("fails", 1, ""))
        .await;
    let [
        Outcome::Retry { after: first, .. },
        Outcome::Retry { after: second, .. },
        Outcome::Dead { reason, .. },
    ] = all.as_slice()
    else {
        panic!("{all:?}");
    };
    assert!(*first <= Duration::from_secs(1) && *second >= Duration::from_secs(30));
    assert!(reason.ends_with("no. 3"), "{reason}");
    let for_ever = processor
        .rehearse_to_the_end(&message_of("defers", 1, ""))
        .await;
    assert_eq!(for_ever.len(), 1000);
    assert!(spy.records().await.is_empty());
}
