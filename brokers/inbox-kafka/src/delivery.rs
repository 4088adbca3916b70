//! One record, to be acknowledged or rejected.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use inbox_api::Message;
use inbox_source::{Delivery, Envelope, Mapping, Raw, Rejection, SourceError};
use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::FutureRecord,
    util::Timeout,
};
use tokio::sync::mpsc::WeakUnboundedSender;

use crate::{
    Connection, Rejections,
    envelope::{Original, headers, is_tombstone},
    shared::Ticket,
    writer::Writer,
};

/// The header of a dead letter that says why it is one.
pub const REJECTED_REASON: &str = "inbox-rejected-reason";
/// The header of a dead letter that says where it was: topic, partition and offset.
pub const REJECTED_FROM: &str = "inbox-rejected-from";

const DOING: &str = "writing a dead letter";
/// How long the brokers have to confirm a dead letter.
const DEAD_LETTER_LIMIT: Duration = Duration::from_secs(30);

/// One record. Dropping it unfinished has its partition read again from it.
pub struct KafkaDelivery {
    envelope: Envelope,
    original: Option<Box<Original>>,
    /// Why it is no message, whatever the mapping finds in it.
    fault: Option<&'static str>,
    mapping: Arc<Mapping>,
    rejecter: Arc<Rejecter>,
    ticket: Ticket,
}

impl KafkaDelivery {
    pub(crate) fn new(
        envelope: Envelope,
        original: Option<Box<Original>>,
        fault: Option<&'static str>,
        mapping: Arc<Mapping>,
        rejecter: Arc<Rejecter>,
        ticket: Ticket,
    ) -> Self {
        Self {
            envelope,
            original,
            fault,
            mapping,
            rejecter,
            ticket,
        }
    }

    /// What it says.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// `false`: its assignment is over.
    pub(crate) fn hand_out(&self) -> bool {
        self.ticket.hand_out()
    }

    fn former(&self) -> SourceError {
        let place = &self.ticket.mark().place;
        SourceError::transient(format!(
            "{place} is not assigned to this consumer any more, or is read again, or began again; the offset {} is not committed",
            self.ticket.mark().offset
        ))
    }
}

/// What a delivery holds.
pub(crate) fn bytes(envelope: &Envelope, original: Option<&Original>) -> usize {
    envelope.bytes() + original.map_or(0, Original::bytes) + size_of::<KafkaDelivery>()
}

impl Delivery for KafkaDelivery {
    fn message(&self) -> Result<Message, Rejection> {
        match self.fault {
            Some(fault) => Err(Rejection::new(fault)),
            None => self.mapping.message(&self.envelope),
        }
    }

    fn bytes(&self) -> Option<usize> {
        Some(bytes(&self.envelope, self.original.as_deref()))
    }

    fn raw(&self) -> Option<Raw> {
        Some(self.envelope.raw())
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        Self::acknowledge_all(vec![self])
            .await
            .pop()
            .map_or(Ok(()), Err)
    }

    async fn reject(mut self, rejection: Rejection) -> Result<(), SourceError> {
        // What comes again would be written again, each time that one before it cannot be.
        if !self.ticket.is_current() {
            return Err(self.former());
        }
        let rejecter = self.rejecter.clone();
        rejecter.reject(&self, &rejection).await?;
        let shared = self.ticket.shared().clone();
        let finished = self.ticket.finish(&mut shared.offsets());
        shared.wake();
        if finished { Ok(()) } else { Err(self.former()) }
    }

    /// Notes all of them as finished. The consumer commits at once what that makes of each partition; a
    /// commit that fails is made again for as long as the partition is here.
    async fn acknowledge_all(mut run: Vec<Self>) -> Vec<SourceError> {
        let Some(first) = run.first() else {
            return Vec::new();
        };
        let mut failures = Vec::new();
        let mut shared = first.ticket.shared().clone();
        let mut offsets = shared.offsets();
        for delivery in &mut run {
            // Two consumers may follow each other within a run.
            if !Arc::ptr_eq(&shared, delivery.ticket.shared()) {
                drop(offsets);
                shared.wake();
                shared = delivery.ticket.shared().clone();
                offsets = shared.offsets();
            }
            if !delivery.ticket.finish(&mut offsets) {
                failures.push(delivery.former());
            }
        }
        drop(offsets);
        // Makes room for more before the consumer looks.
        drop(run);
        shared.wake();
        failures
    }
}

