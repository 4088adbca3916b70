//! Short names for a store's own tests: messages of one handler, and what is done with them.
//!
//! What this suite asks needs none of them. They are for what only one store can be asked: its
//! settings, its statements, its server. Each panics when the store fails or answers otherwise than
//! its name says, as a test should.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "for tests, which fail by panicking"
)]

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use inbox_api::{
    AfterDead, Begun, ClaimRequest, HandlerName, Inbox, Key, Kind, Lease, LeaseTerms, Leased,
    Message, MessageId, Operate, OrderingKey, Outcome, Receipt, Record, Result, Settled, State,
    Store, StoreExt as _, WorkerName,
};

/// How long the leases of [`terms`] last: 30 seconds.
pub const LEASE: Duration = Duration::from_secs(30);

/// A handler's name.
///
/// # Panics
/// When it is not one; so do the others that make a name.
#[must_use]
pub fn handler(name: &str) -> HandlerName {
    HandlerName::new(name).unwrap()
}

/// The worker `w`.
#[must_use]
pub fn worker() -> WorkerName {
    WorkerName::new("w").unwrap()
}

/// The key of [`message`].
#[must_use]
pub fn key(id: &str) -> Key {
    Key::new(handler("h"), MessageId::new(id).unwrap())
}

/// A message of the handler `h`. Its payload is `payload of`, and the id.
#[must_use]
pub fn message(id: &str) -> Message {
    let payload = format!("payload of {id}");
    Message::new(
        handler("h"),
        MessageId::new(id).unwrap(),
        Kind::new("k").unwrap(),
        payload,
    )
}

/// The same, with an ordering key.
#[must_use]
pub fn ordered(id: &str, ordering_key: &str) -> Message {
    message(id).with_ordering_key(OrderingKey::new(ordering_key).unwrap())
}

/// Leases of [`LEASE`] for [`worker`].
#[must_use]
pub fn terms() -> LeaseTerms {
    LeaseTerms::new(LEASE, worker()).unwrap()
}

/// Asks for up to `limit` messages of the handler `h`.
#[must_use]
pub fn request(limit: u32) -> ClaimRequest {
    ClaimRequest {
        handlers: vec![handler("h")],
        limit,
        terms: terms(),
        run_limit: 1,
    }
}

/// The message is processed, without a result.
#[must_use]
pub fn processed() -> Outcome {
    Outcome::Processed { result: None }
}

/// The attempt failed, and the next is due after that time.
#[must_use]
pub fn retry(after: Duration) -> Outcome {
    Outcome::Retry {
        after,
        error: "failed".into(),
    }
}

/// The attempt does not count, and the next is due after that time.
#[must_use]
pub fn defer(after: Duration) -> Outcome {
    Outcome::Defer {
        after,
        error: Some("not now".into()),
    }
}

/// The message is a dead letter.
#[must_use]
pub fn dead(after: AfterDead) -> Outcome {
    Outcome::Dead {
        reason: "poison".into(),
        after,
    }
}

/// Receives messages that the store does not know yet.
///
/// # Panics
/// When it knows one.
pub async fn accept<S: Store + ?Sized>(store: &S, messages: &[Message]) {
    let receipts = store.receive(messages).await.unwrap();
    let is_accepted = |receipt: &Receipt| *receipt == Receipt::Accepted;
    assert!(receipts.iter().all(is_accepted), "{receipts:?}");
}

/// Claims up to `limit` messages of the handler `h`.
///
/// # Panics
/// When the store finds a corrupt row.
pub async fn claim<S: Store + ?Sized>(store: &S, limit: u32) -> Vec<Leased> {
    let claims = store.claim(&request(limit)).await.unwrap();
    assert_eq!(claims.corrupt, []);
    claims.leased
}

/// Claims the one message that comes first.
///
/// # Panics
/// When nothing is due.
pub async fn claim_one<S: Store + ?Sized>(store: &S) -> Lease {
    let mut leased = claim(store, 1).await;
    assert_eq!(leased.len(), 1);
    leased.remove(0).lease
}

/// Begins a message that may be run.
///
/// # Panics
/// When it may not.
pub async fn begin<S: Store + ?Sized>(store: &S, message: &Message) -> Leased {
    match store.begin(message, &terms()).await.unwrap() {
        Begun::Run(leased) => *leased,
        other => panic!("not run but {other:?}"),
    }
}

/// Settles a lease that stands.
///
/// # Panics
/// When it does not, or was settled before.
pub async fn settle<S: Store + ?Sized>(store: &S, lease: &Lease, outcome: Outcome) {
    let settled = store.settle_one(lease, outcome).await.unwrap();
    assert_eq!(settled, Settled::Done);
}

/// What is stored of a message of the handler `h`.
///
/// # Panics
/// When it is not stored.
pub async fn get<S: Operate + ?Sized>(store: &S, id: &str) -> Record {
    store.get(&key(id)).await.unwrap().unwrap()
}

/// The ids, in this order.
#[must_use]
pub fn ids(leased: &[Leased]) -> Vec<&str> {
    leased.iter().map(|l| l.message.id().as_str()).collect()
}

/// What a worker does that meets a conflict or an outage: it tries again.
async fn persist<T, F: Future<Output = Result<T>>>(operation: impl Fn() -> F) -> T {
    loop {
        match operation().await {
            Err(error) if error.is_retryable() => tokio::time::sleep(LEASE / 1000).await,
            answer => return answer.unwrap(),
        }
    }
}

/// Receives, claims and settles messages of the handler `h` for as long as `change` takes, and until all
/// are processed. For changes under an inbox that is at work, such as a migration.
///
/// # Panics
/// When an operation fails otherwise than with what workers try again, or a message is not processed in
/// one attempt, though no lease ran out.
pub async fn work_during<T>(inbox: &dyn Inbox, change: impl Future<Output = T>) -> T {
    let is_over = AtomicBool::new(false);
    let all = request(100);
    let work = async {
        let mut sent = 0;
        loop {
            let is_last = is_over.load(Ordering::Relaxed);
            let id = |n: u64| format!("traffic {}", sent + n);
            let mut batch: Vec<Message> = (0..4).map(|n| message(&id(n))).collect();
            batch.extend((4..6).map(|n| ordered(&id(n), "traffic")));
            sent += 6;
            persist(|| inbox.receive(&batch)).await;
            loop {
                let leased = persist(|| inbox.claim(&all)).await.leased;
                for leased in &leased {
                    assert_eq!(leased.attempts.started, 1, "{leased:?}");
                    let settled = persist(|| inbox.settle_one(&leased.lease, processed())).await;
                    assert_eq!(settled, Settled::Done);
                }
                if leased.is_empty() {
                    break;
                }
            }
            if is_last {
                return sent;
            }
        }
    };
    let change = async {
        let changed = change.await;
        is_over.store(true, Ordering::Relaxed);
        changed
    };
    let (sent, changed) = tokio::join!(work, change);
    let statistics = inbox.statistics().await.unwrap();
    let done = statistics.count(State::Processed);
    assert!(done >= sent, "{done} of {sent} are processed");
    changed
}
