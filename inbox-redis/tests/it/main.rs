//! The tests of the store on Redis, in one program; crash runs are another.
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

mod common;
mod confirmed;
mod conformance;
mod conformance_cluster;
mod conformance_newest;
mod conformance_shards;
mod connections;
mod failover;
mod invariants;
mod newer_servers;
mod nodes;
mod operations;
mod reshard;
mod scripts;
mod spoiled;
#[cfg(feature = "tls")]
mod tls;
