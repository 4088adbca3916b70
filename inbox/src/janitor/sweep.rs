//! What a sweep did, and why it ended early.

use std::{error::Error as StdError, ops::AddAssign};

use crate::{Error, State, telemetry};

/// What one sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sweep {
    /// Processed messages deleted.
    pub processed: u64,
    /// Dead messages deleted.
    pub dead: u64,
    /// Discarded messages deleted.
    pub discarded: u64,
    /// Processed messages whose payload and result were dropped.
    pub payloads: u64,
    /// Messages made dead because no caller came back for them.
    pub abandoned: u64,
    /// Old rows that could not be read, and so were not archived or given up, and messages that the
    /// store refuses to give up; they stay.
    pub corrupt: u64,
}

/// Adds another sweep's figures.
impl AddAssign for Sweep {
    fn add_assign(&mut self, other: Self) {
        let Self {
            processed,
            dead,
            discarded,
            payloads,
            abandoned,
            corrupt,
        } = other;
        self.processed += processed;
        self.dead += dead;
        self.discarded += discarded;
        self.payloads += payloads;
        self.abandoned += abandoned;
        self.corrupt += corrupt;
    }
}

impl Sweep {
    /// All messages deleted.
    #[must_use]
    pub fn purged(&self) -> u64 {
        self.processed + self.dead + self.discarded
    }

    /// Takes note of a slice that is deleted.
    pub(super) fn add(&mut self, state: State, purged: u64) {
        telemetry::purged(state, purged);
        match state {
            State::Processed => self.processed += purged,
            State::Dead => self.dead += purged,
            _ => self.discarded += purged,
        }
    }
}

/// Why a sweep ended early. What it deleted before stays deleted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// The archiver failed; what it was given is still in the inbox.
    #[error("the archiver failed")]
    Archiver(#[source] Box<dyn StdError + Send + Sync>),
}
