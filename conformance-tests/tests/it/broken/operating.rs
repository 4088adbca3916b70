//! Defects of the operator's side.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    Attempts, ClaimRequest, Claims, Cursor, Edit, Filter, HandlerName, Intervention, Key, Listing,
    Operate, Page, Progress, PurgeRequest, Record, Result, Slice, State, Statistics, Store,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// Age alone decides, whatever the state.
pub(crate) struct PurgeTakesPending;

#[async_trait]
impl Defect for PurgeTakesPending {
    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        let filter = Filter {
            states: vec![State::Pending],
            older_than: Some(expired.older_than()),
            ..Filter::default()
        };
        let slice = Slice {
            after: None,
            limit: expired.limit(),
        };
        let taken = inner.discard_slice(&filter, &slice).await?.changed;
        if taken > 0 {
            let all = PurgeRequest::new(State::Discarded, Duration::ZERO, expired.limit())
                .map_err(|e| e.in_operation("purge"))?;
            return inner.purge(&all).await;
        }
        inner.purge(expired).await
    }
}

/// Processed keys go with the next purge, whatever their age.
pub(crate) struct PurgeForgetsEarly;

#[async_trait]
impl Defect for PurgeForgetsEarly {
    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        let all = PurgeRequest::new(expired.state(), Duration::ZERO, expired.limit())
            .map_err(|e| e.in_operation("purge"))?;
        inner.purge(&all).await
    }
}

/// A replay makes a message pending and leaves its attempts as they are.
#[derive(Default)]
pub(crate) struct ReplayKeepsAttempts(Mutex<HashMap<Key, Attempts>>);

impl ReplayKeepsAttempts {
    fn add(&self, key: &Key, attempts: &mut Attempts) {
        if let Some(before) = self.0.lock().unwrap().get(key) {
            attempts.started += before.started;
            attempts.finished += before.finished;
        }
    }
}

#[async_trait]
impl Defect for ReplayKeepsAttempts {
    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        let before = inner.get(key).await?.map(|record| record.attempts);
        let answer = inner.replay(key, edit).await?;
        if let (Intervention::Done, Some(before)) = (answer, before) {
            self.0.lock().unwrap().insert(key.clone(), before);
        }
        Ok(answer)
    }

    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = inner.claim(request).await?;
        for leased in &mut claims.leased {
            self.add(&leased.lease.key, &mut leased.attempts);
        }
        Ok(claims)
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        if let Some(record) = &mut record {
            self.add(key, &mut record.attempts);
        }
        Ok(record)
    }
}

/// `LIMIT … OFFSET …`.
pub(crate) struct PagingByOffset;

#[async_trait]
impl Defect for PagingByOffset {
    async fn list(&self, inner: &MemoryStore, filter: &Filter, page: &Page) -> Result<Listing> {
        let offset = match &page.after {
            Some(after) => after.sequence().map_err(|e| e.in_operation("list"))?,
            None => 0,
        };
        let all = Page {
            after: None,
            limit: Page::MAX,
            ..page.clone()
        };
        let records = inner.list(filter, &all).await?.records;
        let from = usize::try_from(offset).unwrap_or(0).min(records.len());
        let to = from
            .saturating_add(usize::try_from(page.limit).unwrap_or(usize::MAX))
            .min(records.len());
        let next = (page.limit > 0 && to < records.len())
            .then(|| Cursor::from(i64::try_from(to).unwrap_or(i64::MAX)));
        Ok(Listing {
            records: records[from..to].to_vec(),
            corrupt: Vec::new(),
            next,
        })
    }
}

/// Every slice starts at the front, so what dies again is replayed again, for ever.
pub(crate) struct LoopingSlices;

#[async_trait]
impl Defect for LoopingSlices {
    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let front = Slice {
            after: None,
            limit: slice.limit,
        };
        inner.replay_slice(filter, &front).await
    }
}

/// A slice of which others have changed a row counts as the last one.
pub(crate) struct SlicesEndEarly;

#[async_trait]
impl Defect for SlicesEndEarly {
    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let page = Page {
            after: slice.after.clone(),
            ..Page::first(slice.limit)
        };
        let mut progress = Progress {
            changed: 0,
            next: None,
        };
        let records = inner.list(filter, &page).await?.records;
        // What a round trip takes.
        tokio::time::sleep(Duration::from_millis(5)).await;
        for record in records {
            if inner.discard(&record.key).await? == Intervention::Done {
                progress.changed += 1;
                progress.next = Some(record.cursor);
            }
        }
        if progress.changed < u64::from(slice.limit) {
            progress.next = None;
        }
        Ok(progress)
    }
}

/// A tally of dead messages that block, from which nobody takes those that do so no more.
#[derive(Default)]
pub(crate) struct NeverUnblocked(Mutex<HashMap<HandlerName, u64>>);

#[async_trait]
impl Defect for NeverUnblocked {
    async fn statistics(&self, inner: &MemoryStore) -> Result<Statistics> {
        let mut statistics = inner.statistics().await?;
        let mut seen = self.0.lock().unwrap();
        for handler in &mut statistics.handlers {
            let most = seen.entry(handler.handler.clone()).or_default();
            *most = handler.blocking.max(*most);
            handler.blocking = *most;
        }
        Ok(statistics)
    }
}
