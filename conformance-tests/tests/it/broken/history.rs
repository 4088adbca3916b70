//! Defects of the history of attempts, and of when the last one was leased.

use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{
    AttemptEnd, Begun, Extended, Filter, History, Intervention, InterventionKind, Key, Lease,
    LeaseTerms, Listing, Message, Operate as _, OperatorName, Page, PastAttempt, PurgeRequest,
    Record, Result, Settled, Settlement, State, Store as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

type Histories = HashMap<Key, Vec<PastAttempt>>;

/// What of the past attempts of a message, all of them, is shown as its history.
type Show = fn(Vec<PastAttempt>) -> Vec<PastAttempt>;

/// Keeps every past attempt by itself, whatever becomes of the message.
pub(crate) struct Keeps {
    histories: Mutex<Histories>,
    /// Whether a settlement that repeats another is kept as well.
    repetitions: bool,
    show: Show,
}

pub(crate) fn keeps(show: Show) -> Keeps {
    Keeps {
        histories: Mutex::default(),
        repetitions: false,
        show,
    }
}

pub(crate) fn keeps_repetitions() -> Keeps {
    Keeps {
        repetitions: true,
        ..keeps(all)
    }
}

pub(crate) fn all(history: Vec<PastAttempt>) -> Vec<PastAttempt> {
    history
}

pub(crate) fn the_oldest(mut history: Vec<PastAttempt>) -> Vec<PastAttempt> {
    history.truncate(History::KEPT);
    history
}

#[async_trait]
impl Defect for Keeps {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let settled = inner.settle(batch).await?;
        for settlement in batch {
            let key = &settlement.lease.key;
            let record = inner.get(key).await?;
            let mut histories = self.histories.lock().unwrap();
            let history = histories.entry(key.clone()).or_default();
            if let Some(newest) = record.and_then(|record| record.history.last().cloned())
                && AttemptEnd::of(&settlement.outcome).is_some()
                && (self.repetitions || history.last() != Some(&newest))
            {
                history.push(newest);
            }
        }
        Ok(settled)
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let record = inner.get(key).await?;
        let histories = self.histories.lock().unwrap();
        let kept = histories.get(key).cloned();
        Ok(record.map(|record| Record {
            history: (self.show)(kept.unwrap_or_default()),
            ..record
        }))
    }

    fn is_the_servers(&self) -> bool {
        true
    }
}

pub(crate) fn of_this_life(record: &mut Record) {
    let replays = record.replays;
    record.history.retain(|past| past.replays == replays);
}

pub(crate) fn not_of_the_discarded(record: &mut Record) {
    if record.state == State::Discarded {
        record.history.clear();
    }
}

pub(crate) fn not_without_payload(record: &mut Record) {
    if record.payload_bytes.is_none() {
        record.history.clear();
    }
}

pub(crate) fn with_the_replays_of_now(record: &mut Record) {
    for past in &mut record.history {
        past.replays = record.replays;
    }
}

pub(crate) fn with_the_last_worker(record: &mut Record) {
    if let Some(worker) = &record.worker {
        for past in &mut record.history {
            past.worker = worker.clone();
        }
    }
}

pub(crate) fn with_whole_errors(record: &mut Record) {
    if let (Some(past), Some(error)) = (record.history.last_mut(), &record.last_error) {
        past.error.clone_from(error);
    }
}

pub(crate) fn numbered_after_the_deferral(record: &mut Record) {
    for past in &mut record.history {
        past.attempt -= u32::from(past.end == AttemptEnd::Deferred);
    }
}

pub(crate) fn numbered_by_place(record: &mut Record) {
    for (past, number) in record.history.iter_mut().zip(1..) {
        past.attempt = number;
    }
}

pub(crate) fn without_deferrals(record: &mut Record) {
    record
        .history
        .retain(|past| past.end != AttemptEnd::Deferred);
}

pub(crate) fn without_the_dead(record: &mut Record) {
    record.history.retain(|past| past.end != AttemptEnd::Dead);
}

pub(crate) fn newest_first(record: &mut Record) {
    record.history.reverse();
}

pub(crate) fn in_no_time(record: &mut Record) {
    for past in &mut record.history {
        past.leased_at = past.ended_at;
    }
}

pub(crate) fn with_the_processed(record: &mut Record) {
    if let (State::Processed, Some(worker), Some(leased_at), Some(ended_at)) = (
        record.state,
        record.worker.clone(),
        record.leased_at,
        record.finished_at,
    ) {
        record.history.push(PastAttempt {
            attempt: record.attempts.started,
            replays: record.replays,
            worker,
            leased_at,
            ended_at,
            end: AttemptEnd::Retried,
            error: String::new(),
        });
    }
}

