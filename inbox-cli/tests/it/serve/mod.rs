//! `inbox serve`, as a process, over HTTP.

mod api;
mod configuration;
mod dashboard;
mod service;
mod stopping;
mod webhooks;
mod workers;
