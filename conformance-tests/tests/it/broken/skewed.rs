//! Transactions on the memory store: what is recorded is begun, and settled by the commit. Dropping one
//! leaves its messages leased.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use conformance_tests::{AnyTransaction, AnyTransactions, Mishap, Need, Offered, Unable};
use inbox_api::{
    AfterDead, Begun, Error, ErrorKind, Extended, Invalid, Key, Lease, LeaseTerms, Leased, Message,
    Operate as _, Outcome, PurgeRequest, Receipt, Recorded, Result, Settled, Settlement, State,
    Store as _, StoreExt as _, WorkerName, check_size,
};
use inbox_memory::MemoryStore;

use super::{Defect, minimal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// Does not see that another transaction has the one before it.
    RecordsBehind,
    /// Lets the next one through before the commit.
    MovesOnEarly,
    /// Forgets a roll-back's ordering keys.
    LeavesKeysHeld,
    /// Takes an outage for a commit.
    CommitsBlindly,
    /// Commits when it says that it did not.
    CommitsAndDenies,
    /// Keeps the first result only.
    KeepsFirstResult,
    /// Says that it keeps any result, of any message.
    KeepsAnything,
    /// Settles with the result before the commit.
    KeepsEarly,
    /// Settles with the commit, and does not commit.
    SettlesWithoutCommit,
    /// Commits what it can where a lease is lost.
    CommitsTheRest,
    /// Forgets results that are settled before the commit.
    SettlesWithoutResults,
    /// Records with a result of any size.
    RecordsAnyResult,
}

/// A store with transactions.
pub(crate) struct Transactional(pub(crate) Mistake);

impl Defect for Transactional {
    fn in_transactions(&self) -> Option<Mistake> {
        Some(self.0)
    }
}

/// Transactions, and retention that finds no results in them.
pub(crate) struct LeavesResults;

#[async_trait]
impl Defect for LeavesResults {
    fn in_transactions(&self) -> Option<Mistake> {
        Some(Mistake::None)
    }

    async fn drop_payloads(&self, _: &MemoryStore, _: &PurgeRequest) -> Result<u64> {
        Ok(0)
    }
}

pub(crate) struct Skewed {
    pub(super) inner: MemoryStore,
    pub(super) mistake: Mistake,
    pub(super) is_away: Arc<AtomicBool>,
    /// Whether messages with ordering keys are taken.
    pub(super) has_ordering: bool,
}

fn unless_away(is_away: &AtomicBool, operation: &'static str) -> Result<()> {
    if is_away.load(Ordering::SeqCst) {
        return Err(super::unavailable(operation));
    }
    Ok(())
}

#[async_trait]
impl AnyTransactions for Skewed {
    async fn open(&self) -> Result<Box<dyn AnyTransaction>> {
        unless_away(&self.is_away, "open")?;
        Ok(Box::new(Open {
            inner: self.inner.clone(),
            mistake: self.mistake,
            is_away: Arc::clone(&self.is_away),
            has_ordering: self.has_ordering,
            begun: Vec::new(),
            new: Vec::new(),
            settlements: Vec::new(),
        }))
    }

    async fn open_for(&self, _: &[Lease]) -> Result<Box<dyn AnyTransaction>> {
        self.open().await
    }

    async fn written(&self) -> Offered<Vec<String>> {
        Err(Unable::NotOffered(Need::BusinessWrites))
    }
}

struct Open {
    inner: MemoryStore,
    mistake: Mistake,
    is_away: Arc<AtomicBool>,
    has_ordering: bool,
    begun: Vec<(Leased, Option<Bytes>)>,
    /// What was not known before.
    new: Vec<Message>,
    settlements: Vec<Settlement>,
}

impl Open {
    fn check(&self, operation: &'static str, messages: &[Message]) -> Result<()> {
        unless_away(&self.is_away, operation)?;
        if self.has_ordering {
            return Ok(());
        }
        minimal::check(operation, messages)
    }

    fn check_result(&self, result: Option<&Bytes>) -> Result<(), Invalid> {
        let limit = self.inner.capabilities().payload_limit;
        check_size("result", result.map_or(0, Bytes::len), limit)
    }
}

#[async_trait]
impl AnyTransaction for Open {
    async fn receive(&mut self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.check("receive_in", messages)?;
        let receipts = self.inner.receive(messages).await?;
        for (message, receipt) in messages.iter().zip(&receipts) {
            if *receipt == Receipt::Accepted {
                self.new.push(message.clone());
            }
        }
        Ok(receipts)
    }

