//! Streams.

mod asker;
mod conformance;
mod harness;
mod source;
