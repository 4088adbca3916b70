//! An inbox store in MongoDB.
mod begin;
mod claim;
mod database;
mod error;
mod filters;
mod operate;
mod options;
mod ordering;
mod receive;
mod rows;
mod schema;
mod settle;
mod stages;
mod store;
mod transactional;
mod wakeups;

/// The driver, whose clients and sessions this store takes.
pub use mongodb;

pub use options::{MongoOptions, TimeOffset};
pub use store::MongoStore;
pub use transactional::MongoTransaction;
