//! Which segments are open for changes, as far as this process knows.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Instant, SystemTime},
};

/// Numbers in a segment.
pub(crate) const SIZE: i64 = 10_000;
/// For how long a segment is opened, in microseconds.
pub(crate) const OPEN: i64 = 60_000_000;
/// How long after that its counts may be kept, in microseconds: longer than a change takes.
pub(crate) const GRACE: i64 = 120_000_000;
/// So many open segments are remembered before those that are closed are forgotten.
const REMEMBERED: usize = 1000;

pub(super) fn segment(seq: i64) -> i64 {
    seq.div_euclid(SIZE)
}

/// When something was done here.
#[derive(Clone, Copy, Debug)]
struct Moment(Instant, SystemTime);

impl Moment {
    fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    /// Microseconds since, a machine's sleep included.
    fn elapsed(&self) -> i64 {
        let elapsed = self.0.elapsed().max(self.1.elapsed().unwrap_or_default());
        i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX)
    }
}

/// Until when segments are open, as far as this process knows, and what time it is there.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    until: Mutex<HashMap<i64, i64>>,
    clock: Mutex<Option<(i64, Moment)>>,
}

/// Segments that are open, and when that was made sure.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    segments: BTreeSet<i64>,
    at: Moment,
    /// How far the store's clock was ahead of the server's then.
    ahead: i64,
}

impl Opening {
    pub(super) fn new(segments: BTreeSet<i64>, ahead: i64) -> Self {
        Self {
            segments,
            at: Moment::now(),
            ahead,
        }
    }

    pub(super) fn segments(&self) -> Vec<i64> {
        self.segments.iter().copied().collect()
    }

    /// Whether what follows may come when they are open no more.
    pub(super) fn is_late(&self, ahead: i64) -> bool {
        let moved = ahead.saturating_sub(self.ahead);
        self.at.elapsed().saturating_add(moved) > OPEN / 2
    }

    /// Of two, all segments since the earlier one.
    pub(crate) fn and(mut self, later: Self) -> Self {
        self.segments.extend(later.segments);
        self
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Opened {
    /// The server's time, about.
    pub(crate) fn time(&self) -> Option<i64> {
        let (read, at) = (*lock(&self.clock))?;
        Some(read.saturating_add(at.elapsed()))
    }

    /// Notes a time that was just read.
    pub(super) fn note(&self, now: i64) {
        *lock(&self.clock) = Some((now, Moment::now()));
    }

    /// Those of `segments` that are not open for long enough.
    pub(super) fn closing(&self, segments: &BTreeSet<i64>, now: i64) -> Vec<i64> {
        let until = lock(&self.until);
        let open = |segment: &&i64| {
            until
                .get(segment)
                .is_some_and(|until| *until >= now + OPEN / 2)
        };
        segments
            .iter()
            .filter(|segment| !open(segment))
            .copied()
            .collect()
    }

    pub(super) fn remember(&self, segments: &[i64], until: i64, now: i64) {
        let mut known = lock(&self.until);
        if known.len() > REMEMBERED {
            known.retain(|_, until| *until >= now);
        }
        known.extend(segments.iter().map(|segment| (*segment, until)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_are_as_late_as_the_earliest_of_them() {
        let first = Opening::new(BTreeSet::from([1, 2]), 0);
        assert!(!first.is_late(0));
        let both = first.and(Opening::new(BTreeSet::from([2, 7]), OPEN));
        assert_eq!(both.segments(), [1, 2, 7]);
        assert!(!both.is_late(0));
        assert!(both.is_late(OPEN));
    }

    #[test]
    fn an_open_segment_is_opened_again_before_its_end() {
        let opened = Opened::default();
        let segments = BTreeSet::from([1, 2]);
        assert_eq!(opened.closing(&segments, 0), [1, 2]);
        opened.remember(&[1], OPEN, 0);
        assert_eq!(opened.closing(&segments, 0), [2]);
        assert_eq!(opened.closing(&segments, OPEN / 2 + 1), [1, 2]);
    }
}
