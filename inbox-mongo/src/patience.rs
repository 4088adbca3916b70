//! How long changes wait for messages that an open transaction may hold, and which of them are left out
//! for a while.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a change of a message waits for a transaction that holds it.
const PATIENCE: Duration = Duration::from_millis(250);
/// What the change of each further message of a batch is given.
const EACH: Duration = Duration::from_millis(1);
/// For how long messages are left out that were held.
pub(crate) const REST: Duration = Duration::from_secs(2);
/// So often [`GROWTH`] times more is given to a slow server.
const SLOWEST: u32 = 2;
/// How much longer the next try may take, and the longest one.
const GROWTH: u32 = 4;
const LONGEST: Duration = Duration::from_secs(60);
/// How slow the server is: what it needed more time for than usual lately, though nothing was held.
/// Without it, a server under load would be asked ever more.
#[derive(Debug, Default)]
pub(crate) struct Pace(AtomicU32);

impl Pace {
    /// What a change of `count` messages is given before it is looked whether something is held.
    pub(crate) fn patience(&self, count: usize) -> Duration {
        let usual = PATIENCE + EACH * u32::try_from(count).unwrap_or(u32::MAX);
        usual * GROWTH.pow(self.0.load(Ordering::Relaxed).min(SLOWEST))
    }

    /// A change came to its end in `took` of the `patience` that it was given.
    pub(crate) fn was_done(&self, took: Duration, patience: Duration) {
        if took < patience / (2 * GROWTH) {
            self.step(|slow| slow.saturating_sub(1));
        }
    }

    /// The time was over although nothing is held.
    pub(crate) fn was_slow(&self) {
        self.step(|slow| (slow + 1).min(SLOWEST));
    }

    fn step(&self, step: impl Fn(u32) -> u32) {
        let slow = self.0.load(Ordering::Relaxed);
        let next = step(slow);
        if next != slow {
            self.0.store(next, Ordering::Relaxed);
        }
    }
}

/// What the next try is given where nothing is held.
pub(crate) fn longer(patience: Duration) -> Option<Duration> {
    let longer = patience * GROWTH;
    (longer <= LONGEST).then_some(longer)
}

pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1)
}

/// Messages that were held a short while ago, by identifier, until they are tried again.
#[derive(Debug, Default)]
pub(crate) struct LeftOut(Mutex<HashMap<String, Instant>>);

impl LeftOut {
    /// Leaves these out for a while.
    pub(crate) fn add(&self, ids: impl IntoIterator<Item = String>) {
        let until = Instant::now() + REST;
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.extend(ids.into_iter().map(|id| (id, until)));
    }

    /// Those that are to be left out now.
    pub(crate) fn ids(&self) -> Vec<String> {
        let now = Instant::now();
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, until| *until > now);
        held.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_left_out_for_a_while() {
        let held = LeftOut::default();
        held.add(["a".to_owned()]);
        assert_eq!(held.ids(), ["a"]);
        let past = Instant::now();
        held.0.lock().unwrap().insert("a".into(), past);
        assert_eq!(held.ids(), Vec::<String>::new());
    }

    #[test]
    fn a_slow_server_is_given_more_time_until_it_is_fast_again() {
        let pace = Pace::default();
        let usual = pace.patience(100);
        assert_eq!(usual, PATIENCE + 100 * EACH);
        for _ in 0..5 {
            pace.was_slow();
        }
        let most = pace.patience(100);
        assert_eq!(most, usual * GROWTH * GROWTH);
        pace.was_done(most / 2, most);
        assert_eq!(pace.patience(100), most);
        for _ in 0..2 {
            pace.was_done(most / 100, most);
        }
        assert_eq!(pace.patience(100), usual);
    }
}
