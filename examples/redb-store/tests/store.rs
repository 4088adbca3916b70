//! What only this store can get wrong: its file, its versions, its rows.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{fs, path::PathBuf, time::Duration};

use inbox_api::{
    ErrorKind, Filter, HandlerName, Kind, Message, MessageId, Migration, Operate, OrderingKey,
    Outcome, Page, PurgeRequest, Receipt, Schema, Settled, State, Store, StoreExt, WorkerName,
};
use redb::{Database, TableDefinition};
use redb_store::{RedbOptions, RedbStore};
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(30);
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
const COUNT: TableDefinition<'_, (&str, u8), u64> = TableDefinition::new("count");
const STATE: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("state");

fn file(directory: &TempDir) -> PathBuf {
    directory.path().join("inbox.redb")
}

fn options(directory: &TempDir) -> RedbOptions {
    RedbOptions::new(file(directory))
}

async fn inbox() -> (TempDir, RedbStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = RedbStore::open(options(&directory)).unwrap();
    store.create().await.unwrap();
    (directory, store)
}

fn handler() -> HandlerName {
    HandlerName::new("billing").unwrap()
}

fn message(id: &str) -> Message {
    let (id, kind) = (
        MessageId::new(id).unwrap(),
        Kind::new("order.placed").unwrap(),
    );
    Message::new(handler(), id, kind, "{}")
}

async fn claim(store: &RedbStore) -> inbox_api::Claims {
    let worker = WorkerName::new("worker").unwrap();
    store
        .claim_for(&handler(), 10, LEASE, &worker)
        .await
        .unwrap()
}

async fn process_all(store: &RedbStore) {
    for leased in claim(store).await.leased {
        let done = Outcome::Processed { result: None };
        assert_eq!(
            store.settle_one(&leased.lease, done).await.unwrap(),
            Settled::Done
        );
    }
}

async fn counts_by_state(store: &RedbStore) -> [u64; 5] {
    let statistics = store.statistics().await.unwrap();
    State::ALL.map(|state| statistics.count(state))
}

/// Replaces the state row of the first message by what is no state row.
fn spoil_first_state(store: &RedbStore) {
    let spoil = |database: &Database| {
        let transaction = database.begin_write().unwrap();
        let garbage: &[u8] = b"\xff garbage";
        transaction
            .open_table(STATE)
            .unwrap()
            .insert(1, garbage)
            .unwrap();
        transaction.commit().unwrap();
    };
    store.with_database(spoil).unwrap();
}

#[test]
fn a_file_of_another_kind_is_invalid() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(
        file(&directory),
        "a letter, longer than any header of redb's".repeat(99),
    )
    .unwrap();
    let before = fs::read(file(&directory)).unwrap();
    let error = RedbStore::open(options(&directory)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(fs::read(file(&directory)).unwrap(), before);
}

#[tokio::test]
async fn a_file_in_use_is_unavailable_until_it_is_closed() {
    let (directory, store) = inbox().await;
    let error = RedbStore::open(options(&directory)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    store.close().await;
    let again = RedbStore::open(options(&directory)).unwrap();
    assert!(again.exists().await.unwrap());
}

#[tokio::test]
async fn an_inbox_of_version_1_is_migrated_with_its_messages() {
    let (directory, store) = inbox().await;
    let (first, second) = (message("1"), message("2"));
    let _ = store.receive_one(&first).await.unwrap();
    process_all(&store).await;
    let _ = store.receive_one(&second).await.unwrap();
    let counts = counts_by_state(&store).await;
    assert_eq!(counts, [1, 0, 1, 0, 0]);
    let downgrade = |database: &Database| {
        let transaction = database.begin_write().unwrap();
        assert!(transaction.delete_table(COUNT).unwrap());
        transaction
            .open_table(META)
            .unwrap()
            .insert("version", "1")
            .unwrap();
        transaction.commit().unwrap();
    };
    store.with_database(downgrade).unwrap();
    store.close().await;

    let store = RedbStore::open(options(&directory)).unwrap();
    let refused = store.receive_one(&first).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SchemaVersion);
    assert!(refused.context().contains("version 1") && refused.context().contains("version 2"));
    assert_eq!(
        store.migrate().await.unwrap(),
        Migration {
            from: Some(1),
            to: 2,
            works_from: 2,
        }
    );
    assert_eq!(counts_by_state(&store).await, counts);
    assert_eq!(
        store.receive_one(&first).await.unwrap(),
        Receipt::Duplicate { differs: false }
    );
}

