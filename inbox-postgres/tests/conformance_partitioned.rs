//! The conformance suite, on inboxes in partitions. Every purge that finds messages in the current
//! partition begins a new one, and nothing is kept longer so that its partition can be dropped
//! whole: the suite counts exactly.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::expect_used)]

mod common;

use std::time::Duration;

use inbox_postgres::Partitions;
use test_servers::Kind;

conformance_tests::conformance!({
    let url = common::shared_url().expect("a server");
    let partitions = Partitions::every(Duration::ZERO).patience(Duration::ZERO);
    let options = common::patient(&url).partitions(Some(partitions));
    common::harness(options, Kind::Postgres, &[]).named("postgres-partitioned")
});
