//! Which final messages have been kept for long enough.

use std::time::Duration;

use crate::{HandlerName, Invalid, State};

/// Selects final messages to purge, to archive before they are purged, or to drop the payloads of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurgeRequest {
    state: State,
    older_than: Duration,
    limit: u32,
    handler: Option<HandlerName>,
}

impl PurgeRequest {
    /// Up to `limit` messages that have been in `state` for at least `older_than`.
    ///
    /// # Errors
    /// [`Invalid::Malformed`] when `state` is not final: pending and leased messages are never
    /// purged.
    pub fn new(state: State, older_than: Duration, limit: u32) -> Result<Self, Invalid> {
        if !state.is_final() {
            return Err(Invalid::Malformed {
                what: "state to purge",
                expected: "final: processed, dead or discarded",
            });
        }
        Ok(Self {
            state,
            older_than,
            limit,
            handler: None,
        })
    }

    /// Only those of one handler, rather than of all.
    #[must_use]
    pub fn for_handler(mut self, handler: HandlerName) -> Self {
        self.handler = Some(handler);
        self
    }

    /// The one handler, if it is not all.
    #[must_use]
    pub fn handler(&self) -> Option<&HandlerName> {
        self.handler.as_ref()
    }

    /// The final state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// The least time since they became final.
    #[must_use]
    pub fn older_than(&self) -> Duration {
        self.older_than
    }

    /// The most messages to take in one step.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }
}
