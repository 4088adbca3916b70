//! Segments in a row whose counts are in one document.

use std::collections::BTreeSet;

/// How many documents become one.
pub(super) const TOGETHER: i64 = 100;
/// How often that is done: the longest runs have a million segments.
const LEVELS: u32 = 3;

/// One segment, or a hundred runs of the level below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    level: u32,
    first: i64,
}

impl Run {
    pub(super) fn segment(segment: i64) -> Self {
        Self {
            level: 0,
            first: segment,
        }
    }

    fn containing(segment: i64, level: u32) -> Self {
        let length = TOGETHER.pow(level);
        Self {
            level,
            first: segment.div_euclid(length) * length,
        }
    }

    /// The runs that begin with this segment, the longest first.
    pub(super) fn beginning_with(segment: i64) -> impl Iterator<Item = Self> {
        let of_level = move |level| Self::containing(segment, level);
        let runs = (0..=LEVELS).rev().map(of_level);
        runs.filter(move |run| run.first == segment)
    }

    /// The run that has this one and those of its length next to it.
    pub(super) fn longer(self) -> Option<Self> {
        let level = self.level + 1;
        (level <= LEVELS).then(|| Self::containing(self.first, level))
    }

    pub(super) fn is_segment(self) -> bool {
        self.level == 0
    }

    pub(super) fn first(self) -> i64 {
        self.first
    }

    /// The first segment behind it.
    pub(super) fn end(self) -> i64 {
        self.first.saturating_add(TOGETHER.pow(self.level))
    }

    /// The `_id` of its document: that of a segment is its number, and those of longer runs are negative. These begin
    /// with multiples of a hundred, so the last two digits are the level.
    pub(super) fn id(self) -> i64 {
        if self.is_segment() {
            self.first
        } else {
            -(self.first + i64::from(self.level))
        }
    }

    /// The reverse of [`id`](Self::id).
    pub(super) fn of_id(id: i64) -> Option<Self> {
        if id >= 0 {
            return Some(Self::segment(id));
        }
        let number = id.checked_neg()?;
        let level = number % TOGETHER;
        let run = Self {
            level: u32::try_from(level).ok()?,
            first: number - level,
        };
        (1..=LEVELS).contains(&run.level).then_some(run)
    }
}

/// The `_id`s of all documents that may have the counts of these segments.
pub(super) fn documents_of(segments: &[i64]) -> Vec<i64> {
    let of_segment = |segment: &i64| {
        let segment = *segment;
        (0..=LEVELS).map(move |level| Run::containing(segment, level).id())
    };
    let documents: BTreeSet<i64> = segments.iter().flat_map(of_segment).collect();
    documents.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_known_by_its_document() {
        for run in [
            Run::segment(0),
            Run::segment(71),
            Run::containing(0, 1),
            Run::containing(12_345, 1),
            Run::containing(12_345, 2),
            Run::containing(12_345, 3),
        ] {
            assert_eq!(Run::of_id(run.id()), Some(run));
        }
        assert_eq!(Run::containing(12_345, 1).id(), -12_301);
        for strange in [-100, -4, -199, i64::MIN] {
            assert_eq!(Run::of_id(strange), None, "{strange}");
        }
    }

    #[test]
    fn a_segment_is_part_of_one_run_of_each_level() {
        assert_eq!(documents_of(&[12_345]), [-12_301, -10_002, -3, 12_345]);
        assert_eq!(documents_of(&[5, 7]), [-3, -2, -1, 5, 7]);
    }

    #[test]
    fn runs_are_nested() {
        let run = Run::segment(12_345).longer().unwrap();
        assert_eq!((run.first(), run.end()), (12_300, 12_400));
        let longest = run.longer().and_then(Run::longer).unwrap();
        assert_eq!((longest.first(), longest.end()), (0, 1_000_000));
        assert_eq!(longest.longer(), None);
        let lengths = |segment| Run::beginning_with(segment).map(move |run| run.end() - segment);
        assert!(lengths(100).eq([100, 1]));
        assert!(lengths(20_000).eq([10_000, 100, 1]));
    }
}
