//! The tests of the store on MongoDB, in one program; crash runs are another.
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

mod common;
mod conformance;
mod faults;
mod operations;
mod replica_set;
mod requests;
mod sharded;
