//! The conformance suite where the database has other settings than usual: stricter isolation levels by
//! default, and texts that are sorted by a language's rules. One of them is the newest server.
//!
//! `INBOX_TEST_SETTINGS_ON=postgres-18 cargo test -p inbox-postgres --test conformance_settings` runs all
//! on the newest server, by hand.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use test_servers::Kind;

const REPEATABLE_READ: &[&str] = &["default_transaction_isolation=repeatable read"];
const SERIALIZABLE: &[&str] = &["default_transaction_isolation=serializable"];

/// Unlike the others, a database whose texts are sorted by English rules.
const ICU: &str = "CREATE DATABASE icu TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";

/// On the newest server, so that it is the newest that conforms, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_18_conforms_where_repeatable_read_is_the_default() {
    let Some(server) = common::own_server_of(Kind::Postgres18, REPEATABLE_READ) else {
        return;
    };
    let options = common::patient(server.url());
    let harness = common::harness(options, Kind::Postgres18, REPEATABLE_READ);
    common::run_suite(harness.named("postgres-18, repeatable read")).await;
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
    let harness = common::harness(
        common::patient(&url),
        common::kind_with_settings(),
        SERIALIZABLE,
    );
    common::run_suite(harness.named("postgres, serializable, ICU")).await;
}
