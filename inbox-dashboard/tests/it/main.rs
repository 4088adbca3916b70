//! The dashboard through its router.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

mod api;
mod changes;
mod hooked;
mod hostile;
mod mounting;
mod pages;
mod support;
