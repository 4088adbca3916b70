//! The tests of the runtime, in one program.
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

mod broker;
mod connect;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod deployments;
mod expiry;
mod faulty;
mod hanging;
mod inline;
mod inline_memory;
mod inline_transaction;
mod janitor;
mod layer;
mod logged;
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod mishaps;
#[cfg(feature = "mysql")]
mod mysql_support;
#[cfg(feature = "opentelemetry")]
mod opentelemetry;
mod outage;
#[cfg(feature = "sqlite")]
mod outbox;
mod peers;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_commits;
#[cfg(feature = "postgres")]
mod postgres_support;
mod processor;
mod processor_batches;
mod processor_blocking;
mod processor_clock;
mod processor_faults;
mod processor_leases;
mod processor_look_ahead;
mod processor_odd;
mod processor_outages;
mod processor_routers;
mod processor_support;
mod processor_transaction;
mod receiver;
mod receiver_chaos;
mod receiver_details;
mod receiver_finals;
mod receiver_limits;
mod receiver_order;
mod receiver_sqlite;
mod routing;
mod service;
#[cfg(feature = "sqlite")]
mod sqlite_queue;
mod telemetry;
mod transaction_closures;
