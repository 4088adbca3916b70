//! Defects where a hurried author takes the documentation by half.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use inbox_api::{
    Begun, ClaimRequest, Claims, Extended, FencingToken, Filter, HandlerStatistics, Key, Lease,
    LeaseTerms, Leased, Listing, Message, Operate as _, Outcome, Page, Progress, PurgeRequest,
    Record, Result, Settled, Settlement, Slice, State, Statistics, Store as _, StoreExt as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// Gives back what is under a lease that has run out, before each claim and begin.
#[derive(Default)]
pub(crate) struct Sweeps(Mutex<HashMap<Key, Lease>>);

impl Sweeps {
    async fn sweep(&self, inner: &MemoryStore) -> Result<()> {
        let leases: Vec<Lease> = self.0.lock().unwrap().values().cloned().collect();
        for lease in leases {
            let state = inner.get(&lease.key).await?.map(|record| record.state);
            if state == Some(State::Pending) {
                let outcome = Outcome::Retry {
                    after: Duration::ZERO,
                    error: "its worker vanished".into(),
                };
                let _ = inner.settle_one(&lease, outcome).await?;
            }
        }
        Ok(())
    }

    fn note(&self, leased: &Leased) {
        let lease = leased.lease.clone();
        self.0.lock().unwrap().insert(lease.key.clone(), lease);
    }
}

#[async_trait]
impl Defect for Sweeps {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        self.sweep(inner).await?;
        let claims = inner.claim(request).await?;
        claims.leased.iter().for_each(|leased| self.note(leased));
        Ok(claims)
    }

    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        self.sweep(inner).await?;
        let begun = inner.begin(message, terms).await?;
        if let Begun::Run(leased) = &begun {
            self.note(leased);
        }
        Ok(begun)
    }
}

/// Orders by the due time alone, also where a lease ran out since.
pub(crate) struct OrdersByDueTime;

#[async_trait]
impl Defect for OrdersByDueTime {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut claims = inner.claim(request).await?;
        let mut due = HashMap::new();
        for leased in &claims.leased {
            let key = &leased.lease.key;
            due.insert(
                key.clone(),
                inner.get(key).await?.map(|record| record.due_at),
            );
        }
        claims.leased.sort_by_key(|leased| due[&leased.lease.key]);
        Ok(claims)
    }
}

/// A release makes a message due again.
#[derive(Default)]
pub(crate) struct DueAnew(Mutex<HashMap<Key, SystemTime>>);

#[async_trait]
impl Defect for DueAnew {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        for Settlement { lease, outcome } in batch {
            if *outcome == Outcome::Release {
                let mut due = self.0.lock().unwrap();
                due.insert(lease.key.clone(), lease.until);
            }
        }
        inner.settle(batch).await
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        if let (Some(record), Some(due)) = (&mut record, self.0.lock().unwrap().get(key)) {
            record.due_at = *due;
        }
        Ok(record)
    }
}

/// Looks at the ordering key first, and at the due time afterwards.
pub(crate) struct BlockedBeforeBusy;

#[async_trait]
impl Defect for BlockedBeforeBusy {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        let begun = inner.begin(message, terms).await?;
        let (Begun::Busy { .. }, Some(_)) = (&begun, message.ordering_key()) else {
            return Ok(begun);
        };
        let filter = Filter {
            ordering_key: message.ordering_key().cloned(),
            ..Filter::default()
        };
        let listing = inner.list(&filter, &Page::first(1)).await?;
        let first = listing.records.first();
        if first.is_some_and(|first| first.key != *message.key() && !first.state.is_final()) {
            return Ok(Begun::Blocked);
        }
        Ok(begun)
    }
}

/// Looks at the token first, and at the size of the result afterwards.
pub(crate) struct TokenBeforeSize;

#[async_trait]
impl Defect for TokenBeforeSize {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut answers = inner.settle(batch).await?;
        for (answer, settlement) in answers.iter_mut().zip(batch) {
            if matches!(answer, Settled::Refused(_))
                && inner
                    .extend_one(&settlement.lease, Duration::from_secs(60))
                    .await?
                    == Extended::LeaseLost
            {
                *answer = Settled::LeaseLost;
            }
        }
        Ok(answers)
    }
}

/// Without leases, nothing is looked at.
pub(crate) struct LengthUnchecked;

#[async_trait]
impl Defect for LengthUnchecked {
    async fn extend(
        &self,
        inner: &MemoryStore,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Extended>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        inner.extend(leases, length).await
    }
}

/// Pages what is expired as a listing is paged.
pub(crate) struct ExpiredHasPages;

