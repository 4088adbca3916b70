//! The cases, by group.

pub(crate) mod acknowledging;
pub(crate) mod broker;
pub(crate) mod consumers;
pub(crate) mod flow;
pub(crate) mod hostile;
pub(crate) mod mapping;
pub(crate) mod order;
pub(crate) mod poison;
pub(crate) mod publishing;
pub(crate) mod store;
