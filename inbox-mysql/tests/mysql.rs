//! The conformance suite, over the store on MySQL. On MariaDB: `conformance.rs`. Skipped, with a
//! line that says so, where there is no MySQL server, which is harder to come by.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use common::{harness::Database, lock, shared_url};
use conformance_tests::CASES;
use test_servers::Kind;

/// How many groups of cases run at a time.
const AT_A_TIME: usize = 3;

#[test]
fn conforms() {
    if shared_url(Kind::Mysql).is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let groups: BTreeSet<_> = CASES.iter().map(|case| case.group).collect();
    let left = Arc::new(Mutex::new(Vec::from_iter(groups)));
    let runners: Vec<_> = (0..AT_A_TIME)
        .map(|_| {
            let left = Arc::clone(&left);
            runtime.spawn(async move {
                let mut failed = Vec::new();
                loop {
                    let group = lock(&left).pop();
                    let Some(group) = group else {
                        return failed;
                    };
                    let harness = Arc::new(Database(Kind::Mysql));
                    let report = conformance_tests::run(harness, &format!("{group}::")).await;
                    if !report.is_clean() {
                        failed.push(report.to_string());
                    }
                }
            })
        })
        .collect();
    let failed: Vec<String> = runners
        .into_iter()
        .flat_map(|runner| runtime.block_on(runner).unwrap())
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
