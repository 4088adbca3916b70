//! `inbox receive` over TLS from each broker into a file, as its user meets it.

use std::net::TcpListener;

mod certificates;
#[cfg(feature = "kafka-tls")]
mod kafka;
#[cfg(all(feature = "kafka", not(feature = "kafka-tls")))]
mod kafka_without_tls;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "sqs")]
mod proxy;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod receiving;
#[cfg(feature = "redis-streams")]
mod redis_streams;
#[cfg(feature = "sqs")]
mod sqs;

/// A port that nobody listens on at present.
pub(super) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
