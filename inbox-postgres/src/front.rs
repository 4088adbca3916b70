//! From when on claims look for messages. The index entries of messages that have been claimed stay
//! until vacuum removes them, and while any transaction holds a snapshot (a dump, a report, a
//! replication slot) vacuum may not. Without a bound every claim would step over all of them.
//!
//! `front.sql` says what can be claimed first, and which transactions might still add something
//! earlier. Once these are over, nothing earlier can come, and claims start there. What rests on
//! clocks all the same is found by a look from the very front now and then: a server's clock that
//! was set back, a claim that stood still for longer than its lease before it was stored.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Between two looks claims take so many messages.
const OFTEN: u32 = 1000;

/// The same, while transactions are waited for.
const SOON: u32 = 100;

/// Looks from the very front are at least so far apart,
const APART: Duration = Duration::from_secs(10);

/// and take no more than this part of the time.
const SHARE: u32 = 20;

/// Earlier than any time: PostgreSQL's `-infinity`.
const EVER: i64 = i64::MIN;

#[derive(Debug, Default)]
pub(crate) struct Front(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    handlers: BTreeMap<String, Bounds>,
    /// How many messages claims take before the next look.
    left: u32,
    /// When the last look from the very front was, and how long after it the next is due.
    whole: Option<(Instant, Duration)>,
}

/// Nothing can be claimed before: in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    /// Of the messages that are pending.
    pub(crate) pending: i64,
    /// Of the leases that have run out.
    pub(crate) leased: i64,
}

const FROM_THE_FRONT: Since = Since {
    pending: EVER,
    leased: EVER,
};

#[derive(Clone, Copy, Debug)]
struct Bounds {
    since: Since,
    /// When the last look was, and below which number all are who may have added something earlier
    /// that it did not see.
    looked: i64,
    next: i64,
}

/// A look that is due.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) since: Vec<Since>,
    whole: bool,
    begun: Instant,
}

/// What a look has seen of one handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) first_pending: Option<i64>,
    pub(crate) first_leased: Option<i64>,
    /// When, by the inbox's clock.
    pub(crate) instant: i64,
    /// All transactions with lower numbers were over.
    pub(crate) running: i64,
    /// Who had asked for the time before has a lower number.
    pub(crate) next: i64,
}

impl Front {
    /// From when on a claim for these handlers looks.
    pub(crate) fn since(&self, handlers: &[&str]) -> Vec<Since> {
        let known = self.lock();
        let bounds = handlers.iter().map(|handler| known.handlers.get(*handler));
        bounds
            .map(|bounds| bounds.map_or(FROM_THE_FRONT, |bounds| bounds.since))
            .collect()
    }

    /// Whether it is time to look, before a claim for these handlers. Says so to one caller.
    pub(crate) fn look(&self, handlers: &[&str]) -> Option<Look> {
        let begun = Instant::now();
        let mut known = self.lock();
        let new = handlers
            .iter()
            .any(|handler| !known.handlers.contains_key(*handler));
        let whole = known
            .whole
            .is_none_or(|(last, pause)| begun.duration_since(last) >= pause);
        if known.left > 0 && !new && !whole {
            return None;
        }
        known.left = SOON;
        if whole {
            known.whole = Some((begun, APART));
        }
        drop(known);
        Some(Look {
            since: match whole {
                true => vec![FROM_THE_FRONT; handlers.len()],
                false => self.since(handlers),
            },
            whole,
            begun,
        })
    }

    /// What a look has found, handler by handler.
    pub(crate) fn learn(&self, handlers: &[&str], look: &Look, seen: &[Seen]) {
        let mut known = self.lock();
        let mut settled = true;
        for ((handler, since), seen) in handlers.iter().zip(&look.since).zip(seen) {
            let Some(bounds) = known.handlers.get_mut(*handler) else {
                settled = false;
                known
                    .handlers
                    .insert((*handler).to_owned(), Bounds::new(seen));
                continue;
            };
            if seen.instant < bounds.looked {
                // The clock was set back.
                *bounds = Bounds::new(seen);
                settled = false;
            } else if look.whole || bounds.since == *since {
                settled &= bounds.learn(seen);
            }
        }
        if settled {
            known.left = OFTEN;
        }
        if look.whole {
            let pause = look.begun.elapsed().saturating_mul(SHARE).max(APART);
            known.whole = Some((look.begun, pause));
        }
    }

    /// Claims have taken so many messages.
    pub(crate) fn took(&self, messages: usize) {
        let mut known = self.lock();
        let messages = u32::try_from(messages).unwrap_or(u32::MAX);
        known.left = known.left.saturating_sub(messages);
    }

