//! The source and the publisher on real servers.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod conformance;
mod harness;
mod outbox;
mod publisher;
mod source;
