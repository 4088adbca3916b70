//! A check, a pause, and a write that does not check again.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    AfterDead, Begun, Bytes, ClaimRequest, Claims, Edit, Extended, Filter, HandlerName,
    Intervention, Key, Lease, LeaseTerms, Message, Operate, Outcome, Page, Progress, PurgeRequest,
    Receipt, Record, Result, Settled, Settlement, Slice, State, Store, StoreExt as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// Between a check and its write.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(3)).await;
}

/// What any other operation takes.
async fn round_trip() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Which operations write what they have checked before.
#[derive(Default)]
pub(crate) struct ChecksFirst {
    operation: &'static str,
    newest: Mutex<HashMap<Key, Lease>>,
}

pub(crate) fn checks_first(operation: &'static str) -> ChecksFirst {
    ChecksFirst {
        operation,
        newest: Mutex::default(),
    }
}

impl ChecksFirst {
    fn newest(&self, lease: &Lease) -> Lease {
        let newest = self.newest.lock().unwrap();
        newest.get(&lease.key).unwrap_or(lease).clone()
    }

    fn learn(&self, lease: &Lease) {
        let mut newest = self.newest.lock().unwrap();
        newest.insert(lease.key.clone(), lease.clone());
    }

    /// Gives a message up, whatever it is.
    async fn force_discard(&self, inner: &MemoryStore, key: &Key) -> Result<Intervention> {
        let answer = inner.discard(key).await?;
        match answer {
            Intervention::WrongState(State::Leased) => {
                let lease = self.newest.lock().unwrap().get(key).cloned();
                if let Some(lease) = lease {
                    let reason = String::new();
                    let after = AfterDead::Continue;
                    let _ = inner
                        .settle_one(&lease, Outcome::Dead { reason, after })
                        .await?;
                }
                inner.discard(key).await
            }
            Intervention::WrongState(State::Processed) => {
                let _ = inner.replay(key, &Edit::default()).await?;
                inner.discard(key).await
            }
            answer => Ok(answer),
        }
    }

    /// Deletes a message, whatever it is.
    async fn force_purge(&self, inner: &MemoryStore, key: &Key) -> Result<u64> {
        let _ = self.force_discard(inner, key).await?;
        let keys = std::slice::from_ref(key);
        for state in [State::Discarded, State::Processed, State::Dead] {
            let any = PurgeRequest::new(state, Duration::ZERO, 1).unwrap();
            if inner.purge_archived(&any, keys).await? > 0 {
                return Ok(1);
            }
        }
        Ok(0)
    }

