//! Counting, at no cost without the feature `metrics`, and logging.

/// The target of logs about outages, as in the crate `inbox`.
pub(crate) const OUTAGE: &str = "inbox::outage";

/// An idempotency layer has answered.
pub(crate) fn idempotent(outcome: &str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("inbox_http_idempotent_total", "outcome" => outcome.to_owned()).increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = outcome;
}

/// A webhook receiver has answered, or takes another event of a batch as this.
pub(crate) fn webhook(endpoint: &str, outcome: &str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(
        "inbox_http_webhooks_total",
        "endpoint" => endpoint.to_owned(), "outcome" => outcome.to_owned()
    )
    .increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (endpoint, outcome);
}
