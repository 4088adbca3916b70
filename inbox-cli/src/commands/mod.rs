//! One module per command.

pub(crate) mod clear;
pub(crate) mod completions;
#[cfg(feature = "conformance")]
pub(crate) mod conformance;
pub(crate) mod copy;
pub(crate) mod dashboard;
pub(crate) mod dead;
pub(crate) mod demo;
pub(crate) mod discard;
pub(crate) mod health;
pub(crate) mod import_keys;
pub(crate) mod ingest;
mod known_handlers;
pub(crate) mod list;
mod own_pauses;
pub(crate) mod pause;
pub(crate) mod process;
pub(crate) mod purge;
#[cfg_attr(
    not(any(
        feature = "kafka",
        feature = "nats",
        feature = "rabbitmq",
        feature = "redis-streams",
        feature = "sqs"
    )),
    allow(
        unused_imports,
        unused_variables,
        unreachable_code,
        reason = "no broker is in this build"
    )
)]
pub(crate) mod receive;
pub(crate) mod replay;
pub(crate) mod reschedule;
pub(crate) mod run;
pub(crate) mod scheduled;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod summary;
mod waits;
