//! The servers that are measured: one that is there, or one of our own.

pub(crate) mod mongodb;
pub(crate) mod mysql;
pub(crate) mod postgres;
pub(crate) mod redis;
