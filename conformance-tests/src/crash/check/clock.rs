//! What the store's clock may have shown, by which leases and due times are judged.

use std::ops::RangeInclusive;

use crate::crash::history::ClockMove;

/// How far the clock was ahead of the host's, and when that may have been so.
struct Stretch {
    during: RangeInclusive<u64>,
    ahead: i64,
}

/// The store's clock over a whole run. What it shows counts from where the host's monotonic clock does, in
/// microseconds, and is the same while it is not moved.
pub(super) struct Clock(Vec<Stretch>);

impl Clock {
    /// A clock that was moved like this, one move after the other.
    pub(super) fn of(moves: &[ClockMove]) -> Self {
        let begins = moves.iter().map(|moved| (moved.start, moved.ahead));
        let begins = std::iter::once((0, 0)).chain(begins);
        let ends = moves.iter().map(|moved| moved.end).chain([u64::MAX]);
        let stretches = begins.zip(ends).map(|((start, ahead), end)| Stretch {
            during: start..=end,
            ahead,
        });
        Self(stretches.collect())
    }

    /// The least that it can have shown at any moment between these.
    pub(super) fn earliest(&self, between: RangeInclusive<u64>) -> i64 {
        let shown = self.within(&between, |from, _| from);
        shown.min().unwrap_or(0)
    }

    /// The most.
    pub(super) fn latest(&self, between: RangeInclusive<u64>) -> i64 {
        let shown = self.within(&between, |_, until| until);
        shown.max().unwrap_or(0)
    }

    /// What it showed at one end of each part of this time.
    fn within(
        &self,
        between: &RangeInclusive<u64>,
        end: impl Fn(u64, u64) -> u64,
    ) -> impl Iterator<Item = i64> {
        self.0.iter().filter_map(move |stretch| {
            let from = *stretch.during.start().max(between.start());
            let until = *stretch.during.end().min(between.end());
            let at = i64::try_from(end(from, until)).unwrap_or(i64::MAX);
            (from <= until).then(|| at.saturating_add(stretch.ahead))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_may_show_either_time_while_it_is_moved() {
        let clock = Clock::of(&[]);
        assert_eq!((clock.earliest(5..=9), clock.latest(5..=9)), (5, 9));
        let moved = |start, end, ahead| ClockMove { start, end, ahead };
        let clock = Clock::of(&[moved(100, 110, 50), moved(200, 210, -30)]);
        let shown =
            |between: RangeInclusive<u64>| (clock.earliest(between.clone()), clock.latest(between));
        assert_eq!(shown(0..=99), (0, 99));
        assert_eq!(shown(105..=105), (105, 155));
        assert_eq!(shown(111..=199), (161, 249));
        assert_eq!(shown(90..=120), (90, 170));
        assert_eq!(shown(190..=220), (170, 260));
        assert_eq!(shown(211..=300), (181, 270));
        assert_eq!(shown(0..=300), (0, 270));
    }
}