    async fn record(&mut self, message: &Message, result: Option<Bytes>) -> Result<Recorded> {
        self.check("record_in", std::slice::from_ref(message))?;
        if self.mistake != Mistake::RecordsAnyResult {
            self.check_result(result.as_ref())?;
        }
        let is_new = self.inner.get(message.key()).await?.is_none();
        let terms = LeaseTerms::new(LeaseTerms::MAX, WorkerName::new("transaction").unwrap());
        let begun = self.inner.begin(message, &terms.unwrap()).await?;
        if is_new {
            self.new.push(message.clone());
        }
        Ok(match begun {
            Begun::Run(leased) => {
                self.begun.push((*leased, result));
                Recorded::First
            }
            Begun::Blocked if self.mistake == Mistake::RecordsBehind => Recorded::First,
            Begun::Blocked => Recorded::Blocked,
            Begun::Busy { until } => Recorded::Busy { until },
            Begun::Processed { result } => Recorded::Processed { result },
            Begun::Dead { reason } => Recorded::Dead { reason },
            Begun::Discarded => Recorded::Discarded,
        })
    }

    async fn keep_result(&mut self, key: &Key, result: Bytes) -> Result<()> {
        unless_away(&self.is_away, "keep_result_in")?;
        if self.mistake != Mistake::KeepsAnything {
            self.check_result(Some(&result))?;
        }
        let mut begun = self.begun.iter_mut();
        let Some((leased, kept)) = begun.find(|(leased, _)| leased.lease.key == *key) else {
            return match self.mistake {
                Mistake::KeepsAnything => Ok(()),
                _ => Err(Error::new(ErrorKind::Other, "not recorded")),
            };
        };
        if self.mistake == Mistake::KeepsEarly {
            let result = Some(result.clone());
            let outcome = Outcome::Processed { result };
            let _ = self.inner.settle_one(&leased.lease, outcome).await?;
        }
        if self.mistake != Mistake::KeepsFirstResult || kept.is_none() {
            *kept = Some(result);
        }
        Ok(())
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        unless_away(&self.is_away, "settle_in")?;
        if self.mistake == Mistake::MovesOnEarly {
            let early = settlements.iter().cloned().map(|mut settlement| {
                if let Outcome::Dead { after, .. } = &mut settlement.outcome {
                    *after = AfterDead::Continue;
                }
                settlement
            });
            return self.inner.settle(&early.collect::<Vec<_>>()).await;
        }
        let mut settlements = settlements.to_vec();
        if self.mistake == Mistake::SettlesWithoutResults {
            for settlement in &mut settlements {
                if let Outcome::Processed { result } = &mut settlement.outcome {
                    *result = None;
                }
            }
        }
        let settled = vec![Settled::Done; settlements.len()];
        self.settlements.append(&mut settlements);
        Ok(settled)
    }

    async fn write(&mut self, _: &str) -> Offered<()> {
        Err(Unable::NotOffered(Need::BusinessWrites))
    }

    async fn mishap(&mut self, mishap: Mishap) -> Offered<()> {
        Err(Unable::NotOffered(Need::Mishap(mishap)))
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        let answer = unless_away(&self.is_away, "commit");
        match self.mistake {
            Mistake::CommitsBlindly if answer.is_err() => return self.roll_back().await,
            Mistake::CommitsAndDenies => {}
            _ if answer.is_err() => return self.roll_back().await.and(answer),
            _ => {}
        }
        for (leased, result) in &self.begun {
            let outcome = Outcome::Processed {
                result: result.clone(),
            };
            let _ = self.inner.settle_one(&leased.lease, outcome).await?;
        }
        let _ = self.inner.settle(&self.settlements).await?;
        answer
    }

    async fn settle_and_commit(
        mut self: Box<Self>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        unless_away(&self.is_away, "settle_and_commit")?;
        if self.mistake == Mistake::CommitsTheRest {
            return self.inner.settle(settlements).await;
        }
        let mut answers = Vec::new();
        for Settlement { lease, outcome } in settlements {
            let size = self.check_result(match outcome {
                Outcome::Processed { result } => result.as_ref(),
                _ => None,
            });
            let extended = self.inner.extend_one(lease, LeaseTerms::MAX).await?;
            answers.push(match (size, extended) {
                (Err(invalid), _) => Settled::Refused(invalid),
                (Ok(()), Extended::LeaseLost) => Settled::LeaseLost,
                (Ok(()), _) => Settled::Done,
            });
        }
        let is_done = answers.iter().all(|answer| *answer == Settled::Done);
        if !is_done || self.mistake == Mistake::SettlesWithoutCommit {
            self.roll_back().await?;
        } else {
            self.settlements.extend_from_slice(settlements);
            self.commit().await?;
        }
        Ok(answers)
    }

    async fn roll_back(self: Box<Self>) -> Result<()> {
        if self.mistake == Mistake::LeavesKeysHeld {
            return Ok(());
        }
        for (leased, _) in &self.begun {
            let _ = self
                .inner
                .settle_one(&leased.lease, Outcome::Release)
                .await?;
        }
        let expired = PurgeRequest::new(State::Discarded, std::time::Duration::ZERO, 1).unwrap();
        for message in &self.new {
            let _ = self.inner.discard(message.key()).await?;
            let keys = [message.key().clone()];
            let _ = self.inner.purge_archived(&expired, &keys).await?;
        }
        Ok(())
    }
}
