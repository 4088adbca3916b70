//! When a failed message is tried again.

use std::{ops::RangeInclusive, time::Duration};

use crate::Attempts;

/// How often, and after how long, a failed message is tried again.
///
/// The delay before the next attempt doubles with each attempt, up to a ceiling, and is drawn
/// from the upper half of that, so that messages which failed together do not come back together.
/// The policy only computes: the store keeps the due time, so a restart neither forgets nor
/// shortens a delay.
///
/// ```
/// use std::time::Duration;
/// use inbox::RetryPolicy;
///
/// let policy = RetryPolicy::default()
///     .with_max_attempts(4)
///     .with_delays(Duration::from_secs(10), Duration::from_secs(30));
/// assert_eq!(policy.delay_bounds(1), Duration::from_secs(5)..=Duration::from_secs(10));
/// assert_eq!(policy.delay_bounds(3), Duration::from_secs(15)..=Duration::from_secs(30));
/// assert_eq!(policy.longest_window(), Duration::from_secs(10 + 20 + 30));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    max_attempts: u32,
    delays: Delays,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Delays {
    /// Doubling from the first to the longest.
    Exponential { first: Duration, longest: Duration },
    /// One after the other, the last one again and again.
    Schedule(Vec<Duration>),
}

/// So long, and up to a tenth more at random.
pub(crate) fn jittered(after: Duration) -> Duration {
    after.saturating_add((after / 10).mul_f64(fastrand::f64()))
}

impl Default for RetryPolicy {
    /// Ten attempts; delays from 5 seconds up to an hour: about 43 minutes from first to last.
    fn default() -> Self {
        Self {
            max_attempts: 10,
            delays: Delays::Exponential {
                first: Duration::from_secs(5),
                longest: Duration::from_secs(60 * 60),
            },
        }
    }
}

impl RetryPolicy {
    /// One attempt more than there are delays, each drawn from the upper half of the one on the list:
    /// with `[1 s, 30 s, 10 min]` four attempts, the last one five to ten minutes after the third. Where
    /// more attempts are [allowed](Self::with_max_attempts), the last delay goes on; without any delay
    /// they follow at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use inbox::RetryPolicy;
    ///
    /// let policy = RetryPolicy::schedule([1, 30, 600].map(Duration::from_secs));
    /// assert_eq!(policy.max_attempts(), 4);
    /// assert_eq!(policy.delay_bounds(2), Duration::from_secs(15)..=Duration::from_secs(30));
    /// ```
    #[must_use]
    pub fn schedule(delays: impl IntoIterator<Item = Duration>) -> Self {
        let delays: Vec<_> = delays.into_iter().collect();
        let attempts = u32::try_from(delays.len()).unwrap_or(u32::MAX);
        Self {
            max_attempts: attempts.saturating_add(1),
            delays: Delays::Schedule(delays),
        }
    }

    /// Sets after how many attempts a message is dead. Attempts that crashed their worker count.
    /// Zero is taken as one.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Sets the longest delay after the first attempt, and the longest of all. A `first` above
    /// `max` is cut to it. In place of a [schedule](Self::schedule).
    #[must_use]
    pub fn with_delays(mut self, first: Duration, max: Duration) -> Self {
        self.delays = Delays::Exponential {
            first: first.min(max),
            longest: max,
        };
        self
    }

    /// After how many attempts a message is dead; at least one.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// A delay after the failed attempt of this number (the first is 1), drawn at random within
    /// [`delay_bounds`](Self::delay_bounds).
    #[must_use]
    pub fn delay(&self, attempt: u32) -> Duration {
        self.delay_at(attempt, fastrand::u32(..))
    }

    /// The delay that a given draw from the whole range of `u32` leads to: the pure function
    /// behind [`delay`](Self::delay).
    #[must_use]
    pub fn delay_at(&self, attempt: u32, draw: u32) -> Duration {
        let (least, most) = self.delay_bounds(attempt).into_inner();
        // At most 2^95 nanoseconds times 2^32: no overflow in 128 bits.
        let spread = (most - least).as_nanos() * u128::from(draw) / u128::from(u32::MAX);
        least.saturating_add(Duration::from_nanos_u128(spread))
    }

