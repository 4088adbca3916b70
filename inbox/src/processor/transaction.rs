//! Handlers whose writes commit together with the completion of their message.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    panic::AssertUnwindSafe,
    sync::Arc,
};

use async_trait::async_trait;
use backon::{BackoffBuilder as _, Retryable as _};
use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::sleep,
};

use super::{
    Completion, Context, Failure, Handler,
    handler::{Completed, Hold},
    task::panic_text,
};
use crate::{
    Effect, Error, Outcome, Recorded, Result, Settled, Settlement, StoreExt as _, Transactional,
    backoff::{after_conflicts, through_an_outage},
};

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
/// panics, is cancelled or timed out, or when the lease turns out to be lost, nothing of it is.
///
/// The transaction is open while the handler runs, so the handler should be short, and each running
/// handler occupies a connection. Where the store has a pool (PostgreSQL's has ten connections
/// unless set), keep the [`concurrency`](crate::Router::concurrency) of all such routers together a few
/// below its size, so that claims, settlements and renewals of leases need not queue behind handlers. A
/// processor's [`handler_timeout`](crate::ProcessorBuilder::handler_timeout) covers the wait for
/// the transaction too.
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

/// Works in a transaction that nobody else has locked then.
#[async_trait]
trait Work<T>: Send + Sync + 'static {
    async fn work(
        &self,
        transaction: &Arc<Mutex<T>>,
        context: &Context,
    ) -> Result<Completion, Failure>;
}

struct Borrowing<H>(H);

#[async_trait]
impl<T: Send, H: TransactionalHandler<T>> Work<T> for Borrowing<H> {
    async fn work(
        &self,
        transaction: &Arc<Mutex<T>>,
        context: &Context,
    ) -> Result<Completion, Failure> {
        self.0.handle(&mut *transaction.lock().await, context).await
    }
}

struct Closure<F>(F);

#[async_trait]
impl<T, F, Fut, C, E> Work<T> for Closure<F>
where
    T: Send + 'static,
    F: Fn(LentTransaction<T>, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send + 'static,
    C: Into<Completion> + 'static,
    E: Into<Failure> + 'static,
{
    async fn work(
        &self,
        transaction: &Arc<Mutex<T>>,
        context: &Context,
    ) -> Result<Completion, Failure> {
        let lent = LentTransaction(transaction.clone().lock_owned().await);
        let ended = (self.0)(lent, context.clone()).await;
        ended.map(Into::into).map_err(Into::into)
    }
}

fn gone() -> Failure {
    Failure::retry("the handler has kept its transaction, which is rolled back")
}

struct InTransaction<S, W> {
    store: S,
    work: W,
}

#[async_trait]
impl<S, W> Handler for InTransaction<S, W>
where
    S: Transactional,
    W: Work<S::Transaction>,
{
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        let mut pauses = after_conflicts().build();
        loop {
            let failure = match self.attempt(context).await {
                Ok(()) => return Ok(Completion::already_settled()),
                Err(failure) => failure,
            };
            // It is the other transaction that the message cannot help.
            let pause = pauses.next().filter(|_| failure.is_conflict());
            let Some(pause) = pause else {
                return Err(failure);
            };
            tracing::debug!(
                error = failure.error(),
                "transaction gave way to another; again"
            );
            tokio::select! {
                biased;
                () = context.cancellation().cancelled() => return Err(cancelled()),
                () = sleep(pause) => {}
            }
        }
    }
}

