//! The conformance suite, on PostgreSQL 18, where there is one.

use test_servers::{Kind, require_or_skip};

use crate::common;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_18_conforms() {
    let server = require_or_skip(Kind::Postgres18).unwrap_or_else(|error| panic!("{error}"));
    let Some(server) = server else { return };
    let harness = common::harness(common::patient(server.url()), Kind::Postgres18, &[]);
    common::run_suite(harness.named("postgres-18")).await;
}
