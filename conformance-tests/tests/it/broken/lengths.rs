//! Defects of time: leases, extensions, delays, retries and ages of another length than was asked for.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use inbox_api::{
    Begun, ClaimRequest, Claims, Due, Extended, Filter, Key, Lease, LeaseTerms, Listing, Message,
    Operate, Outcome, Page, Progress, PurgeRequest, Receipt, Result, Settled, Settlement, Slice,
    Store,
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
        let other = ClaimRequest {
            terms,
            ..request.clone()
        };
        let mut claims = inner.claim(&other).await?;
        for leased in &mut claims.leased {
            let begun = leased.lease.until - other.terms.length();
            leased.lease.until = begun + request.terms.length();
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

pub(crate) struct OtherDeferrals(pub(crate) Spoil);

#[async_trait]
impl Defect for OtherDeferrals {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut batch = batch.to_vec();
        for settlement in &mut batch {
            if let Outcome::Defer { after, .. } = &mut settlement.outcome {
                *after = (self.0)(*after);
            }
        }
        inner.settle(&batch).await
    }
}

pub(crate) struct OtherAges(pub(crate) Spoil);

#[async_trait]
impl Defect for OtherAges {
    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        let age = (self.0)(expired.older_than());
        let expired = PurgeRequest::new(expired.state(), age, expired.limit()).unwrap();
        inner.purge(&expired).await
    }
}

/// Ages are judged otherwise by one operation.
pub(crate) struct OtherAgesOf(pub(crate) &'static str, pub(crate) Spoil);

impl OtherAgesOf {
    fn age(&self, operation: &str, age: Duration) -> Duration {
        if self.0 == operation {
            (self.1)(age)
        } else {
            age
        }
    }

    fn expired(&self, operation: &str, expired: &PurgeRequest) -> PurgeRequest {
        let age = self.age(operation, expired.older_than());
        PurgeRequest::new(expired.state(), age, expired.limit()).unwrap()
    }

    fn filter(&self, operation: &str, filter: &Filter) -> Filter {
        Filter {
            older_than: filter.older_than.map(|age| self.age(operation, age)),
            newer_than: filter.newer_than.map(|age| self.age(operation, age)),
            ..filter.clone()
        }
    }
}

#[async_trait]
impl Defect for OtherAgesOf {
    async fn expired(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<Listing> {
        inner.expired(&self.expired("expired", expired)).await
    }

    async fn purge_archived(
        &self,
        inner: &MemoryStore,
        expired: &PurgeRequest,
        keys: &[Key],
    ) -> Result<u64> {
        let expired = self.expired("purge_archived", expired);
        inner.purge_archived(&expired, keys).await
    }

    async fn count(&self, inner: &MemoryStore, filter: &Filter) -> Result<u64> {
        inner.count(&self.filter("count", filter)).await
    }

    async fn list(&self, inner: &MemoryStore, filter: &Filter, page: &Page) -> Result<Listing> {
        inner.list(&self.filter("list", filter), page).await
    }

    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let filter = self.filter("replay_slice", filter);
        inner.replay_slice(&filter, slice).await
    }

    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let filter = self.filter("discard_slice", filter);
        inner.discard_slice(&filter, slice).await
    }
}

/// Due times without fractions of seconds.
pub(crate) struct DueInSeconds;

#[async_trait]
impl Defect for DueInSeconds {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let messages: Vec<_> = messages
            .iter()
            .map(|message| match message.due() {
                Due::At(moment) => {
                    let since = moment.duration_since(SystemTime::UNIX_EPOCH);
                    let whole = in_seconds(since.unwrap_or_default());
                    let moment = SystemTime::UNIX_EPOCH + whole;
                    message.clone().with_due(Due::At(moment))
                }
                _ => message.clone(),
            })
            .collect();
        inner.receive(&messages).await
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

/// Not less than a second.
pub(crate) fn at_least_a_second(length: Duration) -> Duration {
    length.max(Duration::from_secs(1))
}

/// Not more than an hour.
pub(crate) fn capped(length: Duration) -> Duration {
    length.min(HOUR)
}
