//! Recording, receiving and settling inside the caller's own transaction.
//!
//! A commit must not say that a transaction is durable which is not there any more: a statement of
//! the handler's has committed it or rolled it back (`ON CONFLICT ROLLBACK`, a full disk), and later
//! ones have committed by themselves, or in another transaction. So there is a savepoint in it, which
//! ends with it, and a commit releases that first.

use async_trait::async_trait;
use inbox_api::{
    Bytes, Effect, Error, ErrorKind, Message, Receipt, Recorded, Result, Settled, Settlement,
    Transactional,
};
use sqlx::{Executor as _, Sqlite, Transaction};

use crate::{
    error::{GENERIC, in_operation, primary_code},
    operation::{deadline, in_time},
    options::OWN,
    settle::Repetition,
    store::SqliteStore,
};

/// As [`BEGIN`](crate::store::BEGIN), marked as the store's own.
const OPEN: &str = "BEGIN IMMEDIATE; SAVEPOINT inbox_opened";
const RELEASE_OPENED: &str = "RELEASE inbox_opened";
/// Marks a transaction that the caller began. A second mark stands behind the first one.
const MARK: &str = "SAVEPOINT inbox_used";
const RELEASE_USED: &str = "RELEASE inbox_used";
/// What the writer was opened with; 0 on other connections.
const WHOSE: &str = "PRAGMA temp.user_version";
/// Fails within a transaction, and does nothing there.
const BEGIN_IF_NONE: &str = "BEGIN";

/// Runs a statement of which one thing is wanted to know: whether SQLite could.
async fn succeeds(
    operation: &'static str,
    transaction: &mut Transaction<'static, Sqlite>,
    statement: &'static str,
) -> Result<bool> {
    match transaction.execute(sqlx::raw_sql(statement)).await {
        Ok(_) => Ok(true),
        Err(error) if primary_code(&error) == Some(GENERIC) => Ok(false),
        Err(error) => Err(in_operation(operation)(error)),
    }
}

async fn is_own(
    operation: &'static str,
    transaction: &mut Transaction<'static, Sqlite>,
) -> Result<bool> {
    let whose: i64 = sqlx::query_scalar(WHOSE)
        .fetch_one(&mut **transaction)
        .await
        .map_err(in_operation(operation))?;
    Ok(whose == OWN)
}

/// The driver counts transactions, and would not notice that one has ended: it needs one to roll back.
async fn roll_back(
    operation: &'static str,
    mut transaction: Transaction<'static, Sqlite>,
) -> Result<()> {
    succeeds(operation, &mut transaction, BEGIN_IF_NONE).await?;
    transaction
        .rollback()
        .await
        .map_err(in_operation(operation))
}

fn has_ended(operation: &'static str) -> Error {
    let reason = "the transaction is not there any more: a statement in it has committed it or \
        rolled it back, and others may have committed by themselves";
    Error::new(ErrorKind::Other, operation, reason).with_effect(Effect::Unknown)
}

/// Before something is done in a transaction: looks that it is there, and marks it if the store did
/// not when it began.
async fn mark(
    operation: &'static str,
    transaction: &mut Transaction<'static, Sqlite>,
) -> Result<()> {
    if succeeds(operation, transaction, BEGIN_IF_NONE).await? {
        // Stays, so that whatever follows is rolled back with it.
        return Err(has_ended(operation));
    }
    if !is_own(operation, transaction).await? {
        transaction
            .execute(sqlx::raw_sql(MARK))
            .await
            .map_err(in_operation(operation))?;
    }
    Ok(())
}

/// Everything here runs on the given transaction's own connection, so a transaction that the
/// caller began on a pool of their own, on the same file, does as well as one from
/// [`open`](Transactional::open). Begin it with `BEGIN IMMEDIATE`: one that reads first and
/// writes later fails as `Conflict` when somebody else wrote in between.
///
/// While a transaction holds SQLite's write lock, all other writers of the file wait, at most for
/// their [`operation_timeout`](crate::SqliteOptions::operation_timeout), and then fail as
/// `Unavailable`. That includes this store's own operations: settle in the transaction, not next to
/// it.
///
/// [`commit`](Transactional::commit) fails when a statement has ended the transaction before: as
/// `Other`, with an unknown effect, since what came behind it may be durable. For a transaction of
/// the caller's that begins with the first call that it is given to; one that was given to none is
/// refused. Whoever commits with the driver itself is not told.
#[async_trait]
impl Transactional for SqliteStore {
    type Transaction = Transaction<'static, Sqlite>;

    async fn open(&self) -> Result<Self::Transaction> {
        self.run("open", |until| self.begin_with("open", OPEN, until))
            .await
    }

    async fn commit(&self, mut transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "commit";
        let until = deadline(self.inner.options.operation_timeout);
        let work = async {
            let transaction_stands = succeeds(OPERATION, &mut transaction, RELEASE_OPENED).await?
                || (!is_own(OPERATION, &mut transaction).await?
                    && succeeds(OPERATION, &mut transaction, RELEASE_USED).await?);
            if !transaction_stands {
                roll_back(OPERATION, transaction).await?;
                return Err(has_ended(OPERATION));
            }
            transaction.commit().await.map_err(in_operation(OPERATION))
        };
        let committed = in_time(OPERATION, until, work).await;
        // What the transaction received or settled is unknown here; a wake-up without a cause
        // does no harm.
        self.inner.signal.raise();
        committed
    }

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        let until = deadline(self.inner.options.operation_timeout);
        in_time("roll_back", until, roll_back("roll_back", transaction)).await
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        const OPERATION: &str = "receive_in";
        let work = &self.inner.work;
        let prepared = work.prepare_receive(messages);
        self.within(OPERATION, async {
            self.enter(OPERATION, transaction).await?;
            work.receive(transaction, prepared, self.now()).await
        })
        .await
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        const OPERATION: &str = "record_in";
        let work = &self.inner.work;
        work.check_record(message, result.as_ref())?;
        self.within(OPERATION, async {
            self.enter(OPERATION, transaction).await?;
            work.record(transaction, message, result.as_ref(), self.now())
                .await
        })
        .await
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        const OPERATION: &str = "settle_in";
        let work = &self.inner.work;
        self.within(OPERATION, async {
            self.enter(OPERATION, transaction).await?;
            let answers = work
                .settle(transaction, settlements, Repetition::Lost, self.now())
                .await?;
            Ok(answers.settled)
        })
        .await
    }
}

impl SqliteStore {
    /// Before anything is done in a transaction.
    async fn enter(
        &self,
        operation: &'static str,
        transaction: &mut Transaction<'static, Sqlite>,
    ) -> Result<()> {
        mark(operation, transaction).await?;
        self.check(operation, transaction).await
    }

    /// In a transaction, nothing is tried again: whether a lock is worth a wait is for its own
    /// connection to say.
    async fn within<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let until = deadline(self.inner.options.operation_timeout);
        in_time(operation, until, work).await
    }
}
