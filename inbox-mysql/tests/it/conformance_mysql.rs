//! The conformance suite, over the store on MySQL. On MariaDB, the whole: `conformance.rs`. Skipped, with
//! a line that says so, where there is no MySQL server, which is harder to come by.
//!
//! The statements are the same on both. Of the suite, what the servers do in their own ways: locks, gaps
//! and snapshots, where several transactions meet; comparisons and order of texts; times; JSON that is read
//! back; what is set up.
//!
//! By hand, the whole: `INBOX_TEST_SUITE_ON=mysql cargo test -p inbox-mysql --test it conformance_mysql`.

use test_servers::Kind;

use crate::common::{harness, report, shared_url};

const PARTS: &[&str] = &[
    "commit::",
    "concurrency::",
    "corrupt::",
    "duplicates::",
    "holding::",
    "identity::",
    "ordering::",
    "races::",
    "schema::",
    "skew::",
    "texts::",
    "time::",
    "transactions::",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    if shared_url(Kind::Mysql).is_none() {
        return;
    }
    if std::env::var("INBOX_TEST_SUITE_ON").is_ok_and(|on| on == "mysql") {
        let report = report(harness(Kind::Mysql), "").await;
        assert!(report.is_conformant(), "{report}");
        return;
    }
    for part in PARTS {
        let report = report(harness(Kind::Mysql), part).await;
        println!("{report}");
        assert!(report.is_clean() && report.passed > 0, "{part}");
    }
}
