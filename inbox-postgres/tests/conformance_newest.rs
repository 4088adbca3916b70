//! The conformance suite, on PostgreSQL 18, where there is one.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::panic)]

mod common;
mod suite;

use std::sync::LazyLock;

use suite::Database;
use test_servers::{Error, Kind, Server, require_or_skip};

static SERVER: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(Kind::Postgres18));

fn shared() -> Option<String> {
    let server = SERVER.as_ref().unwrap_or_else(|error| panic!("{error}"));
    server.as_ref().map(|server| server.url().to_owned())
}

fn own() -> Option<Server> {
    let server = require_or_skip(Kind::Postgres18).unwrap_or_else(|error| panic!("{error}"));
    server.filter(|server| !server.is_shared())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_18_conforms() {
    if shared().is_none() {
        return;
    }
    suite::run_all(Database {
        name: "postgres-18",
        shared,
        own,
        options: |options| options,
        lacks: &[],
    })
    .await;
}
