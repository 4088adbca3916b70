//! How many handlers of a router may be started in a while.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Invalid, backoff::after};

/// So many messages in so long a time, on average: the rate limit of a router, in each processor.
/// A claim takes no more than may start at once, so a small [`burst`](Rate::burst) makes for small claims.
///
/// ```
/// use std::time::Duration;
/// use inbox::Rate;
///
/// // A hundred a second, of which up to ten at once.
/// let api = Rate::new(100, Duration::from_secs(1)).burst(10);
/// # let _ = api;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    messages: u32,
    per: Duration,
    burst: u32,
}

impl Rate {
    /// `messages` in each `per`. As many may start at once after a pause; see [`burst`](Self::burst).
    #[must_use]
    pub fn new(messages: u32, per: Duration) -> Self {
        Self {
            messages,
            per,
            burst: messages,
        }
    }

    /// Sets how many may start at once after a pause. Default: as many as in the whole time.
    #[must_use]
    pub fn burst(mut self, messages: u32) -> Self {
        self.burst = messages;
        self
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let most = Duration::from_secs(24 * 60 * 60);
        let is_in_range = self.messages > 0 && self.burst > 0 && self.per <= most;
        if !is_in_range || self.interval().is_zero() {
            return Err(Invalid::OutOfRange {
                what: "rate",
                expected: "at least one message, one at once, and a time between a nanosecond for \
                           each and a day",
            });
        }
        Ok(())
    }

    /// Between two messages.
    fn interval(&self) -> Duration {
        self.per / self.messages.max(1)
    }
}

/// What is left of a [`Rate`] at a time: a bucket of tokens that fills steadily.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens {
    interval: Duration,
    burst: u32,
    /// When the bucket is full again.
    full_at: Instant,
}

impl Tokens {
    /// A full bucket.
    pub(super) fn new(rate: &Rate, now: Instant) -> Self {
        Self {
            interval: rate.interval().max(Duration::from_nanos(1)),
            burst: rate.burst,
            full_at: now,
        }
    }

    /// How many are there.
    pub(super) fn available(&self, now: Instant) -> usize {
        let missing = self.full_at.saturating_duration_since(now).as_nanos();
        let missing = missing.div_ceil(self.interval.as_nanos());
        let available = u128::from(self.burst).saturating_sub(missing);
        usize::try_from(available).unwrap_or(usize::MAX)
    }

    /// Takes one, which may have to be paid back first.
    pub(super) fn take(&mut self, now: Instant) {
        self.full_at = after(self.full_at.max(now), self.interval);
    }

    /// When there is one.
    pub(super) fn next(&self) -> Instant {
        let others = self.interval.saturating_mul(self.burst.saturating_sub(1));
        self.full_at.checked_sub(others).unwrap_or(self.full_at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However it is asked, no stretch of time sees more than its share and the burst.
        #[test]
        fn no_stretch_has_more_than_its_share(
            messages in 1..2000_u32,
            burst in 1..50_u32,
            pauses in proptest::collection::vec(0..5_000_000_u64, 1..300),
        ) {
            let rate = Rate::new(messages, Duration::from_secs(1)).burst(burst);
            let begin = Instant::now();
            let mut tokens = Tokens::new(&rate, begin);
            let (mut now, mut taken) = (begin, Vec::new());
            for pause in pauses {
                now += Duration::from_nanos(pause);
                while tokens.available(now) > 0 {
                    tokens.take(now);
                    taken.push(now);
                }
                prop_assert!(tokens.next() > now);
                prop_assert!(tokens.available(tokens.next()) == 1);
            }
            for (n, from) in taken.iter().enumerate() {
                for (m, to) in taken.iter().enumerate().skip(n) {
                    let share = (*to - *from).as_nanos() / rate.interval().as_nanos();
                    prop_assert!(((m - n) as u128) < share + u128::from(burst));
                }
            }
        }
    }

    #[test]
    fn a_bucket_fills_up_to_its_burst() {
        let rate = Rate::new(10, Duration::from_secs(1)).burst(3);
        let begin = Instant::now();
        let mut tokens = Tokens::new(&rate, begin);
        assert_eq!(tokens.available(begin), 3);
        for _ in 0..3 {
            tokens.take(begin);
        }
        assert_eq!(tokens.available(begin), 0);
        assert_eq!(tokens.next(), begin + Duration::from_millis(100));
        assert_eq!(tokens.available(begin + Duration::from_millis(250)), 2);
        assert_eq!(tokens.available(begin + Duration::from_secs(60)), 3);
    }

    #[test]
    fn rates_without_sense_are_refused() {
        let second = Duration::from_secs(1);
        assert!(Rate::new(0, second).check().is_err());
        assert!(Rate::new(1, second).burst(0).check().is_err());
        assert!(Rate::new(1, Duration::ZERO).check().is_err());
        assert!(Rate::new(1, Duration::MAX).check().is_err());
        assert!(Rate::new(u32::MAX, second).check().is_err());
        assert!(Rate::new(1_000_000_000, second).check().is_ok());
    }
}
