//! An inbox store on Redis.

mod beside;
mod checks;
mod error;
mod keys;
mod link;
mod operate;
mod options;
mod receive;
mod reply;
mod rows;
mod schema;
mod scripts;
mod store;
mod wakeups;
mod work;

/// The driver, whose values [`RedisStore::settle_with`] answers.
pub use redis;

pub use beside::Command;
pub use options::{Confirmations, RedisOptions, StartChecks, TimeOffset};
pub use store::RedisStore;
