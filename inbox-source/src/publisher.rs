//! The way out: sending messages to a broker.

use std::{collections::HashSet, fmt, future::Future, sync::Arc};

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
    /// too large, or its address can be no destination. An outbox makes a dead letter of it at once.
    /// So MUST be transient whatever is not about the message: that the broker cannot be reached, that user or
    /// password are refused or have run out, that the user may not do this, that a setting of the publisher
    /// does not fit, that the destination is not there: it may be away, or be made again by a deployment, and is
    /// permanent at most when it has been missing for minutes. People mend these, and then the same message is taken.
    /// Where the broker ends a connection at one message, the others of the call MUST get through without it, as by one
    /// at a time (see [`FailedKeys`]), however many such there are; else a caller that repeats them sends what was
    /// before it over and over, and nothing behind it.
    /// It differs from
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

/// The ordering keys of messages that failed. A publisher that sends the messages of a call one at a time
/// asks it before each one, so that no later message of a key comes before an earlier one.
///
/// `Debug` shows how many there are.
#[derive(Default)]
pub struct FailedKeys<'m>(HashSet<&'m str>);

impl<'m> FailedKeys<'m> {
    /// Notes the key of a message that failed, if it has one.
    pub fn add(&mut self, message: &'m Envelope) {
        self.0.extend(message.key.as_deref());
    }

    /// The transient error of a message that is not sent since one before it of its key failed; `None` if it may be
    /// sent.
    #[must_use]
    pub fn reason(&self, message: &Envelope) -> Option<SourceError> {
        let key = message.key.as_deref()?;
        let is_behind = self.0.contains(key);
        is_behind.then(|| SourceError::transient("publishing: one before it of its key failed"))
    }
}

impl fmt::Debug for FailedKeys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedKeys")
            .field("count", &self.0.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_behind_a_failed_one_of_its_key_is_not_sent() {
        let of = |key: Option<&str>| {
            let mut message = Envelope::new("orders", "{}");
            message.key = key.map(String::from);
            message
        };
        let (one, none) = (of(Some("secret")), of(None));
        let mut failed = FailedKeys::default();
        assert!(failed.reason(&one).is_none());
        failed.add(&one);
        failed.add(&none);
        assert!(
            failed
                .reason(&one)
                .is_some_and(|error| error.is_transient())
        );
        assert!(failed.reason(&of(Some("other"))).is_none());
        assert!(failed.reason(&none).is_none());
        assert!(!format!("{failed:?}").contains("secret"));
    }
}
