//! The tests of the command, in one program; what it links is another's.
#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]
#![cfg_attr(
    not(all(
        feature = "mongo",
        feature = "mysql",
        feature = "postgres",
        feature = "redis"
    )),
    allow(dead_code, reason = "helpers of the tests of servers")
)]

mod copying;
mod dashboard;
mod documents;
mod importing;
mod input;
mod interventions;
#[cfg(feature = "kafka")]
mod kafka;
mod looking;
mod mishaps;
#[cfg(feature = "mongo")]
mod mongodb;
#[cfg(feature = "mysql")]
mod mysql;
mod notifying;
mod observing;
mod operating;
mod output;
mod packaging;
#[cfg(feature = "postgres")]
mod postgres;
mod posting;
mod processing;
mod prometheus;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis-streams")]
mod redis_streams;
mod serve;
#[cfg(feature = "sqs")]
mod sqs;
mod stopping;
mod support;
#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis-streams",
    feature = "sqs"
))]
mod tls;
