//! How long a sweep rests between two slices.

use std::time::Duration;

use tokio::time::Instant;

/// How many times as long as a slice took a sweep rests behind it, at first: of live traffic, two calls in a hundred meet
/// one.
const GENTLY: u32 = 50;

/// The longest rest.
const LONGEST: Duration = Duration::from_secs(1);

/// The rests of one sweep. The longer it goes on, the shorter they are: once it has taken as long as the pause between
/// two sweeps there are none, so that it keeps up with what comes.
#[derive(Debug)]
pub(super) struct Rests {
    began: Instant,
    interval: Duration,
}

impl Rests {
    /// Of a sweep that begins now.
    pub(super) fn new(interval: Duration) -> Self {
        let began = Instant::now();
        Self { began, interval }
    }

    /// How long it rests behind a slice that took so long.
    pub(super) fn after(&self, took: Duration) -> Duration {
        let gone = self.began.elapsed().as_secs_f64() / self.interval.as_secs_f64();
        let rest = took.saturating_mul(GENTLY).min(LONGEST);
        rest.mul_f64((1.0 - gone).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rests_get_shorter() {
        let millis = Duration::from_millis;
        let rests = Rests::new(millis(10_000));
        assert_eq!(rests.after(millis(10)), millis(500));
        assert_eq!(rests.after(Duration::MAX), LONGEST);
        tokio::time::advance(millis(5_000)).await;
        assert_eq!(rests.after(millis(10)), millis(250));
        for _ in 0..2 {
            tokio::time::advance(millis(5_000)).await;
            assert_eq!(rests.after(millis(10)), Duration::ZERO);
        }
    }
}
