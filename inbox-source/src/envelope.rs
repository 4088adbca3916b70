//! A delivery in words that all brokers share.

use std::{fmt, time::SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use inbox_api::HeadersBuilder;

use crate::Raw;

/// A delivery in words that all brokers share: what a source makes of its client's type, and a
/// [`Mapping`](crate::Mapping) makes a message of.
///
/// `Debug` shows names, lengths and the position, never a payload or the value of a header.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Envelope {
    /// The body.
    pub payload: Bytes,
    /// The headers that are text, in the broker's order. Of several of one name the last counts.
    pub headers: Vec<(String, String)>,
    /// The broker's own property for a message's id: AMQP's `message_id`, `Nats-Msg-Id`, the
    /// deduplication id of a FIFO queue.
    pub id: Option<String>,
    /// The broker's own property for what kind of message this is: AMQP's `type`.
    pub kind: Option<String>,
    /// What the broker orders by: the key of a Kafka record, the group of a FIFO queue.
    pub key: Option<String>,
    /// The topic, subject, routing key or queue that it was sent to.
    pub address: String,
    /// What tells it from all other deliveries and is the same when it is delivered again: topic,
    /// partition and offset; stream and sequence. `None` where the broker has nothing that is stable.
    pub position: Option<String>,
    /// The content type, if the broker has a place for it or a header says it.
    pub content_type: Option<String>,
    /// When it was sent, as the broker or the sender has it.
    pub time: Option<SystemTime>,
}

impl Envelope {
    /// A delivery to `address` with this body, and nothing else that is known.
    #[must_use]
    pub fn new(address: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            address: address.into(),
            ..Self::default()
        }
    }

    /// Adds a header whose value is bytes. What is not UTF-8 is kept as base64 under the name with
    /// `-bin` at its end, so that no sender can make a delivery unreadable.
    pub fn add_header(&mut self, name: &str, value: &[u8]) {
        let pair = match std::str::from_utf8(value) {
            Ok(text) if !text.contains('\0') => (name.to_owned(), text.to_owned()),
            _ => (format!("{name}-bin"), STANDARD.encode(value)),
        };
        self.headers.push(pair);
    }

    /// The value of a header, its name compared without regard to case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let named = |pair: &&(String, String)| pair.0.eq_ignore_ascii_case(name);
        let found = self.headers.iter().rev().find(named);
        found.map(|(_, value)| value.as_str())
    }

    /// The headers, without those of this name, compared without regard to case. A [publisher](crate::Publisher)
    /// leaves out what it would send in a header of that name: an own header must not stand for a property.
    pub fn headers_without(&self, name: &str) -> impl Iterator<Item = (&str, &str)> {
        let headers = self.headers.iter();
        headers
            .filter(move |(own, _)| !own.eq_ignore_ascii_case(name))
            .map(|(own, value)| (own.as_str(), value.as_str()))
    }

    /// The delivery as it came, for a receiver that keeps rejected ones. Its position, or its id, tells it
    /// from others; where it has neither, its headers do.
    #[must_use]
    pub fn raw(&self) -> Raw {
        let mut headers = HeadersBuilder::new();
        for (name, value) in &self.headers {
            // Rather without a header than not at all.
            let _ = headers.insert(name, value);
        }
        let raw = Raw::new(self.payload.clone()).with_headers(headers.build());
        let known = self.position.as_ref().or(self.id.as_ref());
        match known {
            Some(known) => raw.with_origin(format!("{}#{known}", self.address)),
            None => raw,
        }
    }

    /// The bytes that it holds in memory, roughly.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let headers = self.headers.iter();
        let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
        self.payload.len() + headers
    }
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.headers.iter().map(|(name, _)| name);
        f.debug_struct("Envelope")
            .field("address", &self.address)
            .field("position", &self.position)
            .field("payload_bytes", &self.payload.len())
            .field("headers", &names.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_name_are_left_out_however_it_is_written() {
        let mut envelope = Envelope::new("orders", "{}");
        for (name, value) in [
            ("a", "1"),
            ("ordering-key", "2"),
            ("Ordering-Key", "3"),
            ("ordering-keys", "4"),
            ("a", "5"),
        ] {
            envelope.headers.push((name.into(), value.into()));
        }
        let rest: Vec<_> = envelope.headers_without("ordering-key").collect();
        assert_eq!(rest, [("a", "1"), ("ordering-keys", "4"), ("a", "5")]);
    }
}
