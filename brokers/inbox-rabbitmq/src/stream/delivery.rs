//! One message of a stream, to be acknowledged or rejected.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use inbox_api::Message;
use inbox_source::{Delivery, Envelope, Mapping, Raw, Rejection, SourceError};

use super::{dead_letters, options::RabbitMqStreamOptions, shared::Ticket};
use crate::stop::Stop;

const AGAIN: &str =
    "the delivery is of a former connection, or behind one that was given up; it comes again";

/// A message of a stream. Dropped without an answer, it and what is behind it are read again.
pub struct RabbitMqStreamDelivery {
    pub(crate) envelope: Envelope,
    /// Why it can be no message.
    pub(crate) fault: Option<&'static str>,
    /// As it came, for the dead letters.
    pub(crate) record: Bytes,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) rejecter: Arc<Rejecter>,
    pub(crate) ticket: Ticket,
}

/// What becomes of rejected deliveries.
#[derive(Debug)]
pub(crate) struct Rejecter {
    pub(crate) options: RabbitMqStreamOptions,
    /// Set by the rejected delivery that ends the source.
    pub(crate) stop: Stop,
}

impl Delivery for RabbitMqStreamDelivery {
    fn message(&self) -> Result<Message, Rejection> {
        match self.fault {
            Some(fault) => Err(Rejection::new(fault)),
            None => self.mapping.message(&self.envelope),
        }
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.envelope.bytes().saturating_add(self.record.len()))
    }

    fn raw(&self) -> Option<Raw> {
        Some(self.envelope.raw())
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        match finish(vec![self]).pop() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    async fn reject(mut self, rejection: Rejection) -> Result<(), SourceError> {
        let rejecter = Arc::clone(&self.rejecter);
        if let Some(stopped) = rejecter.stop.error() {
            // It comes again with the one at which the source stops, and would be written again each time.
            self.ticket.leave();
            return Err(stopped);
        }
        if !self.ticket.is_current() {
            return Err(SourceError::transient(AGAIN));
        }
        let Some(stream) = &rejecter.options.dead_letters else {
            return Err(self.stop(format!(
                "a delivery was rejected ({rejection}), and rejections stop this source unless dead_letters names a \
                 stream for them; the receiver can keep them (--keep-rejected)"
            )));
        };
        let written = dead_letters::write(&rejecter.options, stream, &self.record).await;
        if let Err(error) = written {
            return Err(match error.is_transient() {
                true => error,
                // So it would be each time that the delivery comes.
                false => self.stop(format!("{error}; the source stops")),
            });
        }
        tracing::warn!(
            position = self.envelope.position,
            dead_letters = stream,
            "a delivery was rejected: {rejection}"
        );
        self.acknowledge().await
    }

    async fn acknowledge_all(run: Vec<Self>) -> Vec<SourceError> {
        finish(run)
    }
}

/// What is finished is stored a little later.
fn finish(mut run: Vec<RabbitMqStreamDelivery>) -> Vec<SourceError> {
    let mut failures = Vec::new();
    // Two connections may follow each other within a run.
    let is_same = |one: &RabbitMqStreamDelivery, next: &RabbitMqStreamDelivery| {
        Arc::ptr_eq(one.ticket.shared(), next.ticket.shared())
    };
    for part in run.chunk_by_mut(is_same) {
        let Some(shared) = part.first().map(|one| Arc::clone(one.ticket.shared())) else {
            continue;
        };
        let mut ledger = shared.ledger();
        for delivery in part {
            if !delivery.ticket.finish(&mut ledger) {
                failures.push(SourceError::transient(AGAIN));
            }
        }
        drop(ledger);
        shared.changed.notify_one();
    }
    failures
}

impl RabbitMqStreamDelivery {
    /// What it says.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Ends the source, and leaves this one unfinished: what is behind it can be finished meanwhile.
    fn stop(&mut self, reason: String) -> SourceError {
        let reason =
            format!("{reason}; the rejected delivery comes again when the source starts again");
        self.rejecter.stop.set(reason.clone());
        self.ticket.leave();
        SourceError::permanent(reason)
    }
}

impl fmt::Debug for RabbitMqStreamDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqStreamDelivery")
            .field("envelope", &self.envelope)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}
