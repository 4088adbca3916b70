//! Settings of the file and of connections that the store did not open.

use inbox_api::{
    AfterDead, ErrorKind, Receipt, Recorded, Schema, Settled, Settlement, State, Store, StoreExt,
    Transactional,
};
use inbox_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use sqlx::{
    AssertSqlSafe, Connection, Executor, Sqlite, SqliteConnection, SqlitePool, Transaction,
    sqlite::SqliteConnectOptions,
};

use crate::common::*;

async fn pragma(transaction: &mut Transaction<'static, Sqlite>, name: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("PRAGMA {name}")))
        .fetch_one(&mut **transaction)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_disks_cache_is_flushed_where_the_promise_says_so() {
    for (synchronous, flushed) in [
        (Synchronous::Off, 0),
        (Synchronous::Normal, 0),
        (Synchronous::Full, 1),
        (Synchronous::Extra, 1),
    ] {
        let inbox = test_inbox_with(|options| options.synchronous(synchronous)).await;
        let mut transaction = inbox.store.open().await.unwrap();
        for name in ["fullfsync", "checkpoint_fullfsync"] {
            let set = pragma(&mut transaction, name).await;
            assert_eq!(set, flushed, "{synchronous:?}: {name}");
        }
        inbox.store.roll_back(transaction).await.unwrap();
    }
}

/// Everything that can be done in a transaction, and its effects behind it.
async fn works_on(inbox: &TestInbox, pool: &SqlitePool, what: &str) {
    let store = &inbox.store;
    store
        .receive(&[
            ordered(&format!("{what} 1"), what),
            ordered(&format!("{what} 2"), what),
        ])
        .await
        .unwrap();
    let lease = claim_one(store).await;
    let mut transaction = pool.begin().await.unwrap();
    let new = [message(&format!("{what} 3")), message(&format!("{what} 3"))];
    let receipts = store.receive_in(&mut transaction, &new).await.unwrap();
    assert_eq!(
        receipts,
        [Receipt::Accepted, Receipt::Duplicate { differs: false }],
        "{what}"
    );
    let recorded = store
        .record_in(&mut transaction, &message(&format!("{what} 4")), None)
        .await
        .unwrap();
    assert_eq!(recorded, Recorded::First, "{what}");
    let settlement = Settlement {
        lease,
        outcome: dead(AfterDead::Continue),
    };
    let settled = store.settle_in(&mut transaction, &[settlement]).await;
    assert_eq!(settled.unwrap(), [Settled::Done], "{what}");
    store.commit(transaction).await.unwrap();
    assert_eq!(get(store, &format!("{what} 1")).await.state, State::Dead);
    assert_eq!(
        get(store, &format!("{what} 4")).await.state,
        State::Processed
    );
    let mut leased = claim(store, 10).await;
    leased.sort_by_key(|leased| leased.message.id().to_string());
    let expected = [2, 3].map(|n| format!("{what} {n}"));
    assert_eq!(ids(&leased), expected);
    for leased in leased {
        settle(store, &leased.lease, processed()).await;
    }
    check_consistent(store).await;
}

#[tokio::test]
async fn no_setting_of_a_callers_connection_matters() {
    let inbox = test_inbox().await;
    for (name, value) in [
        ("busy_timeout", "0"),
        ("foreign_keys", "OFF"),
        ("foreign_keys", "ON"),
        ("recursive_triggers", "ON"),
        ("case_sensitive_like", "ON"),
        ("read_uncommitted", "ON"),
        ("synchronous", "OFF"),
        ("synchronous", "EXTRA"),
        ("reverse_unordered_selects", "ON"),
        ("ignore_check_constraints", "ON"),
        ("defer_foreign_keys", "ON"),
        ("automatic_index", "OFF"),
        ("cell_size_check", "ON"),
        ("secure_delete", "ON"),
        ("trusted_schema", "OFF"),
        ("temp_store", "FILE"),
        ("cache_size", "1"),
        ("cache_spill", "1"),
        ("mmap_size", "0"),
        ("count_changes", "ON"),
        ("full_column_names", "ON"),
        ("short_column_names", "OFF"),
        ("legacy_alter_table", "ON"),
        ("locking_mode", "NORMAL"),
        ("wal_autocheckpoint", "1"),
        ("hard_heap_limit", "0"),
    ] {
        let options = SqliteConnectOptions::new()
            .filename(inbox.path())
            .pragma(name, value);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        works_on(&inbox, &pool, &format!("{name} {value}")).await;
        pool.close().await;
    }
}

#[tokio::test]
async fn a_callers_connection_that_cannot_write_is_told_so() {
    let inbox = test_inbox().await;
    let options = SqliteConnectOptions::new()
        .filename(inbox.path())
        .pragma("query_only", "ON");
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    let error = inbox
        .store
        .record_in(&mut transaction, &message("1"), None)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

async fn made_with(name: &str, value: &str) -> tempfile::TempDir {
    let folder = tempfile::TempDir::new().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("inbox.db"))
        .create_if_missing(true);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let sql = format!("PRAGMA {name} = {value}; CREATE TABLE mine (a TEXT)");
    connection
        .execute(sqlx::raw_sql(AssertSqlSafe(sql)))
        .await
        .unwrap();
    connection.close().await.unwrap();
    folder
}

/// SQLite makes one text of several when it converts to UTF-16: keys would not compare byte for byte.
#[tokio::test]
async fn a_file_in_utf_16_is_refused() {
    for encoding in ["'UTF-16le'", "'UTF-16be'"] {
        let folder = made_with("encoding", encoding).await;
        let options = SqliteOptions::new(folder.path().join("inbox.db"));
        let error = SqliteStore::connect(options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.context().contains("encoding"), "{error}");
    }
}

/// What stays with the file: its maker may have chosen it before there was an inbox.
#[tokio::test]
async fn no_setting_of_the_file_matters() {
    for (name, value) in [
        ("encoding", "'UTF-8'"),
        ("page_size", "512"),
        ("page_size", "65536"),
        ("auto_vacuum", "FULL"),
        ("auto_vacuum", "INCREMENTAL"),
        ("journal_mode", "DELETE"),
        ("journal_mode", "PERSIST"),
        ("user_version", "1768841848"),
        ("application_id", "7"),
    ] {
        let folder = made_with(name, value).await;
        let path = folder.path().join("inbox.db");
        let inbox = empty_test_inbox().await;
        let options = SqliteOptions::new(&path)
            .synchronous(Synchronous::Normal)
            .clock(inbox.clock.clone());
        let inbox = TestInbox {
            store: SqliteStore::connect(options).await.unwrap(),
            clock: inbox.clock,
            folder,
        };
        inbox.store.create().await.unwrap();
        assert!(inbox.store.exists().await.unwrap(), "{name}");
        let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&path))
            .await
            .unwrap();
        works_on(&inbox, &pool, "grüße 🚀").await;
        // Text of every plane comes back as it was, and keys compare byte for byte.
        for (id, receipt) in [
            ("é", Receipt::Accepted),
            ("e\u{301}", Receipt::Accepted),
            ("É", Receipt::Accepted),
            ("é ", Receipt::Accepted),
            ("\u{1f600}", Receipt::Accepted),
            ("\u{ffff}", Receipt::Accepted),
            ("é", Receipt::Duplicate { differs: false }),
        ] {
            let got = inbox.store.receive_one(&message(id)).await.unwrap();
            assert_eq!(got, receipt, "{name} {value}: {id:?}");
            assert_eq!(get(&inbox.store, id).await.message(), Some(message(id)));
        }
        pool.close().await;
    }
}

/// What SQLite puts next to the file holds payloads, too.
#[cfg(unix)]
#[tokio::test]
async fn the_files_next_to_a_private_file_are_private() {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inbox.db");
    fs::File::create(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let store = SqliteStore::connect(SqliteOptions::new(&path))
        .await
        .unwrap();
    store.create().await.unwrap();
    let _ = store.receive_one(&message("1")).await.unwrap();
    let mut modes = Vec::new();
    for file in fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        modes.push((name, file.metadata().unwrap().permissions().mode() & 0o777));
    }
    modes.sort();
    let names = ["inbox.db", "inbox.db-shm", "inbox.db-wal"];
    assert_eq!(modes, names.map(|name| (name.to_owned(), 0o600)));
    store.close().await;
}
