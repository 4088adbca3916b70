//! The cases, by group. Each checks one rule; [`crate::registry`] lists them.

pub(crate) mod begin;
pub(crate) mod cancellation;
pub(crate) mod commit;
pub(crate) mod concurrency;
pub(crate) mod corrupt;
pub(crate) mod duplicates;
pub(crate) mod fencing;
pub(crate) mod holding;
pub(crate) mod hostile;
pub(crate) mod identity;
pub(crate) mod leases;
pub(crate) mod look;
pub(crate) mod model;
pub(crate) mod moments;
pub(crate) mod ordering;
pub(crate) mod outage;
pub(crate) mod replay;
pub(crate) mod retention;
pub(crate) mod retry;
pub(crate) mod schema;
pub(crate) mod silence;
pub(crate) mod slices;
pub(crate) mod statistics;
pub(crate) mod time;
pub(crate) mod transactions;
pub(crate) mod wakeups;
