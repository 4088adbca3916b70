//! Where a claim may start to look. The index entries of messages that have been claimed and settled
//! stay in it until vacuum removes them, and while any transaction holds a snapshot (a dump, a
//! report, a replication slot) vacuum may not. Every claim would step over all of them.
//!
//! So a claim that had to step over many says how far it got, and the next ones start there. What
//! becomes claimable later is due later, with exceptions that only a look from the very front finds:
//! a message that was released, one whose transaction took long to commit, one that a claim that was
//! broken off let go of, a clock that was set back. A look is due after twenty times the time that
//! one takes, and after [`LONGEST`] at the latest. Messages with an ordering key become claimable in
//! the order of their acceptance, so where they are claimed every claim looks from the front.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use inbox_api::{ClaimRequest, HandlerName};

/// Stepping over fewer entries than this takes no time that matters.
const MANY: i64 = 2000;

/// A claim reads an entry for each message a few times itself.
const OWN: i64 = 4;

/// Looks from the very front are so far apart for each entry that one steps over.
const PAUSE: Duration = Duration::from_micros(10);

/// However many there are.
const LONGEST: Duration = Duration::from_secs(10);

/// How long a statement may take from asking for the time to its commit, in microseconds: what it
/// stores is due when it began.
const IN_FLIGHT: i64 = 500_000;

/// What is known about the front of the due messages of some handlers.
#[derive(Debug, Default)]
pub(crate) struct Front(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    handlers: Vec<HandlerName>,
    /// Nothing is due before, in microseconds since 1970.
    from: i64,
    /// When a claim last began at the very front.
    looked: Instant,
    /// When it is time for the next.
    pause: Duration,
}

/// What a claim says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// How many messages it took.
    pub(crate) taken: u32,
    /// The latest due time of these, in microseconds since 1970.
    pub(crate) last: Option<i64>,
    /// How many index entries it read.
    pub(crate) steps: i64,
    /// When it began, by the inbox's clock.
    pub(crate) instant: i64,
    /// Whether any of the messages has an ordering key.
    pub(crate) ordered: bool,
}

impl Front {
    /// From where this claim may start; `None` is the very front.
    pub(crate) fn of(&self, request: &ClaimRequest) -> Option<i64> {
        let mut known = self.lock();
        let known = known.as_mut()?;
        if known.handlers != request.handlers {
            return None;
        }
        if known.looked.elapsed() >= known.pause {
            // One look is enough, however many claims are made meanwhile.
            known.looked = Instant::now();
            return None;
        }
        Some(known.from)
    }

    /// What a claim that started at `from` has seen.
    pub(crate) fn learn(&self, request: &ClaimRequest, from: Option<i64>, seen: &Seen) {
        let mut known = self.lock();
        if seen.ordered {
            *known = None;
            return;
        }
        let settled = seen.instant.saturating_sub(IN_FLIGHT);
        let reached = match seen.last {
            Some(last) if seen.taken >= request.limit => last.min(settled),
            _ => settled,
        };
        match (known.as_mut(), from) {
            (Some(known), Some(_)) if known.handlers == request.handlers => {
                known.from = known.from.max(reached);
            }
            // Forgotten meanwhile.
            (_, Some(_)) => {}
            (_, None) if seen.steps <= MANY + OWN * i64::from(seen.taken) => *known = None,
            (_, None) => {
                let steps = u32::try_from(seen.steps).unwrap_or(u32::MAX);
                *known = Some(Known {
                    handlers: request.handlers.clone(),
                    from: reached,
                    looked: Instant::now(),
                    pause: PAUSE.saturating_mul(steps).min(LONGEST),
                });
            }
        }
    }

    /// Something that was due earlier has come back.
    pub(crate) fn forget(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use inbox_api::{LeaseTerms, WorkerName};

    use super::*;

    const NOW: i64 = 1_000_000_000;

    fn request(handler: &str) -> ClaimRequest {
        ClaimRequest {
            handlers: vec![HandlerName::new(handler).unwrap()],
            limit: 10,
            terms: LeaseTerms::new(Duration::from_secs(1), WorkerName::new("w").unwrap()).unwrap(),
        }
    }

    fn seen(taken: u32, last: i64, steps: i64) -> Seen {
        Seen {
            taken,
            last: Some(last),
            steps,
            instant: NOW,
            ordered: false,
        }
    }

    #[test]
    fn a_claim_starts_where_one_that_stepped_over_many_ended() {
        let (front, request) = (Front::default(), request("h"));
        assert_eq!(front.of(&request), None);
        front.learn(&request, None, &seen(10, 7, MANY));
        assert_eq!(front.of(&request), None, "a cheap claim");
        front.learn(&request, None, &seen(10, 7, 1_000_000));
        assert_eq!(front.of(&request), Some(7));
        front.learn(&request, Some(7), &seen(10, 9, 20));
        assert_eq!(front.of(&request), Some(9));
        front.learn(&request, Some(7), &seen(10, 8, 20));
        assert_eq!(
            front.of(&request),
            Some(9),
            "an earlier claim that answers later"
        );
        assert_eq!(front.of(&self::request("other")), None);
        front.learn(&request, Some(9), &seen(3, 12, 20));
        assert_eq!(
            front.of(&request),
            Some(NOW - IN_FLIGHT),
            "all that was due is taken, but for what is being stored"
        );
    }

    #[test]
    fn whatever_may_be_due_earlier_makes_the_next_claim_look() {
        let (front, request) = (Front::default(), request("h"));
        front.learn(&request, None, &seen(10, 7, 1_000_000));
        front.forget();
        assert_eq!(front.of(&request), None);
        front.learn(&request, Some(7), &seen(10, 9, 20));
        assert_eq!(front.of(&request), None, "forgotten while it was under way");
        front.learn(&request, None, &seen(10, 7, 1_000_000));
        let ordered = Seen {
            ordered: true,
            ..seen(10, 9, 20)
        };
        front.learn(&request, Some(7), &ordered);
        assert_eq!(front.of(&request), None);
    }

    #[test]
    fn after_a_while_one_claim_looks_from_the_very_front() {
        let (front, request) = (Front::default(), request("h"));
        front.learn(&request, None, &seen(10, 7, 100_000));
        if let Some(known) = front.lock().as_mut() {
            assert_eq!(known.pause, Duration::from_secs(1));
            known.looked -= known.pause;
        }
        assert_eq!(front.of(&request), None);
        assert_eq!(front.of(&request), Some(7), "the others go on");
        front.learn(&request, None, &seen(0, 0, i64::MAX));
        if let Some(known) = front.lock().as_ref() {
            assert_eq!(known.pause, LONGEST);
        }
        front.learn(&request, None, &seen(0, 0, 10));
        assert_eq!(front.of(&request), None, "the entries are gone");
    }
}
