//! Every rule through a real connection, on SQLite and PostgreSQL; transactions also on MariaDB and MongoDB.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests, and what they have in common"
)]
#![allow(missing_docs, reason = "tests")]

#[cfg(feature = "api")]
mod budget;
mod crash;
mod hostile;
mod idempotency;
mod more_places;
mod places;
mod server;
mod webhooks;
