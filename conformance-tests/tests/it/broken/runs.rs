//! Defects of runs.

use std::{sync::Mutex, time::Duration};

use async_trait::async_trait;
use inbox_api::{ClaimRequest, Claims, Extended, Lease, Leased, Operate, Result, Store};
use inbox_memory::MemoryStore;

use super::Defect;

/// Makes another run limit of the one that was asked for.
pub(crate) struct OtherRunLimits(pub(crate) fn(u32) -> u32);

#[async_trait]
impl Defect for OtherRunLimits {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let other = ClaimRequest {
            run_limit: (self.0)(request.run_limit),
            ..request.clone()
        };
        inner.claim(&other).await
    }
}

/// Hands out in another order than the one that was claimed.
pub(crate) struct RunsInOrderOf(pub(crate) fn(&mut Vec<Leased>));

#[async_trait]
impl Defect for RunsInOrderOf {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = inner.claim(request).await?;
        (self.0)(&mut claims.leased);
        Ok(claims)
    }
}

/// A lease that has run out is revived with the first of its run or not at all.
#[derive(Default)]
pub(crate) struct RevivesTheFirstOnly {
    behind: Mutex<Vec<Lease>>,
}

#[async_trait]
impl Defect for RevivesTheFirstOnly {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let claims = inner.claim(request).await?;
        let behind = claims.leased.windows(2).filter(|pair| {
            let key = pair[1].message.ordering_key();
            key.is_some() && pair[0].message.ordering_key() == key
        });
        let behind = behind.map(|pair| pair[1].lease.clone());
        self.behind.lock().unwrap().extend(behind);
        Ok(claims)
    }

    async fn extend(
        &self,
        inner: &MemoryStore,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Extended>> {
        if let [lease] = leases
            && self.behind.lock().unwrap().contains(lease)
            && let Some(record) = inner.get(&lease.key).await?
            && record.lease_until.is_none()
        {
            return Ok(vec![Extended::LeaseLost]);
        }
        inner.extend(leases, length).await
    }
}
