//! Handlers whose writes commit together with the completion of their message.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use async_trait::async_trait;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{
    Answers, Batch, Completion, Context, Failure, Handler,
    transaction_run::{InTransaction, Work},
};
use crate::Transactional;

/// Works on one message within a database transaction.
#[async_trait]
pub trait TransactionalHandler<T: Send>: Send + Sync + 'static {
    /// Works on the message, with all writes in `transaction`. They become visible, together with
    /// the completion of the message, if and only if this returns `Ok` and the lease still holds.
    ///
    /// # Errors
    /// As [`Handler::handle`]; the transaction is rolled back then.
    async fn handle(&self, transaction: &mut T, context: &Context) -> Result<Completion, Failure>;
}

/// Makes a handler that runs `handler` in a transaction of `store`, which has to be (a clone of)
/// the store that the processor works on.
///
/// When `handler` succeeds, the message is settled as processed in the same transaction and all
/// commits as one: the handler's writes are there exactly once, whatever crashes. When it fails,
/// panics, is cancelled or timed out, or when the lease turns out to be lost, nothing of it is. What is to be
/// written about a failure belongs to
/// [`Router::on_failure_in_transaction`](crate::Router::on_failure_in_transaction).
///
/// The transaction is open while the handler runs, so the handler should be short, and each running
/// handler occupies a connection. Where the store has a pool (those of PostgreSQL and MySQL have ten connections
/// unless set), keep the [`concurrency`](crate::Router::concurrency) of all such routers together a few
/// below its size, so that claims and settlements need not queue behind handlers. Leases are renewed all the
/// same: over a connection more, when handlers have all of the pool's. A
/// processor's [`handler_timeout`](crate::ProcessorBuilder::handler_timeout) covers the wait for
/// the transaction too, and not its commit. A message whose transaction is not open by then is handed back, without
/// its attempt.
///
/// A commit whose answer is lost is looked up, and waited for if it is still under way. Where that takes longer than the
/// [`store_timeout`](crate::ProcessorBuilder::store_timeout), or something around this handler drops it in its commit,
/// the attempt is settled as failed, which changes nothing when the commit has taken place: the message then
/// counts as [abandoned](crate::Summary::abandoned), and no hook is told.
///
/// Where the database gives a transaction up in favour of another one (a deadlock, a write
/// conflict), the handler runs again in a new one, up to twelve times and as part of the same attempt,
/// so that a busy row does not use up a message's attempts. The settlement and the commit say so by
/// themselves; for its own statements, the handler returns [`Failure::conflict`].
///
/// Where an open transaction keeps every other write of the inbox waiting
/// ([`exclusive_transactions`](crate::Capabilities::exclusive_transactions), on SQLite), handlers
/// run one after the other whatever the concurrency. None can be claimed by others meanwhile, so
/// a handler may take longer than its lease, which is not renewed until the transaction ends.
/// Messages that wait for their turn are renewed between transactions; with several processes on
/// one file, let the lease be several times as long as a handler takes, or one that waits may be
/// taken over, which costs it an attempt.
///
/// On SQLite; on another database only the types and the SQL differ:
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use inbox::sqlite::{SqliteOptions, SqliteStore, sqlx};
/// use inbox::{Completion, Context, Failure, HandlerName, Processor, Router};
/// use inbox::{TransactionalHandler, in_transaction};
///
/// struct Book;
///
/// #[async_trait::async_trait]
/// impl TransactionalHandler<sqlx::Transaction<'static, sqlx::Sqlite>> for Book {
///     async fn handle(
///         &self,
///         transaction: &mut sqlx::Transaction<'static, sqlx::Sqlite>,
///         context: &Context,
///     ) -> Result<Completion, Failure> {
///         sqlx::query("INSERT INTO booking (message) VALUES (?)")
///             .bind(context.message().id().as_str())
///             .execute(&mut **transaction)
///             .await?;
///         Ok(Completion::default())
///     }
/// }
///
/// async fn run() -> Result<(), Box<dyn std::error::Error>> {
///     let store = SqliteStore::connect(SqliteOptions::new("orders.db")).await?;
///     let router = Router::new(HandlerName::new("booking")?)
///         .on("order.placed", in_transaction(store.clone(), Book));
///     let processor = Processor::builder(std::sync::Arc::new(store)).router(router).build()?;
///     processor.run(inbox::CancellationToken::new()).await?;
///     Ok(())
/// }
/// # }
/// ```
pub fn in_transaction<S, H>(store: S, handler: H) -> impl Handler
where
    S: Transactional,
    H: TransactionalHandler<S::Transaction>,
{
    InTransaction {
        store,
        work: Borrowing(handler),
    }
}

