//! Which messages an operator means.

use std::time::Duration;

use crate::{ErrorType, HandlerName, Kind, MessageId, OrderingKey, State};

/// Selects messages to list, count, replay, discard or reschedule. The default selects all; each part
/// narrows it. Times are judged by the store's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In one of these states; empty means any (but see
    /// [`Operate::replay_slice`](crate::Operate::replay_slice) and its neighbours).
    pub states: Vec<State>,
    /// For this handler.
    pub handler: Option<HandlerName>,
    /// With one of these ids, of whichever handler; empty means any. Thousands are fine, millions are
    /// not: they travel with every call.
    pub ids: Vec<MessageId>,
    /// Of this kind.
    pub kind: Option<Kind>,
    /// With this ordering key.
    pub ordering_key: Option<OrderingKey>,
    /// With this value of the header [`correlation-id`](crate::headers::CORRELATION_ID), byte for byte.
    pub correlation_id: Option<String>,
    /// Accepted at least this long ago.
    pub older_than: Option<Duration>,
    /// Accepted less than this long ago.
    pub newer_than: Option<Duration>,
    /// Finished at least this long ago: see [`Record::finished_at`](crate::Record::finished_at). Selects
    /// final messages only.
    pub finished_longer_ago: Option<Duration>,
    /// Finished less than this long ago. Selects final messages only.
    pub finished_within: Option<Duration>,
    /// Due more than this from now: see [`Record::due_at`](crate::Record::due_at), which a final message
    /// keeps. With zero and [`State::Pending`], what is scheduled: for later, be it by its sender, a
    /// retry or a deferral.
    pub due_later_than: Option<Duration>,
    /// Due no later than this from now. With zero, what is or was due already.
    pub due_within: Option<Duration>,
    /// With at least this many attempts started: see [`Attempts::started`](crate::Attempts::started).
    pub min_started: Option<u32>,
    /// With at most this many attempts started.
    pub max_started: Option<u32>,
    /// That hold their ordering key up: see
    /// [`Record::blocks_ordering_key`](crate::Record::blocks_ordering_key). Selects dead messages only.
    pub blocking: bool,
    /// Whose last error contains this text, byte for byte.
    pub error_contains: Option<String>,
    /// Whose last error is of this type: see [`ErrorType::of`].
    pub error_type: Option<ErrorType>,
}

impl Filter {
    /// The states in which what it selects can be; empty means any.
    #[must_use]
    pub fn possible_states(&self) -> &[State] {
        if self.blocking && self.states.is_empty() {
            return &[State::Dead];
        }
        &self.states
    }
}
