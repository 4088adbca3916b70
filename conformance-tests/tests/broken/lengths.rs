//! Defects of time: leases, extensions, delays, retries and ages of another length than was asked for.

use std::time::Duration;

use async_trait::async_trait;
use inbox_api::{
    Begun, ClaimRequest, Claims, Due, Expired, Extended, Lease, LeaseTerms, Message, Operate,
    Outcome, Receipt, Result, Settled, Settlement, Store,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// Makes another length of the one that was asked for.
type Spoil = fn(Duration) -> Duration;

fn spoiled(terms: &LeaseTerms, spoil: Spoil) -> LeaseTerms {
    LeaseTerms::new(spoil(terms.length()), terms.worker().clone()).unwrap()
}

/// The answer is right.
pub(crate) struct OtherLeases(pub(crate) Spoil);

#[async_trait]
impl Defect for OtherLeases {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let terms = spoiled(&request.terms, self.0);
        let missing = request.terms.length() - terms.length();
        let request = ClaimRequest {
            terms,
            ..request.clone()
        };
        let mut claims = inner.claim(&request).await?;
        for leased in &mut claims.leased {
            leased.lease.until += missing;
        }
        Ok(claims)
    }

    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        inner.begin(message, &spoiled(terms, self.0)).await
    }
}

pub(crate) struct OtherExtensions(pub(crate) Spoil);

#[async_trait]
impl Defect for OtherExtensions {
    async fn extend(
        &self,
        inner: &MemoryStore,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Extended>> {
        inner.extend(leases, (self.0)(length)).await
    }
}

pub(crate) struct OtherDelays(pub(crate) Spoil);

#[async_trait]
impl Defect for OtherDelays {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let messages: Vec<_> = messages
            .iter()
            .map(|message| match message.due() {
                Due::After(delay) => message.clone().with_due(Due::After((self.0)(delay))),
                _ => message.clone(),
            })
            .collect();
        inner.receive(&messages).await
    }
}

pub(crate) struct OtherRetries(pub(crate) Spoil);

#[async_trait]
impl Defect for OtherRetries {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let batch: Vec<_> = batch
            .iter()
            .map(|settlement| {
                let mut settlement = settlement.clone();
                if let Outcome::Retry { after, .. } = &mut settlement.outcome {
                    *after = (self.0)(*after);
                }
                settlement
            })
            .collect();
        inner.settle(&batch).await
    }
}

pub(crate) struct OtherAges(pub(crate) Spoil);

#[async_trait]
impl Defect for OtherAges {
    async fn purge(&self, inner: &MemoryStore, expired: &Expired) -> Result<u64> {
        let age = (self.0)(expired.older_than());
        let expired = Expired::new(expired.state(), age, expired.limit()).unwrap();
        inner.purge(&expired).await
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// A little early.
pub(crate) fn early(length: Duration) -> Duration {
    length.saturating_sub(Duration::from_millis(100))
}

/// Without fractions of seconds.
pub(crate) fn in_seconds(length: Duration) -> Duration {
    Duration::from_secs(length.as_secs())
}

/// Not more than an hour.
pub(crate) fn capped(length: Duration) -> Duration {
    length.min(HOUR)
}
