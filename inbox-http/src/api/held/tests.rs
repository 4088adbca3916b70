//! Callers that go away while they are being served.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, header},
    response::Response,
};
use inbox::{
    Begun, CancellationToken, Capabilities, ClaimRequest, Claims, Extended, HandlerName, Inbox,
    Key, Kind, Lease, LeaseTerms, Message, MessageId, Outcome, Receipt, Record, Result, Settled,
    Settlement, State, Store, StoreExt as _, Subscription, WorkerName,
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tower::ServiceExt as _;

use crate::api::{Api, Connection, Token, wire};

const TOKEN: &str = "a-token-of-16-characters";

/// A store whose claims and begins are done at once, and answered when it is told to.
struct Slow {
    store: Arc<dyn Inbox>,
    has_done: Notify,
    may_answer: Notify,
    /// What it has answered to extensions.
    extended: Mutex<Vec<Extended>>,
}

impl Slow {
    async fn answer(&self) {
        self.has_done.notify_one();
        self.may_answer.notified().await;
    }
}

#[async_trait]
impl Store for Slow {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.store.receive(messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let claims = self.store.claim(request).await;
        self.answer().await;
        claims
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.store.settle(settlements).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        let extended = self.store.extend(leases, length).await?;
        self.extended.lock().unwrap().extend(extended.clone());
        Ok(extended)
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        let begun = self.store.begin(message, terms).await;
        self.answer().await;
        begun
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.store.subscribe(handlers).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

struct Scene {
    store: Arc<dyn Inbox>,
    slow: Arc<Slow>,
    api: Api,
    router: Router,
    shutdown: CancellationToken,
}

fn name<T: TryFrom<&'static str, Error = inbox::Invalid>>(text: &'static str) -> T {
    T::try_from(text).unwrap()
}

impl Scene {
    /// With one message.
    async fn new() -> Self {
        let scene = Self::without_message().await;
        scene.receive().await;
        scene
    }

    async fn without_message() -> Self {
        let store = inbox::connect("memory://").await.unwrap();
        store.create().await.unwrap();
        let slow = Arc::new(Slow {
            store: Arc::clone(&store),
            has_done: Notify::new(),
            may_answer: Notify::new(),
            extended: Mutex::default(),
        });
        let token = Token::new(TOKEN).unwrap();
        let shutdown = CancellationToken::new();
        let api = Api::builder(Arc::clone(&slow))
            .token(token)
            .shutdown(shutdown.clone())
            .build();
        let router = api.router();
        Self {
            store,
            slow,
            api,
            router,
            shutdown,
        }
    }

    async fn receive(&self) {
        let message = Message::new(
            name::<HandlerName>("h"),
            name::<MessageId>("1"),
            name::<Kind>("k"),
            "{}",
        );
        let receipt = self.store.receive_one(&message).await.unwrap();
        assert_eq!(receipt, Receipt::Accepted);
    }

    async fn post(&self, path: &str, body: &'static str) -> Response {
        self.post_over(path, body, None).await
    }

    async fn post_over(
        &self,
        path: &str,
        body: &'static str,
        connection: Option<&Connection>,
    ) -> Response {
        let mut request = Request::post(path)
            .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .unwrap();
        if let Some(connection) = connection {
            request.extensions_mut().insert(connection.clone());
        }
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// The answer to one of [`SHORT`], which the store gives when the lease has run out.
    async fn post_late(
        &self,
        path: &str,
        body: &'static str,
        meanwhile: impl AsyncFnOnce(),
    ) -> Value {
        let late = async {
            self.slow.has_done.notified().await;
            let leased = Instant::now();
            while leased.elapsed() < LEASE || self.record().await.state != State::Pending {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            meanwhile().await;
            self.slow.may_answer.notify_one();
        };
        let (response, ()) = tokio::join!(self.post(path, body), late);
        assert_eq!(response.status(), 200);
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Another worker's lease.
    async fn claim_elsewhere(&self) -> Lease {
        let worker = name::<WorkerName>("other");
        let request = ClaimRequest {
            handlers: vec![name("h")],
            limit: 1,
            terms: LeaseTerms::new(Duration::from_secs(60), worker).unwrap(),
            run_limit: 1,
        };
        let claims = self.store.claim(&request).await.unwrap();
        claims.leased[0].lease.clone()
    }

    async fn record(&self) -> Record {
        let key = Key::new(name("h"), name("1"));
        self.store.get(&key).await.unwrap().unwrap()
    }

    /// The message was handed back, as if it had never been claimed.
    async fn is_untouched(&self) {
        self.api.finish().await;
        let record = self.record().await;
        assert_eq!(record.state, State::Pending);
        assert_eq!(record.attempts.started, 0);
    }
}

const REQUESTS: [(&str, &str); 2] = [
    ("/v1/claim", r#"{"handlers":["h"],"wait_seconds":60}"#),
    (
        "/v1/begin",
        r#"{"message":{"handler":"h","id":"1","kind":"k"}}"#,
    ),
];

const LEASE: Duration = Duration::from_millis(50);

/// The same under leases of that length.
const SHORT: [(&str, &str); 2] = [
    ("/v1/claim", r#"{"handlers":["h"],"lease_seconds":0.05}"#),
    (
        "/v1/begin",
        r#"{"message":{"handler":"h","id":"1","kind":"k"},"lease_seconds":0.05}"#,
    ),
];

#[tokio::test]
async fn a_lease_that_ran_out_before_the_store_answered_is_renewed() {
    for (path, body) in SHORT {
        let scene = Scene::new().await;
        let answer = scene.post_late(path, body, async || {}).await;
        let extended = scene.slow.extended.lock().unwrap().clone();
        let [Extended::Until(until)] = &extended[..] else {
            panic!("{extended:?}");
        };
        let claimed = answer.pointer("/messages/0").or(answer.get("message"));
        let claimed = claimed.unwrap();
        assert_eq!(claimed["lease"]["until"], wire::time(*until));
        assert_eq!(claimed["attempt"], 1);
    }
}

#[tokio::test]
async fn what_another_worker_took_before_the_store_answered_is_not_handed_out() {
    for (path, body) in SHORT {
        let scene = Scene::new().await;
        let mut taken = None;
        let take = async || taken = Some(scene.claim_elsewhere().await);
        let answer = scene.post_late(path, body, take).await;
        match path {
            "/v1/claim" => assert_eq!(answer, json!({"messages": []})),
            _ => assert_eq!(answer["status"], "busy"),
        }
        scene.api.finish().await;
        let outcome = Outcome::Processed { result: None };
        let taken = taken.unwrap();
        let settling = scene.store.settle_one(&taken, outcome);
        assert_eq!(settling.await.unwrap(), Settled::Done);
    }
}

#[tokio::test]
async fn a_caller_that_goes_while_the_store_answers_costs_no_attempt() {
    for (path, body) in REQUESTS {
        let scene = Scene::new().await;
        tokio::select! {
            _ = scene.post(path, body) => panic!("answered"),
            () = scene.slow.has_done.notified() => {}
        }
        assert_eq!(scene.record().await.state, State::Leased);
        scene.slow.may_answer.notify_one();
        scene.is_untouched().await;
    }
}

#[tokio::test]
async fn an_answer_that_is_not_sent_costs_no_attempt() {
    for (path, body) in REQUESTS {
        let scene = Scene::new().await;
        scene.slow.may_answer.notify_one();
        let response = scene.post(path, body).await;
        assert_eq!(response.status(), 200);
        assert_eq!(scene.record().await.state, State::Leased);
        drop(response);
        scene.is_untouched().await;
    }
}

/// Its end has come to this machine, but no one has read it from the connection.
#[tokio::test]
async fn an_answer_is_not_written_to_a_connection_that_its_caller_has_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for (path, body) in REQUESTS {
        for is_closed in [false, true] {
            let scene = Scene::new().await;
            let caller = TcpStream::connect(address).await.unwrap();
            let (connection, _stream) = Connection::watch(listener.accept().await.unwrap().0);
            scene.slow.may_answer.notify_one();
            let response = scene.post_over(path, body, Some(&connection)).await;
            // What it has sent before is no end.
            caller.try_write(b"GET").unwrap();
            assert!(!connection.is_closed());
            let _caller = (!is_closed).then_some(caller);
            let read = to_bytes(response.into_body(), usize::MAX).await;
            assert_eq!(read.is_err(), is_closed);
            if is_closed {
                scene.is_untouched().await;
            } else {
                assert_eq!(scene.record().await.state, State::Leased);
            }
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_sent_keeps_its_leases() {
    for (path, body) in REQUESTS {
        let scene = Scene::new().await;
        scene.slow.may_answer.notify_one();
        let response = scene.post(path, body).await;
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        assert!(!bytes.is_empty());
        scene.api.finish().await;
        let record = scene.record().await;
        assert_eq!(record.state, State::Leased);
        assert_eq!(record.attempts.started, 1);
    }
}

async fn is_empty(response: Response) {
    assert_eq!(response.status(), 200);
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    assert_eq!(bytes, r#"{"messages":[]}"#);
}

#[tokio::test]
async fn a_shutdown_ends_claims_that_wait() {
    let scene = Scene::without_message().await;
    let (path, body) = REQUESTS[0];
    let waiting = scene.post(path, body);
    tokio::pin!(waiting);
    let answering = async {
        loop {
            scene.slow.has_done.notified().await;
            scene.slow.may_answer.notify_one();
        }
    };
    tokio::select! {
        _ = &mut waiting => panic!("it does not wait"),
        () = answering => {}
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    scene.shutdown.cancel();
    is_empty(waiting.await).await;
}

#[tokio::test]
async fn what_a_claim_takes_while_a_shutdown_ends_it_is_handed_back() {
    let scene = Scene::without_message().await;
    let (path, body) = REQUESTS[0];
    let waiting = scene.post(path, body);
    tokio::pin!(waiting);
    // Finds nothing, and looks again at once, since it waits.
    tokio::select! {
        _ = &mut waiting => panic!("answered"),
        () = scene.slow.has_done.notified() => scene.receive().await,
    }
    scene.slow.may_answer.notify_one();
    tokio::select! {
        _ = &mut waiting => panic!("answered"),
        () = scene.slow.has_done.notified() => {}
    }
    assert_eq!(scene.record().await.state, State::Leased);
    scene.shutdown.cancel();
    is_empty(waiting.await).await;
    let early = tokio::time::timeout(Duration::from_millis(50), scene.api.finish()).await;
    assert!(early.is_err(), "it has not waited for the store");
    scene.slow.may_answer.notify_one();
    scene.is_untouched().await;
}

#[tokio::test]
async fn a_claim_that_comes_after_a_shutdown_takes_nothing() {
    let scene = Scene::new().await;
    scene.shutdown.cancel();
    for body in [r#"{"handlers":["h"]}"#, REQUESTS[0].1] {
        let asked = tokio::time::Instant::now();
        is_empty(scene.post("/v1/claim", body).await).await;
        assert!(asked.elapsed() < Duration::from_secs(30));
    }
    scene.is_untouched().await;
}
