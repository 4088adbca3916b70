//! The tests of the store on SQLite, in one program; crash runs are another.
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

mod commit;
mod common;
mod conformance;
mod failures;
mod invariants;
mod locks;
mod messages;
mod restore;
mod runs;
mod schema;
mod settings;
mod shared_transactions;
mod transactions;
