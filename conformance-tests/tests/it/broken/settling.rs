//! Defects of settle and extend.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    ClaimRequest, Claims, Extended, FencingToken, Key, Lease, Message, OrderingKey, Outcome,
    Receipt, Result, Settled, Settlement, Store, WorkerName,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// The newest lease of each key, and who drew each token.
#[derive(Default)]
struct Leases {
    newest: HashMap<Key, Lease>,
    workers: HashMap<(Key, FencingToken), WorkerName>,
}

impl Leases {
    fn record(&mut self, claims: &Claims, worker: &WorkerName) {
        for leased in &claims.leased {
            let lease = &leased.lease;
            self.workers
                .insert((lease.key.clone(), lease.token), worker.clone());
            self.newest.insert(lease.key.clone(), lease.clone());
        }
    }

    /// The newest lease in place of any earlier one.
    fn unfenced(&self, lease: &Lease) -> Lease {
        self.newest.get(&lease.key).unwrap_or(lease).clone()
    }

    /// The newest lease in place of an earlier one of the same worker.
    fn by_worker(&self, lease: &Lease) -> Lease {
        let worker = |lease: &Lease| self.workers.get(&(lease.key.clone(), lease.token));
        let newest = self.unfenced(lease);
        if worker(lease).is_some() && worker(lease) == worker(&newest) {
            newest
        } else {
            lease.clone()
        }
    }
}

fn replace(batch: &[Settlement], lease: impl Fn(&Lease) -> Lease) -> Vec<Settlement> {
    batch
        .iter()
        .map(|settlement| Settlement {
            lease: lease(&settlement.lease),
            outcome: settlement.outcome.clone(),
        })
        .collect()
}

/// Settling goes by the key alone.
#[derive(Default)]
pub(crate) struct UnfencedSettle(Mutex<Leases>);

#[async_trait]
impl Defect for UnfencedSettle {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let claims = inner.claim(request).await?;
        self.0
            .lock()
            .unwrap()
            .record(&claims, request.terms.worker());
        Ok(claims)
    }

    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let batch = {
            let leases = self.0.lock().unwrap();
            replace(batch, |lease| leases.unfenced(lease))
        };
        inner.settle(&batch).await
    }
}

/// A heartbeat goes by the key alone.
#[derive(Default)]
pub(crate) struct UnfencedExtend(Mutex<Leases>);

#[async_trait]
impl Defect for UnfencedExtend {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let claims = inner.claim(request).await?;
        self.0
            .lock()
            .unwrap()
            .record(&claims, request.terms.worker());
        Ok(claims)
    }

    async fn extend(
        &self,
        inner: &MemoryStore,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Extended>> {
        let leases: Vec<Lease> = {
            let known = self.0.lock().unwrap();
            leases.iter().map(|lease| known.unfenced(lease)).collect()
        };
        inner.extend(&leases, length).await
    }
}

/// Settling asks whether the worker's name is that of the holder.
#[derive(Default)]
pub(crate) struct WorkerNameAsFence(Mutex<Leases>);

#[async_trait]
impl Defect for WorkerNameAsFence {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let claims = inner.claim(request).await?;
        self.0
            .lock()
            .unwrap()
            .record(&claims, request.terms.worker());
        Ok(claims)
    }

    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let batch = {
            let leases = self.0.lock().unwrap();
            replace(batch, |lease| leases.by_worker(lease))
        };
        inner.settle(&batch).await
    }
}

/// What failed is due again at once.
pub(crate) struct RetryAtOnce;

#[async_trait]
impl Defect for RetryAtOnce {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let batch: Vec<Settlement> = batch
            .iter()
            .cloned()
            .map(|mut settlement| {
                if let Outcome::Retry { after, .. } = &mut settlement.outcome {
                    *after = Duration::ZERO;
                }
                settlement
            })
            .collect();
        inner.settle(&batch).await
    }
}

/// Whatever is due is handed out, without regard to what is before it in its ordering key.
pub(crate) struct Overtakes;

#[async_trait]
impl Defect for Overtakes {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        // Each message gets a key of its own, so that none waits for another.
        let mut loose = Vec::new();
        for message in messages {
            let own = OrderingKey::new(message.id().as_str());
            loose.push(match (message.ordering_key(), own) {
                (Some(_), Ok(own)) => message.clone().with_ordering_key(own),
                _ => message.clone(),
            });
        }
        inner.receive(&loose).await
    }
}

/// The first outcome of a batch is that of all.
pub(crate) struct OneOutcome;

#[async_trait]
impl Defect for OneOutcome {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let same = batch.iter().map(|settlement| Settlement {
            lease: settlement.lease.clone(),
            outcome: batch[0].outcome.clone(),
        });
        inner.settle(&same.collect::<Vec<_>>()).await
    }
}