impl<S, W> InTransaction<S, W>
where
    S: Transactional,
    W: Work<S::Transaction>,
{
    /// One transaction, from its opening to its end.
    async fn attempt(&self, context: &Context) -> Result<(), Failure> {
        let patience = context.patience();
        let is_exclusive = self.store.capabilities().exclusive_transactions;
        context.set_hold(Hold::Transaction);
        let transaction = match self.open(context).await {
            Ok(transaction) => transaction,
            Err(failure) => {
                context.set_hold(Hold::Lease);
                return Err(failure);
            }
        };
        if is_exclusive {
            context.set_hold(Hold::ExclusiveTransaction);
        }
        let transaction = Arc::new(Mutex::new(transaction));
        let worked = self.run(&transaction, context).await;
        let transaction = Arc::into_inner(transaction).map(Mutex::into_inner);
        let Some(transaction) = transaction else {
            context.set_hold(Hold::Lease);
            return worked.and(Err(gone()));
        };
        match worked {
            Ok(()) => self.commit(transaction, context).await,
            Err(failure) => {
                // A transaction that cannot be rolled back was never committed either.
                if let Err(error) = patience
                    .within("roll back", self.store.roll_back(transaction))
                    .await
                {
                    tracing::warn!(%error, "transaction not rolled back; its end undoes it");
                }
                context.set_hold(Hold::Lease);
                Err(failure)
            }
        }
    }

    async fn commit(&self, transaction: S::Transaction, context: &Context) -> Result<(), Failure> {
        let is_exclusive = context.is_held_by(Hold::ExclusiveTransaction);
        if !is_exclusive {
            context.set_hold(Hold::Commit);
        }
        let patience = context.patience();
        let error = match patience
            .within("commit", self.store.commit(transaction))
            .await
        {
            Ok(()) => {
                context.mark_settled();
                return Ok(());
            }
            Err(error) => error,
        };
        context.set_hold(Hold::Commit);
        if error.effect() == Effect::Unknown && self.has_committed(context).await {
            tracing::info!(%error, "the commit has taken place, though its answer was lost");
            context.mark_settled();
            return Ok(());
        }
        // When the effect remains unknown, failing is still right: the processor then settles a
        // retry with the same fencing token. If the commit took place, the message is no longer
        // leased and that settlement changes nothing; if it did not, the retry is what should
        // happen. A commit still under way holds the row, so the settlement waits for its end. A
        // commit future that is dropped is no different.
        context.set_hold(Hold::Lease);
        Err(Failure::of_transaction(error))
    }

    /// Whether the message is known to be processed under its present lease.
    async fn has_committed(&self, context: &Context) -> bool {
        match self.is_processed(context).await {
            Ok(true) => {}
            Ok(false) => return false,
            Err(failure) => {
                let error = failure.error();
                tracing::warn!(error, "whether the commit has taken place is not known");
                return false;
            }
        }
        // That is final, so a repeated settlement changes nothing, and tells by whom.
        let lease = &context.leased().lease;
        let outcome = Outcome::Processed { result: None };
        let settling = self.store.settle_one(lease, outcome);
        let settled = context.patience().within("settle", settling).await;
        matches!(settled, Ok(Settled::Done))
    }

    /// Whether the message is processed, by this worker or another.
    async fn is_processed(&self, context: &Context) -> Result<bool, Failure> {
        let patience = context.patience();
        let mut transaction = self.open(context).await?;
        let message = context.message();
        let recording = self.store.record_in(&mut transaction, message, None);
        let recorded = patience.within("record_in", recording).await;
        // What it would record is not to be kept.
        patience
            .within("roll back", self.store.roll_back(transaction))
            .await?;
        Ok(matches!(recorded?, Recorded::Processed { .. }))
    }

    /// Opens a transaction. An outage is no fault of the message and costs it no attempt: it is
    /// waited for, while the processor renews the lease.
    async fn open(&self, context: &Context) -> Result<S::Transaction, Failure> {
        let leases = std::slice::from_ref(&context.leased().lease);
        let patience = context.patience();
        let opening = (|| patience.within("open", self.store.open_for(leases)))
            .retry(through_an_outage())
            .when(Error::is_retryable);
        tokio::select! {
            biased;
            () = context.cancellation().cancelled() => Err(cancelled()),
            opened = opening => opened.map_err(Failure::retry),
        }
    }

    /// Runs the handler and settles, up to the commit.
    async fn run(
        &self,
        transaction: &Arc<Mutex<S::Transaction>>,
        context: &Context,
    ) -> Result<(), Failure> {
        let running = AssertUnwindSafe(self.work.work(transaction, context)).catch_unwind();
        let completion = tokio::select! {
            biased;
            ended = running => ended.map_err(|panic| Failure::retry(panic_text(&*panic)))??,
            () = context.cancellation().cancelled() => {
                return Err(cancelled());
            }
        };
        let Completed::Here { result } = completion.into_inner() else {
            return Err(Failure::dead(
                "the handler says that it has settled the message, but its transaction is open",
            ));
        };
        let Ok(mut transaction) = transaction.try_lock() else {
            return Err(gone());
        };
        let transaction = &mut *transaction;
        let mut settled = self.complete(transaction, context, result).await?;
        if let Some(Settled::Refused(invalid)) = &settled {
            let key = &context.leased().lease.key;
            tracing::warn!(%key, reason = %invalid, "result not kept");
            settled = self.complete(transaction, context, None).await?;
        }
        match settled {
            Some(Settled::Done) => Ok(()),
            Some(Settled::LeaseLost) => Err(Failure::lease_lost()),
            Some(Settled::Refused(invalid)) => Err(Failure::dead(invalid)),
            None => Err(Failure::retry("the store gave no answer for the message")),
        }
    }

    async fn complete(
        &self,
        transaction: &mut S::Transaction,
        context: &Context,
        result: Option<Bytes>,
    ) -> Result<Option<Settled>, Failure> {
        let settlement = Settlement {
            lease: context.leased().lease.clone(),
            outcome: Outcome::Processed { result },
        };
        let settlements = [settlement];
        let settling = self.store.settle_in(transaction, &settlements);
        let settled = context
            .patience()
            .within("settle_in", settling)
            .await
            .map_err(Failure::of_transaction)?;
        Ok(settled.into_iter().next())
    }
}

fn cancelled() -> Failure {
    Failure::retry("cancelled while running")
}
