//! The source and the publisher on a real server.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod conformance;
mod harness;
mod source;
