//! What the tests share: a store in a temporary folder, whose clock they move.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::{path::PathBuf, time::Duration};

use inbox_api::{
    AfterDead, Begun, ClaimRequest, Clock, HandlerName, Key, Kind, Lease, LeaseTerms, Leased,
    Message, MessageId, Operate, OrderingKey, Outcome, Record, Schema, Settled, State, Store,
    StoreExt, WorkerName,
};
use inbox_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use tempfile::TempDir;

pub const LENGTH: Duration = Duration::from_secs(30);

pub struct TestInbox {
    pub folder: TempDir,
    pub clock: Clock,
    pub store: SqliteStore,
}

impl TestInbox {
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("inbox.db")
    }

    pub fn options(&self) -> SqliteOptions {
        SqliteOptions::new(self.path())
            .synchronous(Synchronous::Normal)
            .clock(self.clock.clone())
    }

    /// Another store on the same file, with its own connections, as another process has.
    pub async fn other(&self) -> SqliteStore {
        SqliteStore::connect(self.options()).await.unwrap()
    }
}

pub async fn empty_test_inbox() -> TestInbox {
    let folder = TempDir::new().unwrap();
    let clock = Clock::system();
    let options = SqliteOptions::new(folder.path().join("inbox.db"))
        .synchronous(Synchronous::Normal)
        .clock(clock.clone());
    let store = SqliteStore::connect(options).await.unwrap();
    TestInbox {
        folder,
        clock,
        store,
    }
}

pub async fn test_inbox() -> TestInbox {
    let inbox = empty_test_inbox().await;
    inbox.store.create().await.unwrap();
    inbox
}

pub async fn test_inbox_with(change: impl Fn(SqliteOptions) -> SqliteOptions) -> TestInbox {
    let mut inbox = test_inbox().await;
    inbox.store = SqliteStore::connect(change(inbox.options())).await.unwrap();
    inbox
}

pub fn handler(name: &str) -> HandlerName {
    HandlerName::new(name).unwrap()
}

pub fn key(id: &str) -> Key {
    Key::new(handler("h"), MessageId::new(id).unwrap())
}

pub fn message(id: &str) -> Message {
    Message::new(
        handler("h"),
        MessageId::new(id).unwrap(),
        Kind::new("k").unwrap(),
        format!("payload of {id}"),
    )
}

pub fn ordered(id: &str, ordering_key: &str) -> Message {
    message(id).with_ordering_key(OrderingKey::new(ordering_key).unwrap())
}

pub fn terms() -> LeaseTerms {
    LeaseTerms::new(LENGTH, WorkerName::new("w").unwrap()).unwrap()
}

pub fn request(limit: u32) -> ClaimRequest {
    ClaimRequest {
        handlers: vec![handler("h")],
        limit,
        terms: terms(),
    }
}

pub async fn claim(store: &SqliteStore, limit: u32) -> Vec<Leased> {
    let claims = store.claim(&request(limit)).await.unwrap();
    assert_eq!(claims.corrupt, []);
    claims.leased
}

pub fn ids(leased: &[Leased]) -> Vec<&str> {
    leased.iter().map(|l| l.message.id().as_str()).collect()
}

pub async fn claim_one(store: &SqliteStore) -> Lease {
    let mut leased = claim(store, 1).await;
    assert_eq!(leased.len(), 1);
    leased.remove(0).lease
}

pub async fn run(store: &SqliteStore, message: &Message) -> Leased {
    match store.begin(message, &terms()).await.unwrap() {
        Begun::Run(leased) => *leased,
        other => panic!("not run but {other:?}"),
    }
}

pub async fn get(store: &SqliteStore, id: &str) -> Record {
    store.get(&key(id)).await.unwrap().unwrap()
}

pub fn processed() -> Outcome {
    Outcome::Processed { result: None }
}

pub fn retry(after: Duration) -> Outcome {
    Outcome::Retry {
        after,
        error: "failed".into(),
    }
}

pub fn dead(after: AfterDead) -> Outcome {
    Outcome::Dead {
        reason: "poison".into(),
        after,
    }
}

/// Compares the counts that triggers keep with what listings count.
pub async fn check_consistent(store: &SqliteStore) {
    let statistics = store.statistics().await.unwrap();
    for state in State::ALL {
        let filter = inbox_api::Filter {
            states: vec![state],
            ..Default::default()
        };
        let counted = store.count(&filter).await.unwrap();
        assert_eq!(statistics.count(state), counted, "{state}");
    }
}

/// Settles a lease that stands.
pub async fn settle(store: &SqliteStore, lease: &Lease, outcome: Outcome) {
    let settled = store.settle_one(lease, outcome).await.unwrap();
    assert_eq!(settled, Settled::Done);
}
