//! Where the last large claim ended, so that the next need not step over the index entries that it
//! has removed, before the server has cleared them away.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use inbox_api::{ClaimRequest, HandlerName};

/// Smaller claims always look from the very front.
const LEAST: u32 = 100;
/// So long after a look from the very front, it is time for another.
const TRUSTED: Duration = Duration::from_millis(250);

/// What is due before the front is taken, or will be found by the next look from the very front.
#[derive(Debug, Default)]
pub(crate) struct ClaimCursor(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    handlers: Vec<HandlerName>,
    /// The due time of the last message that was claimed, in microseconds since 1970.
    from: i64,
    /// When a claim began at the very front.
    since: Instant,
}

impl ClaimCursor {
    /// From where this claim may start.
    pub(crate) fn of(&self, request: &ClaimRequest) -> Option<i64> {
        let mut known = self.lock();
        let usable = known.as_ref().is_some_and(|known| {
            request.limit >= LEAST
                && known.handlers == request.handlers
                && known.since.elapsed() < TRUSTED
        });
        if !usable {
            *known = None;
        }
        known.as_ref().map(|known| known.from)
    }

    /// A claim got as many as it asked for, up to that due time; or, with `None`, fewer.
    pub(crate) fn advance(&self, request: &ClaimRequest, last: Option<i64>) {
        let mut known = self.lock();
        let Some(last) = last.filter(|_| request.limit >= LEAST) else {
            *known = None;
            return;
        };
        match known.as_mut() {
            Some(known) if known.handlers == request.handlers => known.from = known.from.max(last),
            _ => {
                *known = Some(Known {
                    handlers: request.handlers.clone(),
                    from: last,
                    since: Instant::now(),
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

    fn request(handler: &str, limit: u32) -> ClaimRequest {
        ClaimRequest {
            handlers: vec![HandlerName::new(handler).unwrap()],
            limit,
            terms: LeaseTerms::new(Duration::from_secs(1), WorkerName::new("w").unwrap()).unwrap(),
            run_limit: 1,
        }
    }

    #[test]
    fn only_a_large_claim_behind_a_full_one_of_the_same_handlers_starts_where_that_ended() {
        let cursor = ClaimCursor::default();
        let large = request("h", LEAST);
        assert_eq!(cursor.of(&large), None);
        cursor.advance(&large, Some(7));
        assert_eq!(cursor.of(&large), Some(7));
        cursor.advance(&large, Some(5));
        assert_eq!(
            cursor.of(&large),
            Some(7),
            "an earlier claim that answers later"
        );
        assert_eq!(cursor.of(&request("h", LEAST - 1)), None);
        assert_eq!(cursor.of(&large), None);
        cursor.advance(&large, Some(7));
        assert_eq!(cursor.of(&request("other", LEAST)), None);
        cursor.advance(&large, Some(7));
        cursor.advance(&large, None);
        assert_eq!(cursor.of(&large), None, "a claim that came up short");
        cursor.advance(&large, Some(7));
        cursor.forget();
        assert_eq!(cursor.of(&large), None);
    }

    #[test]
    fn after_a_while_a_claim_looks_from_the_very_front() {
        let cursor = ClaimCursor::default();
        let large = request("h", LEAST);
        cursor.advance(&large, Some(7));
        if let Some(known) = cursor.lock().as_mut() {
            known.since -= TRUSTED;
        }
        assert_eq!(cursor.of(&large), None);
    }
}
