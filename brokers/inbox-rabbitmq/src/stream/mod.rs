//! Streams: logs that are read by offset, over their own protocol.

mod amqp;
mod chunk;
mod dead_letters;
mod delivery;
mod envelope;
mod error;
mod frame;
mod ledger;
mod link;
mod nodes;
mod open;
mod options;
mod session;
mod shared;
mod source;
#[cfg(feature = "tls")]
mod tls;
mod wire;

pub use delivery::RabbitMqStreamDelivery;
pub use options::{RabbitMqStreamOptions, STREAM_SCHEMES, StreamConnection, StreamStart};
pub use source::RabbitMqStreamSource;