    async fn chosen(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<(Vec<Record>, Progress)> {
        let page = Page {
            after: slice.after.clone(),
            ..Page::first(slice.limit)
        };
        let listing = inner.list(filter, &page).await?;
        let progress = Progress {
            changed: 0,
            next: listing.next,
        };
        pause().await;
        Ok((listing.records, progress))
    }
}

#[async_trait]
impl Defect for ChecksFirst {
    fn is_the_servers(&self) -> bool {
        true
    }

    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let claims = inner.claim(request).await?;
        for leased in &claims.leased {
            self.learn(&leased.lease);
        }
        round_trip().await;
        Ok(claims)
    }

    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        let begun = inner.begin(message, terms).await?;
        if let Begun::Run(leased) = &begun {
            self.learn(&leased.lease);
        }
        round_trip().await;
        Ok(begun)
    }

    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        if self.operation != "settle" {
            round_trip().await;
            return inner.settle(batch).await;
        }
        let mut settled = Vec::new();
        for settlement in batch {
            let lease = &settlement.lease;
            let stands = self.newest(lease).token == lease.token;
            pause().await;
            if !stands {
                settled.push(Settled::LeaseLost);
                continue;
            }
            let record = inner.get(&lease.key).await?;
            if record.is_some_and(|record| record.state == State::Discarded) {
                let _ = inner.replay(&lease.key, &Edit::default()).await?;
                let (handler, worker) = (&lease.key.handler, "worker-1");
                let worker = inbox_api::WorkerName::new(worker).unwrap();
                let claims = inner
                    .claim_for(handler, 1, LeaseTerms::MAX, &worker)
                    .await?;
                for leased in &claims.leased {
                    self.learn(&leased.lease);
                }
            }
            let newest = self.newest(lease);
            let _ = inner
                .settle_one(&newest, settlement.outcome.clone())
                .await?;
            settled.push(Settled::Done);
        }
        Ok(settled)
    }

    async fn extend(
        &self,
        inner: &MemoryStore,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Extended>> {
        if self.operation != "extend" {
            return inner.extend(leases, length).await;
        }
        let mut extended = Vec::new();
        for lease in leases {
            let stands = self.newest(lease).token == lease.token;
            pause().await;
            extended.push(if stands {
                inner.extend_one(&self.newest(lease), length).await?
            } else {
                Extended::LeaseLost
            });
        }
        Ok(extended)
    }

    async fn discard(&self, inner: &MemoryStore, key: &Key) -> Result<Intervention> {
        if self.operation != "discard" {
            round_trip().await;
            return inner.discard(key).await;
        }
        let record = inner.get(key).await?;
        pause().await;
        match record.map(|record| record.state) {
            Some(State::Pending) => self.force_discard(inner, key).await,
            _ => inner.discard(key).await,
        }
    }

    async fn discard_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        if self.operation != "discard_slice" {
            return inner.discard_slice(filter, slice).await;
        }
        let (records, mut progress) = self.chosen(inner, filter, slice).await?;
        for record in records {
            let _ = self.force_discard(inner, &record.key).await?;
            progress.changed += 1;
        }
        Ok(progress)
    }

    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        if self.operation != "replay" {
            round_trip().await;
            return inner.replay(key, edit).await;
        }
        let record = inner.get(key).await?;
        pause().await;
        let answer = inner.replay(key, edit).await?;
        match record.and_then(|record| record.message()) {
            Some(message) if answer == Intervention::NotFound => {
                let _ = inner.receive_one(&message).await?;
                Ok(Intervention::Done)
            }
            Some(_) if answer == Intervention::PayloadDropped => {
                inner.replay(key, &without_payload()).await
            }
            _ => Ok(answer),
        }
    }

    async fn replay_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
    ) -> Result<Progress> {
        if self.operation != "replay_slice" {
            return inner.replay_slice(filter, slice).await;
        }
        let (records, mut progress) = self.chosen(inner, filter, slice).await?;
        for record in records {
            let _ = inner.replay(&record.key, &Edit::default()).await?;
            progress.changed += 1;
        }
        Ok(progress)
    }

    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        if self.operation != "purge" {
            round_trip().await;
            return inner.purge(expired).await;
        }
        let records = inner.expired(expired).await?.records;
        pause().await;
        let mut purged = 0;
        for record in records {
            purged += self.force_purge(inner, &record.key).await?;
        }
        Ok(purged)
    }

    async fn purge_archived(
        &self,
        inner: &MemoryStore,
        expired: &PurgeRequest,
        keys: &[Key],
    ) -> Result<u64> {
        if self.operation != "purge_archived" {
            round_trip().await;
            return inner.purge_archived(expired, keys).await;
        }
        let mut stand = Vec::new();
        for key in keys {
            let record = inner.get(key).await?;
            if record.is_some_and(|record| record.state == expired.state()) {
                stand.push(key);
            }
        }
        pause().await;
        let mut purged = 0;
        for key in stand {
            purged += self.force_purge(inner, key).await?;
        }
        Ok(purged)
    }

    async fn clear_slice(
        &self,
        inner: &MemoryStore,
        handler: &HandlerName,
        slice: &Slice,
    ) -> Result<Progress> {
        if self.operation != "clear_slice" {
            return inner.clear_slice(handler, slice).await;
        }
        let mut states = State::ALL.to_vec();
        states.retain(|state| *state != State::Leased);
        let filter = Filter {
            handler: Some(handler.clone()),
            states,
            ..Filter::default()
        };
        let (records, mut progress) = self.chosen(inner, &filter, slice).await?;
        for record in records {
            progress.changed += self.force_purge(inner, &record.key).await?;
        }
        Ok(progress)
    }

    async fn drop_payloads(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        if self.operation != "drop_payloads" {
            round_trip().await;
            return inner.drop_payloads(expired).await;
        }
        let all = PurgeRequest::new(expired.state(), expired.older_than(), 1000).unwrap();
        let mut records = inner.expired(&all).await?.records;
        records.retain(|record| record.payload.is_some());
        records.truncate(expired.limit() as usize);
        pause().await;
        let one = PurgeRequest::new(expired.state(), expired.older_than(), 1).unwrap();
        let mut dropped = 0;
        for record in records {
            // Of one that was replayed meanwhile, too.
            dropped += match inner.discard(&record.key).await? {
                Intervention::Done => {
                    let _ = inner.replay(&record.key, &without_payload()).await?;
                    1
                }
                _ => inner.drop_payloads(&one).await?,
            };
        }
        Ok(dropped)
    }
}

