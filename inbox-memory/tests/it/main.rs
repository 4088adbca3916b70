//! The tests of the store in memory, in one program.
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

mod common;
mod conformance;
mod store;
mod wakeups;
