//! What a router writes about failed attempts, in the transactions that settle them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{sync::Mutex, time::timeout};

use super::{
    Answers, Batch, Context, Failure, LentTransaction, Router,
    batch_run::timed_out,
    transaction_run::{Run, Work},
};
use crate::{Outcome, Transactional};

/// An attempt that has failed, and what its message is settled as: see
/// [`Router::on_failure_in_transaction`](crate::Router::on_failure_in_transaction).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// The message under its lease.
    pub context: Context,
    /// What the handler has answered, after the router's [rules](crate::Router::classify).
    pub failure: Failure,
    /// [`Outcome::Retry`] or [`Outcome::Dead`].
    pub outcome: Outcome,
}

/// Settles failed attempts, with writes of the application's.
#[async_trait]
pub(super) trait SettleFailed: Send + Sync + 'static {
    /// `Ok` when the outcome is settled in a transaction that has committed.
    async fn settle(&self, attempt: &FailedAttempt, limit: Option<Duration>)
    -> Result<(), Failure>;
}

impl Router {
    /// Settles failed attempts in a transaction of `store`, in which `handler` may write something: what
    /// it writes is there if and only if the message is tried again or dead, as the
    /// [outcome](FailedAttempt::outcome) says. `store` has to be (a clone of) the store that the processor
    /// works on. In place of an earlier one.
    ///
    /// It is called for every attempt that counts, whatever its handler is, also when that has panicked or
    /// was timed out, or when the message died without being run because its attempts were used up or it had
    /// [expired](crate::Message::with_time_to_live); a handler's own transaction was rolled back before. It is not
    /// called for what is deferred, paused or handed back, nor for a corrupt row, nor for messages that die
    /// otherwise than by this processor.
    ///
    /// It cannot change the outcome. When it fails itself, panics, or takes longer than a
    /// [handler](Self::timeout) may, its writes are rolled back, an error is logged, and the outcome is settled
    /// without them: a message that has to die is not kept alive by what cannot be written about it. An
    /// outage is waited for, and a conflict with another transaction tried again, as
    /// [`in_transaction`](crate::in_transaction) does; the same rules apply to it. The time limit is for `handler`, not for the
    /// opening of its transaction or the commit. What is left when the [drain
    /// limit](crate::ProcessorBuilder::drain_limit) of a shutdown is over is settled without it.
    ///
    /// It has the room of a handler, so that it needs no further connections; next to batches, as many
    /// run at a time as [batches](crate::Batches::at_once) do, each with a connection of its own.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] mod example {
    /// use inbox::sqlite::{SqliteStore, sqlx};
    /// use inbox::{Context, FailedAttempt, Failure, Outcome, Router};
    ///
    /// fn router(store: &SqliteStore) -> Router {
    ///     Router::new("billing")
    ///         .on("order.placed", |_: Context| async { Err::<(), _>(Failure::dead("no such order")) })
    ///         .on_failure_in_transaction(store.clone(), |mut transaction, attempt: FailedAttempt| async move {
    ///             if let Outcome::Dead { .. } = attempt.outcome {
    ///                 sqlx::query("INSERT INTO refusal (message, reason) VALUES (?, ?)")
    ///                     .bind(attempt.context.message().id().as_str())
    ///                     .bind(attempt.failure.error())
    ///                     .execute(&mut **transaction)
    ///                     .await?;
    ///             }
    ///             Ok::<_, sqlx::Error>(())
    ///         })
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn on_failure_in_transaction<S, F, Fut, E>(mut self, store: S, handler: F) -> Self
    where
        S: Transactional,
        S::Transaction: 'static,
        F: Fn(LentTransaction<S::Transaction>, FailedAttempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure> + 'static,
    {
        self.settle_failed = Some(Arc::new(InTransaction { store, handler }));
        self
    }
}

struct InTransaction<S, F> {
    store: S,
    handler: F,
}

#[async_trait]
impl<S, F, Fut, E> SettleFailed for InTransaction<S, F>
where
    S: Transactional,
    S::Transaction: 'static,
    F: Fn(LentTransaction<S::Transaction>, FailedAttempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Failure> + 'static,
{
    async fn settle(
        &self,
        attempt: &FailedAttempt,
        limit: Option<Duration>,
    ) -> Result<(), Failure> {
        let work = Writing {
            handler: &self.handler,
            attempt,
            limit: limit.unwrap_or(Duration::MAX),
        };
        let run = Run {
            store: &self.store,
            work: &work,
            outcome: Some(&attempt.outcome),
        };
        let answers = run.run(&Batch::new(vec![attempt.context.clone()])).await?;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }
}

struct Writing<'a, F> {
    handler: &'a F,
    attempt: &'a FailedAttempt,
    /// Neither for the opening of its transaction, nor for the commit.
    limit: Duration,
}

#[async_trait]
impl<T, F, Fut, E> Work<T> for Writing<'_, F>
where
    T: Send + 'static,
    F: Fn(LentTransaction<T>, FailedAttempt) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), E>> + Send,
    E: Into<Failure> + 'static,
{
    async fn work(&self, transaction: &Arc<Mutex<T>>, _: &Batch) -> Result<Answers, Failure> {
        let lent = LentTransaction::of(transaction).await;
        let writing = (self.handler)(lent, self.attempt.clone());
        match timeout(self.limit, writing).await {
            Ok(ended) => ended.map(Answers::from).map_err(Into::into),
            Err(_) => Err(timed_out()),
        }
    }
}
