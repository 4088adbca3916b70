//! The source and the publisher, on a real server.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, which the configuration for tests does not reach"
)]

mod conformance;
mod harness;
mod lag;
mod panics;
mod publisher;
mod recreated;
mod source;
mod wire;
