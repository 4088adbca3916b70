//! The conformance suite, on an inbox in partitions. Every purge that finds messages in the current
//! partition begins a new one, and nothing is kept longer so that its partition can be dropped
//! whole: the suite counts exactly.
//!
//! Of the suite, what partitions do otherwise: keys are in their own table, which receives, begins and
//! records insert into under a lock of the messages' table, and which each purge, removal and dropped
//! partition empties; and tables are made and dropped while others work. Claims, settlements, commits,
//! ordering keys and what operators look at are the same statements as without. What is there only in
//! partitions: `partitions`.
//!
//! By hand, the whole: `INBOX_TEST_SETTINGS_ON=postgres cargo test -p inbox-postgres --test it
//! conformance_partitioned`.

use std::time::Duration;

use inbox_postgres::Partitions;
use test_servers::Kind;

use crate::common;

const PARTS: &[&str] = &[
    "begin::",
    "clearing::",
    "concurrency::",
    "dropping::",
    "duplicates::",
    "fingerprints::",
    "holding::",
    "identity::",
    "model::",
    "races::",
    "retention::",
    "schema::",
    "transactions::",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_in_partitions() {
    let Some(url) = common::shared_url() else {
        return;
    };
    let partitions = Partitions::every(Duration::ZERO).patience(Duration::ZERO);
    let options = common::patient(&url).partitions(Some(partitions));
    common::run_parts(PARTS, || {
        common::harness(options.clone(), Kind::Postgres, &[]).named("postgres-partitioned")
    })
    .await;
}