impl fmt::Debug for KafkaDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaDelivery")
            .field("envelope", &self.envelope)
            .finish_non_exhaustive()
    }
}

type WeakSupply = WeakUnboundedSender<Result<KafkaDelivery, SourceError>>;

/// Does with rejected deliveries what was decided.
pub(crate) struct Rejecter {
    rejections: Rejections,
    connection: Connection,
    writer: Writer,
    /// Where the source hears that it has to stop, while its consumer is there.
    supply: Mutex<Option<WeakSupply>>,
}

impl Rejecter {
    pub(crate) fn new(rejections: Rejections, connection: Connection) -> Self {
        Self {
            rejections,
            connection,
            writer: Writer::default(),
            supply: Mutex::default(),
        }
    }

    pub(crate) fn set_supply(&self, supply: WeakSupply) {
        *self.supply.lock().unwrap_or_else(PoisonError::into_inner) = Some(supply);
    }

    async fn reject(
        &self,
        delivery: &KafkaDelivery,
        rejection: &Rejection,
    ) -> Result<(), SourceError> {
        let place = delivery.envelope.position.as_deref().unwrap_or_default();
        match &self.rejections {
            Rejections::Discard => {
                tracing::warn!(position = place, reason = %rejection, "discarded");
                Ok(())
            }
            Rejections::Stop => Err(self.stop(format!(
                "{place} was rejected ({rejection}), and the source is to stop then"
            ))),
            Rejections::DeadLetters(topic) => {
                let written = self.write(topic, delivery, rejection).await;
                written.map_err(|error| match error.is_transient() {
                    true => error,
                    // So it would be each time that it is read again.
                    false => self.stop(format!(
                        "{error}; {place} cannot be a dead letter in {topic}, and the source stops"
                    )),
                })
            }
        }
    }

    /// Ends the source, if its consumer is there, for this reason.
    fn stop(&self, reason: String) -> SourceError {
        let supply = self.supply.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(supply) = supply.as_ref().and_then(WeakSupply::upgrade) {
            let _ = supply.send(Err(SourceError::permanent(reason.clone())));
        }
        SourceError::permanent(reason)
    }

    /// Where the headers make it too large, it goes with those of the record alone: it would be refused each time that
    /// it is read.
    async fn write(
        &self,
        topic: &str,
        delivery: &KafkaDelivery,
        rejection: &Rejection,
    ) -> Result<(), SourceError> {
        let envelope = &delivery.envelope;
        let original = delivery.original.as_deref();
        let own = original.map_or_else(|| headers(envelope), |one| one.headers.clone());
        let headers = own
            .clone()
            .insert(Header {
                key: REJECTED_REASON,
                value: Some(rejection.reason()),
            })
            .insert(Header {
                key: REJECTED_FROM,
                value: envelope.position.as_deref(),
            });
        match self.send(topic, delivery, headers).await {
            Err(error) if !error.is_transient() => {
                let position = envelope.position.as_deref();
                tracing::warn!(position, reason = %rejection, %error, "the dead letter goes without its reason");
                self.send(topic, delivery, own).await
            }
            sent => sent,
        }
    }

    async fn send(
        &self,
        topic: &str,
        delivery: &KafkaDelivery,
        headers: OwnedHeaders,
    ) -> Result<(), SourceError> {
        let envelope = &delivery.envelope;
        let key = match delivery.original.as_deref() {
            Some(original) => original.key.as_deref(),
            None => envelope.key.as_deref().map(str::as_bytes),
        };
        let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic).headers(headers);
        if !is_tombstone(envelope) {
            record = record.payload(&envelope.payload);
        }
        if let Some(key) = key {
            record = record.key(key);
        }
        let config = || self.connection.producer_config(DEAD_LETTER_LIMIT);
        let producer = self.writer.get(DOING, config)?;
        let sent = producer.send(record, Timeout::After(DEAD_LETTER_LIMIT));
        match sent.await {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(self.writer.failed(DOING, &producer, &error)),
        }
    }
}
