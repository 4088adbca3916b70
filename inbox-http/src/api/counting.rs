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

/// All that is counted of a handler's messages.
const COUNTERS: [&str; 7] = [
    CLAIMED, PROCESSED, RETRIED, DEFERRED, DEAD, LEASE_LOST, REFUSED,
];

const CLAIMED: &str = "inbox_claimed_total";
const PROCESSED: &str = "inbox_processed_total";
const RETRIED: &str = "inbox_retried_total";
const DEFERRED: &str = "inbox_deferred_total";
const DEAD: &str = "inbox_dead_total";
const LEASE_LOST: &str = "inbox_lease_lost_total";
const REFUSED: &str = "inbox_refused_total";

fn count(name: &'static str, handler: &HandlerName, number: u64) {
    metrics::counter!(name, "handler" => handler.to_string()).increment(number);
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
            // As of a processor: the first one of each is an increase then, and sums of two have both.
            for name in COUNTERS {
                count(name, handler, 0);
            }
        }
        for leased in &claims.leased {
            count(CLAIMED, leased.message.handler(), 1);
        }
        metrics::counter!("inbox_corrupt_total").increment(claims.corrupt.len() as u64);
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let settled = self.noted("settle", self.0.settle(settlements).await)?;
        for (settlement, settled) in settlements.iter().zip(&settled) {
            let name = match (settled, &settlement.outcome) {
                (Settled::LeaseLost, _) => LEASE_LOST,
                (Settled::Refused(_), _) => REFUSED,
                (Settled::Done, Outcome::Processed { .. }) => PROCESSED,
                (Settled::Done, Outcome::Retry { .. }) => RETRIED,
                (Settled::Done, Outcome::Dead { .. }) => DEAD,
                (Settled::Done, Outcome::Defer { .. }) => DEFERRED,
                (Settled::Done, Outcome::Release) => continue,
            };
            count(name, &settlement.lease.key.handler, 1);
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
