//! The way out: messages to a broker that are stored in the transaction which causes them.
//!
//! A handler often ends in another message. Sent to the broker from within a transaction, it is there
//! although the transaction is rolled back, or is lost although it commits. So it goes into an inbox first, in
//! the same transaction, and a processor publishes it: an outbox is the inbox of a handler that
//! publishes, with all that an inbox has: leases, retries, dead letters, order per key, the
//! command.
//!
//! ```
//! use inbox::outbox::Outbox;
//! use inbox::receiver::{Envelope, Publisher, SourceError};
//! use inbox::{MessageId, Processor, Transactional as _};
//!
//! struct Console; // in place of a broker's
//!
//! impl Publisher for Console {
//!     async fn publish(&self, messages: &[Envelope]) -> Vec<Result<(), SourceError>> {
//!         let sent = |one: &Envelope| {
//!             println!("{:?} to {}", one.id, one.address);
//!             Ok(())
//!         };
//!         messages.iter().map(sent).collect()
//!     }
//! }
//!
//! # #[cfg(not(feature = "sqlite"))]
//! # fn main() {}
//! # #[cfg(feature = "sqlite")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use inbox::{Schema as _, sqlite::{SqliteOptions, SqliteStore}};
//! # let directory = tempfile::tempdir()?;
//! # let file = directory.path().join("shop.db");
//! let store = SqliteStore::connect(SqliteOptions::new(file)).await?;
//! store.create().await?;
//! let outbox = Outbox::new(store.clone(), "to-broker")?;
//!
//! // In a handler's transaction, or any other on the same database:
//! let mut transaction = store.open().await?;
//! // What happened is in the id: the same order is shipped later, and that is another message.
//! let id = MessageId::new("order-7/order.placed")?;
//! let placed = outbox.message("orders", id, "order.placed", r#"{"order":7}"#)?;
//! outbox.send_in(&mut transaction, &[placed]).await?;
//! store.commit(transaction).await?;
//!
//! // Somewhere, in this process or another:
//! let processor = Processor::builder(std::sync::Arc::new(store))
//!     .router(outbox.router(Console))
//!     .build()?;
//! # let _ = processor;
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//! - A message is published if and only if its transaction commits, at least once. A publisher that dies before
//!   it has the broker's confirmation publishes again, under the same id: a broker that deduplicates, or
//!   the inbox of the consumer, refuses the copy.
//! - Messages of one ordering key are published in the order in which they were sent, each after the broker has
//!   confirmed the one before; those of different keys, many at a time.
//! - What the broker will never take is a dead letter; while it is away, or refuses the user, messages wait,
//!   and no attempt counts, whatever [`handler_timeout`](crate::ProcessorBuilder::handler_timeout) the processor has.
//! - A message that cannot be published now, while others that were claimed with it are, waits by itself: for a tenth of
//!   the time since it was stored, at least a second and at most a minute. After a call of which nothing could be
//!   published, no more is sent to its destinations for now, and what goes elsewhere is.
//! - Under an id that was sent before nothing is published, whatever it is: see [`message`](Outbox::message).

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use inbox_api::from_micros;
use inbox_source::{Envelope, Publisher, SourceError};

use crate::{
    Answers, Batch, BatchHandler, Batches, Bytes, Completion, Context, Failure, HandlerName,
    Invalid, Kind, Message, MessageId, Receipt, Result, Router, Store, Transactional,
    receiver::notice::Notice,
    telemetry::{self, MESSAGE},
};

/// The header that says where a message goes: a topic, a subject, a queue.
pub const DESTINATION: &str = "destination";

/// How long nothing is published after the broker could not be reached.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest wait of a message that cannot be published while others are.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// So many bytes go into one call of a publisher, whose client may copy them all before it sends the first.
const CALL_BYTES: usize = 16 << 20;

/// The error of a message that was left out of its batch.
const NOT_SENT: &str = "not sent: of a call with messages to the same destination none was taken";

/// Messages on their way to a broker. See the [module](crate::outbox).
#[derive(Clone, Debug)]
pub struct Outbox<S> {
    store: S,
    handler: HandlerName,
    differing: Notice,
}

impl<S> Outbox<S> {
    /// An outbox in `store`, whose messages are those of `handler`: a name of its own, on which nothing
    /// works but its [router](Self::router).
    ///
    /// # Errors
    /// [`Invalid`] when the name breaks its rule.
    pub fn new(store: S, handler: impl AsRef<str>) -> Result<Self, Invalid> {
        let handler = HandlerName::new(handler)?;
        // So that the first one is an increase.
        telemetry::differing(handler.as_str(), 0);
        Ok(Self {
            store,
            handler,
            differing: Notice::default(),
        })
    }

