//! Backups and dumps that are loaded again: what was accepted stays as it was, or the loaded file is
//! refused; it never answers with half of it.

use std::{fs, time::Duration};

use inbox_api::{
    AfterDead, ErrorKind, Filter, Operate, Page, PurgeRequest, Receipt, Record, Schema, State,
    Store, StoreExt, Transactional,
};
use inbox_sqlite::SqliteStore;
use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::common::*;

async fn raw(inbox: &TestInbox) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(inbox.path());
    SqliteConnection::connect_with(&options).await.unwrap()
}

async fn texts(connection: &mut SqliteConnection, sql: &str) -> Vec<String> {
    let rows = sqlx::query(AssertSqlSafe(sql.to_owned()))
        .fetch_all(connection)
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// What `sqlite3 FILE .dump` prints, as single statements: with the tables first, then their
/// content, then indexes and triggers.
async fn dump(inbox: &TestInbox, with_ddl: bool) -> Vec<String> {
    let mut connection = raw(inbox).await;
    let mut out = vec!["PRAGMA foreign_keys=OFF".into(), "BEGIN TRANSACTION".into()];
    let tables = texts(
        &mut connection,
        "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid",
    )
    .await;
    for table in tables {
        if table == "sqlite_sequence" {
            out.push("DELETE FROM sqlite_sequence".into());
        } else if with_ddl {
            let sql = format!("SELECT sql FROM sqlite_master WHERE name = '{table}'");
            out.extend(texts(&mut connection, &sql).await);
        }
        let columns = texts(
            &mut connection,
            &format!("SELECT 'quote(' || name || ')' FROM pragma_table_info('{table}')"),
        )
        .await;
        let values = columns.join(" || ',' || ");
        let sql = format!("SELECT 'INSERT INTO {table} VALUES(' || {values} || ')' FROM {table}");
        out.extend(texts(&mut connection, &sql).await);
    }
    if with_ddl {
        let sql = "SELECT sql FROM sqlite_master
            WHERE type IN ('index', 'trigger') AND sql IS NOT NULL ORDER BY rowid";
        out.extend(texts(&mut connection, sql).await);
    }
    out.push("COMMIT".into());
    connection.close().await.unwrap();
    out
}

/// Goes on behind an error, as the shell does. How many there were.
async fn load(inbox: &TestInbox, statements: &[String]) -> usize {
    let mut connection = raw(inbox).await;
    let mut failed = 0;
    for statement in statements {
        let done = sqlx::raw_sql(AssertSqlSafe(statement.clone()))
            .execute(&mut connection)
            .await;
        failed += usize::from(done.is_err());
    }
    connection.close().await.unwrap();
    failed
}

/// One message in every state, of which one is purged: the last that was numbered.
async fn live() -> TestInbox {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let batch = [
        message("processed"),
        message("dead"),
        message("discarded"),
        message("retried"),
        ordered("leased", "k"),
        ordered("blocked", "k"),
        message("pending"),
        message("purged"),
    ];
    store.receive(&batch).await.unwrap();
    for leased in claim(store, 20).await {
        match leased.message.id().as_str() {
            "processed" => settle(store, &leased.lease, processed()).await,
            "purged" => settle(store, &leased.lease, dead(AfterDead::Block)).await,
            "dead" => settle(store, &leased.lease, dead(AfterDead::Continue)).await,
            "retried" => settle(store, &leased.lease, retry(LEASE)).await,
            "leased" => {}
            _ => settle(store, &leased.lease, inbox_api::Outcome::Release).await,
        }
    }
    let _ = store.discard(&key("discarded")).await.unwrap();
    let dead = PurgeRequest::new(State::Dead, Duration::ZERO, 10).unwrap();
    let gone = store.purge_archived(&dead, &[key("purged")]).await.unwrap();
    assert_eq!(gone, 1);
    inbox
}

async fn records(store: &SqliteStore) -> Vec<Record> {
    let page = Page {
        with_payload: true,
        ..Page::first(100)
    };
    let listing = store.list(&Filter::default(), &page).await.unwrap();
    assert_eq!(listing.corrupt, []);
    listing.records
}

/// The restored inbox is the old one, and goes on where that was.
async fn goes_on(before: &[Record], numbered: i64, restored: &TestInbox) {
    let store = &restored.store;
    store.create().await.unwrap();
    assert!(store.exists().await.unwrap());
    assert_eq!(records(store).await, before);
    check_consistent(store).await;
    for record in before {
        let copy = message(record.key.id.as_str());
        let receipt = store.receive_one(&copy).await.unwrap();
        assert_eq!(
            receipt,
            Receipt::Duplicate { differs: false },
            "{:?}",
            record.key
        );
    }
    // New numbers are behind all that were ever given.
    assert_eq!(
        store.receive_one(&message("new")).await.unwrap(),
        Receipt::Accepted
    );
    let newest = get(store, "new").await.cursor;
    assert!(newest.sequence().unwrap() > numbered, "{newest:?}");
    // The lease of the time before ends, and the next one has a higher token.
    restored.clock.advance(LEASE * 2);
    let leased = claim(store, 100).await;
    assert!(ids(&leased).contains(&"leased"), "{:?}", ids(&leased));
    assert!(!ids(&leased).contains(&"blocked"));
    for leased in leased {
        settle(store, &leased.lease, processed()).await;
    }
    assert_eq!(ids(&claim(store, 100).await), ["blocked"]);
}

async fn check_refused(inbox: &TestInbox) {
    for store in [&inbox.store, &inbox.other().await] {
        let mut errors = vec![
            store.exists().await.map(drop).unwrap_err(),
            store.create().await.unwrap_err(),
            store.migrate().await.map(drop).unwrap_err(),
        ];
        // A store that had looked before has no reason to look again; every other one refuses.
        if !std::ptr::eq(store, &raw const inbox.store) {
            errors.extend([
                store.receive(&[message("1")]).await.map(drop).unwrap_err(),
                store.claim(&request(1)).await.map(drop).unwrap_err(),
                store
                    .begin(&message("1"), &terms())
                    .await
                    .map(drop)
                    .unwrap_err(),
                store.open().await.map(drop).unwrap_err(),
                store.get(&key("1")).await.map(drop).unwrap_err(),
            ]);
        }
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{error}");
            assert!(error.context().contains("dump"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_whole_dump_goes_on_where_it_was() {
    let old = live().await;
    let before = records(&old.store).await;
    let statements = dump(&old, true).await;
    let new = empty_test_inbox().await;
    assert_eq!(load(&new, &statements).await, 0);
    goes_on(&before, 8, &new).await;
}

#[tokio::test]
async fn a_copy_by_sqlite_goes_on_where_it_was() {
    let old = live().await;
    let before = records(&old.store).await;
    let new = empty_test_inbox().await;
    new.store.close().await;
    fs::remove_file(new.path()).unwrap();
    let mut connection = raw(&old).await;
    sqlx::query("VACUUM INTO ?1")
        .bind(new.path().to_str().unwrap())
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    let new = TestInbox {
        store: new.other().await,
        ..new
    };
    goes_on(&before, 8, &new).await;
}

#[tokio::test]
async fn a_copy_of_all_files_goes_on_where_it_was() {
    for closed in [true, false] {
        let old = live().await;
        let before = records(&old.store).await;
        let new = empty_test_inbox().await;
        new.store.close().await;
        // Nobody writes meanwhile. A store that is open has a part of it in the log.
        if closed {
            old.store.close().await;
        }
        for end in ["", "-wal"] {
            let name = format!("inbox.db{end}");
            let from = old.folder.path().join(&name);
            assert_eq!(from.exists(), end.is_empty() || !closed);
            if from.exists() {
                fs::copy(from, new.folder.path().join(&name)).unwrap();
            }
        }
        let new = TestInbox {
            store: new.other().await,
            ..new
        };
        goes_on(&before, 8, &new).await;
    }
}

#[tokio::test]
async fn a_dump_into_an_inbox_that_was_set_up_is_refused() {
    let old = live().await;
    for with_ddl in [false, true] {
        let statements = dump(&old, with_ddl).await;
        let new = test_inbox().await;
        // The shell says so, too, and goes on.
        assert!(load(&new, &statements).await > 0);
        check_refused(&new).await;
    }
}

#[tokio::test]
async fn a_dump_of_single_tables_is_refused() {
    let old = live().await;
    let whole = dump(&old, true).await;
    for left_out in ["inbox_state", "inbox_count", "inbox_meta", "inbox_message"] {
        let new = empty_test_inbox().await;
        let some: Vec<_> = whole
            .iter()
            .filter(|statement| !statement.contains(left_out))
            .cloned()
            .collect();
        load(&new, &some).await;
        let store = new.other().await;
        let error = store.create().await.unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::SchemaVersion,
            "{left_out}: {error}"
        );
        assert!(!store.exists().await.unwrap_or(false), "{left_out}");
    }
    // With all definitions, but not all content.
    for left_out in [
        &["inbox_state"][..],
        &["inbox_count"],
        &["inbox_message"],
        &["inbox_message", "inbox_state"],
    ] {
        let new = empty_test_inbox().await;
        let inserts = left_out.iter().map(|table| format!("INSERT INTO {table} "));
        let inserts: Vec<_> = inserts.collect();
        let is_left_out =
            |statement: &String| inserts.iter().any(|insert| statement.starts_with(insert));
        let some: Vec<_> = whole
            .iter()
            .filter(|statement| !is_left_out(statement))
            .cloned()
            .collect();
        assert!(some.len() < whole.len());
        assert_eq!(load(&new, &some).await, 0);
        check_refused(&new).await;
    }
    // Without the numbers, they go on behind the highest that is there: leases are told apart by
    // their tokens, which are times.
    let new = empty_test_inbox().await;
    let some: Vec<_> = whole
        .iter()
        .filter(|statement| !statement.contains("sqlite_sequence"))
        .cloned()
        .collect();
    assert_eq!(load(&new, &some).await, 0);
    let before = records(&old.store).await;
    goes_on(&before, 7, &new).await;
}

/// Waits until the store has noticed, and gives its error.
async fn noticed(store: &SqliteStore) -> inbox_api::Error {
    for number in 0..100 {
        let id = format!("into the void {number}");
        if let Err(error) = store.receive_one(&message(&id)).await {
            return error;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it goes on in a file that nobody finds");
}

#[tokio::test]
async fn a_store_whose_file_is_gone_says_so() {
    let inbox = test_inbox().await;
    let _ = inbox.store.receive_one(&message("a")).await.unwrap();
    let transaction = inbox.store.open().await.unwrap();
    let aside = inbox.path().with_extension("aside");
    fs::rename(inbox.path(), &aside).unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let error = inbox.store.commit(transaction).await.unwrap_err();
    assert!(error.context().contains("deleted or moved away"), "{error}");
    let error = noticed(&inbox.store).await;
    assert_eq!(error.kind(), ErrorKind::Other);
    assert_eq!(error.effect(), inbox_api::Effect::None);
    assert!(!error.is_retryable());
    assert!(error.context().contains("deleted or moved away"), "{error}");
    assert!(inbox.store.statistics().await.is_err());
    assert!(inbox.store.version().await.is_err());
    // Nobody makes another one in its place.
    assert!(!inbox.path().exists());
    // It is the same again when it is back.
    fs::rename(&aside, inbox.path()).unwrap();
    assert_eq!(
        inbox.store.receive_one(&message("a")).await.unwrap(),
        Receipt::Duplicate { differs: false }
    );
}

/// As a restore by `mv` does under a process that was forgotten.
#[tokio::test]
async fn a_store_whose_file_is_replaced_says_so_and_leaves_the_other_alone() {
    let inbox = test_inbox().await;
    let _ = inbox.store.receive_one(&message("a")).await.unwrap();
    let backup = inbox.path().with_extension("backup");
    let mut connection = raw(&inbox).await;
    let vacuum = format!("VACUUM INTO '{}'", backup.display());
    sqlx::query(AssertSqlSafe(vacuum))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    let mut subscription = inbox.store.subscribe(&[handler("h")]).await.unwrap();
    fs::rename(&backup, inbox.path()).unwrap();
    // Those who wait are woken.
    let woken = tokio::time::timeout(Duration::from_secs(20), subscription.woken());
    woken.await.unwrap();
    let error = noticed(&inbox.store).await;
    assert!(error.context().contains("replaced"), "{error}");
    drop(subscription);
    inbox.store.close().await;
    let new = inbox.other().await;
    assert_eq!(
        new.receive_one(&message("a")).await.unwrap(),
        Receipt::Duplicate { differs: false }
    );
}

/// An archived inbox, say. Also for a superuser, whom the system does not keep from writing.
#[tokio::test]
async fn a_read_only_file_can_be_looked_into() {
    let inbox = test_inbox().await;
    let _ = inbox.store.receive_one(&message("a")).await.unwrap();
    inbox.store.close().await;
    let mut permissions = fs::metadata(inbox.path()).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(inbox.path(), permissions).unwrap();
    let before = fs::read(inbox.path()).unwrap();
    let store = inbox.other().await;
    assert!(store.exists().await.unwrap());
    assert!(store.get(&key("a")).await.unwrap().is_some());
    let listing = store.list(&Filter::default(), &Page::first(10)).await;
    assert_eq!(listing.unwrap().records.len(), 1);
    assert_eq!(store.statistics().await.unwrap().handlers[0].pending, 1);
    let error = store.receive_one(&message("b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let error = store.discard(&key("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(store.create().await.map_err(|error| error.kind()), Ok(()));
    store.close().await;
    assert_eq!(fs::read(inbox.path()).unwrap(), before);
}
