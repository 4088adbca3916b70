//! The conformance suite, over the store on MySQL. On MariaDB: `conformance.rs`. Skipped, with a
//! line that says so, where there is no MySQL server, which is harder to come by.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::{num::NonZeroUsize, sync::Arc};

use common::{harness::Database, shared_url};
use conformance_tests::{Options, run_with};
use test_servers::Kind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    if shared_url(Kind::Mysql).is_none() {
        return;
    }
    let options = Options {
        jobs: NonZeroUsize::new(3),
        ..Options::default()
    };
    let report = run_with(Arc::new(Database(Kind::Mysql)), &options, |_| {}).await;
    assert!(report.is_conformant(), "{report}");
}
