//! Batch handlers whose writes commit together with the completion of their messages.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::{
    Answers, Batch, BatchHandler, Failure, LentTransaction,
    transaction_run::{InTransaction, Work},
};
use crate::Transactional;

/// Works on several messages within one database transaction.
#[async_trait]
pub trait TransactionalBatchHandler<T: Send>: Send + Sync + 'static {
    /// Works on the messages, with all writes in `transaction`. They become visible, together with the
    /// completion of the messages that are answered with success, if and only if this returns `Ok`,
    /// one message at least has succeeded, and none of these has lost its lease.
    ///
    /// A message that is answered with a failure ends as that says, after the commit. What was
    /// written for it is committed with the rest, so answer so only when nothing was: before the
    /// first write, or after rolling back to a savepoint. Where that is not so, return the error in place of
    /// answers: then all is rolled back, and the batch runs again in halves.
    ///
    /// With [runs](crate::Batches::runs), nothing may be written for what is behind a failure of the same ordering key in
    /// the batch: it is answered with [`Failure::not_reached`].
    ///
    /// # Errors
    /// As [`BatchHandler::handle`]; the transaction is rolled back then.
    async fn handle(&self, transaction: &mut T, batch: &Batch) -> Result<Answers, Failure>;
}

/// Makes a batch handler that runs `handler` in a transaction of `store`, which has to be (a clone of)
/// the store that the processor works on: [`in_transaction`](crate::in_transaction) for batches. The
/// messages share a transaction, its settlement and its commit.
///
/// - The messages that the handler answers with success are settled as processed in the same
///   transaction: its writes for them are there exactly once, whatever crashes. The others are settled
///   after the commit, as their answers say.
/// - What was written for a message that is answered with a failure is committed with the rest, and written again when
///   the message is tried again. So answer with a failure only when nothing was written for it: before its first
///   write, or after rolling back to a savepoint. Where that is not so, return the error in place of answers: then
///   all is rolled back, and the batch runs again in halves.
/// - With [runs](crate::Batches::runs), what is behind a failure of the same ordering key must not be worked on, and is
///   answered with [`Failure::not_reached`]. When it is answered with success, all is rolled back, an error is logged, and
///   the batch runs again in halves: that answer does not count, so its writes must not be committed.
/// - When the time limit is over before the transaction is open, all are handed back, without their attempt.
/// - When the handler returns an error, panics or is timed out, or when a statement of its has failed
///   in a database that refuses all further ones then (PostgreSQL), nothing is committed, and the batch runs
///   again [in halves](BatchHandler#when-a-batch-fails-as-a-whole), each in its own transaction. So a
///   handler may simply pass on the errors of its statements: a message at fault is found, and the others
///   are processed, at the cost of about twice the batch. Where faults are common, a savepoint for each
///   message avoids that.
/// - When the lease of a message is lost, all is rolled back, and the rest runs again without it.
/// - Where the database gives the transaction up in favour of another one, the batch runs again, twice
///   as it is and then in halves.
///
/// Each running batch occupies a connection: see [`Batches::at_once`](crate::Batches::at_once). While its
/// transaction is open, a batch keeps others that need its rows waiting, so it should be short. The rest of
/// [`in_transaction`](crate::in_transaction), such as its rules for SQLite, applies here too.
///
/// [`batch_in_transaction_fn`] has an example.
pub fn batch_in_transaction<S, H>(store: S, handler: H) -> impl BatchHandler
where
    S: Transactional,
    H: TransactionalBatchHandler<S::Transaction>,
{
    InTransaction {
        store,
        work: Borrowing(handler),
    }
}

/// [`batch_in_transaction`] for a function or a closure. It is lent the transaction, which goes back
/// when it is dropped: at the end of the closure, as a rule. One that keeps it for longer has failed.
///
/// It may answer a message with a failure only when nothing was written for it, or was rolled back to a savepoint,
/// since the rest is committed. Otherwise it returns the error in place of answers, by `?`: then all is rolled
/// back, and the batch runs again in halves.
///
/// ```
/// # #[cfg(feature = "postgres")] mod example {
/// use inbox::postgres::{PostgresStore, sqlx};
/// use inbox::{Batch, Batches, Router, batch_in_transaction_fn};
///
/// fn router(store: &PostgresStore) -> Router {
///     let book = batch_in_transaction_fn(store.clone(), |mut transaction, batch: Batch| async move {
///         let ids: Vec<&str> = batch.iter().map(|one| one.message().id().as_str()).collect();
///         sqlx::query("INSERT INTO booking (message) SELECT * FROM unnest($1::text[])")
///             .bind(&ids)
///             .execute(&mut **transaction)
///             .await?;
///         Ok::<_, sqlx::Error>(())
///     });
///     Router::new("booking")
///         .on_batch("order.placed", book)
///         .batches(Batches::up_to(1000))
/// }
/// # }
/// ```
pub fn batch_in_transaction_fn<S, F, Fut, A, E>(store: S, handler: F) -> impl BatchHandler
where
    S: Transactional,
    S::Transaction: 'static,
    F: Fn(LentTransaction<S::Transaction>, Batch) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<A, E>> + Send + 'static,
    A: Into<Answers> + 'static,
    E: Into<Failure> + 'static,
{
    InTransaction {
        store,
        work: Closure(handler),
    }
}

struct Borrowing<H>(H);

#[async_trait]
impl<T: Send, H: TransactionalBatchHandler<T>> Work<T> for Borrowing<H> {
    async fn work(&self, transaction: &Arc<Mutex<T>>, batch: &Batch) -> Result<Answers, Failure> {
        batch.begins();
        self.0.handle(&mut *transaction.lock().await, batch).await
    }
}

struct Closure<F>(F);

#[async_trait]
impl<T, F, Fut, A, E> Work<T> for Closure<F>
where
    T: Send + 'static,
    F: Fn(LentTransaction<T>, Batch) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<A, E>> + Send + 'static,
    A: Into<Answers> + 'static,
    E: Into<Failure> + 'static,
{
    async fn work(&self, transaction: &Arc<Mutex<T>>, batch: &Batch) -> Result<Answers, Failure> {
        let lent = LentTransaction::of(transaction).await;
        batch.begins();
        let ended = (self.0)(lent, batch.clone()).await;
        ended.map(Into::into).map_err(Into::into)
    }
}
