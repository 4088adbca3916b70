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
    /// An error is permanent when the broker will never take the message as it is: it is too large, or its
    /// destination is not there and is not made.
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
