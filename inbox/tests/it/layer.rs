//! The tower layer on a real store: one request of each key reaches the service.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use inbox::{
    AfterDead, Begun, Bytes, ErrorKind, Inbox, Kind, LeaseTerms, Message, MessageId, OrderingKey,
    Outcome, RetryPolicy, State, Store, StoreExt as _, WorkerName,
    inline::{InlineConsumer, OnBusy, OnDuplicate},
    layer::{Answer, Conclusion, Exchange, InboxLayer, Opened},
};
use tokio::sync::Notify;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

use crate::faulty::{Fault, FaultyStore, handler, memory};

#[derive(Clone, Copy)]
struct Ask(&'static str);

/// A request is its idempotency key; a response is a text. "pass…" is not deduplicated, "bad…" is
/// refused, and a response "fail…" is a failure.
struct Texts;

impl Exchange<Ask> for Texts {
    type Response = String;

    async fn open(&self, request: Ask) -> Opened<Ask, String> {
        tokio::task::yield_now().await;
        if request.0.starts_with("pass") {
            return Opened::Pass(request);
        }
        if request.0.starts_with("bad") {
            return Opened::Refuse("refused".into());
        }
        Opened::Once(message(request.0), request)
    }

    async fn complete(&self, response: String) -> (String, Conclusion) {
        let conclusion = if response.starts_with("fail") {
            Conclusion::Retry(response.clone())
        } else {
            Conclusion::Done(Some(response.clone().into()))
        };
        (response, conclusion)
    }

    fn gave_up(&self, response: String, reason: &str) -> String {
        format!("given up: {response} ({reason})")
    }

    fn answer(&self, answer: Answer) -> String {
        match answer {
            Answer::Duplicate { result } => {
                let bytes = result.unwrap_or_default();
                format!("kept {}", String::from_utf8(bytes.into()).unwrap())
            }
            Answer::Busy { .. } => "busy".into(),
            Answer::Blocked => "blocked".into(),
            Answer::Dead { reason } => format!("dead: {reason}"),
            Answer::Discarded => "discarded".into(),
            Answer::LeaseLost => "lost".into(),
            Answer::Unavailable(error) => format!("unavailable: {}", error.kind()),
        }
    }
}

fn policy(attempts: u32) -> RetryPolicy {
    RetryPolicy::default().with_max_attempts(attempts)
}

fn message(key: &str) -> Message {
    let message = Message::new(
        handler("web"),
        MessageId::new(key).unwrap(),
        Kind::new("POST").unwrap(),
        Bytes::new(),
    );
    match key.split_once('@') {
        Some((_, order)) => message.with_ordering_key(OrderingKey::new(order).unwrap()),
        None => message,
    }
}

fn consumer(store: Arc<dyn Store>, lease: Duration) -> InlineConsumer {
    let terms = LeaseTerms::new(lease, WorkerName::new("web-1").unwrap()).unwrap();
    InlineConsumer::new(store, terms)
        .on_duplicate(OnDuplicate::ReturnResult)
        .on_busy(OnBusy::Skip)
        .after_dead(AfterDead::Continue)
        .retry(policy(2))
}

async fn layer() -> (Arc<dyn Inbox>, Arc<FaultyStore>, InboxLayer<Texts>) {
    let inbox = memory().await;
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    let consumer = consumer(store.clone(), Duration::from_secs(30));
    (inbox, store, InboxLayer::new(consumer, Texts))
}

async fn state(inbox: &Arc<dyn Inbox>, key: &str) -> Option<State> {
    let record = inbox.get(message(key).key()).await.unwrap();
    record.map(|record| record.state)
}

#[tokio::test]
async fn a_second_request_is_answered_from_what_the_first_left() {
    let (inbox, _, layer) = layer().await;
    let runs = AtomicU32::new(0);
    let runs = &*Box::leak(Box::new(runs));
    let service = layer.layer(service_fn(async |Ask(request): Ask| {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Infallible>(format!("{request} {run}"))
    }));
    let ask = |request| service.clone().oneshot(Ask(request));
    assert_eq!(ask("a").await.unwrap(), "a 0");
    assert_eq!(ask("a").await.unwrap(), "kept a 0");
    assert_eq!(ask("b").await.unwrap(), "b 1");
    // Neither of these touches the inbox.
    assert_eq!(ask("pass").await.unwrap(), "pass 2");
    assert_eq!(ask("pass").await.unwrap(), "pass 3");
    assert_eq!(ask("bad").await.unwrap(), "refused");
    assert_eq!(state(&inbox, "pass").await, None);
    assert_eq!(state(&inbox, "bad").await, None);
    assert_eq!(runs.load(Ordering::SeqCst), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_concurrent_identical_requests_exactly_one_reaches_the_service() {
    for round in 0..50 {
        let (_, _, layer) = layer().await;
        let runs = Arc::new(AtomicU32::new(0));
        let counted = runs.clone();
        let service = layer.layer(service_fn(move |_: Ask| {
            let counted = counted.clone();
            async move {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok::<_, Infallible>("done".to_owned())
            }
        }));
        let barrier = Arc::new(tokio::sync::Barrier::new(8));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (service, barrier) = (service.clone(), barrier.clone());
                tokio::spawn(async move {
                    barrier.wait().await;
                    service.oneshot(Ask("same")).await.unwrap()
                })
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1, "round {round}: {answers:?}");
        let first = answers.iter().filter(|a| *a == "done").count();
        assert_eq!(first, 1, "round {round}: {answers:?}");
        let known = |a: &&String| ["done", "busy", "kept done"].contains(&a.as_str());
        assert_eq!(answers.iter().filter(known).count(), 8, "{answers:?}");
    }
}

#[tokio::test]
async fn an_inner_error_is_recorded_and_returned() {
    let (inbox, _, layer) = layer().await;
    let service = layer.layer(service_fn(async |_: Ask| {
        Err::<String, _>(std::io::Error::other("upstream"))
    }));
    let error = service.clone().oneshot(Ask("a")).await.unwrap_err();
    assert_eq!(error.to_string(), "upstream");
    let record = inbox.get(message("a").key()).await.unwrap().unwrap();
    assert_eq!(record.state, State::Pending);
    assert_eq!(record.last_error.as_deref(), Some("upstream"));
    assert_eq!(record.attempts.finished, 1);
    // It may run again after the retry delay, not before.
    assert_eq!(service.clone().oneshot(Ask("a")).await.unwrap(), "busy");
    // An error of a request that passes by is only returned.
    service.oneshot(Ask("pass")).await.unwrap_err();
}

#[tokio::test]
async fn a_response_that_reports_a_failure_is_returned_and_not_kept() {
    let (inbox, _, layer) = layer().await;
    let service = layer.layer(service_fn(async |_: Ask| {
        Ok::<_, Infallible>("fail 503".to_owned())
    }));
    let response = service.clone().oneshot(Ask("a")).await.unwrap();
    assert_eq!(response, "fail 503");
    let record = inbox.get(message("a").key()).await.unwrap().unwrap();
    assert_eq!(record.state, State::Pending);
    assert_eq!(record.last_error.as_deref(), Some("fail 503"));
}

#[tokio::test]
async fn every_answer_of_the_inbox_has_its_response() {
    let (inbox, store, layer) = layer().await;
    let service = layer.layer(service_fn(async |_: Ask| {
        Ok::<_, Infallible>("done".to_owned())
    }));
    let ask = |request| service.clone().oneshot(Ask(request));

    let terms = |millis| {
        let worker = WorkerName::new("other").unwrap();
        LeaseTerms::new(Duration::from_millis(millis), worker).unwrap()
    };
    let _ = inbox
        .begin(&message("held@x"), &terms(60_000))
        .await
        .unwrap();
    assert_eq!(ask("held@x").await.unwrap(), "busy");
    assert_eq!(ask("later@x").await.unwrap(), "blocked");

    let _ = inbox.receive(&[message("unwanted")]).await.unwrap();
    let _ = inbox.discard(message("unwanted").key()).await.unwrap();
    assert_eq!(ask("unwanted").await.unwrap(), "discarded");

    // Two workers vanish, the limit is two attempts.
    for _ in 0..2 {
        let _ = inbox.begin(&message("poison"), &terms(1)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let dead = ask("poison").await.unwrap();
    assert!(
        dead.starts_with("dead: attempts used up: of 2, 2 began"),
        "{dead}"
    );

    store.plan("begin", [Fault::Before(ErrorKind::Denied)]);
    assert_eq!(ask("a").await.unwrap(), "unavailable: permission denied");
    assert_eq!(ask("a").await.unwrap(), "done");
}

#[tokio::test(start_paused = true)]
async fn a_response_is_returned_even_when_it_could_not_be_recorded() {
    let (inbox, store, layer) = layer().await;
    let service = layer.layer(service_fn(async |_: Ask| {
        Ok::<_, Infallible>("done".to_owned())
    }));
    store.plan("settle", vec![Fault::Before(ErrorKind::Unavailable); 20]);
    assert_eq!(service.oneshot(Ask("a")).await.unwrap(), "done");
    assert_eq!(state(&inbox, "a").await, Some(State::Leased));
}

#[tokio::test]
async fn a_panic_is_recorded_and_goes_on() {
    let (inbox, _, layer) = layer().await;
    let service = layer.layer(service_fn(async |_: Ask| {
        if true {
            panic!("boom");
        }
        Ok::<_, Infallible>(String::new())
    }));
    let crashed = tokio::spawn(service.oneshot(Ask("a"))).await.unwrap_err();
    assert!(crashed.is_panic());
    let record = inbox.get(message("a").key()).await.unwrap().unwrap();
    assert_eq!(record.attempts.finished, 1);
    assert_eq!(
        record.last_error.as_deref(),
        Some("the handler panicked: boom")
    );
}

#[tokio::test]
async fn a_request_whose_lease_is_taken_over_is_dropped() {
    let inbox = memory().await;
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    // The renewal hangs, so the lease runs out, and another copy takes over.
    let layer = InboxLayer::new(consumer(store.clone(), Duration::from_millis(60)), Texts);
    let other = inbox.clone();
    let service = layer.layer(service_fn(move |_: Ask| {
        let other = other.clone();
        async move {
            // Blocks the thread for longer than the lease: no renewal can be sent.
            std::thread::sleep(Duration::from_millis(100));
            let worker = WorkerName::new("other").unwrap();
            let terms = LeaseTerms::new(Duration::from_secs(60), worker).unwrap();
            let _ = other.begin(&message("a"), &terms).await.unwrap();
            std::future::pending::<Result<String, Infallible>>().await
        }
    }));
    assert_eq!(service.oneshot(Ask("a")).await.unwrap(), "lost");
}

/// Panics when it is called without having been polled ready, as services may.
struct Strict {
    busy: Arc<AtomicBool>,
    ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self {
            busy: self.busy.clone(),
            ready: false,
        }
    }
}

impl Service<Ask> for Strict {
    type Response = String;
    type Error = Infallible;
    type Future = std::future::Ready<Result<String, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.busy.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, Ask(request): Ask) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without readiness");
        std::future::ready(Ok(request.to_owned()))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let (_, _, layer) = layer().await;
    let busy = Arc::new(AtomicBool::new(true));
    let mut service = layer.layer(Strict {
        busy: busy.clone(),
        ready: false,
    });
    let unready = tokio::time::timeout(Duration::from_millis(10), service.ready()).await;
    assert!(
        unready.is_err(),
        "back-pressure of the inner service is lost"
    );
    busy.store(false, Ordering::SeqCst);
    for request in ["a", "b", "pass"] {
        let answer = service
            .ready()
            .await
            .unwrap()
            .call(Ask(request))
            .await
            .unwrap();
        assert_eq!(answer, request);
    }
}

#[tokio::test]
async fn what_has_begun_goes_on_when_the_client_disconnects() {
    let (inbox, _, layer) = layer().await;
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let notifies = (begun.clone(), go.clone());
    let service = layer.layer(service_fn(move |_: Ask| {
        let (begun, go) = notifies.clone();
        async move {
            begun.notify_one();
            go.notified().await;
            Ok::<_, Infallible>("done".to_owned())
        }
    }));
    let client = tokio::spawn(service.clone().oneshot(Ask("1")));
    begun.notified().await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    go.notify_one();
    for _ in 0..1000 {
        if state(&inbox, "1").await == Some(State::Processed) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the work was dropped with its client");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_it_waits_for_another_copy_runs_nothing() {
    let (inbox, store, _) = layer().await;
    let patient = consumer(store.clone(), Duration::from_secs(30))
        .on_busy(OnBusy::Wait(Duration::from_secs(600)));
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    let service = InboxLayer::new(patient, Texts).layer(service_fn(move |_: Ask| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>("done".to_owned()) }
    }));
    let worker = WorkerName::new("other").unwrap();
    let terms = LeaseTerms::new(Duration::from_secs(60), worker).unwrap();
    let Begun::Run(held) = inbox.begin(&message("1"), &terms).await.unwrap() else {
        panic!("held by nobody");
    };
    let client = tokio::spawn(service.oneshot(Ask("1")));
    tokio::time::sleep(Duration::from_secs(5)).await;
    client.abort();
    let asked = store.calls("begin");
    let _ = inbox
        .settle_one(&held.lease, Outcome::Release)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(store.calls("begin"), asked);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_response_of_the_last_attempt_says_so() {
    let (_, store, _) = layer().await;
    let consumer = consumer(store, Duration::from_secs(30)).retry(policy(1));
    let service = InboxLayer::new(consumer, Texts).layer(service_fn(async |_: Ask| {
        Ok::<_, Infallible>("fail".to_owned())
    }));
    let response = service.oneshot(Ask("1")).await.unwrap();
    assert_eq!(response, "given up: fail (fail)");
}

/// The service's error is all that can be returned with its type; the next copy learns the rest.
#[tokio::test]
async fn an_error_of_the_last_attempt_is_returned_and_the_next_copy_finds_it_dead() {
    let (inbox, store, _) = layer().await;
    let consumer = consumer(store, Duration::from_secs(30)).retry(policy(1));
    let service = InboxLayer::new(consumer, Texts).layer(service_fn(async |_: Ask| {
        Err::<String, _>("no funds".to_owned())
    }));
    let error = service.clone().oneshot(Ask("1")).await.unwrap_err();
    assert_eq!(error, "no funds");
    assert_eq!(state(&inbox, "1").await, Some(State::Dead));
    let next = service.oneshot(Ask("1")).await.unwrap();
    assert_eq!(next, "dead: no funds");
}

/// Everything that outlives its request: the server's own shutdown does not wait for that.
#[tokio::test(start_paused = true)]
async fn what_outlives_its_request_is_waited_for_at_the_end() {
    let inbox = memory().await;
    let told = Arc::new(AtomicU32::new(0));
    let consumer = consumer(inbox.clone(), Duration::from_secs(30)).hooks(Slow(told.clone()));
    let layer = InboxLayer::new(consumer.clone(), Texts);
    let service = layer.layer(service_fn(async |Ask(request): Ask| {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok::<_, Infallible>(request.to_owned())
    }));
    for request in ["fine", "fail"] {
        let leaving = service.clone().oneshot(Ask(request));
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, leaving).await.is_err());
    }
    assert!(consumer.drain(Duration::from_secs(60)).await);
    assert_eq!(state(&inbox, "fine").await, Some(State::Processed));
    assert_eq!(
        told.load(Ordering::SeqCst),
        1,
        "the hook was not waited for"
    );
}

