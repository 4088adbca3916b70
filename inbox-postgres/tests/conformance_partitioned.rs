//! The conformance suite, on inboxes in partitions. Every purge that finds messages in the current
//! partition begins a new one, and nothing is kept longer so that its partition can be dropped
//! whole: the suite counts exactly.

mod common;
mod suite;

use std::time::Duration;

use inbox_postgres::Partitions;
use suite::Database;

conformance_tests::conformance!(Database {
    name: "postgres-partitioned",
    shared: common::shared_url,
    own: common::own_server,
    options: |options| {
        let partitions = Partitions::every(Duration::ZERO);
        options.partitions(Some(partitions.patience(Duration::ZERO)))
    },
    lacks: &[],
});
