#![doc = include_str!("../README.md")]

mod begin;
mod claim;
mod connection;
mod error;
mod extend;
mod operate;
mod options;
mod receive;
mod rows;
mod schema;
mod settle;
mod store;
mod tables;
mod transaction;
mod version;
mod wakeups;

pub use options::RedbOptions;
pub use store::RedbStore;
