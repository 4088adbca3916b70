//! The suite on its model broker, and on sources that are broken on purpose.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, which fail by panicking"
)]

mod broken;
mod memory;