pub(crate) fn leased_while_it_is(record: &mut Record) {
    record.leased_at = record.leased_at.filter(|_| record.state == State::Leased);
}

pub(crate) fn leased_from_the_start(record: &mut Record) {
    record.leased_at.get_or_insert(record.accepted_at);
}

/// Of a batch, each message gets the history of the one before it.
#[derive(Default)]
pub(crate) struct ShiftedInABatch(Mutex<HashMap<Key, Key>>);

#[async_trait]
impl Defect for ShiftedInABatch {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut shifted = self.0.lock().unwrap().clone();
        for two in batch.windows(2) {
            shifted.insert(two[1].lease.key.clone(), two[0].lease.key.clone());
        }
        *self.0.lock().unwrap() = shifted;
        inner.settle(batch).await
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        let before = self.0.lock().unwrap().get(key).cloned();
        if let (Some(record), Some(before)) = (&mut record, before) {
            let other = inner.get(&before).await?;
            record.history = other.map(|other| other.history).unwrap_or_default();
        }
        Ok(record)
    }
}

/// What is begun inline leaves no history.
#[derive(Default)]
pub(crate) struct NotInline(Mutex<HashSet<Key>>);

#[async_trait]
impl Defect for NotInline {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        self.0.lock().unwrap().insert(message.key().clone());
        inner.begin(message, terms).await
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        if let Some(record) = &mut record
            && self.0.lock().unwrap().contains(key)
        {
            record.history.clear();
        }
        Ok(record)
    }
}

/// An extension is taken for a new lease.
#[derive(Default)]
pub(crate) struct LeasedWhenExtended(Mutex<HashSet<Key>>);

#[async_trait]
impl Defect for LeasedWhenExtended {
    async fn extend(
        &self,
        inner: &MemoryStore,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Extended>> {
        let keys = leases.iter().map(|lease| lease.key.clone());
        self.0.lock().unwrap().extend(keys);
        inner.extend(leases, length).await
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        if let Some(record) = &mut record
            && self.0.lock().unwrap().contains(key)
        {
            record.leased_at = record
                .leased_at
                .map(|leased_at| leased_at + Duration::from_millis(1));
        }
        Ok(record)
    }
}

/// The first lease of a message is shown for ever.
#[derive(Default)]
pub(crate) struct LeasedOnce(Mutex<HashMap<Key, Record>>);

#[async_trait]
impl Defect for LeasedOnce {
    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let record = inner.get(key).await?;
        let mut first = self.0.lock().unwrap();
        Ok(record.map(|record| {
            if record.leased_at.is_none() {
                return record;
            }
            let first = first.entry(key.clone()).or_insert_with(|| record.clone());
            Record {
                leased_at: first.leased_at,
                ..record
            }
        }))
    }
}

/// Listings have histories always, or never.
pub(crate) struct Lists {
    pub(crate) always: bool,
}

#[async_trait]
impl Defect for Lists {
    async fn list(&self, inner: &MemoryStore, filter: &Filter, page: &Page) -> Result<Listing> {
        let mut listing = inner.list(filter, page).await?;
        for record in &mut listing.records {
            let whole = inner.get(&record.key).await?.filter(|_| self.always);
            record.history = whole.map(|record| record.history).unwrap_or_default();
        }
        Ok(listing)
    }
}

/// An archive goes without.
pub(crate) struct ExpiredWithout;

#[async_trait]
impl Defect for ExpiredWithout {
    async fn expired(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<Listing> {
        let mut listing = inner.expired(expired).await?;
        for record in &mut listing.records {
            record.history.clear();
        }
        Ok(listing)
    }
}

pub(crate) fn without_interventions(record: &mut Record) {
    record.interventions.clear();
}

pub(crate) fn latest_intervention_first(record: &mut Record) {
    record.interventions.reverse();
}

pub(crate) fn edits_as_replays(record: &mut Record) {
    for note in &mut record.interventions {
        if note.kind == InterventionKind::Edited {
            note.kind = InterventionKind::Replayed;
        }
    }
}

pub(crate) fn until_the_next_attempt(record: &mut Record) {
    let last = record.history.last().map(|past| past.ended_at);
    record.interventions.retain(|note| Some(note.at) >= last);
}

/// Signs for those who did not ask for it.
pub(crate) struct SignsAnyway;

#[async_trait]
impl Defect for SignsAnyway {
    async fn discard(&self, inner: &MemoryStore, key: &Key) -> Result<Intervention> {
        let operator = OperatorName::new("the store").unwrap();
        inner.signed_by(&operator).discard(key).await
    }
}
