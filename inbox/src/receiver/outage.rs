//! Back-off and logging while the store or the source is away.

use std::{
    fmt,
    time::{Duration, Instant},
};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// One thing that may be away for a while. Logs once when an outage begins and once when it ends.
pub(super) struct Outage {
    of: &'static str,
    present: Option<(Instant, ExponentialBackoff)>,
}

impl Outage {
    pub(super) fn none(of: &'static str) -> Self {
        Self { of, present: None }
    }

    /// Notes a failure and says how long to wait before trying again.
    pub(super) fn failed(&mut self, error: &dyn fmt::Display) -> Duration {
        let of = self.of;
        let (_, pauses) = self.present.get_or_insert_with(|| {
            tracing::warn!(%error, "{of} unavailable; retrying until it is back");
            let pauses = ExponentialBuilder::new()
                .with_min_delay(FIRST_PAUSE)
                .with_max_delay(LONGEST_PAUSE)
                .with_jitter()
                .without_max_times()
                .build();
            (Instant::now(), pauses)
        });
        let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
        tracing::debug!(%error, ?pause, "{of} still unavailable");
        pause
    }

    /// Notes a success.
    pub(super) fn over(&mut self) {
        if let Some((began, _)) = self.present.take() {
            tracing::info!(after = ?began.elapsed(), "{} available again", self.of);
        }
    }
}
