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
//! # struct Console;
//! # impl Publisher for Console {
//! #     async fn publish(&self, messages: &[Envelope]) -> Vec<Result<(), SourceError>> {
//! #         messages.iter().map(|_| Ok(())).collect()
//! #     }
//! # }
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
//! let placed = outbox.message("orders", MessageId::new("order-7")?, "order.placed", r#"{"order":7}"#)?;
//! outbox.send_in(&mut transaction, &[placed]).await?;
//! store.commit(transaction).await?;
//!
//! // Somewhere, in this process or another:
//! # let publisher = Console;
//! let processor = Processor::builder(std::sync::Arc::new(store))
//!     .router(outbox.router(publisher))
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
//! - A message that cannot be published now, while others of its call are, waits by itself: for a tenth of the time
//!   since it was stored, at least a second and at most a minute.

use std::time::Duration;

use async_trait::async_trait;
use inbox_api::from_micros;
use inbox_source::{Envelope, Publisher, SourceError};

use crate::{
    Answers, Batch, BatchHandler, Batches, Bytes, Completion, Context, Failure, HandlerName,
    Invalid, Kind, Message, MessageId, Receipt, Result, Router, Store, Transactional,
};

/// The header that says where a message goes: a topic, a subject, a queue.
pub const DESTINATION: &str = "destination";

/// How long nothing is published after the broker could not be reached.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest wait of a message that cannot be published while others are.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// So many bytes go into one call of a publisher, whose client may copy them all before it sends the first.
const CALL_BYTES: usize = 16 << 20;

/// Messages on their way to a broker. See the [module](crate::outbox).
#[derive(Clone, Debug)]
pub struct Outbox<S> {
    store: S,
    handler: HandlerName,
}

impl<S> Outbox<S> {
    /// An outbox in `store`, whose messages are those of `handler`: a name of its own, on which nothing
    /// works but its [router](Self::router).
    ///
    /// # Errors
    /// [`Invalid`] when the name breaks its rule.
    pub fn new(store: S, handler: impl AsRef<str>) -> Result<Self, Invalid> {
        Ok(Self {
            store,
            handler: HandlerName::new(handler)?,
        })
    }

    /// A message to `destination`. The id is what the broker and its consumers know it by: one that follows
    /// from what caused it (the id of the order) is refused by the outbox the second time. An ordering key, headers and
    /// a due time can be added.
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
    /// whether it is new, or its id was sent before.
    ///
    /// # Errors
    /// As [`Transactional::receive_in`]; the caller has to roll back then.
    pub async fn send_in(
        &self,
        transaction: &mut S::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        let messages = self.own(messages);
        self.store.receive_in(transaction, &messages).await
    }
}

impl<S: Store> Outbox<S> {
    /// Sends messages by themselves, where there is no transaction. A caller that repeats this after a failure, with
    /// the same ids, sends them once.
    ///
    /// # Errors
    /// As [`Store::receive`].
    pub async fn send(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.store.receive(&self.own(messages)).await
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
}

/// Hands messages to a publisher. A batch has at most one message of an ordering key, and the next is claimed only
/// after it was settled: so order holds whatever the publisher does.
struct Publishing<P> {
    publisher: P,
}

#[async_trait]
impl<P: Publisher> BatchHandler for Publishing<P> {
    async fn handle(&self, batch: &Batch) -> Result<Answers, Failure> {
        let messages = batch.iter().map(|context| envelope(context.message()));
        let messages: Vec<_> = messages.collect();
        let mut answers = Vec::with_capacity(messages.len());
        let mut rest = messages.as_slice();
        while !rest.is_empty() {
            let (call, later) = rest.split_at(fitting(rest));
            let confirmed = self.publisher.publish(call).await;
            if confirmed.len() != call.len() {
                return Err(Failure::retry(
                    "the publisher did not answer for every message",
                ));
            }
            let is_away = confirmed.iter().all(will_pass);
            let contexts = batch.iter().skip(answers.len());
            let both = confirmed.into_iter().zip(contexts);
            answers.extend(both.map(|(answer, context)| match answer {
                Ok(()) => Ok(Completion::default()),
                Err(error) if !error.is_transient() => Err(Failure::dead(error.to_string())),
                Err(error) if is_away => Err(Failure::pause(PAUSE, error.to_string())),
                Err(error) => Err(Failure::defer(wait_of(context), error.to_string())),
            }));
            rest = later;
            if is_away {
                let not_sent = || Failure::pause(PAUSE, "not sent, as nothing before it was taken");
                answers.extend(rest.iter().map(|_| Err(not_sent())));
                break;
            }
        }
        Ok(answers.into())
    }
}

fn will_pass(answer: &Result<(), SourceError>) -> bool {
    matches!(answer, Err(error) if error.is_transient())
}

/// How many of the first messages go into one call.
fn fitting(messages: &[Envelope]) -> usize {
    let mut bytes = 0_usize;
    let fit = messages.iter().take_while(|message| {
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
