//! Leases: the right to work on a message for a while.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::{Invalid, Key, Message, WorkerName};

/// Proof of being the newest holder of a message.
///
/// Every claim of a key draws a token greater than all earlier ones of that key, also across
/// replay, purge and a new life of the key. A handler may pass it on to systems that fence their
/// own writes by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FencingToken(i64);

impl FencingToken {
    /// Wraps what the store drew. Positive in every real lease.
    #[must_use]
    pub fn new(token: i64) -> Self {
        Self(token)
    }

    /// The next token of a key, for stores that keep the last one with the message:
    /// greater than `last`, and not below the store's clock, so that a key that was purged and
    /// accepted again does not start again at a number that an old worker may still hold.
    #[must_use]
    pub fn after(last: i64, now_micros: i64) -> Self {
        Self(last.saturating_add(1).max(now_micros))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How often a message was tried since it was accepted or last replayed.
///
/// Claiming starts an attempt (but see [runs](crate::Store::claim)); processed, retry and dead finish it; release and defer take the start
/// back.
/// Attempts that were started and never finished are crashes (or lost leases).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Attempts {
    /// Attempts begun, the present one included.
    pub started: u32,
    /// Attempts that ended with an outcome.
    pub finished: u32,
}

impl Attempts {
    /// Attempts that vanished without an outcome. Of a message that is leased now, the present
    /// attempt is not yet one of them: pass `true`.
    #[must_use]
    pub fn crashed(self, leased_now: bool) -> u32 {
        self.started
            .saturating_sub(self.finished)
            .saturating_sub(u32::from(leased_now))
    }
}

/// For how long, and for whom, a lease is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    length: Duration,
    worker: WorkerName,
}

impl LeaseTerms {
    /// The shortest lease.
    pub const MIN: Duration = Duration::from_millis(1);
    /// The longest lease: a day. Longer work extends its lease.
    pub const MAX: Duration = Duration::from_secs(24 * 60 * 60);

    /// Terms for `worker`, a name for people to read.
    ///
    /// # Errors
    /// [`Invalid::OutOfRange`] when `length` is not within [`Self::MIN`] and [`Self::MAX`].
    pub fn new(length: Duration, worker: WorkerName) -> Result<Self, Invalid> {
        Self::check_length(length)?;
        Ok(Self { length, worker })
    }

    /// Checks a length by itself: for [`Store::extend`](crate::Store::extend).
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn check_length(length: Duration) -> Result<(), Invalid> {
        if length < Self::MIN || length > Self::MAX {
            return Err(Invalid::OutOfRange {
                what: "lease length",
                expected: "between 1 millisecond and 24 hours",
            });
        }
        Ok(())
    }

    /// How long the lease runs.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Who takes it.
    #[must_use]
    pub fn worker(&self) -> &WorkerName {
        &self.worker
    }
}

/// A worker's hold on one message.
///
/// `until` is by the store's clock: a worker measures the length it asked for with its own
/// monotonic clock, from before the call, rather than comparing `until` with its own time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// What is held.
    pub key: Key,
    /// Proof of being the newest holder.
    pub token: FencingToken,
    /// Where the store finds the row again; meaningful to that store only. Carry it along.
    pub locator: u64,
    /// When the lease runs out, by the store's clock.
    pub until: SystemTime,
}

/// A message together with the lease under which it may be worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The message as it is stored; its [`due`](Message::due) is [`Due::Now`](crate::Due::Now).
    pub message: Message,
    /// The hold on it.
    pub lease: Lease,
    /// Attempts since it was accepted or last replayed, this one included.
    pub attempts: Attempts,
    /// How often an operator has replayed it. A worker that still holds it, or has yet to hear that its outcome
    /// is stored, tells by this that it is to be run again.
    pub replays: u32,
    /// When it was accepted, by the store's clock.
    pub accepted_at: SystemTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_grow_even_when_the_clock_does_not() {
        assert_eq!(FencingToken::after(0, 100).get(), 100);
        assert_eq!(FencingToken::after(100, 100).get(), 101);
        assert_eq!(FencingToken::after(500, 100).get(), 501);
    }

    #[test]
    fn crashes_are_starts_without_an_end() {
        let attempts = Attempts {
            started: 3,
            finished: 1,
        };
        assert_eq!(attempts.crashed(true), 1);
        assert_eq!(attempts.crashed(false), 2);
        assert_eq!(Attempts::default().crashed(true), 0);
    }

    #[test]
    fn lease_lengths_are_bounded() {
        let worker = WorkerName::new("w").unwrap();
        assert!(LeaseTerms::new(Duration::ZERO, worker.clone()).is_err());
        assert!(LeaseTerms::new(Duration::from_secs(86_401), worker.clone()).is_err());
        assert!(LeaseTerms::new(LeaseTerms::MAX, worker).is_ok());
    }
}
