//! Messages to send.

use anyhow::Result;
use inbox::{Bytes, HandlerName, Kind, Message, MessageId};

use crate::target::handler;

/// Makes messages that no store has seen.
pub(crate) struct Maker {
    handler: HandlerName,
    kind: Kind,
    payload: usize,
    random: fastrand::Rng,
    /// Random bytes of which payloads are cut, so that none can be compressed.
    bytes: Bytes,
}

impl Maker {
    pub(crate) fn new(payload: usize) -> Result<Self> {
        let mut random = fastrand::Rng::new();
        let mut bytes = vec![0; payload + (1 << 20)];
        random.fill(&mut bytes);
        Ok(Self {
            handler: handler()?,
            kind: Kind::new("bench.event")?,
            payload,
            random,
            bytes: bytes.into(),
        })
    }

    pub(crate) fn message(&mut self) -> Result<Message> {
        let from = self.random.usize(..self.bytes.len() - self.payload);
        self.message_of(self.bytes.slice(from..from + self.payload))
    }

    /// A message with this payload.
    pub(crate) fn message_of(&mut self, payload: Bytes) -> Result<Message> {
        Ok(Message::new(
            self.handler.clone(),
            MessageId::new(format!("{:032x}", self.random.u128(..)))?,
            self.kind.clone(),
            payload,
        ))
    }

    pub(crate) fn messages(&mut self, number: u64) -> Result<Vec<Message>> {
        (0..number).map(|_| self.message()).collect()
    }

    /// That many messages, in batches.
    pub(crate) fn batches(&mut self, number: u64, batch: u32) -> Result<Vec<Vec<Message>>> {
        (0..number)
            .step_by(batch as usize)
            .map(|from| self.messages(u64::from(batch).min(number - from)))
            .collect()
    }
}
