//! Transactions as the parts see them: what handlers write in them is done at the commit, with the settlements.
//! Everybody else who writes waits for its turn meanwhile: from the opening, where the store has one transaction at a
//! time, and otherwise from the first settlement.

use std::sync::Arc;

use async_trait::async_trait;
use inbox::{
    Bytes, Error, ErrorKind, Key, Lease, Message, Receipt, Recorded, Result, Settled, Settlement,
    Transactional,
};
use tokio::sync::OwnedMutexGuard;

use crate::{
    Flaw,
    database::Tried,
    history::PartId,
    scenario::Operation,
    store::{Seen, refusing},
    world::World,
};

/// What was written in a transaction, next to its settlements.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) lease: Lease,
    pub(crate) what: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A handler's work.
    Work,
    /// What is written about an attempt that has failed, with what its message is settled as.
    Note(&'static str),
}

/// An open transaction; `None` when a call has failed in it.
pub(crate) struct Transaction(Option<Open>);

impl Transaction {
    pub(crate) fn write(&mut self, lease: &Lease, what: Effect) {
        if let Some(open) = &mut self.0 {
            let lease = lease.clone();
            open.written.push(Written { lease, what });
        }
    }
}

struct Open {
    world: Arc<World>,
    part: PartId,
    turn: Option<OwnedMutexGuard<()>>,
    /// The inbox as this transaction sees it.
    inbox: Tried,
    settlements: Vec<Settlement>,
    /// The store's time at the first of them.
    settled_at: Option<i64>,
    written: Vec<Written>,
    is_committed: bool,
}

impl Open {
    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        if self.turn.is_none() {
            self.turn = Some(self.world.turn().await);
        }
        self.world.follow();
        let mut settled = self.inbox.settle(settlements).await?;
        self.settled_at.get_or_insert(self.world.store_now());
        if self.world.flaw == Some(Flaw::IgnoresLostLeases) {
            settled.fill(Settled::Done);
        }
        let done = settlements.iter().zip(&settled);
        let done = done.filter(|(_, settled)| **settled == Settled::Done);
        self.settlements
            .extend(done.map(|(settlement, _)| settlement.clone()));
        Ok(settled)
    }

    async fn commit(mut self) -> Result<()> {
        self.world.follow();
        let (store, inbox) = (&*self.world.store, &mut self.inbox);
        let settled = inbox.commit(store, &self.settlements).await?;
        self.is_committed = true;
        match self.world.flaw {
            Some(Flaw::LosesEffects) => self.written.retain(|one| one.what != Effect::Work),
            Some(Flaw::LosesNotes) => self.written.retain(|one| one.what == Effect::Work),
            _ => {}
        }
        let mut history = self.world.history();
        if let Some(settled_at) = self.settled_at.filter(|_| inbox.keeps_time()) {
            history.store_now = settled_at;
        }
        history.commits(&self.part, &self.written, &self.settlements, &settled);
        history.settled(&self.part, &self.settlements, &settled);
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        let mut history = self.world.history();
        if self.world.flaw == Some(Flaw::KeepsEffects) {
            history.commits(&self.part, &self.written, &[], &[]);
        }
        history.undone(&self.written);
    }
}

/// A call in a transaction: what was written is undone, as far as its holder knows, unless the call succeeds.
struct InCall<'a> {
    seen: &'a Seen,
    written: Vec<Written>,
    has_succeeded: bool,
}

impl InCall<'_> {
    fn has_succeeded(mut self) {
        self.has_succeeded = true;
    }
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        let mut history = self.seen.world.history();
        history.call_ends(&self.seen.part, &self.written);
        if !self.has_succeeded {
            history.undone(&self.written);
        }
    }
}

/// An opening: see [`InCall`].
struct Opening<'a> {
    seen: &'a Seen,
    leases: &'a [Lease],
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut history = self.seen.world.history();
        history.not_opened(self.leases);
        history.call_ends(&self.seen.part, &[]);
    }
}

impl Seen {
    fn in_call(&self, open: &Open) -> InCall<'_> {
        let written = open.written.clone();
        self.world.history().call_begins(&written);
        InCall {
            seen: self,
            written,
            has_succeeded: false,
        }
    }
}

fn failed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Other, "an earlier call has failed").in_operation(operation)
}

fn not_simulated(operation: &'static str) -> Error {
    Error::new(ErrorKind::Other, "not simulated").in_operation(operation)
}

#[async_trait]
impl Transactional for Seen {
    type Transaction = Transaction;

    async fn open(&self) -> Result<Transaction> {
        let (world, part) = (self.world.clone(), self.part.clone());
        let work = async move {
            let turn = match world.scenario.has_turns() {
                true => Some(world.turn().await),
                false => None,
            };
            world.follow();
            let inbox = world.database.open().await?;
            Ok(Transaction(Some(Open {
                world,
                part,
                turn,
                inbox,
                settlements: Vec::new(),
                settled_at: None,
                written: Vec::new(),
                is_committed: false,
            })))
        };
        self.call(Operation::Open, "open", work).await
    }

    async fn open_for(&self, leases: &[Lease]) -> Result<Transaction> {
        let mut opening = Opening { seen: self, leases };
        let opened = self.open().await;
        match &opened {
            Ok(_) => opening.leases = &[],
            Err(error) if error.is_retryable() => {}
            Err(_) => self.world.history().will_not_open(leases),
        }
        opened
    }

    async fn commit(&self, mut transaction: Transaction) -> Result<()> {
        let open = transaction.0.take().ok_or_else(|| failed("commit"))?;
        let settlements = open.settlements.clone();
        let in_call = self.in_call(&open);
        self.call(Operation::Commit, "commit", open.commit())
            .await?;
        in_call.has_succeeded();
        let done = vec![Settled::Done; settlements.len()];
        let mut history = self.world.history();
        history.told_settled(&self.part, &settlements, &done);
        Ok(())
    }

    async fn roll_back(&self, mut transaction: Transaction) -> Result<()> {
        let open = transaction.0.take();
        drop(open.as_ref().map(|open| self.in_call(open)));
        let work = async move {
            drop(open);
            Ok(())
        };
        self.call(Operation::RollBack, "roll back", work).await
    }

    async fn receive_in(&self, _: &mut Transaction, _: &[Message]) -> Result<Vec<Receipt>> {
        Err(not_simulated("receive_in"))
    }

    async fn record_in(
        &self,
        _: &mut Transaction,
        _: &Message,
        _: Option<Bytes>,
    ) -> Result<Recorded> {
        Err(not_simulated("record_in"))
    }

    async fn keep_result_in(&self, _: &mut Transaction, _: &Key, _: Bytes) -> Result<()> {
        Err(not_simulated("keep_result_in"))
    }

    async fn settle_in(
        &self,
        transaction: &mut Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let mut open = transaction.0.take().ok_or_else(|| failed("settle_in"))?;
        let in_call = self.in_call(&open);
        self.world.history().settling(&self.part, settlements);
        let (refuses, owned) = (self.world.refuses(), settlements.to_vec());
        let work = async move {
            let (taken, refusals) = refusing(&owned, refuses);
            let settled = open.settle(&taken).await?;
            let answers = refusals.answers(&mut open.world.history(), &open.part, settled);
            Ok((open, answers))
        };
        let (open, answers) = self.call(Operation::SettleIn, "settle_in", work).await?;
        in_call.has_succeeded();
        transaction.0 = Some(open);
        Ok(answers)
    }
}
