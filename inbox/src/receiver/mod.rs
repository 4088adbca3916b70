//! The receiver: stores deliveries in batches, and only then acknowledges them.
//!
//! A [`Receiver`] takes [deliveries](Delivery) from a [`Source`], stores them under their keys in
//! one call per batch, and acknowledges each only after the store has answered. While one batch
//! is being stored the next is gathered, and stored at the same time if it is full, within a bound on
//! what is unacknowledged.
//!
//! - **Nothing is acknowledged before it is stored**, and deliveries are finished in the order in
//!   which they came, also across batches: committing an offset is safe.
//! - **Order by key**: a batch that holds messages with ordering keys is stored only when no such batch is
//!   being stored, so that each key's messages are in the order in which they came.
//! - **A store outage** holds the source up and loses nothing: the batch is stored again, with
//!   growing pauses, until it succeeds or the receiver is shut down.
//! - **Fan-out**: one delivery can be stored for several handlers; it is acknowledged only when
//!   all copies are stored, and all copies go to the store in one call.
//!
//! ```
//! use std::sync::Arc;
//!
//! use inbox::{HandlerName, Kind, Message, MessageId, Receipt};
//! use inbox::receiver::{ChannelSource, Receiver, Submission};
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let inbox = inbox::connect("memory://").await?;
//! inbox.create().await?;
//!
//! // Web handlers send submissions and answer when theirs is stored: 202 for a new one, 200 for
//! // a duplicate.
//! let (sender, channel) = tokio::sync::mpsc::channel(100);
//! let receiver = Receiver::builder(inbox).build();
//! let running = tokio::spawn(async move {
//!     let mut source = ChannelSource::new(channel);
//!     receiver.run(&mut source, CancellationToken::new()).await
//! });
//!
//! let message = Message::new(
//!     HandlerName::new("billing")?,
//!     MessageId::new("evt-1")?,
//!     Kind::new("order.placed")?,
//!     r#"{"order": 7}"#,
//! );
//! let (submission, answer) = Submission::new(message);
//! sender.send(submission).await?;
//! assert_eq!(answer.await?, Ok(Receipt::Accepted));
//!
//! drop(sender);
//! assert_eq!(running.await??.accepted, 1);
//! # Ok(())
//! # }
//! ```

mod batch;
mod finals;
mod intake;
pub(crate) mod notice;
mod outage;
mod rejected;
mod report;
mod sources;

