//! What a service has done, and why it failed.

use std::{error::Error as StdError, fmt};

use super::part::Done;
use crate::{Sweep, processor, receiver};

/// What a service did in its run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// What all receivers did together. A run that failed is not in it.
    pub receivers: receiver::Summary,
    /// What all processors did together. A run that failed is not in it.
    pub processors: processor::Summary,
    /// What all janitors did together.
    pub sweeps: Sweep,
    /// The parts that did not come to their own end: inline consumers that were
    /// [cut short](crate::InlineConsumer::drain), and whatever still ran at the
    /// [limit](super::ServiceBuilder::shutdown_limit).
    pub cut_short: Vec<String>,
}

impl Summary {
    pub(super) fn add(&mut self, done: Done) {
        match done {
            Done::Receiver(summary) => self.receivers += summary,
            Done::Processor(summary) => self.processors += summary,
            Done::Janitor(sweep) => self.sweeps += sweep,
            Done::Task | Done::CutShort => {}
        }
    }
}

/// One line, for a log.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (received, worked) = (&self.receivers, &self.processors);
        write!(
            f,
            "{} received ({} new), {} processed, {} retried, {} dead, {} handed back, {} left, {} purged",
            received.received,
            received.accepted,
            worked.processed,
            worked.retried,
            worked.dead,
            worked.released,
            worked.abandoned + received.abandoned(),
            self.sweeps.purged(),
        )?;
        if !self.cut_short.is_empty() {
            write!(f, "; cut short: {}", self.cut_short.join(", "))?;
        }
        Ok(())
    }
}

/// A part of a service has failed, and the rest was shut down.
///
/// `Debug` says the same as [`Display`](fmt::Display), with the causes: it is what a `main` prints that returns it.
#[derive(thiserror::Error)]
#[error("the part `{part}` of the service failed")]
#[non_exhaustive]
pub struct ServiceError {
    /// The name of the part that failed first.
    pub part: String,
    /// Its error: a [`ReceiverError`](receiver::ReceiverError), the store's [`Error`](crate::Error)
    /// (processors), a task's own, or the text of a panic.
    #[source]
    pub cause: Box<dyn StdError + Send + Sync>,
    /// What was done all the same.
    pub summary: Box<Summary>,
}

impl fmt::Debug for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut cause = self.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
