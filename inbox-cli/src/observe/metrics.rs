//! `/metrics`: this process's counters, and what the store knows, as Prometheus reads them.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE, HOST},
    },
    response::{IntoResponse as _, Response},
    routing::get,
};
use inbox::{CancellationToken, Inbox, StoreMonitor};
use inbox_http::Token;
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

/// Who is answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Admission {
    /// Only those who show one of these as a bearer token, if there are any.
    pub(crate) tokens: Vec<Token>,
    /// Only requests to one of these hosts, if there are any.
    pub(crate) hosts: &'static [&'static str],
}

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

    pub(crate) fn router(&self, admission: Admission) -> Router {
        Router::new()
            .route("/metrics", get(render))
            .with_state((self.clone(), Arc::new(admission)))
    }
}

async fn render(
    State((metrics, admission)): State<(Metrics, Arc<Admission>)>,
    headers: HeaderMap,
) -> Response {
    if let Some(refusal) = admission.refusal(&headers) {
        let challenge = [("www-authenticate", "Bearer")];
        return (refusal, challenge).into_response();
    }
    let text = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, text)], metrics.0.render()).into_response()
}

impl Admission {
    /// The status of those who are not answered.
    fn refusal(&self, headers: &HeaderMap) -> Option<StatusCode> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text(HOST).unwrap_or_default();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        if !self.hosts.is_empty() && !self.hosts.contains(&name) {
            return Some(StatusCode::MISDIRECTED_REQUEST);
        }
        let shown = text(AUTHORIZATION).and_then(|value| value.split_once(' '));
        let shown = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let is_shown = |token: &Token| shown.is_some_and(|(_, shown)| token.matches(shown.trim()));
        if !self.tokens.is_empty() && !self.tokens.iter().any(is_shown) {
            return Some(StatusCode::UNAUTHORIZED);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(admission: &Admission, headers: &[(&'static str, &str)]) -> Option<StatusCode> {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        admission.refusal(&headers)
    }

    #[test]
    fn a_token_and_a_host_are_asked_for_where_they_are_set() {
        let open = Admission::default();
        assert_eq!(status(&open, &[]), None);
        let token = Token::new("a-token-of-16-characters").unwrap();
        let closed = Admission {
            tokens: vec![token],
            hosts: &["localhost", "[::1]"],
        };
        let bearer = ("authorization", "bearer a-token-of-16-characters");
        assert_eq!(status(&closed, &[("host", "localhost:80"), bearer]), None);
        assert_eq!(status(&closed, &[("host", "[::1]:9090"), bearer]), None);
        let misdirected = Some(StatusCode::MISDIRECTED_REQUEST);
        assert_eq!(
            status(&closed, &[("host", "evil.example"), bearer]),
            misdirected
        );
        let unauthorized = Some(StatusCode::UNAUTHORIZED);
        for wrong in [
            "",
            "bearer",
            "bearer wrong-token-of-16",
            "basic a-token-of-16-characters",
        ] {
            let headers = [("host", "localhost"), ("authorization", wrong)];
            assert_eq!(status(&closed, &headers), unauthorized, "{wrong}");
        }
    }
}
