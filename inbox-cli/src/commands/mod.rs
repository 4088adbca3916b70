//! One module per command.

pub(crate) mod completions;
#[cfg(feature = "conformance")]
pub(crate) mod conformance;
pub(crate) mod demo;
pub(crate) mod discard;
pub(crate) mod ingest;
pub(crate) mod list;
pub(crate) mod process;
pub(crate) mod purge;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod show;
pub(crate) mod stats;
