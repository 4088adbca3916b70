//! What an application is told about while a processor runs.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::{CorruptRow, HandlerStatistics, Leased};

/// Calls from a processor to the application, for alerts and the like. Every method does nothing
/// unless it is implemented.
///
/// Methods run in the processor's own task, so they should return at once; anything that takes
/// longer belongs into a task of its own. A panic in a method is logged and otherwise ignored.
pub trait Hooks: Send + Sync + 'static {
    /// A message is durably dead, for this reason.
    fn dead_lettered(&self, message: &Leased, reason: &str) {
        let _ = (message, reason);
    }

    /// Somebody else has taken the message over, or it is gone. What its handler did here is not
    /// recorded, and the message is or was run elsewhere too.
    fn lease_lost(&self, message: &Leased) {
        let _ = message;
    }

    /// A stored row could not be read; the store has set it aside as dead.
    fn corrupt_row(&self, row: &CorruptRow) {
        let _ = row;
    }

    /// A handler's longest-due message has been due for longer than `limit`. Repeated at every
    /// look for as long as that is so. Needs
    /// [`ProcessorBuilder::backlog_monitor`](crate::ProcessorBuilder::backlog_monitor).
    fn backlog_age(&self, handler: &HandlerStatistics, limit: Duration) {
        let _ = (handler, limit);
    }
}

/// The hooks of a processor that was given none.
pub(crate) struct NoHooks;

impl Hooks for NoHooks {}

/// Calls a hook so that its panic goes no further.
pub(crate) fn contained(hook: &'static str, call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!(hook, "a hook panicked");
    }
}