/// Takes a while.
struct Slow(Arc<AtomicU32>);

#[async_trait::async_trait]
impl inbox::Hooks for Slow {
    async fn attempt_failed(&self, _: &inbox::Leased, _: &str, _: Duration) {
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn what_takes_too_long_at_the_end_is_handed_back() {
    let (inbox, store, _) = layer().await;
    let consumer = consumer(store.clone(), Duration::from_secs(30))
        .on_busy(OnBusy::Wait(Duration::from_secs(3600)));
    let layer = InboxLayer::new(consumer.clone(), Texts);
    let dropped = Arc::new(AtomicBool::new(false));
    let seen = dropped.clone();
    let service = layer.layer(service_fn(move |_: Ask| {
        let guard = Dropped(seen.clone());
        async move {
            let _guard = guard;
            std::future::pending::<Result<String, Infallible>>().await
        }
    }));
    // One whose client has left, and a copy that waits for it.
    let left = service.clone().oneshot(Ask("left"));
    let soon = Duration::from_secs(1);
    assert!(tokio::time::timeout(soon, left).await.is_err());
    let waiting = tokio::spawn(service.clone().oneshot(Ask("left")));
    let staying = tokio::spawn(service.clone().oneshot(Ask("staying")));
    tokio::time::sleep(soon).await;
    let began = tokio::time::Instant::now();
    assert!(!consumer.drain(Duration::from_secs(20)).await);
    let took = began.elapsed().as_secs();
    assert!((20..22).contains(&took), "{took}");
    assert!(dropped.load(Ordering::SeqCst));
    for key in ["left", "staying"] {
        let record = inbox.get(message(key).key()).await.unwrap().unwrap();
        let attempts = (record.attempts.started, record.attempts.finished);
        assert_eq!((record.state, attempts), (State::Pending, (0, 0)), "{key}");
    }
    for answer in [waiting, staying] {
        assert_eq!(
            answer.await.unwrap().unwrap(),
            "unavailable: store unavailable"
        );
    }
    // Nothing begins behind it.
    let begun = store.calls("begin");
    let late = service.oneshot(Ask("late")).await.unwrap();
    assert_eq!(late, "unavailable: store unavailable");
    assert_eq!(store.calls("begin"), begun);
    assert_eq!(state(&inbox, "late").await, None);
}

struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