#[async_trait]
impl Defect for ExpiredHasPages {
    async fn expired(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<Listing> {
        let mut listing = inner.expired(expired).await?;
        listing.next = listing.records.last().map(|record| record.cursor.clone());
        Ok(listing)
    }
}

/// Keeps in the process what it has settled.
#[derive(Default)]
pub(crate) struct SettledHere(Mutex<HashMap<Key, FencingToken>>);

#[async_trait]
impl Defect for SettledHere {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut answers = inner.settle(batch).await?;
        for (answer, Settlement { lease, .. }) in answers.iter_mut().zip(batch) {
            let leased_here = {
                let here = self.0.lock().unwrap();
                here.get(&lease.key) == Some(&lease.token)
            };
            if *answer == Settled::Done && !leased_here {
                *answer = Settled::LeaseLost;
            }
        }
        Ok(answers)
    }

    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let claims = inner.claim(request).await?;
        let mut here = self.0.lock().unwrap();
        for Leased { lease, .. } in &claims.leased {
            here.insert(lease.key.clone(), lease.token);
        }
        drop(here);
        Ok(claims)
    }
}

/// A replay takes the worker's name away.
pub(crate) fn no_worker_after_a_replay(record: &mut Record) {
    if record.replays > 0 && record.state == State::Pending {
        record.worker = None;
    }
}

/// A replay leaves the time of the end.
pub(crate) fn an_end_after_a_replay(record: &mut Record) {
    if record.replays > 0 {
        record.finished_at.get_or_insert(record.due_at);
    }
}

/// The time of an end is that of the acceptance.
pub(crate) fn finished_when_accepted(record: &mut Record) {
    if let Some(at) = &mut record.finished_at {
        *at = record.accepted_at;
    }
}

/// What slices change keeps its times, or gets those of its acceptance.
#[derive(Default)]
pub(crate) struct SlicesKeepTimes(AtomicBool);

#[async_trait]
impl Defect for SlicesKeepTimes {
    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        self.0.store(true, Ordering::SeqCst);
        inner.replay_slice(filter, slice).await
    }

    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        self.0.store(true, Ordering::SeqCst);
        inner.discard_slice(filter, slice).await
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        if let (Some(record), true) = (&mut record, self.0.load(Ordering::SeqCst)) {
            record.due_at = record.accepted_at;
            finished_when_accepted(record);
        }
        Ok(record)
    }
}

/// Lag in whole seconds.
pub(crate) fn lag_in_seconds(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        handler.lag = handler.lag.map(super::in_seconds);
    }
}

/// Age in whole seconds.
pub(crate) fn age_in_seconds(handlers: &mut Vec<HandlerStatistics>) {
    for handler in handlers {
        handler.oldest_due_age = handler.oldest_due_age.map(super::in_seconds);
    }
}

/// The lag of a lease that ran out goes on from before it.
pub(crate) struct LagThroughLeases;

#[async_trait]
impl Defect for LagThroughLeases {
    async fn statistics(&self, inner: &MemoryStore) -> Result<Statistics> {
        let mut statistics = inner.statistics().await?;
        for handler in &mut statistics.handlers {
            let filter = Filter {
                states: vec![State::Pending],
                handler: Some(handler.handler.clone()),
                ..Filter::default()
            };
            let pending = inner.list(&filter, &Page::first(1)).await?.records;
            let vanished = pending
                .first()
                .is_some_and(|record| record.attempts.crashed(false) > 0);
            if vanished {
                handler.lag = handler.oldest_due_age;
            }
        }
        Ok(statistics)
    }
}

/// begin hands out a little early what is not due, or what is leased.
pub(crate) struct BeginsEarly;

#[async_trait]
impl Defect for BeginsEarly {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        let begun = inner.begin(message, terms).await?;
        let (Begun::Busy { until }, Some(record)) = (&begun, inner.get(message.key()).await?)
        else {
            return Ok(begun);
        };
        let now = now(inner, message).await?;
        if *until > now + Duration::from_millis(100) {
            return Ok(begun);
        }
        Ok(Begun::Run(Box::new(Leased {
            message: message.clone(),
            lease: Lease {
                key: message.key().clone(),
                token: FencingToken::new(i64::MAX),
                locator: 0,
                until: now + terms.length(),
            },
            attempts: record.attempts,
            replays: record.replays,
            accepted_at: record.accepted_at,
        })))
    }
}

/// The store's time, by a message of a handler that nobody else knows.
async fn now(inner: &MemoryStore, like: &Message) -> Result<SystemTime> {
    let probe = Message::new(
        inbox_api::HandlerName::new("clock").unwrap(),
        like.id().clone(),
        like.kind().clone(),
        "",
    );
    let _ = inner.receive_one(&probe).await?;
    let at = inner.get(probe.key()).await?.unwrap().accepted_at;
    let _ = inner.discard(probe.key()).await?;
    let expired = PurgeRequest::new(State::Discarded, Duration::ZERO, 1).unwrap();
    let keys = [probe.key().clone()];
    let _ = inner.purge_archived(&expired, &keys).await?;
    Ok(at)
}