    /// A message to `destination`. An ordering key, headers and a due time can be added.
    ///
    /// The id is what the outbox, the broker and its consumers know the message by. Let it follow from the cause **and
    /// the effect**, as `order-7/order.placed` does, or the incoming message's id with `/order.booked` behind it, in
    /// 255 bytes: what is sent again is a duplicate then, and nothing else is. The bare id of the order, or of the
    /// incoming message, is that of all that follows from it: `order.cancelled` would be refused as a duplicate of
    /// `order.placed`, and so would be what a second handler of the same event sends. The destination is not compared:
    /// for the same message to two of them, name it in the id as well.
    ///
    /// # Errors
    /// [`Invalid`] when the kind or the destination breaks a rule.
    pub fn message(
        &self,
        destination: impl Into<String>,
        id: MessageId,
        kind: impl AsRef<str>,
        payload: impl Into<Bytes>,
    ) -> Result<Message, Invalid> {
        Message::new(self.handler.clone(), id, Kind::new(kind)?, payload)
            .with_header(DESTINATION, destination)
    }

    /// Publishes the outbox's messages, as a part of a processor: up to 500, and 16 MiB of several, in one call of the
    /// publisher, which limits its time by itself. A message without a [destination](DESTINATION) goes to that of its kind's name.
    #[must_use]
    pub fn router(&self, publisher: impl Publisher) -> Router {
        Router::new(&self.handler)
            .fallback_batch_handler(Publishing { publisher })
            .batches(Batches::up_to(500))
            .concurrency(1000)
            // One for all handlers would end calls that a slow broker answers later, as failures that count.
            .timeout(Duration::MAX)
    }
}

impl<S: Transactional> Outbox<S> {
    /// Sends messages in a transaction: they are published if and only if it commits. Answers for each
    /// whether it is new, or its id was sent before, or the store refuses it, as one that is too large.
    ///
    /// Two of these answers mean that a message is not published and no other like it was: [`Refused`](Receipt::Refused),
    /// and `Duplicate { differs: true }`, whose id was sent before with another kind or payload. Neither is an error;
    /// both are logged as warnings, of the differing ones the first, and then their number once a minute at most, and
    /// the metric `inbox_differing_total` counts these. A caller that must not lose one looks at the answers, and rolls
    /// back.
    ///
    /// # Errors
    /// As [`Transactional::receive_in`]; the caller has to roll back then.
    pub async fn send_in(
        &self,
        transaction: &mut S::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        let messages = self.own(messages);
        let receipts = self.store.receive_in(transaction, &messages).await?;
        self.tell_of_lost(&messages, &receipts);
        Ok(receipts)
    }
}

impl<S: Store> Outbox<S> {
    /// Sends messages by themselves, where there is no transaction. A caller that repeats this after a failure, with
    /// the same ids, sends them once. Answers, and warns, as `send_in` does: what is refused, or a duplicate that
    /// differs, is not published.
    ///
    /// # Errors
    /// As [`Store::receive`].
    pub async fn send(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let messages = self.own(messages);
        let receipts = self.store.receive(&messages).await?;
        self.tell_of_lost(&messages, &receipts);
        Ok(receipts)
    }
}

impl<S> Outbox<S> {
    /// The messages as those of this outbox, whatever handler they were made for.
    fn own(&self, messages: &[Message]) -> Vec<Message> {
        let messages = messages.iter();
        messages
            .map(|message| message.for_handler(self.handler.clone()))
            .collect()
    }

    /// Tells of messages that will never be published: few callers look at their receipts.
    fn tell_of_lost(&self, messages: &[Message], receipts: &[Receipt]) {
        let mut differing = 0;
        let mut first = None;
        for (message, receipt) in messages.iter().zip(receipts) {
            match receipt {
                Receipt::Accepted | Receipt::Duplicate { differs: false } => {}
                Receipt::Duplicate { differs: true } => {
                    differing += 1;
                    first = first.or(Some(message));
                }
                Receipt::Refused(invalid) => tracing::warn!(
                    target: MESSAGE,
                    key = %message.key(),
                    reason = %invalid,
                    "message refused by the store of the outbox; it is not published"
                ),
            }
        }
        let Some(first) = first else { return };
        telemetry::differing(self.handler.as_str(), differing);
        if let Some(count) = self.differing.add(differing) {
            tracing::warn!(
                key = %first.key(),
                count,
                "the key of an earlier message came again with other content, which is not published"
            );
        }
    }
}

