//! Recording and completing messages inside the caller's own database transaction.

use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Key, Lease, Message, Receipt, Result, Settled, Settlement, Store};

/// The answer to *is this the first time?* inside a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Recorded {
    /// Yes: it is recorded as processed if and only if this transaction commits. Do the work in
    /// the same transaction.
    First,
    /// No: it was processed; here is the result that was kept.
    Processed {
        /// What its first run stored, if anything.
        result: Option<Bytes>,
    },
    /// No: a worker holds it, or it waits for its due time.
    Busy {
        /// No sooner than this, by the store's clock.
        until: SystemTime,
    },
    /// No: an earlier message of its ordering key is not finished.
    Blocked,
    /// No: it is dead.
    Dead {
        /// Why.
        reason: String,
    },
    /// No: an operator discarded it.
    Discarded,
}

/// A store whose changes can be part of a database transaction, so that the record of a message,
/// the handler's own writes and the completion commit together or not at all.
///
/// Stores without such transactions do not implement this trait: what cannot work does not
/// compile.
///
/// # Rules for implementors
/// - What is done in a transaction MUST be visible to others if and only if it commits.
/// - Two transactions that record one key: exactly one wins. The other waits or fails as
///   `Conflict`, and then sees the duplicate; a duplicate MUST leave its transaction usable.
/// - No method here may commit or roll back, except those named so.
///
/// # Errors
/// As [`Store`]. After any error the caller MUST roll back: some databases refuse further
/// statements in the transaction. Where the transaction is no longer there, because the server or a
/// statement of the handler's has ended it, what the handler wrote may be durable: then every method
/// that works in it MUST fail with [`Effect::Unknown`](crate::Effect::Unknown).
#[async_trait]
pub trait Transactional: Store {
    /// The driver's own transaction type, in which the handler does its writes.
    type Transaction: Send;

    /// Opens a transaction on a connection of this store, suited to writing.
    ///
    /// It may be open for as long as a handler works. Where it occupies a connection of a pool, [`Store::extend`] has
    /// to have another one when transactions have taken all of them: leases run out under handlers otherwise.
    async fn open(&self) -> Result<Self::Transaction>;

    /// Opens a transaction for work on messages that this process has leased and goes on renewing.
    ///
    /// Where a renewal would make the settlement of its message in this transaction fail,
    /// implementors MUST see to it here that renewals and the transaction are not in each other's
    /// way; elsewhere this is [`open`](Self::open). A lease that was lost meanwhile is not an error
    /// here: its settlement tells.
    async fn open_for(&self, leases: &[Lease]) -> Result<Self::Transaction> {
        let _ = leases;
        self.open().await
    }

    /// Commits. `Ok` means that everything done in the transaction since it was opened is
    /// durable, as one transaction.
    ///
    /// Implementors MUST fail when that transaction is no longer there, whole:
    /// - the server has rolled it back (a deadlock), or refuses to commit it because a statement
    ///   of the handler's failed: `Conflict`, or what the server said, without effect;
    /// - one of the methods below failed in it half-way, or its future was dropped there:
    ///   `Conflict`, or what the server said, without effect;
    /// - the handler has committed it, rolled it back or run a statement that commits by itself
    ///   (DDL in some databases): `Other`, or `Conflict` where that cannot be told from a rollback
    ///   of the server's, with [`Effect::Unknown`](crate::Effect::Unknown).
    ///
    /// This holds for transactions that the caller began on the same database and passed to the
    /// methods below, too. When a caller commits with the driver instead, nothing is checked.
    ///
    /// # Errors
    /// As above. An error with [`Effect::Unknown`](crate::Effect::Unknown) means that it may have
    /// committed: look at the message, or simply deliver it again.
    async fn commit(&self, transaction: Self::Transaction) -> Result<()>;

    /// Rolls back.
    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()>;

    /// [`Store::receive`] within the transaction.
    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>>;

    /// Records `message` as processed, with `result` for later callers, unless its key was
    /// handled or is being handled. A pending, due message that was stored earlier is completed
    /// by this.
    ///
    /// What it tells of others' work is as durable as that only when the transaction is committed: who
    /// acknowledges a delivery by such an answer commits first, though there is nothing to keep.
    ///
    /// # Errors
    /// Also `Invalid` when the message or the result breaks a rule of this store.
    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded>;

    /// Keeps `result`, for later callers, of a message that [`record_in`](Self::record_in) has answered
    /// [`Recorded::First`] for in this very transaction: for work whose result is known only when it
    /// is done. It takes the place of one that was kept before. Elsewhere it must not be called.
    ///
    /// # Errors
    /// Also `Invalid` for a result over this store's limit, before anything is changed, so that the caller
    /// may go on and commit; and `Other` for a message that is not processed.
    async fn keep_result_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &Key,
        result: Bytes,
    ) -> Result<()>;

    /// [`Store::settle`] within the transaction, but for repetitions: a lease that was settled
    /// before is [`Settled::LeaseLost`] here. Its first settlement committed with the writes of
    /// its own transaction; committing this one's too would do the work twice.
    ///
    /// On [`Settled::LeaseLost`] the caller MUST roll back: another worker is doing, or has done, the
    /// same work.
    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>>;

    /// [`settle_in`](Self::settle_in) and then [`commit`](Self::commit), or [`roll_back`](Self::roll_back) unless
    /// every answer is [`Settled::Done`]: what was done in the transaction is durable if and only if every
    /// one is.
    ///
    /// Each transactional handler ends with this. Implementors SHOULD override it where one round trip for a processed
    /// message without a result, as most are, is faster than two.
    ///
    /// # Errors
    /// As those two.
    async fn settle_and_commit(
        &self,
        transaction: Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        settle_then_commit(self, transaction, settlements).await
    }
}

/// What [`Transactional::settle_and_commit`] is unless it is overridden, and where an override has no shorter way:
/// its two calls.
///
/// # Errors
/// As those of the two, which they name.
pub async fn settle_then_commit<S: Transactional + ?Sized>(
    store: &S,
    mut transaction: S::Transaction,
    settlements: &[Settlement],
) -> Result<Vec<Settled>> {
    let settled = store.settle_in(&mut transaction, settlements).await;
    let is_done = |settled: &Vec<Settled>| settled.iter().all(|one| *one == Settled::Done);
    if settled.as_ref().is_ok_and(is_done) {
        store.commit(transaction).await?;
    } else {
        // One that cannot be rolled back is never committed either.
        let _ = store.roll_back(transaction).await;
    }
    settled
}
