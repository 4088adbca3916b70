//! The clocks of the servers that the shards are on, as they were last heard.
//!
//! Each clock is compared with this process's monotonic one only. So the parts of one operation can
//! be given the same moment by each server's own clock, and what servers answer can be put in order,
//! however far their clocks are apart.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// What was heard of a clock is kept until it turns out to be this late, or early at all, so that
/// equal times of several shards stay equal.
const SLACK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Clocks {
    /// Any moment, from which all others are counted.
    start: Instant,
    /// By shard: how many microseconds its server's clock is ahead of those counted.
    ahead: Mutex<Vec<Option<i64>>>,
}

/// When an operation began, which all of its parts share. None for those whose times are not
/// compared with others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment(Option<Instant>);

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl Clocks {
    pub(crate) fn new(shards: u16) -> Self {
        Self {
            start: Instant::now(),
            ahead: Mutex::new(vec![None; usize::from(shards)]),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<i64>>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn micros_since_start(&self, at: Instant) -> i64 {
        micros(at.saturating_duration_since(self.start))
    }

    /// Takes note of what a shard's clock has shown between sending the question and now.
    pub(crate) fn hear(&self, shard: u16, time: i64, sent: Instant) {
        let (sent, received) = (
            self.micros_since_start(sent),
            self.micros_since_start(Instant::now()),
        );
        if let Some(ahead) = self.lock().get_mut(usize::from(shard)) {
            let fits = ahead.is_some_and(|ahead| {
                let (least, most) = (time - received, time - sent);
                ahead <= most && ahead.saturating_add(micros(SLACK)) >= least
            });
            if !fits {
                // A little late, and never early.
                *ahead = Some(time - received);
            }
        }
    }

    /// Now, for the parts of one operation in several shards.
    pub(crate) fn moment(&self) -> Moment {
        if self.lock().len() > 1 {
            Moment(Some(Instant::now()))
        } else {
            Moment(None)
        }
    }

    /// The moment by a shard's clock; 0 when it was not heard yet.
    pub(crate) fn at(&self, shard: u16, moment: Moment) -> i64 {
        let ahead = self.lock().get(usize::from(shard)).copied().flatten();
        match (moment.0, ahead) {
            (Some(moment), Some(ahead)) => self.micros_since_start(moment).saturating_add(ahead),
            _ => 0,
        }
    }

    /// A time by a shard's clock, as it compares with those of other shards.
    pub(crate) fn common(&self, shard: u16, time: i64) -> i64 {
        let ahead = self.lock().get(usize::from(shard)).copied().flatten();
        time.saturating_sub(ahead.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_clocks_that_are_far_apart_compare() {
        let clocks = Clocks::new(2);
        let hour = 3_600_000_000;
        let sent = Instant::now();
        clocks.hear(0, 5 * hour, sent);
        clocks.hear(1, hour, sent);
        let moment = clocks.moment();
        let (first, second) = (clocks.at(0, moment), clocks.at(1, moment));
        assert!((first - second - 4 * hour).abs() < 1_000_000);
        assert_eq!(clocks.common(0, first), clocks.common(1, second));
        assert!(clocks.common(0, first) < clocks.common(1, second + 1));
        // A clock that was set is noticed.
        clocks.hear(1, 2 * hour, Instant::now());
        assert!((clocks.at(1, clocks.moment()) - 2 * hour).abs() < 1_000_000);
    }

    #[test]
    fn one_shard_needs_no_moment() {
        let clocks = Clocks::new(1);
        clocks.hear(0, 77, Instant::now());
        assert_eq!(clocks.at(0, clocks.moment()), 0);
    }
}
