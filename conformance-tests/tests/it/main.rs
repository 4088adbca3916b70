//! The tests of the suite itself, in one program; the suite as a program is another.
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

mod broken;
mod broken_stores;
mod invariants;
mod report;
mod without_clock;
