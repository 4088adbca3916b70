#![doc = include_str!("../README.md")]

mod database;
mod error;
mod operate;
mod options;
mod rows;
mod schema;
mod store;
mod tables;
mod wakeups;
mod work;

pub use options::RedbOptions;
pub use store::RedbStore;
