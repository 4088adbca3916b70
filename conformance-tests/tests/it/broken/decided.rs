//! Defects where the documentation decides between two answers that both seem right.

use std::{collections::HashMap, sync::Mutex, time::SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use inbox_api::{
    Begun, Cursor, Edit, Error, Extended, Filter, Intervention, Key, Lease, LeaseTerms, Listing,
    Message, Operate as _, Page, Progress, PurgeRequest, Receipt, Record, Result, Settled,
    Settlement, Slice, State, Store as _, StoreExt as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// A slice of nothing has a next, at which a loop stays for ever.
pub(crate) struct SlicesOfNothingGoOn;

fn on_from(slice: &Slice, mut progress: Progress) -> Progress {
    if slice.limit == 0 {
        let here = slice.after.clone();
        progress.next = here.or_else(|| Some(Cursor::from(0)));
    }
    progress
}

#[async_trait]
impl Defect for SlicesOfNothingGoOn {
    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let progress = inner.replay_slice(filter, slice).await?;
        Ok(on_from(slice, progress))
    }

    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        let progress = inner.discard_slice(filter, slice).await?;
        Ok(on_from(slice, progress))
    }
}

/// What was dead and is discarded keeps the time of its death.
#[derive(Default)]
pub(crate) struct KeepsTimeOfDeath(Mutex<HashMap<Key, SystemTime>>);

#[async_trait]
impl Defect for KeepsTimeOfDeath {
    async fn discard(&self, inner: &MemoryStore, key: &Key) -> Result<Intervention> {
        let died = inner.get(key).await?.and_then(|record| record.finished_at);
        if let Some(died) = died {
            self.0.lock().unwrap().insert(key.clone(), died);
        }
        inner.discard(key).await
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        if let (Some(record), Some(died)) = (&mut record, self.0.lock().unwrap().get(key)) {
            record.finished_at = record.finished_at.and(Some(*died));
        }
        Ok(record)
    }
}

/// The end of a lease is shown as long as nobody else has the message.
pub(crate) fn the_end_of_a_lease_that_ran_out(record: &mut Record) {
    if record.state == State::Pending && record.attempts.crashed(false) > 0 {
        record.lease_until.get_or_insert(record.due_at);
    }
}

pub(crate) fn a_result_after_a_replay(record: &mut Record) {
    if record.replays > 0 && record.state == State::Pending {
        record.result.get_or_insert(Bytes::from_static(b"old"));
    }
}

pub(crate) fn an_error_after_a_replay(record: &mut Record) {
    if record.replays > 0 && record.state == State::Pending {
        record.last_error.get_or_insert("gave up".into());
    }
}

pub(crate) fn no_error_after_success(record: &mut Record) {
    if record.state == State::Processed {
        record.last_error = None;
    }
}

/// Whichever message is discarded, its ordering key goes on.
pub(crate) struct LiftsEveryBlock;

#[async_trait]
impl Defect for LiftsEveryBlock {
    async fn discard(&self, inner: &MemoryStore, key: &Key) -> Result<Intervention> {
        let discarded = inner.discard(key).await?;
        let same_key = Filter {
            states: vec![State::Dead],
            ordering_key: inner.get(key).await?.and_then(|r| r.ordering_key),
            ..Filter::default()
        };
        if same_key.ordering_key.is_some() {
            let all = inner.list(&same_key, &Page::first(100)).await?.records;
            for blocking in all.iter().filter(|record| record.blocks_ordering_key) {
                let _ = inner.discard(&blocking.key).await?;
            }
        }
        Ok(discarded)
    }
}

/// Every death blocks, whether there is anything to block or not.
pub(crate) fn a_block_without_a_key(record: &mut Record) {
    record.blocks_ordering_key |= record.state == State::Dead;
}

/// What has expired comes in order of acceptance.
pub(crate) struct ExpiredAsAccepted;

#[async_trait]
impl Defect for ExpiredAsAccepted {
    async fn expired(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<Listing> {
        let mut listing = inner.expired(expired).await?;
        listing
            .records
            .sort_by_key(|record| record.cursor.sequence().unwrap());
        Ok(listing)
    }
}

/// An intervention takes the token away from who settled before it.
pub(crate) struct InterventionsDrawTokens;

#[async_trait]
impl Defect for InterventionsDrawTokens {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut taken = Vec::new();
        for Settlement { lease, .. } in batch {
            taken.push(inner.get(&lease.key).await?.is_some_and(|record| {
                record.state == State::Discarded
                    || record.replays > 0 && record.state == State::Pending
            }));
        }
        let mut answers = inner.settle(batch).await?;
        for (answer, taken) in answers.iter_mut().zip(taken) {
            if taken {
                *answer = Settled::LeaseLost;
            }
        }
        Ok(answers)
    }
}

/// Looks whether it knows a key before it looks at the size.
pub(crate) struct KnownBeforeSize;

#[async_trait]
impl Defect for KnownBeforeSize {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut receipts = Vec::new();
        for message in messages {
            let is_known = inner.get(message.key()).await?.is_some();
            let receipt = inner.receive_one(message).await?;
            receipts.push(match receipt {
                Receipt::Refused(_) if is_known => Receipt::Duplicate { differs: false },
                other => other,
            });
        }
        Ok(receipts)
    }
}

/// The same when it begins.
pub(crate) struct BeginsKnownBeforeSize;

#[async_trait]
impl Defect for BeginsKnownBeforeSize {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        match inner.get(message.key()).await?.and_then(|r| r.message()) {
            Some(stored) => inner.begin(&stored, terms).await,
            None => inner.begin(message, terms).await,
        }
    }
}

/// What it refuses it is not sure of.
pub(crate) struct NeverSure;

fn unsure(error: Error) -> Error {
    error.with_effect(inbox_api::Effect::Unknown)
}

#[async_trait]
impl Defect for NeverSure {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        inner.begin(message, terms).await.map_err(unsure)
    }

    async fn extend(
        &self,
        inner: &MemoryStore,
        leases: &[Lease],
        length: std::time::Duration,
    ) -> Result<Vec<Extended>> {
        inner.extend(leases, length).await.map_err(unsure)
    }

    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        inner.replay(key, edit).await.map_err(unsure)
    }
}

/// What happens when the store is away is done, and denied.
pub(crate) struct DoneAndDenied(pub(crate) &'static str);

impl Defect for DoneAndDenied {
    fn denied(&self) -> &'static str {
        self.0
    }
}
