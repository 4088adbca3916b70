//! The tests of the store on MariaDB and MySQL, in one program; crash runs are another.
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

mod accounts;
mod common;
mod concurrency;
mod conformance;
mod conformance_mysql;
mod connections;
mod durable_answers;
mod galera;
mod history;
mod holding;
mod invariants;
mod isolation;
mod numbers;
mod plans;
mod procedures;
mod removal;
mod restore;
mod retention;
mod runs;
mod servers;
mod snapshots;
mod spoiled;
mod steps;
mod tally;
mod transactions;