/// What is as good as no payload.
fn without_payload() -> Edit {
    Edit {
        payload: Some(Bytes::new()),
        ..Edit::default()
    }
}

/// Deletes the row, and later the key, whosever it is by then.
pub(crate) struct PurgesInSteps(pub(crate) &'static str);

impl PurgesInSteps {
    async fn in_steps(
        &self,
        inner: &MemoryStore,
        expired: &PurgeRequest,
        keys: &[Key],
    ) -> Result<u64> {
        let purged = inner.purge_archived(expired, keys).await?;
        pause().await;
        for key in keys {
            let checks = ChecksFirst::default();
            let _ = checks.force_purge(inner, key).await?;
        }
        Ok(purged)
    }
}

#[async_trait]
impl Defect for PurgesInSteps {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        inner.receive(messages).await
    }

    async fn purge(&self, inner: &MemoryStore, expired: &PurgeRequest) -> Result<u64> {
        if self.0 != "purge" {
            return inner.purge(expired).await;
        }
        let records = inner.expired(expired).await?.records;
        let keys: Vec<Key> = records.into_iter().map(|record| record.key).collect();
        self.in_steps(inner, expired, &keys).await
    }

    async fn purge_archived(
        &self,
        inner: &MemoryStore,
        expired: &PurgeRequest,
        keys: &[Key],
    ) -> Result<u64> {
        if self.0 != "purge_archived" {
            return inner.purge_archived(expired, keys).await;
        }
        self.in_steps(inner, expired, keys).await
    }
}

/// Every settlement of a lease is counted, or leaves its error.
#[derive(Default)]
pub(crate) struct Repeats {
    errors: bool,
    times: Mutex<HashMap<Key, u32>>,
}

pub(crate) fn repeats_errors() -> Repeats {
    Repeats {
        errors: true,
        ..Repeats::default()
    }
}

#[async_trait]
impl Defect for Repeats {
    fn is_the_servers(&self) -> bool {
        true
    }

    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut settled = Vec::new();
        for settlement in batch {
            round_trip().await;
            let key = &settlement.lease.key;
            let record = inner.get(key).await?;
            let again = record.is_some_and(|record| record.state.is_final());
            let dies = matches!(settlement.outcome, Outcome::Dead { .. });
            if again && (!self.errors || dies) {
                *self.times.lock().unwrap().entry(key.clone()).or_default() += 1;
            }
            let outcome = settlement.outcome.clone();
            settled.push(inner.settle_one(&settlement.lease, outcome).await?);
        }
        Ok(settled)
    }

    async fn get(&self, inner: &MemoryStore, key: &Key) -> Result<Option<Record>> {
        let mut record = inner.get(key).await?;
        let times = self.times.lock().unwrap().get(key).copied();
        if let (Some(record), Some(times)) = (&mut record, times) {
            if self.errors {
                record.last_error = Some("gave up".into());
            } else {
                record.attempts.finished += times;
            }
        }
        Ok(record)
    }
}

/// Where a lease of a batch is lost, it tells which of the others were settled by a look behind it.
pub(crate) struct LooksBehind;

#[async_trait]
impl Defect for LooksBehind {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut answers = inner.settle(batch).await?;
        if answers.contains(&Settled::LeaseLost) {
            pause().await;
            for (settlement, answer) in batch.iter().zip(&mut answers) {
                let record = inner.get(&settlement.lease.key).await?;
                if record.is_some_and(|record| record.state == State::Leased) {
                    *answer = Settled::LeaseLost;
                }
            }
        }
        Ok(answers)
    }
}
