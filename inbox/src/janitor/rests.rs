//! How long a sweep rests between two slices.

use std::time::Duration;

use tokio::time::Instant;

/// How many times as long as a slice took a sweep rests behind it, at first: of live traffic, less than one call in a
/// hundred meets one.
const GENTLY: u32 = 200;

/// The longest rest.
const LONGEST: Duration = Duration::from_secs(8);

/// The longest time in which rests become half as long.
const LONGEST_HALF: Duration = Duration::from_secs(5 * 60);

/// The rests of one sweep. They become half as long with each pause between two sweeps that it goes on, or each five
/// minutes, so that it comes to keep up with any traffic.
#[derive(Debug)]
pub(super) struct Rests {
    began: Instant,
    half: Duration,
}

impl Rests {
    /// Of a sweep that begins now.
    pub(super) fn new(interval: Duration) -> Self {
        let began = Instant::now();
        let half = interval.min(LONGEST_HALF);
        Self { began, half }
    }

    /// How long it rests behind a slice that took so long.
    pub(super) fn after(&self, took: Duration) -> Duration {
        let longest = LONGEST.min(self.half);
        let gone = self.began.elapsed().as_secs_f64() / self.half.as_secs_f64();
        let rest = took.saturating_mul(GENTLY).min(longest);
        rest.mul_f64((-gone).exp2())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rests_get_shorter() {
        let millis = Duration::from_millis;
        let rests = Rests::new(millis(10_000));
        assert_eq!(rests.after(millis(10)), millis(2_000));
        assert_eq!(rests.after(Duration::MAX), LONGEST);
        for expected in [1_000, 500, 250] {
            tokio::time::advance(millis(10_000)).await;
            assert_eq!(rests.after(millis(10)), millis(expected));
        }
        tokio::time::advance(millis(1_000_000)).await;
        assert!(rests.after(millis(10)) < Duration::from_micros(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_bounds_them() {
        let often = Rests::new(Duration::from_secs(1));
        assert_eq!(often.after(Duration::MAX), Duration::from_secs(1));
        let daily = Rests::new(Duration::from_secs(24 * 3_600));
        tokio::time::advance(LONGEST_HALF).await;
        assert_eq!(daily.after(Duration::MAX), LONGEST / 2);
    }
}
