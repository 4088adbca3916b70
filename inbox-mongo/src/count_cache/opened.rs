//! Which segments are open for changes, as far as this process knows. It has its own clock for that: the server's may
//! be set, and those of other nodes differ.

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
/// How long after that where only the server's clock says so, in microseconds.
pub(super) const UNSEEN: i64 = 3_600_000_000;
/// By how much the server's clock may be ahead of its earlier readings, in microseconds: half of what it takes to close a
/// segment that is open still.
const AHEAD: i64 = UNSEEN / 2;
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

/// When segments were opened, or that was made sure.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenedAt {
    moment: Moment,
    /// How far the store's clock was ahead of the server's then.
    ahead: i64,
}

impl OpenedAt {
    pub(super) fn now(ahead: i64) -> Self {
        Self {
            moment: Moment::now(),
            ahead,
        }
    }

    /// Microseconds since.
    fn elapsed(&self, ahead: i64) -> i64 {
        let moved = ahead.saturating_sub(self.ahead);
        self.moment.elapsed().saturating_add(moved)
    }
}

/// When this process has opened segments, and what time it is on the server.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    segments: Mutex<HashMap<i64, OpenedAt>>,
    clock: Mutex<Option<(i64, Moment)>>,
}

/// Segments that are open, and when that was made sure.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    segments: BTreeSet<i64>,
    at: OpenedAt,
}

impl Opening {
    pub(super) fn new(segments: BTreeSet<i64>, ahead: i64) -> Self {
        Self {
            segments,
            at: OpenedAt::now(ahead),
        }
    }

    pub(super) fn segments(&self) -> Vec<i64> {
        self.segments.iter().copied().collect()
    }

    /// Whether what follows may come when they are open no more.
    pub(super) fn is_late(&self, ahead: i64) -> bool {
        self.at.elapsed(ahead) > OPEN / 2
    }

    /// Of two, all segments since the earlier one.
    pub(crate) fn and(mut self, later: Self) -> Self {
        self.segments.extend(later.segments);
        self
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

    /// Whether a time that was just read shows that the server's clock was set forward, or that it is another node's.
    pub(super) fn is_behind(&self, now: i64) -> bool {
        let expected = self.time();
        expected.is_some_and(|expected| now.saturating_sub(expected) > AHEAD)
    }

    /// Those of `segments` that are not open for long enough.
    pub(super) fn closing(&self, segments: &BTreeSet<i64>, ahead: i64) -> Vec<i64> {
        let known = lock(&self.segments);
        let is_open = |segment: &i64| {
            let at = known.get(segment);
            at.is_some_and(|at| at.elapsed(ahead) <= OPEN / 2)
        };
        let closing = segments.iter().filter(|segment| !is_open(segment));
        closing.copied().collect()
    }

    /// Notes that segments were opened, no earlier than `at`.
    pub(super) fn remember(&self, segments: &[i64], at: OpenedAt) {
        let mut known = lock(&self.segments);
        if known.len() > REMEMBERED {
            known.retain(|_, earlier| earlier.elapsed(at.ahead) <= OPEN);
        }
        known.extend(segments.iter().map(|segment| (*segment, at)));
    }

    /// All that are remembered.
    pub(super) fn remembered(&self) -> Vec<i64> {
        lock(&self.segments).keys().copied().collect()
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
        opened.remember(&[1], OpenedAt::now(0));
        assert_eq!(opened.closing(&segments, 0), [2]);
        assert_eq!(opened.closing(&segments, OPEN / 2 + 1), [1, 2]);
        assert_eq!(opened.remembered(), [1]);
    }

    #[test]
    fn a_clock_that_is_set_forward_is_noticed() {
        let opened = Opened::default();
        assert!(!opened.is_behind(i64::MAX));
        opened.note(UNSEEN);
        for usual in [0, UNSEEN, UNSEEN + OPEN] {
            assert!(!opened.is_behind(usual), "{usual}");
        }
        assert!(opened.is_behind(UNSEEN * 2));
        opened.note(UNSEEN * 2);
        assert!(!opened.is_behind(UNSEEN * 2));
    }
}
