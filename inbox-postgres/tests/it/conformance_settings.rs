//! The conformance suite where the database has other settings than usual: stricter isolation levels by
//! default, and texts that are sorted by a language's rules. Of the suite, what several transactions do at
//! once, and texts: the whole takes three times as long there as elsewhere.
//!
//! By hand, the whole: `INBOX_TEST_SETTINGS_ON=postgres cargo test -p inbox-postgres --test it
//! conformance_settings`, or `=postgres-18` on the newest server.

use crate::common;

const PARTS: &[&str] = &[
    "commit::",
    "concurrency::",
    "duplicates::",
    "holding::",
    "ordering::",
    "races::",
    "skew::",
    "texts::",
    "transactions::",
];

const REPEATABLE_READ: &[&str] = &["default_transaction_isolation=repeatable read"];
const SERIALIZABLE: &[&str] = &["default_transaction_isolation=serializable"];

/// Unlike the others, a database whose texts are sorted by English rules.
const ICU: &str = "CREATE DATABASE icu TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_where_repeatable_read_is_the_default() {
    let Some(server) = common::own_server_with(REPEATABLE_READ) else {
        return;
    };
    let kind = common::kind_with_settings();
    common::run_parts(PARTS, || {
        common::harness(common::patient(server.url()), kind, REPEATABLE_READ)
            .named("postgres, repeatable read")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_where_serializable_is_the_default_and_texts_are_sorted_in_english() {
    let Some(server) = common::own_server_with(SERIALIZABLE) else {
        return;
    };
    common::execute(server.url(), ICU).await.unwrap();
    let (address, _) = server.url().rsplit_once('/').unwrap();
    let url = format!("{address}/icu");
    common::execute(&url, "SELECT 1 / ('a' < 'B')::int")
        .await
        .unwrap();
    let kind = common::kind_with_settings();
    common::run_parts(PARTS, || {
        common::harness(common::patient(&url), kind, SERIALIZABLE)
            .named("postgres, serializable, ICU")
    })
    .await;
}
