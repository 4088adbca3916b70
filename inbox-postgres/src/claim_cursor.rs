//! From when on claims look for messages. The index entries of messages that have been claimed stay
//! until vacuum removes them, and while any transaction holds a snapshot (a dump, a report, a
//! replication slot) vacuum may not. Without a bound every claim would step over all of them.
//!
//! `claim_cursor.sql` says what can be claimed first, and which transactions might still add something
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

/// By handler: one that is claimed often must not take another's looks.
#[derive(Debug, Default)]
pub(crate) struct ClaimCursor(Mutex<BTreeMap<String, Bounds>>);

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
    /// How many messages claims take before the next look.
    left: u32,
    /// When the last look from the very front was, and how long after it the next is due.
    whole: Instant,
    pause: Duration,
}

/// A look that is due: from the very front for all of its handlers as soon as that is due for one.
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

impl ClaimCursor {
    /// From when on a claim for these handlers looks.
    pub(crate) fn since(&self, handlers: &[&str]) -> Vec<Since> {
        since(&self.lock(), handlers)
    }

    /// Whether it is time to look, before a claim for these handlers. Says so to one caller.
    pub(crate) fn look(&self, handlers: &[&str]) -> Option<Look> {
        let begun = Instant::now();
        let mut known = self.lock();
        let (mut due, mut whole) = (false, false);
        for handler in handlers {
            let bounds = known.get(*handler);
            due |= bounds.is_none_or(|bounds| bounds.left == 0);
            whole |= bounds.is_none_or(|bounds| bounds.is_whole_due(begun));
        }
        if !due && !whole {
            return None;
        }
        for handler in handlers {
            if let Some(bounds) = known.get_mut(*handler) {
                bounds.left = SOON;
                if whole {
                    bounds.whole = begun;
                }
            }
        }
        Some(Look {
            since: match whole {
                true => vec![FROM_THE_FRONT; handlers.len()],
                false => since(&known, handlers),
            },
            whole,
            begun,
        })
    }

    /// What a look has found, handler by handler.
    pub(crate) fn learn(&self, handlers: &[&str], look: &Look, seen: &[Seen]) {
        let mut known = self.lock();
        for ((handler, since), seen) in handlers.iter().zip(&look.since).zip(seen) {
            let Some(bounds) = known.get_mut(*handler) else {
                known.insert((*handler).to_owned(), Bounds::new(look, seen));
                continue;
            };
            if seen.instant < bounds.looked {
                // The clock was set back.
                *bounds = Bounds::new(look, seen);
            } else if look.whole || bounds.since == *since {
                bounds.learn(seen);
            }
            if look.whole {
                bounds.pause = pause(look);
            }
        }
    }

    /// A claim for these handlers has taken so many messages.
    pub(crate) fn count_taken(&self, handlers: &[&str], messages: usize) {
        let mut known = self.lock();
        let messages = u32::try_from(messages).unwrap_or(u32::MAX);
        for handler in handlers {
            if let Some(bounds) = known.get_mut(*handler) {
                bounds.left = bounds.left.saturating_sub(messages);
            }
        }
    }

    /// The next claims look from the very front: the server may be another one.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Bounds>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn since(known: &BTreeMap<String, Bounds>, handlers: &[&str]) -> Vec<Since> {
    let bounds = handlers.iter().map(|handler| known.get(*handler));
    bounds
        .map(|bounds| bounds.map_or(FROM_THE_FRONT, |bounds| bounds.since))
        .collect()
}

/// How long after a look from the very front the next is due.
fn pause(look: &Look) -> Duration {
    look.begun.elapsed().saturating_mul(SHARE).max(APART)
}

impl Bounds {
    fn new(look: &Look, seen: &Seen) -> Self {
        Self {
            since: FROM_THE_FRONT,
            looked: seen.instant,
            next: seen.next,
            left: SOON,
            whole: look.begun,
            pause: pause(look),
        }
    }

    /// Whether it is time for a look from the very front.
    fn is_whole_due(&self, now: Instant) -> bool {
        now.duration_since(self.whole) >= self.pause
    }

    fn learn(&mut self, seen: &Seen) {
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
            self.left = OFTEN;
        }
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

    fn learn(cursor: &ClaimCursor, seen: &Seen) {
        cursor.count_taken(HANDLERS, OFTEN as usize);
        let look = cursor.look(HANDLERS).expect("a look is due");
        cursor.learn(HANDLERS, &look, std::slice::from_ref(seen));
    }

    fn since(cursor: &ClaimCursor) -> (i64, i64) {
        let since = cursor.since(HANDLERS)[0];
        (since.pending, since.leased)
    }

