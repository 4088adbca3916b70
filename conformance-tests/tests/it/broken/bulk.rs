//! Defects of slices.

use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use inbox_api::{
    ClaimRequest, Claims, Edit, Error, ErrorKind, Filter, Intervention, Key, Message, Operate as _,
    OrderingKey, Outcome, Page, Progress, PurgeRequest, Receipt, Result, Settled, Settlement,
    Slice, State, Statistics, Store as _, StoreExt as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// A slice that means something else than its filter says.
pub(crate) struct Misreads {
    pub(crate) operation: &'static str,
    pub(crate) filter: fn(&mut Filter),
}

pub(crate) fn replays(filter: fn(&mut Filter)) -> Misreads {
    let operation = "replay_slice";
    Misreads { operation, filter }
}

pub(crate) fn discards(filter: fn(&mut Filter)) -> Misreads {
    let operation = "discard_slice";
    Misreads { operation, filter }
}

impl Misreads {
    fn read(&self, operation: &str, filter: &Filter) -> Filter {
        let mut filter = filter.clone();
        if operation == self.operation {
            (self.filter)(&mut filter);
        }
        filter
    }
}

#[async_trait]
impl Defect for Misreads {
    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let filter = self.read("replay_slice", filter);
        inner.replay_slice(&filter, slice).await
    }

    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let filter = self.read("discard_slice", filter);
        inner.discard_slice(&filter, slice).await
    }
}

pub(crate) fn any_state(filter: &mut Filter) {
    filter.states = State::ALL.to_vec();
}

pub(crate) fn only_the_first_state(filter: &mut Filter) {
    filter.states.truncate(1);
}

pub(crate) fn any_handler(filter: &mut Filter) {
    filter.handler = None;
}

pub(crate) fn any_kind(filter: &mut Filter) {
    filter.kind = None;
}

pub(crate) fn any_ordering_key(filter: &mut Filter) {
    filter.ordering_key = None;
}

pub(crate) fn of_any_age(filter: &mut Filter) {
    filter.older_than = None;
}

pub(crate) fn however_old(filter: &mut Filter) {
    filter.newer_than = None;
}

pub(crate) fn with_any_error(filter: &mut Filter) {
    filter.error_contains = None;
}

pub(crate) fn without_text_for_none(filter: &mut Filter) {
    filter.error_contains = filter.error_contains.take().filter(|text| !text.is_empty());
}

/// What an operation sets free stays blocked.
#[derive(Default)]
pub(crate) struct Sticks {
    operation: &'static str,
    stuck: Mutex<HashSet<OrderingKey>>,
}

pub(crate) fn sticks_after(operation: &'static str) -> Sticks {
    Sticks {
        operation,
        stuck: Mutex::default(),
    }
}

async fn blocked(inner: &MemoryStore) -> Result<HashSet<OrderingKey>> {
    let page = Page::first(Page::MAX);
    let records = inner.list(&Filter::default(), &page).await?.records;
    let blocks = records
        .into_iter()
        .filter(|record| record.blocks_ordering_key);
    Ok(blocks.filter_map(|record| record.ordering_key).collect())
}

impl Sticks {
    async fn around<T>(
        &self,
        operation: &str,
        inner: &MemoryStore,
        change: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if operation != self.operation {
            return change.await;
        }
        let before = blocked(inner).await?;
        let answer = change.await?;
        let after = blocked(inner).await?;
        let freed = before.difference(&after).cloned();
        self.stuck.lock().unwrap().extend(freed);
        Ok(answer)
    }
}

#[async_trait]
impl Defect for Sticks {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = inner.claim(request).await?;
        let mut kept = Vec::new();
        for leased in claims.leased {
            let key = leased.message.ordering_key();
            let stuck = key.is_some_and(|key| self.stuck.lock().unwrap().contains(key));
            if stuck {
                let _ = inner.settle_one(&leased.lease, Outcome::Release).await?;
            } else {
                kept.push(leased);
            }
        }
        claims.leased = kept;
        Ok(claims)
    }

    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        self.around("replay", inner, inner.replay(key, edit)).await
    }

    async fn discard(&self, inner: &MemoryStore, key: &Key) -> Result<Intervention> {
        self.around("discard", inner, inner.discard(key)).await
    }

    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let change = inner.replay_slice(filter, slice);
        self.around("replay_slice", inner, change).await
    }

    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let change = inner.discard_slice(filter, slice);
        self.around("discard_slice", inner, change).await
    }

    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        self.around("purge", inner, inner.purge(expired)).await
    }

    async fn purge_archived(
        &self,
        inner: &MemoryStore,
        expired: &PurgeRequest,
        keys: &[Key],
    ) -> Result<u64> {
        let change = inner.purge_archived(expired, keys);
        self.around("purge_archived", inner, change).await
    }
}

/// A slice of pending messages stops at what is behind an earlier one of its ordering key.
pub(crate) struct SparesWhatWaits;

