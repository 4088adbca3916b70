//! What a claim reads, and what it hands out.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, header},
};
use inbox::{
    Begun, Capabilities, ClaimRequest, Claims, Error, ErrorKind, Extended, HandlerName, Inbox, Key,
    Kind, Lease, LeaseTerms, Message, MessageId, Receipt, Result, Settled, Settlement, State,
    Store, StoreExt as _, Subscription,
};
use tower::ServiceExt as _;

use crate::api::{Api, Token};

const TOKEN: &str = "a-token-of-16-characters";
const MIB: usize = 1024 * 1024;

/// A store that remembers the limits of its claims and the bytes that they read, and fails at one of them.
struct Watched {
    store: Arc<dyn Inbox>,
    limits: Mutex<Vec<u32>>,
    read: AtomicUsize,
    fails_at: usize,
    /// How many leases it was told to settle at a time. While it is locked, settlements wait.
    settled: tokio::sync::Mutex<Vec<usize>>,
}

#[async_trait]
impl Store for Watched {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.store.receive(messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let number = {
            let mut limits = self.limits.lock().unwrap();
            limits.push(request.limit);
            limits.len()
        };
        if number == self.fails_at {
            return Err(Error::new(ErrorKind::Unavailable, "away"));
        }
        let claims = self.store.claim(request).await?;
        let sizes = claims.leased.iter().map(|one| one.message.payload().len());
        self.read.fetch_add(sizes.sum(), Ordering::Relaxed);
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.settled.lock().await.push(settlements.len());
        self.store.settle(settlements).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.store.extend(leases, length).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.store.begin(message, terms).await
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.store.subscribe(handlers).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

struct Site {
    store: Arc<Watched>,
    api: Api,
    router: Router,
}

fn handler() -> HandlerName {
    HandlerName::new("h").unwrap()
}

fn message(number: usize, payload: Vec<u8>) -> Message {
    let id = MessageId::new(number.to_string()).unwrap();
    Message::new(handler(), id, Kind::new("k").unwrap(), payload)
}

impl Site {
    /// With messages of these sizes, which are numbered from 1.
    async fn with(sizes: impl IntoIterator<Item = usize>, fails_at: usize) -> Self {
        let store = inbox::connect("memory://").await.unwrap();
        store.create().await.unwrap();
        for (size, number) in sizes.into_iter().zip(1..) {
            let message = message(number, vec![0; size]);
            let _ = store.receive_one(&message).await.unwrap();
        }
        let store = Arc::new(Watched {
            store,
            limits: Mutex::default(),
            read: AtomicUsize::default(),
            fails_at,
            settled: tokio::sync::Mutex::default(),
        });
        let token = Token::new(TOKEN).unwrap();
        let api = Api::builder(store.clone()).token(token).build();
        let router = api.router();
        Self { store, api, router }
    }

    /// Adds a message that is dead rather than handed out.
    async fn receive_expired(&self, number: usize) {
        let message = message(number, Vec::new()).with_time_to_live(Duration::ZERO);
        let received = self.store.receive_one(&message.unwrap()).await;
        assert_eq!(received.unwrap(), Receipt::Accepted);
    }

    /// How many messages a claim gets, if they come in their order after `first`.
    async fn claim(&self, first: usize, limit: u32) -> usize {
        // Longer than answers of 16 MiB take on a busy machine.
        let body = format!(r#"{{"handlers":["h"],"limit":{limit},"lease_seconds":3600}}"#);
        let request = Request::post("/v1/claim")
            .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let messages = answer["messages"].as_array().unwrap();
        for (message, number) in messages.iter().zip(first..) {
            assert_eq!(message["id"], number.to_string());
        }
        messages.len()
    }

    async fn state(&self, number: usize) -> (State, u32) {
        let key = Key::new(handler(), MessageId::new(number.to_string()).unwrap());
        let record = self.store.store.get(&key).await.unwrap().unwrap();
        (record.state, record.attempts.started)
    }

    /// What was claimed of the store since this was last asked.
    fn asked(&self) -> (Vec<u32>, usize) {
        let limits = std::mem::take(&mut *self.store.limits.lock().unwrap());
        (limits, self.store.read.swap(0, Ordering::Relaxed))
    }
}

#[tokio::test]
async fn an_answer_has_a_limit_of_bytes() {
    let site = Site::with([12 * MIB; 4], 0).await;
    assert_eq!(site.claim(1, 10).await, 2);
    site.api.finish().await;
    // Handed back, as if it had not been claimed.
    assert_eq!(site.state(2).await, (State::Leased, 1));
    for number in [3, 4] {
        assert_eq!(site.state(number).await, (State::Pending, 0));
    }
    assert_eq!(site.claim(3, 10).await, 2);
    assert_eq!(site.claim(5, 10).await, 0);
}

#[tokio::test]
async fn of_many_large_messages_few_are_read() {
    let site = Site::with([5 * MIB; 100], 0).await;
    assert_eq!(site.claim(1, 100).await, 6);
    assert_eq!(site.asked(), (vec![10], 50 * MIB));
    site.api.finish().await;
    // What it has seen, the next one knows.
    assert_eq!(site.claim(7, 100).await, 6);
    assert_eq!(site.asked(), (vec![6], 30 * MIB));
}

#[tokio::test]
async fn of_small_messages_all_are_read_in_few_steps() {
    let site = Site::with([10; 250], 0).await;
    assert_eq!(site.claim(1, 100).await, 100);
    assert_eq!(site.asked(), (vec![10, 40, 50], 1000));
    assert_eq!(site.claim(101, 10).await, 10);
    assert_eq!(site.asked(), (vec![10], 100));
    assert_eq!(site.claim(111, 100).await, 100);
    assert_eq!(site.claim(211, 100).await, 40);
    assert_eq!(site.asked().0, [10, 40, 50, 10, 40]);
}

/// The large ones are behind small ones.
#[tokio::test]
async fn what_comes_in_a_later_step_has_the_same_limit() {
    let sizes = [10; 15].into_iter().chain([16 * MIB; 5]).chain([10; 40]);
    let site = Site::with(sizes, 0).await;
    assert_eq!(site.claim(1, 100).await, 16);
    site.api.finish().await;
    assert_eq!(site.state(16).await, (State::Leased, 1));
    for number in 17..=60 {
        assert_eq!(site.state(number).await, (State::Pending, 0), "{number}");
    }
    assert_eq!(site.claim(17, 100).await, 2);
    assert_eq!(site.claim(19, 100).await, 2);
    assert_eq!(site.claim(21, 100).await, 40);
}

#[tokio::test]
async fn a_step_that_fails_takes_nothing_from_those_before() {
    let site = Site::with([10; 60], 2).await;
    assert_eq!(site.claim(1, 100).await, 10);
    assert_eq!(site.claim(11, 100).await, 50);
}

/// However long their end takes.
#[tokio::test]
async fn dead_messages_hold_nothing_up_that_is_handed_out() {
    let site = Site::with([10; 2], 0).await;
    site.receive_expired(3).await;
    site.receive_expired(4).await;
    let waiting = site.store.settled.lock().await;
    // The limit is for a test that fails.
    let claiming = tokio::time::timeout(Duration::from_secs(60), site.claim(1, 10));
    assert_eq!(claiming.await.unwrap(), 2);
    drop(waiting);
    site.api.finish().await;
    for number in [3, 4] {
        assert_eq!(site.state(number).await, (State::Dead, 1));
    }
    assert_eq!(*site.store.settled.lock().await, [2]);
}

/// So the next claim finds what they have held up.
#[tokio::test]
async fn where_all_messages_are_dead_the_answer_waits_for_their_end() {
    let site = Site::with([], 0).await;
    site.receive_expired(1).await;
    assert_eq!(site.claim(1, 10).await, 0);
    assert_eq!(site.state(1).await, (State::Dead, 1));
}
