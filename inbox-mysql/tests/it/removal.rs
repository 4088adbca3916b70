//! Removing an inbox, and the text that tells whether one is there.

use inbox_api::{ErrorKind, Schema as _, Store as _, StoreExt as _};
use inbox_mysql::{MySqlOptions, MySqlStore, PayloadType};
use sqlx::{AssertSqlSafe, Row as _};

use crate::common::{TestInbox, message, on_each, terms};

/// What the query answers, in a session of its own.
async fn answer(inbox: &TestInbox, store: &MySqlStore) -> bool {
    let mut connection = inbox.connection().await.unwrap();
    let rows = sqlx::raw_sql(AssertSqlSafe(store.exists_query()))
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let [row] = rows.as_slice() else {
        panic!("{} rows", rows.len());
    };
    row.try_get_unchecked::<i64, _>(0).unwrap() == 1
}

async fn agree(inbox: &TestInbox, store: &MySqlStore, expected: bool, what: &str) {
    assert_eq!(answer(inbox, store).await, expected, "{what}");
    let exists = store.exists().await;
    assert_eq!(exists.unwrap_or(false), expected, "{what}, exists");
}

async fn store(options: &MySqlOptions) -> MySqlStore {
    MySqlStore::connect(options.clone()).await.unwrap()
}

#[test]
fn the_query_tells_what_exists_tells() {
    on_each(async |inbox, kind| {
        for payload_type in [PayloadType::LongBlob, PayloadType::Json] {
            let what = format!("{kind}, {payload_type:?}");
            let options = inbox.options.clone().payload_type(payload_type);
            let store = store(&options).await;
            agree(&inbox, &store, false, &format!("{what}, none")).await;
            store.create().await.unwrap();
            agree(&inbox, &store, true, &format!("{what}, set up")).await;
            for (change, back) in [
                (
                    "ALTER TABLE inbox_work DROP INDEX claim",
                    "ALTER TABLE inbox_work ADD INDEX claim (handler, queue, visible_at, seq)",
                ),
                (
                    "ALTER TABLE inbox_done MODIFY kept BIGINT NOT NULL",
                    "ALTER TABLE inbox_done MODIFY kept TINYINT NOT NULL",
                ),
                (
                    "RENAME TABLE inbox_run TO elsewhere",
                    "RENAME TABLE elsewhere TO inbox_run",
                ),
                (
                    "RENAME TABLE inbox_paused TO elsewhere",
                    "RENAME TABLE elsewhere TO inbox_paused",
                ),
                (
                    "UPDATE inbox_meta SET version = 99, works_from = 99",
                    "UPDATE inbox_meta SET version = 1, works_from = 1",
                ),
                (
                    "UPDATE inbox_meta SET marker = 'x'",
                    "UPDATE inbox_meta SET marker = 'inbox.mysql'",
                ),
            ] {
                inbox.run(change).await.unwrap();
                agree(&inbox, &store, false, &format!("{what}, {change}")).await;
                inbox.run(back).await.unwrap();
                agree(&inbox, &store, true, &format!("{what}, {back}")).await;
            }
            inbox
                .run("UPDATE inbox_meta SET version = 99, works_from = 1")
                .await
                .unwrap();
            agree(&inbox, &store, true, &format!("{what}, a newer one")).await;
            inbox
                .run("UPDATE inbox_meta SET version = 1")
                .await
                .unwrap();
            store.remove().await.unwrap();
            agree(&inbox, &store, false, &format!("{what}, removed")).await;
        }
    });
}

const LEFT: &str = "SELECT (SELECT COUNT(*) FROM information_schema.tables \
                    WHERE table_schema = DATABASE()) + (SELECT COUNT(*) \
                    FROM information_schema.routines WHERE routine_schema = DATABASE())";

#[test]
fn nothing_is_left_of_what_is_removed_and_all_of_the_rest() {
    on_each(async |inbox, kind| {
        eprintln!("{kind}");
        let removed = inbox.store().await;
        let other_options = inbox.options.clone().inbox_name("inbox_b".parse().unwrap());
        let other = store(&other_options).await;
        other.create().await.unwrap();
        inbox
            .run("CREATE TABLE inbox_invoice (n INT PRIMARY KEY); CREATE PROCEDURE inbox_begin_all () SELECT 1")
            .await
            .unwrap();
        let _ = removed.begin(&message("1"), &terms()).await.unwrap();
        assert_eq!(inbox.number(LEFT).await, 2 * 12 + 2);
        // As a call before may have left it.
        inbox
            .run("DROP TABLE inbox_work, inbox_message")
            .await
            .unwrap();
        removed.remove().await.unwrap();
        assert_eq!(inbox.number(LEFT).await, 12 + 2);
        removed.remove().await.unwrap();
        for id in ["1", "2"] {
            let error = removed.begin(&message(id), &terms()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SchemaMissing, "{error}");
        }
        let _ = other.begin(&message("1"), &terms()).await.unwrap();
        assert!(other.exists().await.unwrap());
        removed.create().await.unwrap();
        let receipt = removed.receive_one(&message("1")).await.unwrap();
        assert_eq!(receipt, inbox_api::Receipt::Accepted);
        inbox
            .run("UPDATE inbox_meta SET version = 2")
            .await
            .unwrap();
        let error = removed.remove().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaVersion);
        assert_eq!(inbox.number(LEFT).await, 2 * 12 + 2);
    });
}
