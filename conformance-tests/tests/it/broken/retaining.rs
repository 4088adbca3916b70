//! Defects of finer retention, and of clearing.

use std::{sync::Mutex, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    ClaimRequest, Claims, HandlerName, Key, Lease, Listing, Operate, Outcome, Progress,
    PurgeRequest, Result, Slice, State, Store, StoreExt,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// Another request than the operator's, for one operation.
pub(crate) struct Retains(pub(crate) Of, pub(crate) fn(&PurgeRequest) -> PurgeRequest);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Purge,
    Expired,
    Archived,
    Drop,
}

impl Retains {
    fn request(&self, of: Of, request: &PurgeRequest) -> PurgeRequest {
        if self.0 == of {
            self.1(request)
        } else {
            request.clone()
        }
    }
}

#[async_trait]
impl Defect for Retains {
    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        inner.purge(&self.request(Of::Purge, expired)).await
    }

    async fn expired(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<Listing> {
        inner.expired(&self.request(Of::Expired, expired)).await
    }

    async fn purge_archived(
        &self,
        inner: &MemoryStore,
        expired: &PurgeRequest,
        keys: &[Key],
    ) -> Result<u64> {
        let request = self.request(Of::Archived, expired);
        inner.purge_archived(&request, keys).await
    }

    async fn drop_payloads(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        inner.drop_payloads(&self.request(Of::Drop, expired)).await
    }
}

pub(crate) fn of_all_handlers(request: &PurgeRequest) -> PurgeRequest {
    PurgeRequest::new(request.state(), request.older_than(), request.limit()).unwrap()
}

pub(crate) fn of_any_age(request: &PurgeRequest) -> PurgeRequest {
    let all = PurgeRequest::new(request.state(), Duration::ZERO, request.limit()).unwrap();
    match request.handler() {
        Some(handler) => all.for_handler(handler.clone()),
        None => all,
    }
}

/// Key and all go with the payload.
pub(crate) struct DropPurges;

#[async_trait]
impl Defect for DropPurges {
    async fn drop_payloads(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        inner.purge(expired).await
    }
}

/// Looks at the longest-finished again and again, and counts them.
pub(crate) struct DropRescans;

#[async_trait]
impl Defect for DropRescans {
    async fn drop_payloads(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        let found = inner.expired(expired).await?.records.len() as u64;
        inner.drop_payloads(expired).await?;
        Ok(found)
    }
}

/// Works in slices, and passes on what the second fails with.
pub(crate) struct PurgesInSlices;

#[async_trait]
impl Defect for PurgesInSlices {
    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        let first = PurgeRequest::new(expired.state(), expired.older_than(), 100).unwrap();
        let purged = inner.purge(&first).await?;
        if purged < 100 {
            return Ok(purged);
        }
        Err(super::unavailable("purge"))
    }
}

/// What is being worked on is deleted under its worker.
#[derive(Default)]
pub(crate) struct ClearTakesLeased(Mutex<Vec<Lease>>);

#[async_trait]
impl Defect for ClearTakesLeased {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let claims = inner.claim(request).await?;
        let leases = claims.leased.iter().map(|leased| leased.lease.clone());
        self.0.lock().unwrap().extend(leases);
        Ok(claims)
    }

    async fn clear_slice(
        &self,
        inner: &MemoryStore,
        handler: &HandlerName,
        slice: &Slice,
    ) -> Result<Progress> {
        let leases: Vec<Lease> = self.0.lock().unwrap().drain(..).collect();
        for lease in leases.iter().filter(|lease| lease.key.handler == *handler) {
            let processed = Outcome::Processed { result: None };
            let _ = inner.settle_one(lease, processed).await?;
        }
        inner.clear_slice(handler, slice).await
    }
}

/// The history stays, and with it the keys.
pub(crate) struct ClearLeavesHistory;

#[async_trait]
impl Defect for ClearLeavesHistory {
    async fn clear_slice(
        &self,
        inner: &MemoryStore,
        handler: &HandlerName,
        slice: &Slice,
    ) -> Result<Progress> {
        let filter = inbox_api::Filter {
            handler: Some(handler.clone()),
            states: vec![State::Pending, State::Dead],
            ..inbox_api::Filter::default()
        };
        inner.discard_slice(&filter, slice).await
    }
}

/// Another slice than the operator's, or another end.
pub(crate) struct ClearSlices(
    pub(crate) fn(&Slice) -> Slice,
    pub(crate) fn(Progress) -> Progress,
);

#[async_trait]
impl Defect for ClearSlices {
    async fn clear_slice(
        &self,
        inner: &MemoryStore,
        handler: &HandlerName,
        slice: &Slice,
    ) -> Result<Progress> {
        let progress = inner.clear_slice(handler, &self.0(slice)).await?;
        Ok(self.1(progress))
    }
}

pub(crate) fn at_once(slice: &Slice) -> Slice {
    Slice {
        after: slice.after.clone(),
        limit: u32::MAX,
    }
}

pub(crate) fn as_asked(slice: &Slice) -> Slice {
    slice.clone()
}

pub(crate) fn to_the_end(progress: Progress) -> Progress {
    Progress {
        next: None,
        ..progress
    }
}

pub(crate) fn as_it_is(progress: Progress) -> Progress {
    progress
}

/// All handlers are cleared.
pub(crate) struct ClearTakesOthers;

#[async_trait]
impl Defect for ClearTakesOthers {
    async fn clear_slice(
        &self,
        inner: &MemoryStore,
        handler: &HandlerName,
        slice: &Slice,
    ) -> Result<Progress> {
        for other in inner.statistics().await?.handlers {
            if other.handler != *handler {
                inner.clear_slice(&other.handler, slice).await?;
            }
        }
        inner.clear_slice(handler, slice).await
    }
}
