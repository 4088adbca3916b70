//! What the tests share: a store in a temporary folder, whose clock they move.

pub use conformance_tests::samples::{
    LEASE, begin, claim, claim_one, dead, defer, get, handler, ids, key, message, ordered,
    processed, request, retry, settle, terms,
};
use std::path::PathBuf;

use inbox_api::{Clock, Operate, Schema, State, Store};
use inbox_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use sqlx::{Connection, Executor, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

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
    // The connections of a store that is only dropped end some time later.
    inbox.store.close().await;
    inbox.store = SqliteStore::connect(change(inbox.options())).await.unwrap();
    inbox
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

/// Another connection has the write lock from now on.
pub async fn lock(inbox: &TestInbox) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(inbox.path());
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    connection.execute("BEGIN IMMEDIATE").await.unwrap();
    connection
}

pub async fn unlock(mut connection: SqliteConnection) {
    connection.execute("ROLLBACK").await.unwrap();
    connection.close().await.unwrap();
}
