//! The conformance suite, over the PostgreSQL store.

use test_servers::Kind;

use crate::common;

conformance_tests::conformance!({
    let url = common::shared_url().expect("a server");
    common::harness(common::patient(&url), Kind::Postgres, &[])
});
