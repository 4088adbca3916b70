//! Counts what callers claim and settle, by the names that a processor counts it by.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use inbox::{
    Begun, Capabilities, ClaimRequest, Claims, Extended, HandlerName, Lease, LeaseTerms, Message,
    Outcome, Receipt, Result, Settled, Settlement, Store, Subscription, telemetry,
};

pub(super) struct Counting(pub(super) Arc<dyn Store>);

impl Counting {
    /// Counts an error.
    fn noted<T>(&self, operation: &'static str, answer: Result<T>) -> Result<T> {
        if let Err(error) = &answer {
            telemetry::store_error(operation, error);
        }
        answer
    }
}

fn count(name: &'static str, handler: &HandlerName) {
    metrics::counter!(name, "handler" => handler.to_string()).increment(1);
}

#[async_trait]
impl Store for Counting {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.noted("receive", self.0.receive(messages).await)
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let claims = self.noted("claim", self.0.claim(request).await)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs_f64();
        for handler in &request.handlers {
            let name = "inbox_last_claim_timestamp_seconds";
            metrics::gauge!(name, "handler" => handler.to_string()).set(now);
        }
        for leased in &claims.leased {
            count("inbox_claimed_total", leased.message.handler());
        }
        for _ in &claims.corrupt {
            metrics::counter!("inbox_corrupt_total").increment(1);
        }
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let settled = self.noted("settle", self.0.settle(settlements).await)?;
        for (settlement, settled) in settlements.iter().zip(&settled) {
            let name = match (settled, &settlement.outcome) {
                (Settled::LeaseLost, _) => "inbox_lease_lost_total",
                (Settled::Refused(_), _) => "inbox_refused_total",
                (Settled::Done, Outcome::Processed { .. }) => "inbox_processed_total",
                (Settled::Done, Outcome::Retry { .. }) => "inbox_retried_total",
                (Settled::Done, Outcome::Dead { .. }) => "inbox_dead_total",
                (Settled::Done, Outcome::Defer { .. }) => "inbox_deferred_total",
                (Settled::Done, Outcome::Release) => continue,
            };
            count(name, &settlement.lease.key.handler);
        }
        Ok(settled)
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.noted("extend", self.0.extend(leases, length).await)
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.noted("begin", self.0.begin(message, terms).await)
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.0.subscribe(handlers).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
