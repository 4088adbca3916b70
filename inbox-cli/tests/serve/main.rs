//! `inbox serve`, as a process, over HTTP.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, which the configuration for tests does not reach"
)]

#[path = "../support/mod.rs"]
mod support;

mod api;
mod configuration;
mod service;
mod stopping;
mod webhooks;
mod workers;