/// Hands messages to a publisher. A batch has at most one message of an ordering key, and the next is claimed only
/// after it was settled: so order holds whatever the publisher does.
struct Publishing<P> {
    publisher: P,
}

/// What a publisher has answered, in the order of the batch. `None`: the message was not sent.
type Confirmations = Vec<Option<Result<(), SourceError>>>;

#[async_trait]
impl<P: Publisher> BatchHandler for Publishing<P> {
    async fn handle(&self, batch: &Batch) -> Result<Answers, Failure> {
        let confirmations = self.publish(batch).await?;
        let is_away = confirmations.iter().flatten().all(will_pass);
        let confirmed = batch.iter().zip(confirmations);
        let answers = confirmed.map(|(context, confirmation)| match confirmation {
            Some(Ok(())) => Ok(Completion::default()),
            Some(Err(error)) if !error.is_transient() => Err(Failure::dead(error.to_string())),
            Some(Err(error)) => Err(put_off(context, is_away, error.to_string())),
            None => Err(put_off(context, is_away, NOT_SENT.to_owned())),
        });
        Ok(answers.collect::<Vec<_>>().into())
    }
}

impl<P: Publisher> Publishing<P> {
    async fn publish(&self, batch: &Batch) -> Result<Confirmations, Failure> {
        let messages = batch.iter().map(|context| envelope(context.message()));
        let mut rest: Vec<(usize, Envelope)> = messages.enumerate().collect();
        let mut confirmations: Confirmations = rest.iter().map(|_| None).collect();
        while !rest.is_empty() {
            let later = rest.split_off(fitting(&rest));
            let (places, call): (Vec<usize>, Vec<Envelope>) = rest.into_iter().unzip();
            let answers = self.publisher.publish(&call).await;
            if answers.len() != call.len() {
                return Err(Failure::retry(
                    "the publisher did not answer for every message",
                ));
            }
            rest = later;
            if answers.iter().all(will_pass) {
                leave_out(&mut rest, &call);
            }
            for (place, answer) in places.into_iter().zip(answers) {
                if let Some(confirmation) = confirmations.get_mut(place) {
                    *confirmation = Some(answer);
                }
            }
        }
        Ok(confirmations)
    }
}

/// Leaves out what goes to the same destinations as a call of which nothing was taken: what goes elsewhere is not to wait
/// for calls that end in the same way.
fn leave_out(rest: &mut Vec<(usize, Envelope)>, call: &[Envelope]) {
    let addresses: HashSet<&str> = call
        .iter()
        .map(|message| message.address.as_str())
        .collect();
    rest.retain(|(_, message)| !addresses.contains(message.address.as_str()));
}

/// A broker that took nothing of a batch is asked for nothing for a while. Of one that took something, only the
/// message waits.
fn put_off(context: &Context, is_away: bool, error: String) -> Failure {
    match is_away {
        true => Failure::pause(PAUSE, error),
        false => Failure::defer(wait_of(context), error),
    }
}

fn will_pass(answer: &Result<(), SourceError>) -> bool {
    matches!(answer, Err(error) if error.is_transient())
}

/// How many of the first messages go into one call.
fn fitting(messages: &[(usize, Envelope)]) -> usize {
    let mut bytes = 0_usize;
    let fit = messages.iter().take_while(|(_, message)| {
        bytes = bytes.saturating_add(message.payload.len());
        bytes <= CALL_BYTES
    });
    fit.count().max(1)
}

/// The longer a message has waited, the more seldom it is tried: a destination that takes nothing is not to hold up
/// the others, and how often a message has been deferred is not known. By the store's clock, which tokens are drawn
/// from: this worker's may be wrong. A store whose tokens are no times has the shortest wait.
fn wait_of(context: &Context) -> Duration {
    let leased = context.leased();
    let claimed_at = from_micros(leased.lease.token.get());
    let age = claimed_at.duration_since(leased.accepted_at);
    (age.unwrap_or_default() / 10).clamp(PAUSE, LONGEST_WAIT)
}

/// The message as a broker is given it.
fn envelope(message: &Message) -> Envelope {
    let destination = message.headers().get(DESTINATION);
    let address = destination.unwrap_or(message.kind().as_str());
    let mut envelope = Envelope::new(address, message.payload().clone());
    envelope.id = Some(message.id().as_str().into());
    envelope.kind = Some(message.kind().as_str().into());
    envelope.key = message.ordering_key().map(|key| key.as_str().into());
    envelope.content_type = message.content_type().map(|text| text.as_str().into());
    let headers = message.headers().iter();
    envelope.headers = headers
        .filter(|(name, _)| *name != DESTINATION)
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    envelope
}
