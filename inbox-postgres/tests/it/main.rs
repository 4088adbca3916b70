//! The tests of the store on PostgreSQL, in one program; crash runs are another.
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

mod builds;
mod claim_cursor;
mod commit;
mod common;
mod concurrency;
mod conformance;
mod conformance_newest;
mod conformance_partitioned;
mod conformance_settings;
mod durability;
mod failures;
mod grants;
mod held_rows;
mod invariants;
mod isolation;
mod operate;
mod partitions;
mod payloads;
mod plans;
mod pooler;
mod pooler_failures;
mod renewals;
mod restore;
mod schema;
mod spoiled;
mod time_limits;
mod transactions;
mod wakeups;
