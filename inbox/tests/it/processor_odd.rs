//! Settings that mean for ever, and stores that refuse.

use std::{convert::Infallible, sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox::{
    CancellationToken, Completion, Context, ErrorKind, Failure, Hooks, InlineConsumer, Janitor,
    LeaseTerms, Leased, Receiver, Router, State, Summary, WorkerName, receiver::StreamSource,
};
use tokio::time::Instant;

use crate::{
    faulty::{Fault, FaultyStore},
    processor_support::*,
};

fn router() -> Router {
    Router::new(billing())
        .on("done", |_: Context| async {
            Ok::<_, Failure>(Completion::with_result("r"))
        })
        .on("retry", |_: Context| async {
            Err::<(), _>(Failure::retry_after(Duration::from_secs(5), "odd"))
        })
        .on("dead", |_: Context| async {
            Err::<(), _>(Failure::dead("odd"))
        })
}

async fn refusing(always: bool) -> (Arc<Spy>, Told, Summary) {
    let spy = Arc::new(Spy::new());
    let kinds = ["done", "retry", "dead"];
    spy.receive_all(kinds.map(|kind| message_of(kind, kind, "x")))
        .await;
    spy.disturb("settle", Trouble::RefuseOutcome { always });
    let told = Told::default();
    let builder = processor(&spy, router()).hooks(told.clone());
    let summary = until_idle(builder).await;
    (spy, told, summary)
}

#[tokio::test]
async fn a_refused_outcome_is_settled_as_what_it_is_without_its_text() {
    let (spy, told, summary) = refusing(false).await;
    assert_eq!(
        (summary.processed, summary.retried, summary.dead),
        (1, 1, 1)
    );
    assert_eq!(spy.record("done").await.state, State::Processed);
    assert_eq!(spy.record("done").await.result, None);
    for (id, state) in [("retry", State::Pending), ("dead", State::Dead)] {
        let record = spy.record(id).await;
        assert_eq!((record.state, record.attempts.finished), (state, 1));
        assert!(record.last_error.unwrap().contains("refused"));
    }
    assert!(!told.all().iter().any(|told| told.starts_with("refused")));
}

#[tokio::test]
async fn an_outcome_that_is_refused_twice_is_left_to_its_lease() {
    let (spy, told, summary) = refusing(true).await;
    assert_eq!((summary.claimed, summary.abandoned), (3, 3));
    let asked: usize = spy.settle_sizes.lock().unwrap().iter().sum();
    assert_eq!(asked, 6);
    assert_eq!(spy.count(State::Leased).await, 3);
    let mut told = told.all();
    told.sort();
    assert_eq!(
        told,
        [
            "refused dead: planned is empty",
            "refused done: planned is empty",
            "refused retry: planned is empty"
        ]
    );
}

/// The same inline, with a completion, a failure and a last one.
#[tokio::test]
async fn an_inline_outcome_that_is_refused_is_told() {
    let terms = || {
        let worker = WorkerName::new("w").unwrap();
        LeaseTerms::new(Duration::from_secs(60), worker).unwrap()
    };
    for (attempts, result) in [(2, Ok(Some("r".into()))), (2, Err("odd")), (1, Err("odd"))] {
        for always in [false, true] {
            let (spy, told) = (Arc::new(Spy::new()), Told::default());
            spy.disturb("settle", Trouble::RefuseOutcome { always });
            let consumer = InlineConsumer::new(spy.clone(), terms())
                .retry(at_once(attempts))
                .hooks(told.clone());
            let run = async |_| result.clone();
            let answer = consumer.consume(&message(1), run).await;
            assert_eq!(answer.is_ok(), !always && result.is_ok(), "{answer:?}");
            let is_told = async || told.all() == ["refused 1: planned is empty"];
            if always {
                eventually("told", is_told).await;
                assert_eq!(spy.count(State::Leased).await, 1);
            } else {
                assert_eq!(spy.count(State::Leased).await, 0);
                assert!(!is_told().await);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn durations_that_mean_for_ever_are_taken_as_such() {
    let spy = Arc::new(Spy::new());
    let max = Duration::MAX;
    let processor = processor(&spy, router())
        .drain_limit(max)
        .handler_timeout(max)
        .store_timeout(max)
        .settle_batching(10, max)
        .backlog_monitor(spy.inner.clone(), max, max)
        .poll_intervals(max, max)
        .build()
        .unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { processor.run(stop).await });
    tokio::time::sleep(Duration::from_secs(60)).await;
    spy.receive_all([message_of("done", 1, "x")]).await;
    eventually("woken", async || spy.count(State::Processed).await == 1).await;
    shutdown.cancel();
    assert_eq!(running.await.unwrap().unwrap().processed, 1);

    let janitor = inbox::Janitor::builder(spy.inner.clone())
        .keep_processed(max)
        .interval(max)
        .store_timeout(max)
        .give_up_after(spy.clone(), [billing()], max, inbox::AfterDead::Continue)
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let sweeping = tokio::time::timeout(Duration::from_secs(60), janitor.run(stop));
    assert!(sweeping.await.is_err(), "it goes on");
}

struct Hanging;

#[async_trait]
impl Hooks for Hanging {
    async fn dead_lettered(&self, _: &Leased, _: &str) {
        std::future::pending::<()>().await;
    }
}

/// All is done and only hooks are outstanding, which take 30 seconds each.
#[tokio::test(start_paused = true)]
async fn hooks_that_hang_do_not_hold_up_a_shutdown() {
    let spy = Arc::new(Spy::new());
    spy.receive_all((0..20).map(|id| message_of("dead", id, "x")))
        .await;
    let processor = processor(&spy, router()).hooks(Hanging).build().unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { processor.run_until_idle(stop).await });
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert_eq!(spy.count(State::Dead).await, 20);
    assert!(!running.is_finished(), "without a shutdown they are made");
    let asked = Instant::now();
    shutdown.cancel();
    assert_eq!(running.await.unwrap().unwrap().dead, 20);
    assert!(
        asked.elapsed() < Duration::from_secs(3),
        "{:?}",
        asked.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_statistics_ends_a_drain_at_once() {
    let spy = Arc::new(Spy::new());
    let all = Arc::new(FaultyStore::new(spy.inner.clone()));
    all.plan("statistics", [Fault::Before(ErrorKind::Denied)]);
    let processor = processor(&spy, router()).build().unwrap();
    let began = Instant::now();
    let run = processor.run_until_drained(all, CancellationToken::new());
    assert_eq!(run.await.unwrap_err().kind(), ErrorKind::Denied);
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
}

/// With no time at all, each call that has to wait would be given up and made again for ever.
#[tokio::test(start_paused = true)]
async fn a_limit_of_nothing_is_refused_or_taken_as_the_least() {
    let spy = Arc::new(Spy::new());
    let zero = Duration::ZERO;
    let builder = processor(&spy, router());
    assert!(builder.store_timeout(zero).build().is_err());
    let builder = processor(&spy, router());
    assert!(builder.handler_timeout(zero).build().is_err());
    let builder = Janitor::builder(spy.inner.clone());
    assert!(builder.store_timeout(zero).build().is_err());

    // The others cannot refuse.
    let store = Arc::new(FaultyStore::new(spy.inner.clone()));
    for operation in ["receive", "begin", "settle"] {
        store.plan(operation, [Fault::Late]);
    }
    let receiver = Receiver::builder(store.clone()).store_timeout(zero).build();
    let mut source = StreamSource::new(futures_util::stream::iter([Ok(message(1))]));
    let run = receiver.run(&mut source, CancellationToken::new());
    assert_eq!(run.await.unwrap().accepted, 1);
    assert_eq!(store.calls("receive"), 1);
    let terms = LeaseTerms::new(Duration::from_secs(60), WorkerName::new("w").unwrap());
    let consumer = InlineConsumer::new(store.clone(), terms.unwrap()).store_timeout(zero);
    let run = async |_| Ok::<_, Infallible>(None);
    consumer.consume(&message(2), run).await.unwrap();
    assert_eq!((store.calls("begin"), store.calls("settle")), (1, 1));
}
