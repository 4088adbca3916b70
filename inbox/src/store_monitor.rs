//! What the store knows, as gauges.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    HandlerName, HandlerStatistics, Operate, Result, Statistics,
    patience::{Patience, SHORTEST, answer_of},
    telemetry::{self, OUTAGE},
};

/// How long one look may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Reads an inbox's statistics every so often and sets the gauges of [`telemetry`](crate::telemetry) that tell of
/// all its handlers: backlog, lag, messages by state, blocking dead ones, pauses. One per process and inbox is
/// enough, be there a processor or not. Statistics do not get slower with the backlog or the history.
///
/// Install a recorder first; here the one of `metrics-exporter-prometheus`, whose text a route answers:
///
/// ```text
/// let prometheus = PrometheusBuilder::new().install_recorder()?;
/// let router = router.route("/metrics", get(move || async move { prometheus.render() }));
/// ```
///
/// ```
/// use inbox::{CancellationToken, StoreMonitor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = inbox::connect("memory://").await?;
/// store.create().await?;
/// let shutdown = CancellationToken::new();
/// let monitor = StoreMonitor::new(store);
/// let task = tokio::spawn({
///     let shutdown = shutdown.clone();
///     async move { monitor.run(shutdown).await }
/// });
/// shutdown.cancel();
/// task.await?;
/// # Ok(())
/// # }
/// ```
pub struct StoreMonitor {
    operate: Arc<dyn Operate>,
    interval: Duration,
    patience: Patience,
}

impl StoreMonitor {
    /// A monitor of this inbox, which looks every 15 seconds.
    #[must_use]
    pub fn new(operate: Arc<impl Operate + ?Sized + 'static>) -> Self {
        Self {
            // An Arc of an operator's side is one itself; the second Arc erases its type.
            operate: Arc::new(operate),
            interval: Duration::from_secs(15),
            patience: Patience::new(LIMIT),
        }
    }

    /// Sets the pause between two looks: a millisecond at the least. Default: 15 seconds.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval.max(SHORTEST);
        self
    }

    /// Looks at once and then once per interval, until `shutdown` is cancelled. A look that fails is counted
    /// (`inbox_store_errors_total`), and leaves the gauges as they were: how old they are,
    /// `inbox_statistics_timestamp_seconds` tells. The first one that fails is logged, and that looks succeed again.
    pub async fn run(&self, shutdown: CancellationToken) {
        let looks = async {
            // Handlers that had messages at the last look, and may have none any more.
            let mut known = BTreeSet::new();
            let mut is_away = false;
            loop {
                let looked = self.look(&mut known).await;
                let was_away = std::mem::replace(&mut is_away, looked.is_err());
                match looked {
                    Err(error) if !was_away => {
                        tracing::warn!(target: OUTAGE, %error, "the inbox's statistics are not known");
                    }
                    Err(error) => {
                        tracing::debug!(target: OUTAGE, %error, "the inbox's statistics are still not known");
                    }
                    Ok(()) if was_away => {
                        tracing::info!(target: OUTAGE, "the inbox's statistics are known again");
                    }
                    Ok(()) => {}
                }
                tokio::time::sleep(self.interval).await;
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = looks => {}
        }
    }

    async fn look(&self, known: &mut BTreeSet<HandlerName>) -> Result<()> {
        let asking = self
            .patience
            .within("statistics", self.operate.statistics());
        let statistics: Statistics = answer_of(asking).await?;
        let present: BTreeSet<_> = statistics
            .handlers
            .iter()
            .map(|of_handler| of_handler.handler.clone())
            .collect();
        for gone in known.difference(&present) {
            telemetry::states(&HandlerStatistics::empty(gone.clone()));
        }
        telemetry::statistics(&statistics);
        // Once is enough for those that are gone: there may be ever more of them.
        *known = present;
        Ok(())
    }
}

impl fmt::Debug for StoreMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreMonitor")
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}
