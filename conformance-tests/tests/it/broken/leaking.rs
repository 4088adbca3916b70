//! What is left behind when the future of an operation is dropped.

use async_trait::async_trait;
use inbox_api::{
    Begun, ClaimRequest, Claims, LeaseTerms, Message, Outcome, Receipt, Result, Settled,
    Settlement, Store, StoreExt as _,
};
use inbox_memory::MemoryStore;
use tokio::{sync::Semaphore, task::yield_now};

use super::Defect;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// What every operation needs.
    Connection,
    /// What every write needs.
    Lock,
    /// What the operation itself needs.
    Turn,
}

const READS: [&str; 8] = [
    "get",
    "list",
    "count",
    "statistics",
    "expired",
    "version",
    "exists",
    "subscribe",
];

/// One operation takes something that it gives back only at its end.
pub(crate) struct Leaky {
    operation: &'static str,
    class: Class,
    free: Semaphore,
}

pub(crate) fn leaky(operation: &'static str, class: Class) -> Leaky {
    let free = Semaphore::new(if class == Class::Connection { 10 } else { 1 });
    Leaky {
        operation,
        class,
        free,
    }
}

#[async_trait]
impl Defect for Leaky {
    async fn enter(&self, operation: &'static str) {
        let concerns = match self.class {
            Class::Connection => true,
            Class::Lock => !READS.contains(&operation),
            Class::Turn => operation == self.operation,
        };
        if operation == self.operation {
            self.free.acquire().await.unwrap().forget();
            yield_now().await;
        } else if concerns {
            drop(self.free.acquire().await.unwrap());
        }
    }

    fn leave(&self, operation: &'static str) {
        if operation == self.operation {
            self.free.add_permits(1);
        }
    }
}

/// Stores a batch in two steps.
pub(crate) struct ReceivesInSteps;

#[async_trait]
impl Defect for ReceivesInSteps {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut receipts = Vec::new();
        for message in messages {
            receipts.push(inner.receive_one(message).await?);
            yield_now().await;
        }
        Ok(receipts)
    }
}

fn longest(terms: &LeaseTerms) -> LeaseTerms {
    LeaseTerms::new(LeaseTerms::MAX, terms.worker().clone()).unwrap()
}

/// Leases first, and then sets the end.
pub(crate) struct LeasesInSteps;

#[async_trait]
impl Defect for LeasesInSteps {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let long = ClaimRequest {
            terms: longest(&request.terms),
            ..request.clone()
        };
        let claims = inner.claim(&long).await?;
        yield_now().await;
        for leased in &claims.leased {
            let length = request.terms.length();
            let _ = inner.extend_one(&leased.lease, length).await?;
        }
        Ok(claims)
    }

    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        let begun = inner.begin(message, &longest(terms)).await?;
        yield_now().await;
        if let Begun::Run(leased) = &begun {
            let _ = inner.extend_one(&leased.lease, terms.length()).await?;
        }
        Ok(begun)
    }
}

/// Ends the lease first, and then sets the state.
pub(crate) struct SettlesInSteps;

#[async_trait]
impl Defect for SettlesInSteps {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut settled = Vec::new();
        for settlement in batch {
            let lease = &settlement.lease;
            if matches!(settlement.outcome, Outcome::Processed { .. }) {
                let record = inbox_api::Operate::get(inner, &lease.key).await?;
                if record.is_some_and(|record| record.state == inbox_api::State::Leased) {
                    let _ = inner.settle_one(lease, Outcome::Release).await?;
                    yield_now().await;
                    let handler = lease.key.handler.clone();
                    let worker = inbox_api::WorkerName::new("worker-1").unwrap();
                    let claims = inner
                        .claim_for(&handler, 1, LeaseTerms::MAX, &worker)
                        .await?;
                    for leased in claims.leased {
                        let outcome = settlement.outcome.clone();
                        let _ = inner.settle_one(&leased.lease, outcome).await?;
                    }
                    settled.push(Settled::Done);
                    continue;
                }
            }
            settled.push(inner.settle_one(lease, settlement.outcome.clone()).await?);
        }
        Ok(settled)
    }
}
