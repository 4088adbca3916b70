//! An object-safe view of [`Transactional`], so that cases need no type parameter.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use inbox_api::{
    Key, Lease, Message, Receipt, Recorded, Result, Settled, Settlement, Transactional,
};

use crate::needs::{BoxError, Mishap, Need, Offered, Unable};

/// Opens transactions on the store under test. Implemented by [`Transactions`].
#[async_trait]
pub trait AnyTransactions: Send + Sync {
    /// Opens one.
    ///
    /// # Errors
    /// As [`Transactional::open`].
    async fn open(&self) -> Result<Box<dyn AnyTransaction>>;

    /// Opens one for work on leased messages.
    ///
    /// # Errors
    /// As [`Transactional::open_for`].
    async fn open_for(&self, leases: &[Lease]) -> Result<Box<dyn AnyTransaction>>;

    /// The notes that committed transactions have written, in any order.
    ///
    /// # Errors
    /// [`Need::BusinessWrites`] when the harness offers none.
    async fn written(&self) -> Offered<Vec<String>>;
}

/// One open transaction. Dropping it without a commit rolls it back.
#[async_trait]
pub trait AnyTransaction: Send {
    /// [`Transactional::receive_in`].
    ///
    /// # Errors
    /// As there.
    async fn receive(&mut self, messages: &[Message]) -> Result<Vec<Receipt>>;

    /// [`Transactional::record_in`].
    ///
    /// # Errors
    /// As there.
    async fn record(&mut self, message: &Message, result: Option<Bytes>) -> Result<Recorded>;

    /// [`Transactional::keep_result_in`].
    ///
    /// # Errors
    /// As there.
    async fn keep_result(&mut self, key: &Key, result: Bytes) -> Result<()>;

    /// [`Transactional::settle_in`].
    ///
    /// # Errors
    /// As there.
    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>>;

    /// Writes `note` the way a handler writes its own data.
    ///
    /// # Errors
    /// [`Need::BusinessWrites`] when the harness offers none.
    async fn write(&mut self, note: &str) -> Offered<()>;

    /// Does to the transaction what a handler should not.
    ///
    /// # Errors
    /// [`Need::Mishap`] when the harness does not offer it.
    async fn mishap(&mut self, mishap: Mishap) -> Offered<()>;

    /// [`Transactional::commit`].
    ///
    /// # Errors
    /// As there.
    async fn commit(self: Box<Self>) -> Result<()>;

    /// [`Transactional::settle_and_commit`].
    ///
    /// # Errors
    /// As there.
    async fn settle_and_commit(self: Box<Self>, settlements: &[Settlement])
    -> Result<Vec<Settled>>;

    /// [`Transactional::roll_back`].
    ///
    /// # Errors
    /// As there.
    async fn roll_back(self: Box<Self>) -> Result<()>;
}

/// A handler's own data, written in the same transactions as the inbox: a table with one text
/// column is enough.
#[async_trait]
pub trait BusinessWrites<T>: Send + Sync + 'static {
    /// Writes `note` in the open `transaction`.
    ///
    /// # Errors
    /// Whatever the database met.
    async fn write(&self, transaction: &mut T, note: &str) -> Result<(), BoxError>;

    /// Does to the open `transaction` what a handler should not, and swallows the error that the
    /// database answers with, if it does.
    ///
    /// # Errors
    /// [`Need::Mishap`] unless overridden, and where the database knows nothing like it.
    async fn mishap(&self, transaction: &mut T, mishap: Mishap) -> Offered<()> {
        let _ = transaction;
        Err(Unable::NotOffered(Need::Mishap(mishap)))
    }

    /// All notes that are committed.
    ///
    /// # Errors
    /// Whatever the database met.
    async fn written(&self) -> Result<Vec<String>, BoxError>;
}

/// Makes any [`Transactional`] store an [`AnyTransactions`].
pub struct Transactions<S: Transactional> {
    store: Arc<S>,
    writes: Option<Arc<dyn BusinessWrites<S::Transaction>>>,
}

impl<S: Transactional> Transactions<S> {
    /// Transactions of `store`, without business writes.
    #[must_use]
    pub fn new(store: Arc<S>) -> Self {
        Self {
            store,
            writes: None,
        }
    }

    /// Adds a handler's own writes, which let cases check that they commit with the record.
    #[must_use]
    pub fn with_writes(mut self, writes: Arc<dyn BusinessWrites<S::Transaction>>) -> Self {
        self.writes = Some(writes);
        self
    }
}

impl<S> Transactions<S>
where
    S: Transactional,
    S::Transaction: 'static,
{
    fn opened(&self, transaction: S::Transaction) -> Box<dyn AnyTransaction> {
        Box::new(Open {
            transaction,
            store: Arc::clone(&self.store),
            writes: self.writes.clone(),
        })
    }
}

impl<S: Transactional> fmt::Debug for Transactions<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transactions")
            .field("with_writes", &self.writes.is_some())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl<S> AnyTransactions for Transactions<S>
where
    S: Transactional,
    S::Transaction: 'static,
{
    async fn open(&self) -> Result<Box<dyn AnyTransaction>> {
        Ok(self.opened(self.store.open().await?))
    }

    async fn open_for(&self, leases: &[Lease]) -> Result<Box<dyn AnyTransaction>> {
        Ok(self.opened(self.store.open_for(leases).await?))
    }

    async fn written(&self) -> Offered<Vec<String>> {
        let writes = self
            .writes
            .as_ref()
            .ok_or(Unable::NotOffered(Need::BusinessWrites))?;
        writes.written().await.map_err(Unable::Failed)
    }
}

struct Open<S: Transactional> {
    transaction: S::Transaction,
    store: Arc<S>,
    writes: Option<Arc<dyn BusinessWrites<S::Transaction>>>,
}

#[async_trait]
impl<S: Transactional> AnyTransaction for Open<S>
where
    S::Transaction: 'static,
{
    async fn receive(&mut self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.store.receive_in(&mut self.transaction, messages).await
    }

    async fn record(&mut self, message: &Message, result: Option<Bytes>) -> Result<Recorded> {
        self.store
            .record_in(&mut self.transaction, message, result)
            .await
    }

    async fn keep_result(&mut self, key: &Key, result: Bytes) -> Result<()> {
        self.store
            .keep_result_in(&mut self.transaction, key, result)
            .await
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.store
            .settle_in(&mut self.transaction, settlements)
            .await
    }

    async fn write(&mut self, note: &str) -> Offered<()> {
        let writes = self
            .writes
            .as_ref()
            .ok_or(Unable::NotOffered(Need::BusinessWrites))?;
        writes
            .write(&mut self.transaction, note)
            .await
            .map_err(Unable::Failed)
    }

    async fn mishap(&mut self, mishap: Mishap) -> Offered<()> {
        let writes = self
            .writes
            .as_ref()
            .ok_or(Unable::NotOffered(Need::Mishap(mishap)))?;
        writes.mishap(&mut self.transaction, mishap).await
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.store.commit(self.transaction).await
    }

    async fn settle_and_commit(
        self: Box<Self>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        self.store
            .settle_and_commit(self.transaction, settlements)
            .await
    }

    async fn roll_back(self: Box<Self>) -> Result<()> {
        self.store.roll_back(self.transaction).await
    }
}
