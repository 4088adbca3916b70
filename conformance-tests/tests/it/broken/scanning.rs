//! Operations that look at everything.

use std::time::Duration;

use async_trait::async_trait;
use inbox_api::{
    Begun, ClaimRequest, Claims, Extended, Filter, Key, Lease, LeaseTerms, Listing, Message,
    Operate as _, Page, PurgeRequest, Receipt, Record, Result, Settled, Settlement, State,
    Statistics, Store as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// What it takes to look at one message.
const LOOK: Duration = Duration::from_micros(2);

/// One operation looks at all messages of a state.
pub(crate) struct Scans {
    pub(crate) operation: &'static str,
    pub(crate) state: State,
}

pub(crate) fn the_history(operation: &'static str) -> Scans {
    Scans {
        operation,
        state: State::Processed,
    }
}

pub(crate) fn the_backlog(operation: &'static str) -> Scans {
    Scans {
        operation,
        state: State::Pending,
    }
}

impl Scans {
    async fn at(&self, inner: &MemoryStore, operation: &str) -> Result<()> {
        if self.operation == operation {
            let rows = inner.statistics().await?.count(self.state);
            tokio::time::sleep(LOOK * u32::try_from(rows).unwrap()).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Defect for Scans {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.at(inner, "receive").await?;
        inner.receive(messages).await
    }

    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        self.at(inner, "claim").await?;
        inner.claim(request).await
    }

    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        self.at(inner, "settle").await?;
        inner.settle(batch).await
    }

    async fn extend(
        &self,
        inner: &MemoryStore,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Extended>> {
        self.at(inner, "extend").await?;
        inner.extend(leases, length).await
    }

    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        self.at(inner, "begin").await?;
        inner.begin(message, terms).await
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        self.at(inner, "get").await?;
        inner.get(key).await
    }

    async fn list(&self, inner: &MemoryStore, filter: &Filter, page: &Page) -> Result<Listing> {
        self.at(inner, "list").await?;
        inner.list(filter, page).await
    }

    async fn statistics(&self, inner: &MemoryStore) -> Result<Statistics> {
        self.at(inner, "statistics").await?;
        inner.statistics().await
    }

    async fn expired(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<Listing> {
        self.at(inner, "expired").await?;
        inner.expired(expired).await
    }

    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        self.at(inner, "purge").await?;
        inner.purge(expired).await
    }
}
