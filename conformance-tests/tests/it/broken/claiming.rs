//! Defects of claim and begin.

use std::{collections::HashMap, sync::Mutex, time::SystemTime};

use async_trait::async_trait;
use inbox_api::{
    Begun, ClaimRequest, Claims, Extended, Key, LeaseTerms, Leased, Message, Operate, Record,
    Result, Store,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// The end of a lease is reckoned by the worker's clock.
pub(crate) struct LocalClock;

#[async_trait]
impl Defect for LocalClock {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = inner.claim(request).await?;
        for leased in &mut claims.leased {
            let length = request.terms.length();
            let now = leased.lease.until - length;
            let local = SystemTime::now() + length;
            let left = local.duration_since(now).unwrap_or_default();
            let left = left.max(LeaseTerms::MIN);
            let extended = inner
                .extend(std::slice::from_ref(&leased.lease), left)
                .await?;
            if let Some(Extended::Until(until)) = extended.first() {
                leased.lease.until = *until;
            }
        }
        Ok(claims)
    }
}

/// Only attempts that come back are counted.
pub(crate) struct CrashNotCounted;

#[async_trait]
impl Defect for CrashNotCounted {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = inner.claim(request).await?;
        for leased in &mut claims.leased {
            leased.attempts.started = leased.attempts.finished + 1;
        }
        Ok(claims)
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        if let Some(record) = &mut record {
            record.attempts.started = record.attempts.finished;
        }
        Ok(record)
    }
}

/// What a worker has taken stays taken, whatever becomes of the worker.
pub(crate) struct NoRecovery;

#[async_trait]
impl Defect for NoRecovery {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let claims = inner.claim(request).await?;
        for leased in &claims.leased {
            let _ = inner
                .extend(std::slice::from_ref(&leased.lease), LeaseTerms::MAX)
                .await?;
        }
        Ok(claims)
    }
}

/// Looks whether anybody runs the key, and runs it if not: two at once both do.
#[derive(Default)]
pub(crate) struct TwoBeginners {
    last: Mutex<HashMap<Key, Leased>>,
}

#[async_trait]
impl Defect for TwoBeginners {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        let unknown = inner.get(message.key()).await?.is_none();
        tokio::task::yield_now().await;
        let begun = inner.begin(message, terms).await?;
        let mut last = self.last.lock().unwrap();
        if let Begun::Run(leased) = &begun {
            last.insert(message.key().clone(), (**leased).clone());
        }
        match last.get(message.key()) {
            Some(leased) if unknown => Ok(Begun::Run(Box::new(leased.clone()))),
            _ => Ok(begun),
        }
    }
}

/// A claim says of so many of its messages how often they were replayed; the others were never, it says.
pub(crate) struct ReplaysToldOf(pub(crate) usize);

#[async_trait]
impl Defect for ReplaysToldOf {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = inner.claim(request).await?;
        for leased in claims.leased.iter_mut().skip(self.0) {
            leased.replays = 0;
        }
        Ok(claims)
    }
}

/// Only a claim says how often a message was replayed.
pub(crate) struct ReplaysUntoldInline;

#[async_trait]
impl Defect for ReplaysUntoldInline {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        let mut begun = inner.begin(message, terms).await?;
        if let Begun::Run(leased) = &mut begun {
            leased.replays = 0;
        }
        Ok(begun)
    }
}