    /// The shortest and the longest delay after the failed attempt of this number (the first is
    /// 1).
    #[must_use]
    pub fn delay_bounds(&self, attempt: u32) -> RangeInclusive<Duration> {
        let before = attempt.saturating_sub(1);
        let most = match &self.delays {
            Delays::Exponential { first, longest } => {
                let factor = 1_u32.checked_shl(before).unwrap_or(u32::MAX);
                first.saturating_mul(factor).min(*longest)
            }
            Delays::Schedule(delays) => {
                let place = usize::try_from(before).unwrap_or(usize::MAX);
                let delay = delays.get(place).or(delays.last());
                delay.copied().unwrap_or_default()
            }
        };
        most / 2..=most
    }

    /// The longest time that the delays of one message can add up to. Time spent in handlers,
    /// in the backlog and in leases that run out after a crash comes on top.
    #[must_use]
    pub fn longest_window(&self) -> Duration {
        let mut window = Duration::ZERO;
        for attempt in 1..self.max_attempts {
            let delay = *self.delay_bounds(attempt).end();
            if self.stays_the_same_after(attempt) {
                let rest = delay.saturating_mul(self.max_attempts - attempt);
                return window.saturating_add(rest);
            }
            window = window.saturating_add(delay);
        }
        window
    }

    /// Whether all delays from this attempt on are the same.
    fn stays_the_same_after(&self, attempt: u32) -> bool {
        match &self.delays {
            // The factor stops growing after 32 doublings at the latest.
            Delays::Exponential { longest, .. } => {
                self.delay_bounds(attempt).end() == longest || attempt > 32
            }
            Delays::Schedule(delays) => usize::try_from(attempt).is_ok_and(|n| n >= delays.len()),
        }
    }

    /// Why a message is dead whose attempts were used up before the one that has just begun.
    #[must_use]
    pub fn used_up(&self, attempts: Attempts) -> String {
        let (before, crashed) = (attempts.started.saturating_sub(1), attempts.crashed(true));
        if crashed == 0 {
            let allowed = self.max_attempts;
            format!("attempts used up: {before} have failed, and {allowed} are allowed now")
        } else {
            format!(
                "attempts used up: of {before}, {crashed} began and never ended \
                 (the worker crashed or lost its lease)"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn duration() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(Duration::ZERO),
            Just(Duration::MAX),
            (0..10_u64, 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
            (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
        ]
    }

    fn policy() -> impl Strategy<Value = RetryPolicy> {
        let attempts = prop_oneof![0..50_u32, any::<u32>()];
        let delays = prop_oneof![
            (duration(), duration())
                .prop_map(|(first, max)| RetryPolicy::default().with_delays(first, max)),
            proptest::collection::vec(duration(), 0..5).prop_map(RetryPolicy::schedule),
        ];
        (attempts, delays).prop_map(|(attempts, policy)| policy.with_max_attempts(attempts))
    }

    proptest! {
        #[test]
        fn delays_keep_their_bounds(
            policy in policy(),
            attempt in prop_oneof![0..70_u32, any::<u32>()],
            draw in any::<u32>(),
        ) {
            let bounds = policy.delay_bounds(attempt);
            prop_assert!(bounds.contains(&policy.delay_at(attempt, draw)));
            prop_assert_eq!(policy.delay_at(attempt, 0), *bounds.start());
            prop_assert_eq!(policy.delay_at(attempt, u32::MAX), *bounds.end());
            if let Delays::Exponential { longest, .. } = policy.delays {
                prop_assert!(*bounds.end() <= longest);
                let next = policy.delay_bounds(attempt.saturating_add(1));
                prop_assert!(next.start() >= bounds.start() && next.end() >= bounds.end());
            }
            prop_assert!(policy.delay_at(attempt, draw) <= policy.delay_at(attempt, u32::MAX));
        }

        #[test]
        fn the_window_is_the_sum_of_the_longest_delays(policy in policy()) {
            let policy = policy.clone().with_max_attempts(policy.max_attempts() % 200);
            let sum = (1..policy.max_attempts())
                .map(|attempt| *policy.delay_bounds(attempt).end())
                .fold(Duration::ZERO, Duration::saturating_add);
            prop_assert_eq!(policy.longest_window(), sum);
        }
    }

    #[test]
    fn a_window_of_very_many_attempts_is_found_at_once() {
        let policy = RetryPolicy::default().with_max_attempts(u32::MAX);
        assert!(policy.longest_window() > Duration::from_secs(u64::from(u32::MAX)));
    }

    #[test]
    fn there_is_always_a_first_attempt() {
        assert_eq!(
            RetryPolicy::default().with_max_attempts(0).max_attempts(),
            1
        );
    }
}
