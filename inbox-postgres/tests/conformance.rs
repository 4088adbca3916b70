//! The conformance suite, over the PostgreSQL store.

mod common;
mod suite;

use suite::Database;

conformance_tests::conformance!(Database {
    name: "postgres",
    shared: common::shared_url,
    own: common::own_server,
    options: |options| options,
    lacks: &[],
});
