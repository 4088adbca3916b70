//! `inbox serve`, as a process, over HTTP.

mod api;
mod configuration;
mod dashboard;
#[cfg(feature = "postgres")]
mod outage;
mod posting;
pub(crate) mod service;
mod stopping;
mod webhooks;
mod workers;