    /// Lets the time pass that is between two looks from the very front.
    fn wait_for_a_whole_look(cursor: &ClaimCursor) {
        for bounds in cursor.lock().values_mut() {
            bounds.whole -= bounds.pause;
        }
    }

    #[test]
    fn claims_start_where_nothing_earlier_can_come() {
        let cursor = ClaimCursor::default();
        assert_eq!(since(&cursor), (EVER, EVER));
        learn(&cursor, &seen(100, 7, 9));
        assert_eq!(since(&cursor), (EVER, EVER), "transactions are running");
        learn(&cursor, &seen(200, 8, 12));
        assert_eq!(since(&cursor), (EVER, EVER), "transaction 8 still is");
        learn(&cursor, &seen(300, 9, 13));
        assert_eq!(since(&cursor), (100, 100));
        learn(&cursor, &seen(400, 13, 13));
        assert_eq!(since(&cursor), (300, 300));
    }

    #[test]
    fn what_is_there_is_not_passed_over() {
        let cursor = ClaimCursor::default();
        learn(&cursor, &seen(100, 9, 9));
        let held = Seen {
            first_pending: Some(40),
            ..seen(200, 9, 9)
        };
        learn(&cursor, &held);
        assert_eq!(since(&cursor), (40, 100));
        let lost = Seen {
            first_leased: Some(150),
            ..seen(300, 9, 9)
        };
        learn(&cursor, &lost);
        assert_eq!(since(&cursor), (200, 150));
    }

    #[test]
    fn a_clock_that_was_set_back_starts_over() {
        let cursor = ClaimCursor::default();
        learn(&cursor, &seen(100, 9, 9));
        learn(&cursor, &seen(200, 9, 9));
        assert_eq!(since(&cursor), (100, 100));
        learn(&cursor, &seen(150, 9, 9));
        assert_eq!(since(&cursor), (EVER, EVER));
    }

    #[test]
    fn a_look_from_the_very_front_finds_what_came_earlier_after_all() {
        let cursor = ClaimCursor::default();
        learn(&cursor, &seen(100, 9, 9));
        learn(&cursor, &seen(200, 9, 9));
        cursor.count_taken(HANDLERS, OFTEN as usize);
        let overtaken = cursor.look(HANDLERS).expect("a look is due");
        wait_for_a_whole_look(&cursor);
        let look = cursor.look(HANDLERS).expect("it is time");
        assert_eq!(look.since, [FROM_THE_FRONT]);
        let found = Seen {
            first_pending: Some(3),
            ..seen(300, 9, 12)
        };
        cursor.learn(HANDLERS, &look, &[found]);
        assert_eq!(since(&cursor), (3, 200));
        // One that began before knows nothing of it.
        cursor.learn(HANDLERS, &overtaken, &[seen(300, 12, 12)]);
        assert_eq!(since(&cursor), (3, 200));
    }

    #[test]
    fn one_claim_in_many_looks() {
        let cursor = ClaimCursor::default();
        learn(&cursor, &seen(100, 9, 9));
        cursor.count_taken(HANDLERS, SOON as usize - 1);
        assert!(cursor.look(HANDLERS).is_none());
        cursor.count_taken(HANDLERS, 1);
        let look = cursor.look(HANDLERS).expect("others are waited for");
        assert!(cursor.look(HANDLERS).is_none(), "one is enough");
        cursor.learn(HANDLERS, &look, &[seen(200, 9, 9)]);
        cursor.count_taken(HANDLERS, OFTEN as usize - 1);
        assert!(cursor.look(HANDLERS).is_none());
        assert!(cursor.look(&["h", "new"]).is_some(), "another handler");
        cursor.forget();
        assert!(cursor.look(HANDLERS).is_some());
    }

    #[test]
    fn one_handler_takes_no_looks_from_another() {
        let cursor = ClaimCursor::default();
        let (busy, idle) = (&["busy"][..], &["idle"][..]);
        for handlers in [busy, idle] {
            let look = cursor.look(handlers).expect("it is new");
            cursor.learn(handlers, &look, &[seen(100, 9, 9)]);
        }
        wait_for_a_whole_look(&cursor);
        let look = cursor.look(busy).expect("it is time");
        assert_eq!(look.since, [FROM_THE_FRONT]);
        cursor.learn(busy, &look, &[seen(200, 9, 9)]);
        let look = cursor.look(idle).expect("it is its time, too");
        assert!(look.whole, "{look:?}");
        cursor.learn(idle, &look, &[seen(200, 9, 9)]);

        // Nor does what it claims count for another.
        cursor.count_taken(busy, OFTEN as usize);
        assert!(cursor.look(idle).is_none());
        assert!(cursor.look(busy).is_some());
    }
}
