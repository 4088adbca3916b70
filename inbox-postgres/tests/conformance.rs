//! The conformance suite, over the PostgreSQL store.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::expect_used)]

mod common;

use test_servers::Kind;

conformance_tests::conformance!({
    let url = common::shared_url().expect("a server");
    common::harness(common::patient(&url), Kind::Postgres, &[])
});