/// [`in_transaction`] for a function or a closure. It is lent the transaction, which goes back when it is
/// dropped: at the end of the closure, as a rule. One that keeps it for longer has failed.
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use inbox::sqlite::{SqliteStore, sqlx};
/// use inbox::{Context, Router, in_transaction_fn};
///
/// fn router(store: &SqliteStore) -> Router {
///     let book = in_transaction_fn(store.clone(), |mut transaction, context: Context| async move {
///         sqlx::query("INSERT INTO booking (message) VALUES (?)")
///             .bind(context.message().id().as_str())
///             .execute(&mut **transaction)
///             .await?;
///         Ok::<_, sqlx::Error>(())
///     });
///     Router::new("booking").on("order.placed", book)
/// }
/// # }
/// ```
pub fn in_transaction_fn<S, F, Fut, C, E>(store: S, handler: F) -> impl Handler
where
    S: Transactional,
    S::Transaction: 'static,
    F: Fn(LentTransaction<S::Transaction>, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send + 'static,
    C: Into<Completion> + 'static,
    E: Into<Failure> + 'static,
{
    InTransaction {
        store,
        work: Closure(handler),
    }
}

/// A transaction that is lent to a closure: see [`in_transaction_fn`].
pub struct LentTransaction<T>(OwnedMutexGuard<T>);

impl<T> LentTransaction<T> {
    pub(super) async fn of(transaction: &Arc<Mutex<T>>) -> Self {
        Self(transaction.clone().lock_owned().await)
    }
}

impl<T> Deref for LentTransaction<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for LentTransaction<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> fmt::Debug for LentTransaction<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LentTransaction")
    }
}

pub(super) struct Borrowing<H>(pub(super) H);

#[async_trait]
impl<T: Send, H: TransactionalHandler<T>> Work<T> for Borrowing<H> {
    async fn work(&self, transaction: &Arc<Mutex<T>>, batch: &Batch) -> Result<Answers, Failure> {
        let context = only(batch)?;
        batch.begins();
        let ended = self.0.handle(&mut *transaction.lock().await, context).await;
        Ok(Answers::from(vec![Ok::<_, Failure>(ended?)]))
    }
}

pub(super) struct Closure<F>(pub(super) F);

#[async_trait]
impl<T, F, Fut, C, E> Work<T> for Closure<F>
where
    T: Send + 'static,
    F: Fn(LentTransaction<T>, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send + 'static,
    C: Into<Completion> + 'static,
    E: Into<Failure> + 'static,
{
    async fn work(&self, transaction: &Arc<Mutex<T>>, batch: &Batch) -> Result<Answers, Failure> {
        let context = only(batch)?.clone();
        let lent = LentTransaction::of(transaction).await;
        batch.begins();
        let ended = (self.0)(lent, context).await;
        Ok(Answers::from(vec![Ok::<_, Failure>(
            ended.map_err(Into::into)?,
        )]))
    }
}

/// The message of a batch of one.
fn only(batch: &Batch) -> Result<&Context, Failure> {
    let only = batch.first();
    only.ok_or_else(|| Failure::retry("there is no message"))
}