#[async_trait]
impl Defect for SparesWhatWaits {
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
        let listing = inner.list(filter, &page).await?;
        let mut changed = 0;
        for record in listing.records {
            if record.ordering_key.is_none()
                && inner.discard(&record.key).await? == Intervention::Done
            {
                changed += 1;
            }
        }
        let next = listing.next;
        Ok(Progress { changed, next })
    }
}

/// A discard of pending messages hands the next of their ordering key out along with the one that is held.
#[derive(Default)]
pub(crate) struct DiscardsLetGo(Mutex<Option<OrderingKey>>);

#[async_trait]
impl Defect for DiscardsLetGo {
    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let page = Page::first(slice.limit);
        let chosen = inner.list(filter, &page).await?.records;
        *self.0.lock().unwrap() = chosen.into_iter().find_map(|record| record.ordering_key);
        inner.discard_slice(filter, slice).await
    }

    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let claims = inner.claim(request).await?;
        let free = self.0.lock().unwrap().take();
        let Some(key) = free.filter(|_| claims.leased.is_empty()) else {
            return Ok(claims);
        };
        // The first is let go, so that the second can be had, and the first again.
        let of_key = Filter {
            states: vec![State::Pending],
            ordering_key: Some(key),
            ..Filter::default()
        };
        let next = inner.list(&of_key, &Page::first(1)).await?.records;
        for record in next {
            let message = inner
                .get(&record.key)
                .await?
                .and_then(|record| record.message());
            let Some(message) = message else { continue };
            let copy = Message::new(
                message.handler().clone(),
                inbox_api::MessageId::new("set free").unwrap(),
                message.kind().clone(),
                message.payload().clone(),
            );
            let _ = inner.receive_one(&copy).await?;
        }
        inner.claim(request).await
    }
}

/// A tally that an operation does not keep.
pub(crate) struct Miscounts {
    operation: &'static str,
    missing: AtomicU64,
}

pub(crate) fn miscounts(operation: &'static str) -> Miscounts {
    Miscounts {
        operation,
        missing: AtomicU64::new(0),
    }
}

impl Miscounts {
    fn note(&self, operation: &str, changed: u64) {
        if operation == self.operation {
            self.missing.fetch_add(changed, Ordering::SeqCst);
        }
    }
}

#[async_trait]
impl Defect for Miscounts {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let receipts = inner.receive(messages).await?;
        let duplicates = receipts
            .iter()
            .filter(|r| **r == Receipt::Duplicate { differs: false });
        self.note("receive", duplicates.count() as u64);
        Ok(receipts)
    }

    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut again = 0;
        for settlement in batch {
            let record = inner.get(&settlement.lease.key).await?;
            again += u64::from(record.is_some_and(|record| record.state != State::Leased));
        }
        self.note("settle", again);
        inner.settle(batch).await
    }

    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        self.note("replay", 1);
        inner.replay(key, edit).await
    }

    async fn discard(&self, inner: &MemoryStore, key: &Key) -> Result<Intervention> {
        self.note("discard", 1);
        inner.discard(key).await
    }

    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let progress = inner.replay_slice(filter, slice).await?;
        self.note("replay_slice", progress.changed);
        Ok(progress)
    }

    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let progress = inner.discard_slice(filter, slice).await?;
        self.note("discard_slice", progress.changed);
        Ok(progress)
    }

    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        let purged = inner.purge(expired).await?;
        self.note("purge", purged);
        Ok(purged)
    }

    async fn purge_archived(
        &self,
        inner: &MemoryStore,
        expired: &PurgeRequest,
        keys: &[Key],
    ) -> Result<u64> {
        let purged = inner.purge_archived(expired, keys).await?;
        self.note("purge_archived", purged);
        Ok(purged)
    }

    async fn statistics(&self, inner: &MemoryStore) -> Result<Statistics> {
        let mut statistics = inner.statistics().await?;
        if let Some(first) = statistics.handlers.first_mut() {
            first.pending += self.missing.load(Ordering::SeqCst);
        }
        Ok(statistics)
    }
}

/// What a slice of replays does at a message without a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtDropped {
    Ends,
    Fails,
    Counts,
}

#[async_trait]
impl Defect for AtDropped {
    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let page = Page {
            after: slice.after.clone(),
            ..Page::first(slice.limit)
        };
        let listing = inner.list(filter, &page).await?;
        let mut progress = Progress {
            changed: 0,
            next: listing.next,
        };
        for record in listing.records {
            if inner.replay(&record.key, &Edit::default()).await? != Intervention::PayloadDropped {
                progress.changed += 1;
                continue;
            }
            match self {
                Self::Ends => {
                    progress.next = None;
                    break;
                }
                Self::Fails => {
                    let text = "the payload is null";
                    return Err(Error::new(ErrorKind::Other, text).in_operation("replay_slice"));
                }
                Self::Counts => progress.changed += 1,
            }
        }
        Ok(progress)
    }
}
