//! The conformance suite, over the SQLite store.

use inbox_sqlite::{SqliteOptions, conformance::SqliteHarness};

fn harness() -> SqliteHarness {
    SqliteHarness::new(SqliteOptions::new(concat!(
        env!("CARGO_TARGET_TMPDIR"),
        "/inbox.db"
    )))
}

conformance_tests::conformance!(harness());
