//! How many messages of an ordering key a claim takes.
//!
//! What is claimed behind others of its key and cannot be run with them, as it is of another kind, is handed back. Where
//! that happened, the next claim takes no more than twice what could be run. Else a key whose kinds alternate would have
//! a whole run claimed for each message.

/// For one router, learnt from its claims.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunLength {
    most: u32,
    now: u32,
}

impl RunLength {
    /// Up to as many as a run may have.
    pub(super) fn new(most: u32) -> Self {
        Self { most, now: most }
    }

    pub(super) fn limit(self) -> u32 {
        self.now
    }

    /// A claim has brought keys of which up to `longest` messages run, and others behind these, `is_cut`, that do not.
    pub(super) fn learn(&mut self, longest: u32, is_cut: bool) {
        let next = match is_cut {
            true => longest.saturating_mul(2),
            false if longest >= self.now => self.now.saturating_mul(2),
            false => self.now,
        };
        self.now = next.clamp(1, self.most.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_twice_what_runs_where_runs_are_cut_and_grows_where_they_are_not() {
        let mut length = RunLength::new(100);
        let mut after = |longest, is_cut| {
            length.learn(longest, is_cut);
            length.limit()
        };
        let claims = [
            (1, true),
            (1, true),
            (1, false),
            (2, false),
            (4, true),
            (0, true),
            (1, false),
        ];
        let limits = claims.map(|(longest, is_cut)| after(longest, is_cut));
        assert_eq!(limits, [2, 2, 2, 4, 8, 1, 2]);
        for _ in 0..10 {
            length.learn(length.limit(), false);
        }
        assert_eq!(length.limit(), 100);
        length.learn(3, false);
        assert_eq!(length.limit(), 100);
        let mut single = RunLength::new(1);
        single.learn(1, false);
        assert_eq!(single.limit(), 1);
    }
}
