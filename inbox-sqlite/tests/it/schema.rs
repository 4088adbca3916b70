//! Setting up, and what connect refuses.

use std::{fs, time::Duration};

use inbox_api::{ErrorKind, InboxName, Operate, Receipt, Schema, Store, StoreExt};
use inbox_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::common::*;

async fn raw(inbox: &TestInbox) -> SqliteConnection {
    let options = SqliteConnectOptions::new()
        .filename(inbox.path())
        .create_if_missing(true);
    SqliteConnection::connect_with(&options).await.unwrap()
}

async fn run(inbox: &TestInbox, sql: &str) {
    let mut connection = raw(inbox).await;
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn setting_up_twice_is_harmless() {
    let inbox = empty_test_inbox().await;
    let store = &inbox.store;
    assert_eq!(store.version().await.unwrap(), None);
    assert!(!store.exists().await.unwrap());
    store.create().await.unwrap();
    assert!(store.exists().await.unwrap());
    assert_eq!(store.version().await.unwrap(), Some(1));
    assert_eq!(store.expected_version(), 1);
    store.receive(&[message("1")]).await.unwrap();
    store.create().await.unwrap();
    let migration = store.migrate().await.unwrap();
    assert_eq!((migration.from, migration.to), (Some(1), 1));
    let receipt = store.receive_one(&message("1")).await.unwrap();
    assert_eq!(receipt, Receipt::Duplicate { differs: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_can_set_up_at_once() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("inbox.db");
    // The stores connect at once, too: the file is new and not yet in WAL mode.
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let options = SqliteOptions::new(&path);
            tokio::spawn(async move {
                let store = SqliteStore::connect(options).await?;
                if n % 2 == 0 {
                    store.create().await?;
                } else {
                    store.migrate().await?;
                }
                store.receive_one(&message(&n.to_string())).await
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap(), Receipt::Accepted);
    }
}

#[tokio::test]
async fn the_ddl_text_sets_up_the_same() {
    let inbox = empty_test_inbox().await;
    let ddl = inbox.store.ddl();
    assert_eq!(ddl, inbox.options().ddl());
    // As a reviewer's tool may have reformatted it.
    run(&inbox, &ddl.replace("    ", "\t")).await;
    assert!(inbox.store.exists().await.unwrap());
    inbox.store.receive(&[message("1")]).await.unwrap();
}

#[tokio::test]
async fn two_inboxes_in_one_file_are_independent() {
    let inbox = test_inbox().await;
    let other = inbox.options().inbox_name(InboxName::new("other").unwrap());
    let other = SqliteStore::connect(other).await.unwrap();
    assert!(!other.exists().await.unwrap());
    other.create().await.unwrap();
    for store in [&inbox.store, &other] {
        let receipt = store.receive_one(&message("1")).await.unwrap();
        assert_eq!(receipt, Receipt::Accepted);
    }
}

#[tokio::test]
async fn without_an_inbox_everything_says_so() {
    let inbox = empty_test_inbox().await;
    let store = &inbox.store;
    let kinds = [
        store.receive(&[message("1")]).await.unwrap_err().kind(),
        store.claim(&request(1)).await.unwrap_err().kind(),
        store
            .begin(&message("1"), &terms())
            .await
            .unwrap_err()
            .kind(),
        store.statistics().await.unwrap_err().kind(),
        store.get(&key("1")).await.unwrap_err().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::SchemaMissing; 5]);
    // Also when it goes away later.
    store.create().await.unwrap();
    store.receive(&[message("1")]).await.unwrap();
    run(&inbox, "DROP TABLE inbox_meta; DROP TABLE inbox_message; DROP TABLE inbox_state; DROP TABLE inbox_count; DROP TABLE inbox_paused;").await;
    let error = store.receive(&[message("2")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMissing);
    store.create().await.unwrap();
    store.receive(&[message("2")]).await.unwrap();
}

#[tokio::test]
async fn a_part_that_is_missing_or_different_is_noticed() {
    for damage in [
        "DROP INDEX inbox_claim",
        "DROP INDEX inbox_head",
        "DROP TRIGGER inbox_reheaded",
        "DROP TABLE inbox_count",
        // As an earlier build had it.
        "DROP TABLE inbox_count; CREATE TABLE inbox_count (
            handler TEXT NOT NULL, state INTEGER NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (handler, state)
        ) STRICT, WITHOUT ROWID",
        "ALTER TABLE inbox_state DROP COLUMN leased_at",
        "ALTER TABLE inbox_message ADD COLUMN extra TEXT",
        "DROP INDEX inbox_final; CREATE INDEX inbox_final ON inbox_state (state, seq)",
    ] {
        let inbox = test_inbox().await;
        run(&inbox, damage).await;
        assert!(!inbox.store.exists().await.unwrap(), "{damage}");
        for error in [
            inbox.store.create().await.unwrap_err(),
            inbox.store.migrate().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{damage}: {error}");
            assert!(error.context().contains("inbox_"), "{error}");
        }
    }
    // A user's own index is the user's business.
    let inbox = test_inbox().await;
    run(&inbox, "CREATE INDEX mine ON inbox_message (kind)").await;
    assert!(inbox.store.exists().await.unwrap());
}

async fn query_says(inbox: &TestInbox) -> bool {
    let mut connection = raw(inbox).await;
    let query = AssertSqlSafe(inbox.store.exists_query());
    let said = sqlx::query_scalar(query).fetch_all(&mut connection).await;
    connection.close().await.unwrap();
    let said: Vec<bool> = said.unwrap();
    assert_eq!(said.len(), 1);
    said[0]
}

#[tokio::test]
async fn the_query_tells_whether_all_parts_are_there() {
    let inbox = empty_test_inbox().await;
    assert!(!query_says(&inbox).await);
    assert_eq!(inbox.store.exists_query(), inbox.options().exists_query());
    inbox.store.create().await.unwrap();
    assert!(query_says(&inbox).await);
    let mut connection = raw(&inbox).await;
    let parts: Vec<(String, String)> = sqlx::query_as(
        "SELECT type, name FROM sqlite_master WHERE name LIKE 'inbox!_%' ESCAPE '!'",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();
    assert!(parts.len() > 15, "{parts:?}");
    for (kind, name) in parts {
        let inbox = test_inbox().await;
        run(&inbox, &format!("DROP {kind} {name}")).await;
        assert!(!query_says(&inbox).await, "without {kind} {name}");
    }
    for column in [
        "inbox_state DROP COLUMN leased_at",
        "inbox_message DROP COLUMN kind",
    ] {
        let inbox = test_inbox().await;
        run(&inbox, &format!("ALTER TABLE {column}")).await;
        assert!(!query_says(&inbox).await, "without {column}");
    }
}

#[tokio::test]
async fn a_removal_takes_nothing_else() {
    let inbox = test_inbox().await;
    run(
        &inbox,
        "CREATE TABLE inbox_orders (id INTEGER); INSERT INTO inbox_orders VALUES (7)",
    )
    .await;
    let other = inbox.options().inbox_name(InboxName::new("other").unwrap());
    let other = SqliteStore::connect(other).await.unwrap();
    other.create().await.unwrap();
    other.receive(&[message("1")]).await.unwrap();
    inbox.store.remove().await.unwrap();
    assert!(!inbox.store.exists().await.unwrap());
    let error = inbox.store.receive(&[message("1")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMissing);
    let mut connection = raw(&inbox).await;
    let left: i64 = sqlx::query_scalar("SELECT id FROM inbox_orders")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    assert_eq!(left, 7);
    assert!(other.get(&key("1")).await.unwrap().is_some());
    other.close().await;
}

#[tokio::test]
async fn newer_and_foreign_tables_are_refused_by_everything() {
    let newer = test_inbox().await;
    run(&newer, "UPDATE inbox_meta SET version = 7, works_from = 2").await;
    let foreign = empty_test_inbox().await;
    run(&foreign, "CREATE TABLE inbox_message (id TEXT)").await;
    let other_product = empty_test_inbox().await;
    run(
        &other_product,
        "CREATE TABLE inbox_meta (marker TEXT, version TEXT);
         INSERT INTO inbox_meta VALUES ('x', 'y')",
    )
    .await;
    let index = empty_test_inbox().await;
    run(
        &index,
        "CREATE TABLE t (a); CREATE INDEX inbox_claim ON t (a)",
    )
    .await;
    for (inbox, expected) in [
        (&newer, "version 7, this build works with 1"),
        (&foreign, "not an inbox's"),
        (&other_product, "not an inbox's"),
    ] {
        let store = inbox.other().await;
        let mut errors = vec![
            store.exists().await.unwrap_err(),
            store.create().await.unwrap_err(),
            store.migrate().await.unwrap_err(),
            store.receive(&[message("1")]).await.unwrap_err(),
            store.statistics().await.unwrap_err(),
        ];
        if expected.contains("not") {
            errors.push(store.version().await.unwrap_err());
        } else {
            assert_eq!(store.version().await.unwrap(), Some(7));
        }
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{error}");
            assert!(error.context().contains(expected), "{error}");
        }
    }
    let error = index.store.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{error}");
    assert!(!index.store.exists().await.unwrap());
}

#[tokio::test]
async fn connect_refuses_what_cannot_be_an_inbox() {
    let folder = tempfile::TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(
        at("text"),
        "not a database, but longer than one header ".repeat(50),
    )
    .unwrap();
    fs::write(at("short"), "x").unwrap();
    fs::write(at("readonly"), "").unwrap();
    let mut permissions = fs::metadata(at("readonly")).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(at("readonly"), permissions).unwrap();
    fs::create_dir(at("folder")).unwrap();

    let missing = SqliteOptions::new(at("missing")).create_if_missing(false);
    for (options, kind, reason) in [
        (
            SqliteOptions::new(at("text")),
            ErrorKind::Invalid,
            "not an SQLite database",
        ),
        (
            SqliteOptions::new(at("short")),
            ErrorKind::Invalid,
            "not an SQLite database",
        ),
        (
            SqliteOptions::new(at("folder")),
            ErrorKind::Invalid,
            "folder",
        ),
        (
            SqliteOptions::new(at("readonly")),
            ErrorKind::Denied,
            "read-only",
        ),
        (
            SqliteOptions::new(at("no/inbox.db")),
            ErrorKind::Unavailable,
            "folder does not exist",
        ),
        (missing, ErrorKind::SchemaMissing, "does not exist"),
        (SqliteOptions::new(""), ErrorKind::Invalid, "empty"),
        (
            SqliteOptions::new(":memory:"),
            ErrorKind::Invalid,
            "memory store",
        ),
    ] {
        let path = format!("{options:?}");
        let error = SqliteStore::connect(options).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
        if kind != ErrorKind::Invalid || reason == "folder" {
            assert!(
                path.contains("inbox")
                    && error
                        .to_string()
                        .contains(&*folder.path().to_string_lossy())
            );
        }
    }
    assert!(!at("missing").exists());
}

#[tokio::test]
async fn odd_file_names_are_names() {
    let folder = tempfile::TempDir::new().unwrap();
    for name in ["file:x?mode=memory", "ä b%20.db", "-wal"] {
        let path = folder.path().join(name);
        let store = SqliteStore::connect(SqliteOptions::new(&path))
            .await
            .unwrap();
        store.create().await.unwrap();
        store.receive(&[message("1")]).await.unwrap();
        store.close().await;
        assert!(path.exists(), "{name}");
        let store = SqliteStore::connect(SqliteOptions::new(&path))
            .await
            .unwrap();
        assert_eq!(
            store.receive_one(&message("1")).await.unwrap(),
            Receipt::Duplicate { differs: false }
        );
    }
}

#[tokio::test]
async fn closing_refuses_further_work() {
    let inbox =
        test_inbox_with(|options| options.operation_timeout(Duration::from_secs(600))).await;
    let store = &inbox.store;
    let clone = store.clone();
    store.receive(&[message("1")]).await.unwrap();
    let started = std::time::Instant::now();
    clone.close().await;
    clone.close().await;
    // It waits for nothing.
    assert!(started.elapsed() < Duration::from_secs(60));
    let kinds = [
        store.receive(&[message("2")]).await.unwrap_err().kind(),
        store.claim(&request(1)).await.unwrap_err().kind(),
        store.get(&key("1")).await.unwrap_err().kind(),
        store.create().await.unwrap_err().kind(),
        store.subscribe(&[]).await.err().unwrap().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::Unavailable; 5]);
    assert!(
        !inbox.folder.path().join("inbox.db-wal").exists(),
        "checkpointed"
    );
}

#[tokio::test]
async fn comments_in_what_is_there_do_not_count() {
    let inbox = empty_test_inbox().await;
    let ddl = inbox
        .store
        .ddl()
        .replace(
            "state INTEGER NOT NULL DEFAULT 0",
            "state /* of it */ INTEGER NOT NULL DEFAULT 0",
        )
        .replace("BEGIN\n", "BEGIN -- as an earlier release said it\n");
    assert_ne!(ddl, inbox.store.ddl());
    run(&inbox, &ddl).await;
    assert!(inbox.store.exists().await.unwrap());
    inbox.store.create().await.unwrap();
}

const OTHER_TRIGGER: &str = "DROP TRIGGER inbox_purged;
    CREATE TRIGGER inbox_purged AFTER DELETE ON inbox_message
    BEGIN DELETE FROM inbox_state WHERE seq = OLD.seq AND true; END;";

async fn trigger(inbox: &TestInbox) -> String {
    sqlx::query_scalar("SELECT sql FROM sqlite_master WHERE name = 'inbox_purged'")
        .fetch_one(&mut raw(inbox).await)
        .await
        .unwrap()
}

#[tokio::test]
async fn triggers_of_another_revision_are_accepted_and_earlier_ones_replaced() {
    for (revision, replaced) in [(0, true), (99, false)] {
        let inbox = test_inbox().await;
        let sql = format!("{OTHER_TRIGGER} UPDATE inbox_meta SET revision = {revision}");
        run(&inbox, &sql).await;
        let store = inbox.other().await;
        assert!(store.exists().await.unwrap(), "{revision}");
        store.create().await.unwrap();
        assert!(
            trigger(&inbox).await.contains("AND true"),
            "create leaves it"
        );
        store.receive(&[message("1")]).await.unwrap();
        let migration = store.migrate().await.unwrap();
        assert_eq!((migration.from, migration.to), (Some(1), 1));
        let now = trigger(&inbox).await;
        assert_eq!(now.contains("AND true"), !replaced, "{revision}: {now}");
        assert!(store.exists().await.unwrap());
        let receipt = store.receive_one(&message("1")).await.unwrap();
        assert_eq!(receipt, Receipt::Duplicate { differs: false });
        check_consistent(&store).await;
    }
    // With this build's revision it is damage.
    let inbox = test_inbox().await;
    run(&inbox, OTHER_TRIGGER).await;
    assert!(!inbox.store.exists().await.unwrap());
    let error = inbox.store.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{error}");
    // One that is missing is missed in every revision.
    run(
        &inbox,
        "DROP TRIGGER inbox_purged; UPDATE inbox_meta SET revision = 99",
    )
    .await;
    assert!(!inbox.store.exists().await.unwrap());
}

#[tokio::test]
async fn names_differ_by_more_than_their_case() {
    for sql in [
        "CREATE TABLE INBOX_MESSAGE (id TEXT)",
        "CREATE TABLE Inbox_Meta (marker TEXT)",
        "CREATE TABLE t (a); CREATE INDEX INBOX_CLAIM ON t (a)",
        "CREATE TABLE t (a); CREATE TRIGGER Inbox_Removed DELETE ON t BEGIN SELECT 1; END",
        "CREATE VIEW INBOX_STATE AS SELECT 1",
    ] {
        let inbox = empty_test_inbox().await;
        run(&inbox, sql).await;
        for error in [
            inbox.store.create().await.unwrap_err(),
            inbox.store.migrate().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{sql}: {error}");
            assert!(error.context().contains("not an inbox's"), "{error}");
        }
        assert!(!inbox.store.exists().await.unwrap_or(false), "{sql}");
    }
    // No inbox is named like a part of another.
    let inbox = test_inbox().await;
    for part in [
        "message", "state", "count", "meta", "claim", "dead", "purged", "final",
    ] {
        let name = InboxName::new(format!("inbox_{part}")).unwrap();
        let other = SqliteStore::connect(inbox.options().inbox_name(name)).await;
        let other = other.unwrap();
        other.create().await.unwrap();
        for store in [&other, &inbox.store] {
            assert!(store.exists().await.unwrap());
            let receipt = store.receive_one(&message(part)).await.unwrap();
            assert_eq!(receipt, Receipt::Accepted);
        }
    }
    for reserved in ["sqlite", "sqlite_inbox"] {
        let name = InboxName::new(reserved).unwrap();
        let error = SqliteStore::connect(inbox.options().inbox_name(name))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.context().contains("SQLite's own"), "{error}");
    }
}
