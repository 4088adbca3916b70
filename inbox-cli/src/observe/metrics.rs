//! `/metrics`: this process's counters, and what the store knows, as Prometheus reads them.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    extract::{Request, State},
    http::{
        StatusCode,
        header::{CONTENT_TYPE, WWW_AUTHENTICATE},
    },
    response::{IntoResponse as _, Response},
    routing::get,
};
use inbox::{CancellationToken, Inbox, StoreMonitor};
use inbox_http::{Guard, Refusal};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// How often the store is asked for its statistics.
const INTERVAL: Duration = Duration::from_secs(5);

/// How often histograms are summed up, so that they do not grow while nobody reads them.
const UPKEEP: Duration = Duration::from_secs(5);

/// From a round trip to a store near by, to a handler that takes minutes.
const SECONDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0,
];

/// The recorder of this process.
#[derive(Clone)]
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    /// Records from now on, which has to be before processors and receivers are built, and watches the store
    /// until `token` is cancelled.
    pub(crate) fn begin(store: &Arc<dyn Inbox>, token: &CancellationToken) -> Result<Self> {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?;
        let handle = builder
            .install_recorder()
            .context("cannot record metrics")?;
        let version = env!("CARGO_PKG_VERSION");
        metrics::gauge!("inbox_build_info", "version" => version).set(1.0);
        let upkeep = handle.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        });
        let monitor = StoreMonitor::new(Arc::clone(store)).interval(INTERVAL);
        let token = token.clone();
        tokio::spawn(async move { monitor.run(token).await });
        Ok(Self(handle))
    }

    /// Answers those whom `guard` lets pass.
    pub(crate) fn router(&self, guard: Guard) -> Router {
        Router::new()
            .route("/metrics", get(render))
            .with_state((self.clone(), Arc::new(guard)))
    }
}

async fn render(
    State((metrics, guard)): State<(Metrics, Arc<Guard>)>,
    request: Request,
) -> Response {
    match guard.check(&request) {
        Ok(()) => {
            let text = "text/plain; version=0.0.4; charset=utf-8";
            ([(CONTENT_TYPE, text)], metrics.0.render()).into_response()
        }
        Err(Refusal::WrongHost) => StatusCode::MISDIRECTED_REQUEST.into_response(),
        Err(Refusal::Unauthorized) => {
            let challenge = [(WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, challenge).into_response()
        }
    }
}
