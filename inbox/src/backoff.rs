//! The pauses between repetitions of a store call. (The delays between attempts at a message are
//! stored, see [`RetryPolicy`](crate::RetryPolicy).)

use std::time::Duration;

use backon::ExponentialBuilder;
use tokio::time::Instant;

/// The longest pause while waiting for an outage to end.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// That much later, or in 30 years if that is sooner: a duration that means *never* must not
/// overflow a clock.
pub(crate) fn after(now: Instant, duration: Duration) -> Instant {
    now + duration.min(Duration::from_secs(30 * 365 * 24 * 60 * 60))
}

/// For as long as it takes: 50 milliseconds at first, then more, up to [`LONGEST_PAUSE`].
pub(crate) fn through_an_outage() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(LONGEST_PAUSE)
        .with_jitter()
        .without_max_times()
}

/// Up to five repetitions within about three seconds.
pub(crate) fn a_few_times() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(1))
        .with_max_times(5)
        .with_jitter()
}

/// Up to twelve repetitions within about two seconds, for transactions that were given up in favour
/// of others.
pub(crate) fn after_conflicts() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(5))
        .with_max_delay(Duration::from_millis(250))
        .with_max_times(12)
        .with_jitter()
}