#[tokio::test]
async fn a_table_of_other_types_is_an_incomplete_inbox() {
    let (directory, store) = inbox().await;
    let replace = |database: &Database| {
        let transaction = database.begin_write().unwrap();
        assert!(transaction.delete_table(COUNT).unwrap());
        let other: TableDefinition<'_, &str, u64> = TableDefinition::new("count");
        transaction.open_table(other).unwrap();
        transaction.commit().unwrap();
    };
    store.with_database(replace).unwrap();
    store.close().await;
    let store = RedbStore::open(options(&directory)).unwrap();
    assert!(!store.exists().await.unwrap());
    let error = store.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion);
    let error = store.receive_one(&message("1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion);
}

#[tokio::test]
async fn a_state_row_that_does_not_read_stops_nobody_else() {
    let (_directory, store) = inbox().await;
    let messages = [message("1"), message("2")];
    let _ = store.receive(&messages).await.unwrap();
    spoil_first_state(&store);

    let claims = claim(&store).await;
    assert_eq!(claims.leased.len(), 1);
    assert_eq!(claims.corrupt.len(), 1);
    assert!(
        claims.corrupt[0].place.contains("seq 1"),
        "{:?}",
        claims.corrupt
    );
    assert!(
        claim(&store).await.corrupt.is_empty(),
        "it is reported once"
    );
    let counts = store.statistics().await.unwrap();
    assert_eq!(
        (counts.count(State::Dead), counts.count(State::Leased)),
        (1, 1)
    );

    let error = store.get(messages[0].key()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let listing = store
        .list(&Filter::default(), &Page::first(10))
        .await
        .unwrap();
    assert_eq!((listing.records.len(), listing.corrupt.len()), (1, 1));
    assert_eq!(
        store.receive_one(&messages[0]).await.unwrap(),
        Receipt::Duplicate { differs: false }
    );
}

#[tokio::test]
async fn a_state_row_that_does_not_read_keeps_its_ordering_key_blocked() {
    let (_directory, store) = inbox().await;
    let key = OrderingKey::new("customer-12").unwrap();
    let messages = ["1", "2"].map(|id| message(id).with_ordering_key(key.clone()));
    let _ = store.receive(&messages).await.unwrap();
    spoil_first_state(&store);
    let claims = claim(&store).await;
    assert_eq!((claims.leased.len(), claims.corrupt.len()), (0, 1));
    assert!(claim(&store).await.leased.is_empty());
}

#[tokio::test]
async fn purging_passes_over_a_state_row_that_does_not_read() {
    let (_directory, store) = inbox().await;
    let _ = store.receive(&[message("1"), message("2")]).await.unwrap();
    process_all(&store).await;
    spoil_first_state(&store);
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 1).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    assert_eq!(store.purge(&expired).await.unwrap(), 0);
}

#[tokio::test]
async fn purging_what_was_archived_minds_the_state() {
    let (_directory, store) = inbox().await;
    let _ = store.receive_one(&message("1")).await.unwrap();
    process_all(&store).await;
    let keys = [message("1").key().clone()];
    let dead = PurgeRequest::new(State::Dead, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge_archived(&dead, &keys).await.unwrap(), 0);
    let processed = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge_archived(&processed, &keys).await.unwrap(), 1);
}

#[tokio::test]
async fn what_was_answered_is_in_the_file() {
    let (directory, store) = inbox().await;
    assert_eq!(
        store.receive_one(&message("1")).await.unwrap(),
        Receipt::Accepted
    );
    store.close().await;
    let store = RedbStore::open(options(&directory)).unwrap();
    assert_eq!(
        store.receive_one(&message("1")).await.unwrap(),
        Receipt::Duplicate { differs: false }
    );
    assert_eq!(claim(&store).await.leased[0].message, message("1"));
}
