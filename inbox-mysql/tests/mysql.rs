//! The conformance suite, over the store on MySQL. On MariaDB: `conformance.rs`. Skipped, with a
//! line that says so, where there is no MySQL server, which is harder to come by.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use common::{harness, report, shared_url};
use test_servers::Kind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    if shared_url(Kind::Mysql).is_none() {
        return;
    }
    let report = report(harness(Kind::Mysql), "").await;
    assert!(report.is_conformant(), "{report}");
}