    /// The next claims look from the very front: the server may be another one.
    pub(crate) fn forget(&self) {
        *self.lock() = Known::default();
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bounds {
    fn new(seen: &Seen) -> Self {
        Self {
            since: FROM_THE_FRONT,
            looked: seen.instant,
            next: seen.next,
        }
    }

    /// Whether all is over that was running at the look before.
    fn learn(&mut self, seen: &Seen) -> bool {
        // What is there bounds even a look that has to wait for others.
        let settled = self.next <= seen.running;
        let reached = |bound: i64, first: Option<i64>| {
            let first = first.unwrap_or(i64::MAX);
            match settled {
                true => first.min(self.looked),
                false => first.min(bound),
            }
        };
        self.since = Since {
            pending: reached(self.since.pending, seen.first_pending),
            leased: reached(self.since.leased, seen.first_leased),
        };
        if settled {
            self.looked = seen.instant;
            self.next = seen.next;
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLERS: &[&str] = &["h"];

    fn seen(instant: i64, running: i64, next: i64) -> Seen {
        Seen {
            first_pending: None,
            first_leased: None,
            instant,
            running,
            next,
        }
    }

    fn learned(front: &Front, seen: &Seen) {
        front.took(OFTEN as usize);
        let look = front.look(HANDLERS).expect("a look is due");
        front.learn(HANDLERS, &look, std::slice::from_ref(seen));
    }

    fn since(front: &Front) -> (i64, i64) {
        let since = front.since(HANDLERS)[0];
        (since.pending, since.leased)
    }

    #[test]
    fn claims_start_where_nothing_earlier_can_come() {
        let front = Front::default();
        assert_eq!(since(&front), (EVER, EVER));
        learned(&front, &seen(100, 7, 9));
        assert_eq!(since(&front), (EVER, EVER), "transactions are running");
        learned(&front, &seen(200, 8, 12));
        assert_eq!(since(&front), (EVER, EVER), "transaction 8 still is");
        learned(&front, &seen(300, 9, 13));
        assert_eq!(since(&front), (100, 100));
        learned(&front, &seen(400, 13, 13));
        assert_eq!(since(&front), (300, 300));
    }

    #[test]
    fn what_is_there_is_not_passed_over() {
        let front = Front::default();
        learned(&front, &seen(100, 9, 9));
        let held = Seen {
            first_pending: Some(40),
            ..seen(200, 9, 9)
        };
        learned(&front, &held);
        assert_eq!(since(&front), (40, 100));
        let lost = Seen {
            first_leased: Some(150),
            ..seen(300, 9, 9)
        };
        learned(&front, &lost);
        assert_eq!(since(&front), (200, 150));
    }

    #[test]
    fn a_clock_that_was_set_back_starts_over() {
        let front = Front::default();
        learned(&front, &seen(100, 9, 9));
        learned(&front, &seen(200, 9, 9));
        assert_eq!(since(&front), (100, 100));
        learned(&front, &seen(150, 9, 9));
        assert_eq!(since(&front), (EVER, EVER));
    }

    #[test]
    fn a_look_from_the_very_front_finds_what_came_earlier_after_all() {
        let front = Front::default();
        learned(&front, &seen(100, 9, 9));
        learned(&front, &seen(200, 9, 9));
        front.took(OFTEN as usize);
        let overtaken = front.look(HANDLERS).expect("a look is due");
        if let Some((last, pause)) = front.lock().whole.as_mut() {
            *last -= *pause;
        }
        let look = front.look(HANDLERS).expect("it is time");
        assert_eq!(look.since, [FROM_THE_FRONT]);
        let found = Seen {
            first_pending: Some(3),
            ..seen(300, 9, 12)
        };
        front.learn(HANDLERS, &look, &[found]);
        assert_eq!(since(&front), (3, 200));
        // One that began before knows nothing of it.
        front.learn(HANDLERS, &overtaken, &[seen(300, 12, 12)]);
        assert_eq!(since(&front), (3, 200));
    }

    #[test]
    fn one_claim_in_many_looks() {
        let front = Front::default();
        learned(&front, &seen(100, 9, 9));
        front.took(SOON as usize - 1);
        assert!(front.look(HANDLERS).is_none());
        front.took(1);
        let look = front.look(HANDLERS).expect("others are waited for");
        assert!(front.look(HANDLERS).is_none(), "one is enough");
        front.learn(HANDLERS, &look, &[seen(200, 9, 9)]);
        front.took(OFTEN as usize - 1);
        assert!(front.look(HANDLERS).is_none());
        assert!(front.look(&["h", "new"]).is_some(), "another handler");
        front.forget();
        assert!(front.look(HANDLERS).is_some());
    }
}
