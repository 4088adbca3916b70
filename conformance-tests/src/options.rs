//! Which cases to run, and how.

use std::{num::NonZeroUsize, time::Duration};

/// How many messages are many, where nothing else is said.
pub(crate) const DEFAULT_SCALE: usize = 100_000;

/// Which cases to run, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Only the cases whose `group::name` contains this. Empty means all.
    pub filter: String,
    /// The model runs the one sequence of this seed; otherwise those of some fixed seeds, and random
    /// ones. Where it is not given, the environment's `INBOX_CONFORMANCE_SEED` is.
    pub seed: Option<u64>,
    /// How many sequences the model draws, 40 by default. Where it is not given, the environment's
    /// `INBOX_CONFORMANCE_SEQUENCES` is.
    pub sequences: Option<u64>,
    /// The model draws no more sequences after so long, 60 s by default. It draws one at least.
    pub budget: Option<Duration>,
    /// How many cases run at a time, 1 by default. Most of them wait more than they work.
    pub jobs: Option<NonZeroUsize>,
    /// Runs the cases of [`SCALE`](crate::SCALE) too, with so many messages: 100,000 tell much. They compare the time of
    /// each operation with that at a hundredth of them, so nothing else should run meanwhile.
    pub scale: Option<NonZeroUsize>,
}
