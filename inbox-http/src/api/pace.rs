//! How many messages a claim takes at a time: their sizes are known only when they are there.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many are taken of which nothing is known.
const FIRST: u32 = 10;

/// How many times as many the next step may take, if they are as small as those before.
const GROWTH: u32 = 4;

/// The largest payload of the last claim, in bytes, by which the next one begins.
#[derive(Default)]
pub(super) struct Pace(AtomicUsize);

impl Pace {
    /// How many a claim of up to `limit` takes first, for an answer of `room` bytes.
    pub(super) fn first(&self, limit: u32, room: usize) -> u32 {
        let largest = self.0.load(Ordering::Relaxed);
        number(largest, room).clamp(1, FIRST).min(limit)
    }

    pub(super) fn saw(&self, largest: usize) {
        self.0.store(largest, Ordering::Relaxed);
    }
}

/// How many to take after `step`, with `room` bytes left, if they are no larger than `largest`.
pub(super) fn next(step: u32, largest: usize, room: usize) -> u32 {
    number(largest, room).min(step.saturating_mul(GROWTH))
}

fn number(largest: usize, room: usize) -> u32 {
    u32::try_from(room / largest.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ones_take_few_steps_and_large_ones_small_steps() {
        let (pace, room) = (Pace::default(), 1000);
        assert_eq!((pace.first(100, room), pace.first(3, room)), (10, 3));
        assert_eq!(next(10, 1, 990), 40);
        assert_eq!(next(40, 1, 950), 160);
        assert_eq!((next(10, 90, 100), next(10, 90, 89)), (1, 0));
        for (largest, first) in [(400, 2), (2000, 1), (1, 10), (0, 10)] {
            pace.saw(largest);
            assert_eq!(pace.first(100, room), first, "{largest}");
        }
    }
}