use std::{fmt, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

pub use inbox_source::{Delivery, Envelope, Flow, Publisher, Raw, Rejection, Source, SourceError};
#[cfg(feature = "mapping")]
pub use inbox_source::{IdFrom, Mapping, MappingError, Positions, TextFrom, UnknownPlace};
pub use report::{BatchReport, ReceiverError, Summary};
pub use sources::{ChannelSource, StreamSource, Submission};

use self::notice::Notice;
use crate::{
    BacklogGate, HandlerName, Store,
    patience::{Patience, Patient, SHORTEST, STORE_TIMEOUT},
    service::PartHealth,
    vitals::Vitals,
};

type OnBatch = Arc<dyn Fn(&BatchReport) + Send + Sync>;

/// Stores deliveries in batches, and only then acknowledges them. See the
/// [module](crate::receiver).
#[derive(Clone)]
pub struct Receiver {
    store: Patient,
    batch_size: usize,
    linger: Duration,
    max_unacknowledged: usize,
    max_unacknowledged_bytes: usize,
    drain_limit: Duration,
    fan_out: Vec<HandlerName>,
    on_batch: Option<OnBatch>,
    backlog_gate: Option<BacklogGate>,
    keep_rejected: Option<HandlerName>,
    stop_at_rejected: bool,
    record_only: bool,
    vitals: Vitals,
    differing: Notice,
    rejected: Notice,
    kept: Notice,
}

impl Receiver {
    /// Begins to configure a receiver for `store`.
    pub fn builder(store: Arc<dyn Store>) -> ReceiverBuilder {
        ReceiverBuilder {
            batch_size: 500,
            linger: Duration::from_millis(5),
            max_unacknowledged: None,
            max_unacknowledged_bytes: 64 * 1024 * 1024,
            drain_limit: Duration::from_secs(10),
            fan_out: Vec::new(),
            on_batch: None,
            backlog_gate: None,
            keep_rejected: None,
            stop_at_rejected: false,
            record_only: false,
            store,
            store_timeout: STORE_TIMEOUT,
        }
    }

    /// Takes deliveries from `source` until it ends or `shutdown` is cancelled, and returns what
    /// became of them.
    ///
    /// On shutdown it stops pulling, and stores and acknowledges what it has gathered, within
    /// [`drain_limit`](ReceiverBuilder::drain_limit). When the source ends it does the same
    /// without a limit.
    ///
    /// May be dropped at any await point: deliveries that were taken and not acknowledged by then
    /// are dropped, and the broker delivers them again.
    ///
    /// Each batch is stored and acknowledged in a `tracing` span `receive`. With the feature `opentelemetry` and a
    /// layer of `tracing-opentelemetry` it has the name and the attributes of OpenTelemetry's conventions for
    /// messaging, and a link to the producer's span of each message that has the header
    /// [`traceparent`](crate::headers::TRACEPARENT), up to the limit of the SDK (128 unless set).
    ///
    /// # Errors
    /// [`ReceiverError::Store`] when the store fails in a way that waiting does not mend (schema
    /// missing, permission denied…); nothing of that batch or a later one is acknowledged.
    /// [`ReceiverError::Source`] when the source fails permanently; what it handed out before is
    /// stored and acknowledged first. Unavailability and conflicts of the store, and transient
    /// failures of the source, are retried for ever.
    pub async fn run<S: Source>(
        &self,
        source: &mut S,
        shutdown: CancellationToken,
    ) -> Result<Summary, ReceiverError> {
        let running = intake::run(self, source, shutdown);
        self.vitals.watch(running).await
    }

    /// How it does at this moment, for a probe of a program without a [`Service`](crate::Service), which also
    /// asks the store: whether its loop turns, and what keeps it from its work. Asks nobody.
    #[must_use]
    pub fn health(&self) -> PartHealth {
        PartHealth::alone("receiver", &self.vitals, self.backlog_gate.as_ref())
    }

    /// The same receiver, which shares with no other how it does.
    pub(crate) fn with_own_vitals(self) -> Self {
        Self {
            vitals: Vitals::default(),
            ..self
        }
    }

    /// How a run does.
    pub(crate) fn vitals(&self) -> Vitals {
        self.vitals.clone()
    }

    pub(crate) fn gate(&self) -> Option<BacklogGate> {
        self.backlog_gate.clone()
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("batch_size", &self.batch_size)
            .field("linger", &self.linger)
            .field("max_unacknowledged", &self.max_unacknowledged)
            .field("drain_limit", &self.drain_limit)
            .field("fan_out", &self.fan_out)
            .finish_non_exhaustive()
    }
}

/// Configures a [`Receiver`].
#[must_use]
pub struct ReceiverBuilder {
    store: Arc<dyn Store>,
    store_timeout: Duration,
    batch_size: usize,
    linger: Duration,
    max_unacknowledged: Option<usize>,
    max_unacknowledged_bytes: usize,
    drain_limit: Duration,
    fan_out: Vec<HandlerName>,
    on_batch: Option<OnBatch>,
    backlog_gate: Option<BacklogGate>,
    keep_rejected: Option<HandlerName>,
    stop_at_rejected: bool,
    record_only: bool,
}

impl ReceiverBuilder {
    /// The most deliveries to store in one call; 500 unless set, at least 1. With fan-out a call
    /// has a message per delivery and handler. Full batches are stored two at a time, as far as their ordering
    /// keys and the limits on what is unacknowledged let them; of copies of one key in both, either may be the
    /// first.
    pub fn batch_size(mut self, deliveries: usize) -> Self {
        self.batch_size = deliveries.max(1);
        self
    }

    /// How long the first delivery of a batch that is not full waits for company; 5 ms unless
    /// set. With zero a batch is what the source has ready. While another batch is being stored, one that
    /// is not full waits for that in any case.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// The most deliveries that are taken from the source and not yet acknowledged or rejected; three
    /// times the batch size unless set, at least 1.
    pub fn max_unacknowledged(mut self, deliveries: usize) -> Self {
        self.max_unacknowledged = Some(deliveries.max(1));
        self
    }

    /// The most bytes that are taken from the source and not yet acknowledged or rejected; 64 MiB
    /// unless set. Payloads and headers count, once for each handler of a
    /// [fan-out](Self::fan_out); a rejected delivery counts as what it [says](Delivery::bytes).
    /// Nothing more is taken while it is reached, so the last delivery may exceed it, and one is
    /// always taken. A store may need a multiple of a batch's bytes.
    pub fn max_unacknowledged_bytes(mut self, bytes: usize) -> Self {
        self.max_unacknowledged_bytes = bytes.max(1);
        self
    }

    /// How long after shutdown gathered deliveries may still be stored and acknowledged; 10 s
    /// unless set. What is left then is for the broker to deliver again.
    pub fn drain_limit(mut self, limit: Duration) -> Self {
        self.drain_limit = limit;
        self
    }

    /// Sets how long one call of the store may take. Default: 60 seconds, twice the
    /// `operation_timeout` of the stores; set both when a store is to take longer. A call that
    /// exceeds it is given up and made again, where that is safe; one that has taken a sixth of it,
    /// or ten seconds, is warned of, once in an outage. Less than a millisecond is taken as one.
    pub fn store_timeout(mut self, limit: Duration) -> Self {
        self.store_timeout = limit.max(SHORTEST);
        self
    }

    /// Stores each delivery once for each of `handlers` instead of for its own message's handler.
    ///
    /// Each copy has its own state. The delivery is acknowledged only when every copy is stored
    /// (or was before); it is rejected when the store refuses any copy. A handler that is named
    /// twice counts once; none at all means the message's own.
    pub fn fan_out(mut self, handlers: impl IntoIterator<Item = HandlerName>) -> Self {
        self.fan_out.clear();
        for handler in handlers {
            if !self.fan_out.contains(&handler) {
                self.fan_out.push(handler);
            }
        }
        self
    }

    /// Calls `observer` after each batch, from within [`Receiver::run`]: keep it quick. A panic in
    /// it is logged and goes no further.
    pub fn on_batch(mut self, observer: impl Fn(&BatchReport) + Send + Sync + 'static) -> Self {
        self.on_batch = Some(Arc::new(observer));
        self
    }

    /// Takes nothing from the source while the gate is closed, that is, while the backlog is over
    /// a limit. What was taken before is stored and acknowledged.
    pub fn backlog_gate(mut self, gate: BacklogGate) -> Self {
        self.backlog_gate = Some(gate);
        self
    }

    /// Keeps deliveries that are no message, or that the store refuses, in the inbox, rather than
    /// reject them, which loses them with brokers that have no dead letters of their own.
    ///
    /// Each is stored as a dead letter of `handler`, a name of its own that no processor works on, with
    /// the kind `inbox.rejected`, its [raw](Delivery::raw) bytes as payload and the reason as its error. A
    /// digest of the bytes and headers (or [origin](Raw::with_origin)) is its id, so that redeliveries are
    /// duplicates. Bytes over the store's payload
    /// limit are cut to it, and the header `raw-bytes` says how many there were. Then the delivery is
    /// acknowledged. One that has no raw bytes is rejected all the same.
    ///
    /// A receiver that is killed between storing a dead letter and making it dead leaves it pending,
    /// after five seconds under a lease, until the delivery comes again. Nothing works on it meanwhile. So a
    /// dead letter that was replayed, and on which nothing has worked yet, is made dead by a redelivery.
    pub fn keep_rejected(mut self, handler: HandlerName) -> Self {
        self.keep_rejected = Some(handler);
        self
    }

    /// Ends at the first delivery that would be rejected, and leaves it and what came after it to the broker:
    /// where a delivery that is no message means that something is wrong, and losing it is worse than
    /// standing still. [`Receiver::run`] fails with [`ReceiverError::Rejected`]. With
    /// [`keep_rejected`](Self::keep_rejected) only for those that cannot be kept.
    ///
    /// What came after it is not stored, so that it may still be delivered as a message in its turn. What came in the
    /// same batch is, where the store refuses a message that is not over its payload limit, or a dead letter, as one
    /// whose payloads are JSON does when the delivery is none.
    pub fn stop_at_rejected(mut self) -> Self {
        self.stop_at_rejected = true;
        self
    }

    /// Only records: each message is stored as processed at once, for audits and to tell duplicates.
    /// Nothing works on it; it can be listed, and goes with its retention. Due times and ordering keys
    /// are left out, as they have no meaning then.
    ///
    /// A store makes one message final at a time, so this takes a round trip for each and one more for
    /// the batch, several at once. The names of its handlers should be ones that no processor works
    /// on: a receiver that is killed half-way leaves messages pending, after five seconds under a
    /// lease, until their deliveries come again. What is pending and due for another reason is
    /// recorded as processed too. A redelivery that finds such a lease waits for its end; one that finds
    /// a message which others work on, or which is not due, leaves it to them after ten seconds, or after thirty if
    /// they renew a short lease or try it again meanwhile. A message that is behind another one of its ordering key is
    /// left to others after ten seconds in which nothing of its batch was recorded or waited for. Time in which the
    /// store does not answer does not count. What is left to others is stored, and acknowledged as a duplicate;
    /// [`BatchReport::unfinished`] counts it.
    ///
    /// Messages of one ordering key that wait in the inbox are recorded one after the other. It is quick when they come
    /// in their order or in the reverse one; in any other, those that are not yet free are asked for again each time.
    ///
    /// One who waits for an answer records with an inline consumer whose handler does nothing:
    /// `consumer.consume(&message, async |_| Ok::<_, Failure>(None))`.
    pub fn record_only(mut self) -> Self {
        self.record_only = true;
        self
    }

    /// The receiver.
    #[must_use]
    pub fn build(self) -> Receiver {
        Receiver {
            max_unacknowledged: self
                .max_unacknowledged
                .unwrap_or(self.batch_size.saturating_mul(3)),
            max_unacknowledged_bytes: self.max_unacknowledged_bytes,
            store: Patient {
                store: self.store,
                patience: Patience::new(self.store_timeout),
            },
            batch_size: self.batch_size,
            linger: self.linger,
            drain_limit: self.drain_limit,
            fan_out: self.fan_out,
            on_batch: self.on_batch,
            backlog_gate: self.backlog_gate,
            keep_rejected: self.keep_rejected,
            stop_at_rejected: self.stop_at_rejected,
            record_only: self.record_only,
            vitals: Vitals::default(),
            differing: Notice::default(),
            rejected: Notice::default(),
            kept: Notice::default(),
        }
    }
}

impl fmt::Debug for ReceiverBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiverBuilder").finish_non_exhaustive()
    }
}
