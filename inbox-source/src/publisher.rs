//! The way out: sending messages to a broker.

use std::{future::Future, sync::Arc};

use crate::{Envelope, SourceError};

/// Sends messages to a broker, and knows when it has them.
///
/// Of an envelope, the address says where it goes: the topic, the subject, the queue. Its id goes into the
/// property or header by which the broker, or a consumer's inbox, tells that it has come before:
/// `message_id`, `Nats-Msg-Id`, the deduplication id of a FIFO queue. Kind, key, content type and headers go
/// where the [`Mapping`](crate::Mapping) of a source of the same broker looks for them, so that what was
/// sent arrives as it was.
pub trait Publisher: Send + Sync + 'static {
    /// Sends `messages`, all on their way at once, and returns an answer for each, in their order:
    /// `Ok` when the broker has it durably, as durable as its set-up makes it.
    ///
    /// After an error the message may have arrived all the same. Messages of one key are sent in the
    /// order in which they are here; if one fails, a later one may have arrived. A caller that
    /// needs order sends the next of a key only when the one before has been confirmed.
    ///
    /// Connects when needed and again after a failure. Limits its time by itself: no confirmation in time
    /// is a transient error. May be dropped at any await point.
    ///
    /// An error is permanent when the broker will never take *this message* as it is, from any sender: it is
    /// too large, or its destination is not there and is not made. An outbox makes a dead letter of it at once.
    /// So MUST be transient whatever is not about the message: that the broker cannot be reached, that user or
    /// password are refused or have run out, that the user may not do this, that a setting of the publisher
    /// does not fit. People mend these, and then the same message is taken. It differs from
    /// [`Source::next`](crate::Source::next), where an error of that kind is permanent, and ends a receiver.
    fn publish(
        &self,
        messages: &[Envelope],
    ) -> impl Future<Output = Vec<Result<(), SourceError>>> + Send;
}

impl<P: Publisher> Publisher for Arc<P> {
    fn publish(
        &self,
        messages: &[Envelope],
    ) -> impl Future<Output = Vec<Result<(), SourceError>>> + Send {
        (**self).publish(messages)
    }
}
