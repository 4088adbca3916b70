//! Counts of messages.

use std::time::Duration;

use serde::Serialize;

use crate::{HandlerName, State};

/// Counts of one handler's messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HandlerStatistics {
    /// The handler.
    pub handler: HandlerName,
    /// Messages that wait, those whose lease has run out included.
    pub pending: u64,
    /// Those of the pending that a claim would take now, were the handler not paused; of an ordering key
    /// the first. Counted up to [`DUE_COUNTED`](Self::DUE_COUNTED), so that a deep backlog costs nothing.
    pub due: u64,
    /// Messages under a lease that has not run out.
    pub leased: u64,
    /// Messages whose handler has completed.
    pub processed: u64,
    /// Messages set aside.
    pub dead: u64,
    /// Messages that an operator discarded.
    pub discarded: u64,
    /// Whether the handler is [paused](crate::Operate::pause). What is due of it stays due, and lag and
    /// age go on growing.
    pub paused: bool,
    /// Those of the dead that hold their ordering keys up: see
    /// [`Record::blocks_ordering_key`](crate::Record::blocks_ordering_key).
    /// What waits behind them is pending and never due, so neither lag nor age shows it. It waits
    /// until they are replayed, discarded or purged.
    pub blocking: u64,
    /// How long ago the longest-due claimable message was accepted; `None` when none is due.
    pub oldest_due_age: Option<Duration>,
    /// For how long the longest-due claimable message has been due, which for one whose lease has run
    /// out is since then; `None` when none is due.
    pub lag: Option<Duration>,
}

impl HandlerStatistics {
    /// Up to how many due messages are counted. This number means so many or more.
    pub const DUE_COUNTED: u64 = 1000;

    /// A handler without messages.
    #[must_use]
    pub fn empty(handler: HandlerName) -> Self {
        Self {
            handler,
            pending: 0,
            due: 0,
            leased: 0,
            processed: 0,
            dead: 0,
            discarded: 0,
            paused: false,
            blocking: 0,
            oldest_due_age: None,
            lag: None,
        }
    }

    /// Messages that are not final.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.pending + self.leased
    }

    /// The count of one state.
    #[must_use]
    pub fn count(&self, state: State) -> u64 {
        match state {
            State::Pending => self.pending,
            State::Leased => self.leased,
            State::Processed => self.processed,
            State::Dead => self.dead,
            State::Discarded => self.discarded,
        }
    }
}

/// Counts of all messages, by handler in order of name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// One entry per handler that has messages.
    pub handlers: Vec<HandlerStatistics>,
}

impl Statistics {
    /// The count of one state over all handlers.
    #[must_use]
    pub fn count(&self, state: State) -> u64 {
        self.handlers.iter().map(|h| h.count(state)).sum()
    }

    /// Dead messages that hold ordering keys up, over all handlers.
    #[must_use]
    pub fn blocking(&self) -> u64 {
        self.handlers.iter().map(|h| h.blocking).sum()
    }

    /// The longest time for which any message has been due.
    #[must_use]
    pub fn lag(&self) -> Option<Duration> {
        self.handlers.iter().filter_map(|h| h.lag).max()
    }
}
