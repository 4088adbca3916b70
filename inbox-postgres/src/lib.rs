//! An inbox store in PostgreSQL.

mod error;
mod names;
mod operate;
mod options;
mod rows;
mod schema;
mod statements;
mod store;
mod time;
mod transactional;
mod wakeups;
mod work;

/// The driver, whose pools and transactions this store takes.
pub use sqlx;

pub use names::SchemaName;
pub use options::{PayloadType, PostgresOptions};
pub use store::PostgresStore;
