//! Back-off and logging while the store or the source is away.

use std::{fmt, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBackoff};
use tokio::time::Instant;

use crate::{
    backoff::{LONGEST_PAUSE, through_an_outage},
    telemetry::OUTAGE,
    vitals::Vitals,
};

/// What fails again before it was back for so long has not been back. A source that fails with each message
/// that it has brought would otherwise be asked without a pause, and its broker counts each of these as a
/// delivery.
const BACK_FOR_GOOD: Duration = Duration::from_secs(10);

/// One thing that may be away for a while. When an outage begins and when it ends is logged once, also where
/// several meet it at the same time.
pub(super) struct Outage {
    of: &'static str,
    vitals: Vitals,
    /// Since when it is away.
    present: Option<Instant>,
    /// Since when it is back.
    back: Option<Instant>,
    /// How long to wait after the next failures.
    pauses: Option<ExponentialBackoff>,
}

impl Outage {
    pub(super) fn none(of: &'static str, vitals: &Vitals) -> Self {
        Self {
            of,
            vitals: vitals.clone(),
            present: None,
            back: None,
            pauses: None,
        }
    }

    /// Whether it is away, as far as is known.
    pub(super) fn is_present(&self) -> bool {
        self.present.is_some()
    }

    /// Notes a failure and says how long to wait before trying again.
    pub(super) fn failed(&mut self, error: &dyn fmt::Display) -> Duration {
        let of = self.of;
        if self.vitals.trouble(of, error.to_string()) {
            tracing::warn!(target: OUTAGE, %error, "{of} unavailable; retrying until it is back");
        }
        self.present.get_or_insert_with(Instant::now);
        let back = self.back.take();
        if back.is_some_and(|since| since.elapsed() >= BACK_FOR_GOOD) {
            self.pauses = None;
        }
        let pauses = self
            .pauses
            .get_or_insert_with(|| through_an_outage().build());
        let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
        tracing::debug!(target: OUTAGE, %error, ?pause, "{of} still unavailable");
        pause
    }

    /// Notes a success.
    pub(super) fn over(&mut self) {
        if let Some(began) = self.present.take() {
            self.back = Some(Instant::now());
            if self.vitals.over(self.of) {
                tracing::info!(target: OUTAGE, after = ?began.elapsed(), "{} available again", self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails so often, with a success after each for so long, and returns the last pause.
    async fn fail(outage: &mut Outage, times: usize, well_for: Duration) -> Duration {
        let mut pause = Duration::ZERO;
        for _ in 0..times {
            pause = outage.failed(&"away");
            tokio::time::advance(pause).await;
            outage.over();
            tokio::time::advance(well_for).await;
        }
        pause
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_back_for_a_moment_only_is_asked_ever_more_seldom() {
        let mut outage = Outage::none("source", &Vitals::default());
        let pause = fail(&mut outage, 20, Duration::from_millis(1)).await;
        assert!(pause >= LONGEST_PAUSE, "{pause:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_back_for_long_is_asked_again_at_once() {
        let mut outage = Outage::none("source", &Vitals::default());
        fail(&mut outage, 20, Duration::from_millis(1)).await;
        tokio::time::advance(Duration::from_secs(60)).await;
        let pause = fail(&mut outage, 1, Duration::ZERO).await;
        assert!(pause < Duration::from_secs(1), "{pause:?}");
    }
}
