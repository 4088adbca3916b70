//! Recording, receiving and settling inside the caller's own transaction.

use async_trait::async_trait;
use inbox_api::{
    Bytes, Error, ErrorKind, Message, Receipt, Recorded, Result, Settled, Settlement, Transactional,
};
use sqlx::{Sqlite, Transaction};

use crate::{
    error::{GENERIC, in_operation, primary_code},
    settle::Repetition,
    store::SqliteStore,
};

/// Everything here runs on the given transaction's own connection, so a transaction that the
/// caller began on a pool of their own, on the same file, does as well as one from
/// [`open`](Transactional::open). Begin it with `BEGIN IMMEDIATE`: one that reads first and
/// writes later fails as `Conflict` when somebody else wrote in between.
///
/// While a transaction holds SQLite's write lock, all other writers of the file wait, at most for
/// [`busy_timeout`](crate::SqliteOptions::busy_timeout), and then fail as `Unavailable`. That
/// includes this store's own operations: settle in the transaction, not beside it.
#[async_trait]
impl Transactional for SqliteStore {
    type Transaction = Transaction<'static, Sqlite>;

    async fn open(&self) -> Result<Self::Transaction> {
        let outcome = self.open_transaction("open").await;
        self.explained("open", outcome).await
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<()> {
        let committed = transaction.commit().await;
        // What the transaction received or settled is unknown here; a wake-up without a cause
        // does no harm.
        self.inner.signal.raise();
        committed.map_err(|error| match primary_code(&error) {
            Some(GENERIC) => Error::new(
                ErrorKind::Other,
                "commit",
                "SQLite had rolled the transaction back after an earlier error",
            )
            .with_source(error),
            _ => in_operation("commit")(error),
        })
    }

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        match transaction.rollback().await {
            // There was nothing left to roll back: SQLite does so itself after some errors.
            Err(error) if primary_code(&error) == Some(GENERIC) => Ok(()),
            outcome => outcome.map_err(in_operation("roll_back")),
        }
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        self.check("receive_in", transaction).await?;
        let work = &self.inner.work;
        let prepared = work.prepare_receive(messages, self.now());
        work.receive(transaction, prepared).await
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        let work = &self.inner.work;
        work.check_record(message, result.as_ref())?;
        self.check("record_in", transaction).await?;
        work.record(transaction, message, result.as_ref(), self.now())
            .await
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        self.check("settle_in", transaction).await?;
        let work = &self.inner.work;
        let answers = work
            .settle(transaction, settlements, Repetition::Lost, self.now())
            .await?;
        Ok(answers.settled)
    }
}
