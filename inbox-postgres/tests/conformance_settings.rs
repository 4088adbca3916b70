//! The conformance suite where the database has other settings than usual: stricter isolation levels by
//! default, and texts that are sorted by a language's rules.
//!
//! `INBOX_TEST_SETTINGS_ON=postgres-18 cargo test -p inbox-postgres --test conformance_settings` is the same
//! on the newest server, by hand.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
mod suite;

use std::sync::LazyLock;

use suite::Database;
use test_servers::Server;

const REPEATABLE_READ: &[&str] = &["default_transaction_isolation=repeatable read"];
const SERIALIZABLE: &[&str] = &["default_transaction_isolation=serializable"];

/// Unlike the others, a database whose texts are sorted by English rules.
const ICU: &str = "CREATE DATABASE icu TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";

static IN_REPEATABLE_READ: LazyLock<Option<Server>> =
    LazyLock::new(|| common::own_server_with(REPEATABLE_READ));

static IN_SERIALIZABLE: LazyLock<Option<(Server, String)>> = LazyLock::new(|| {
    let server = common::own_server_with(SERIALIZABLE)?;
    let url = server.url().to_owned();
    let (address, _) = url.rsplit_once('/').unwrap();
    let icu = format!("{address}/icu");
    // Not within the runtime of the test that asks first.
    std::thread::spawn(move || {
        tokio::runtime::Runtime::new()
            .unwrap()
            .block_on(common::execute(&url, ICU))
    })
    .join()
    .unwrap()
    .unwrap();
    Some((server, icu))
});

fn repeatable_read() -> Option<String> {
    Some(IN_REPEATABLE_READ.as_ref()?.url().to_owned())
}

fn serializable() -> Option<String> {
    Some(IN_SERIALIZABLE.as_ref()?.1.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_where_repeatable_read_is_the_default() {
    if repeatable_read().is_none() {
        return;
    }
    suite::run_all(Database {
        name: "postgres, repeatable read",
        shared: repeatable_read,
        own: || common::own_server_with(REPEATABLE_READ),
        options: |options| options,
        lacks: &[],
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_where_serializable_is_the_default_and_texts_are_sorted_in_english() {
    let Some(url) = serializable() else { return };
    common::execute(&url, "SELECT 1 / ('a' < 'B')::int")
        .await
        .unwrap();
    suite::run_all(Database {
        name: "postgres, serializable, ICU",
        shared: serializable,
        own: || common::own_server_with(SERIALIZABLE),
        options: |options| options,
        lacks: &[],
    })
    .await;
}
