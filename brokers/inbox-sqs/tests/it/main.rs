//! The source and the publisher on a real server.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod answers;
mod conformance;
mod fake;
mod harness;
mod source;
