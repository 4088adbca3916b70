//! What a receiver tells about its work.

use std::{ops::AddAssign, time::Duration};

use inbox_source::{Rejection, SourceError};

use crate::{Error, ErrorKind};

/// What a store does that answers for another number of messages than it was asked about.
pub(super) fn unanswered(operation: &'static str) -> Error {
    let context = "the store did not answer for every message";
    Error::new(ErrorKind::Other, context).in_operation(operation)
}

/// What became of one batch, for progress bars and logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchReport {
    /// Deliveries in the batch.
    pub deliveries: usize,
    /// Deliveries of which at least one copy was new. After a lost reply the receiver stores
    /// again, and what the first call stored then counts as duplicate.
    pub accepted: usize,
    /// Deliveries that were known already, for every handler.
    pub duplicates: usize,
    /// Of the duplicates, those whose content is not that of the message that was stored first: its producer
    /// uses ids twice, or the id is not all that tells messages apart. Only the first is handled.
    pub differing: usize,
    /// With [`record_only`](super::ReceiverBuilder::record_only), deliveries that are not recorded as processed: of at
    /// least one copy the message was stored before, and others work on it, or it waits for its time or for another one
    /// of its ordering key. It is left to them.
    pub unfinished: usize,
    /// Deliveries that were no valid messages or that the store refused, but for those that were
    /// [kept](super::ReceiverBuilder::keep_rejected).
    pub rejected: usize,
    /// Deliveries that were no valid messages or that the store refused, and are in the inbox as dead
    /// letters, from now or from before.
    pub kept: usize,
    /// Acknowledgements and rejections that the broker did not take.
    pub failed_acknowledgements: usize,
    /// From the beginning of storing to the last acknowledgement, outages included.
    pub elapsed: Duration,
}

/// What became of everything that one run took from its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Deliveries taken from the source.
    pub received: u64,
    /// As [`BatchReport::accepted`].
    pub accepted: u64,
    /// As [`BatchReport::duplicates`].
    pub duplicates: u64,
    /// As [`BatchReport::differing`].
    pub differing: u64,
    /// As [`BatchReport::unfinished`].
    pub unfinished: u64,
    /// As [`BatchReport::rejected`].
    pub rejected: u64,
    /// As [`BatchReport::kept`].
    pub kept: u64,
    /// Batches stored.
    pub batches: u64,
    /// As [`BatchReport::failed_acknowledgements`].
    pub failed_acknowledgements: u64,
}

impl Summary {
    /// Deliveries that were taken, and whose batches were not stored, or were not to be acknowledged yet, when
    /// the run ended; the broker will deliver them again. Zero unless the drain limit cut a shutdown short.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.received
            .saturating_sub(self.accepted + self.duplicates + self.rejected + self.kept)
    }

    pub(super) fn add_stored(&mut self, report: &BatchReport) {
        self.accepted += report.accepted as u64;
        self.duplicates += report.duplicates as u64;
        self.differing += report.differing as u64;
        self.unfinished += report.unfinished as u64;
        self.rejected += report.rejected as u64;
        self.kept += report.kept as u64;
        self.batches += 1;
    }
}

/// Adds a batch as an observer of batches is told of it, for figures of a run that ends with an error.
impl AddAssign<&BatchReport> for Summary {
    fn add_assign(&mut self, batch: &BatchReport) {
        self.received += batch.deliveries as u64;
        self.add_stored(batch);
        self.failed_acknowledgements += batch.failed_acknowledgements as u64;
    }
}

/// Adds another run's figures.
impl AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        let Self {
            received,
            accepted,
            duplicates,
            differing,
            unfinished,
            rejected,
            kept,
            batches,
            failed_acknowledgements,
        } = other;
        self.received += received;
        self.accepted += accepted;
        self.duplicates += duplicates;
        self.differing += differing;
        self.unfinished += unfinished;
        self.rejected += rejected;
        self.kept += kept;
        self.batches += batches;
        self.failed_acknowledgements += failed_acknowledgements;
    }
}

/// Why a run ended early. Everything that was acknowledged is stored; everything else the broker
/// will deliver again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiverError {
    /// The store failed in a way that waiting does not mend.
    #[error("the receiver's store failed")]
    Store(#[source] Error),
    /// The source failed for good. What it had handed out before was stored and acknowledged.
    #[error("the receiver's source failed")]
    Source(#[source] SourceError),
    /// A delivery would have been rejected, and the receiver was told to stop at one. It was neither
    /// acknowledged nor rejected; what came before it was stored and acknowledged.
    #[error("a delivery is no message that can be stored: {0}")]
    Rejected(Rejection),
}
