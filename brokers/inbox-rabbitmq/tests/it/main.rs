//! The source and the publisher on real servers.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[macro_use]
mod part;

mod conformance;
mod harness;
mod source;
#[cfg(feature = "streams")]
mod stream;
