//! How many messages are read at a time, so that their payloads fit the memory: their sizes are known only when
//! they are there.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Bytes, Record};

/// How many are taken of which nothing is known.
const FIRST: u32 = 10;

/// How many times as many the next step may take, if they are as small as those before.
const GROWTH: u32 = 4;

/// The largest payload of the last round, in bytes, by which the next one begins.
#[derive(Debug, Default)]
pub struct Pace(AtomicUsize);

impl Pace {
    /// How many of up to `limit` are taken first, for `room` bytes.
    #[must_use]
    pub fn first(&self, limit: u32, room: usize) -> u32 {
        let largest = self.0.load(Ordering::Relaxed);
        number(largest, room).clamp(1, FIRST).min(limit)
    }

    /// The largest payload of a round.
    pub fn saw(&self, largest: usize) {
        self.0.store(largest, Ordering::Relaxed);
    }
}

/// How many to take after `step`, with `room` bytes left, if they are no larger than `largest`.
#[must_use]
pub fn next(step: u32, largest: usize, room: usize) -> u32 {
    number(largest, room).min(step.saturating_mul(GROWTH))
}

fn number(largest: usize, room: usize) -> u32 {
    u32::try_from(room / largest.max(1)).unwrap_or(u32::MAX)
}

/// How many records with their payloads are read at a time, where one page follows another: as many as fit
/// [`SLICE_BYTES`], if they are no larger than those before.
#[derive(Clone, Copy, Debug)]
pub struct Slices {
    size: u32,
    limit: u32,
}

/// What the payloads and results of a slice have together, if it is not a single one.
pub const SLICE_BYTES: usize = 16 * 1024 * 1024;

impl Slices {
    /// Slices of up to `limit` records.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        let limit = limit.max(1);
        let size = FIRST.min(limit);
        Self { size, limit }
    }

    /// The most that the next slice is to have.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Learns from what was read.
    pub fn saw(&mut self, records: &[Record]) {
        let bytes = |record: &Record| {
            let parts = [&record.payload, &record.result];
            parts.into_iter().flatten().map(Bytes::len).sum()
        };
        if let Some(largest) = records.iter().map(bytes).max() {
            self.adapt(largest);
        }
    }

    /// The largest record had so many bytes.
    fn adapt(&mut self, largest: usize) {
        self.size = next(self.size, largest, SLICE_BYTES).clamp(1, self.limit);
    }
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

    #[test]
    fn slices_have_few_large_records_and_many_small_ones() {
        const MIB: usize = 1024 * 1024;
        let mut slices = Slices::new(1000);
        let mut after = |largest: usize| {
            slices.adapt(largest);
            slices.size()
        };
        let sizes = [1, 1, 1, 1, MIB, MIB, 4 * MIB, 40 * MIB, 1].map(&mut after);
        assert_eq!(sizes, [40, 160, 640, 1000, 16, 16, 4, 1, 4]);
        slices.saw(&[]);
        assert_eq!(slices.size(), 4);
        assert_eq!(Slices::new(3).size(), 3);
    }
}
