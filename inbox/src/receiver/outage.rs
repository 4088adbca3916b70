//! Back-off and logging while the store or the source is away.

use std::{
    fmt,
    time::{Duration, Instant},
};

use backon::{BackoffBuilder as _, ExponentialBackoff};

use crate::{
    backoff::{LONGEST_PAUSE, through_an_outage},
    telemetry::OUTAGE,
    vitals::Vitals,
};

/// One thing that may be away for a while. When an outage begins and when it ends is logged once, also where
/// several meet it at the same time.
pub(super) struct Outage {
    of: &'static str,
    vitals: Vitals,
    present: Option<(Instant, ExponentialBackoff)>,
}

impl Outage {
    pub(super) fn none(of: &'static str, vitals: &Vitals) -> Self {
        Self {
            of,
            vitals: vitals.clone(),
            present: None,
        }
    }

    /// Notes a failure and says how long to wait before trying again.
    pub(super) fn failed(&mut self, error: &dyn fmt::Display) -> Duration {
        let of = self.of;
        if self.vitals.trouble(of, error.to_string()) {
            tracing::warn!(target: OUTAGE, %error, "{of} unavailable; retrying until it is back");
        }
        let begin = || (Instant::now(), through_an_outage().build());
        let (_, pauses) = self.present.get_or_insert_with(begin);
        let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
        tracing::debug!(target: OUTAGE, %error, ?pause, "{of} still unavailable");
        pause
    }

    /// Notes a success.
    pub(super) fn over(&mut self) {
        if let Some((began, _)) = self.present.take()
            && self.vitals.over(self.of)
        {
            tracing::info!(target: OUTAGE, after = ?began.elapsed(), "{} available again", self.of);
        }
    }
}
