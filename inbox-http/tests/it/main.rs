//! Every rule through a real connection, on SQLite and PostgreSQL; transactions also on MariaDB, MySQL
//! and MongoDB, and in short on Redis.
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
mod logged;
mod more_places;
mod places;
#[cfg(feature = "api")]
mod refused;
mod server;
mod webhooks;
