//! x
#![allow(missing_docs)]
mod begin;
mod error;
mod operate;
mod options;
mod rows;
mod schema;
mod script;
mod server;
mod settle;
mod statements;
mod store;
mod transactional;
mod wakeups;
mod work;

/// The driver, whose transactions [`Transactional`](inbox_api::Transactional) use takes.
pub use sqlx;

pub use options::{ClockOffset, MySqlOptions, PayloadColumn};
pub use store::MySqlStore;
