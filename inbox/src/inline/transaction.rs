//! The inline consumer's transactional form.

use std::{fmt, time::Duration};

use bytes::Bytes;

use super::{ConsumeError, Consumed, OnDuplicate, answer};
use crate::{
    Completion, Effect, Error, ErrorKind, Message, Recorded, Transactional,
    patience::{Patience, SHORTEST, STORE_TIMEOUT},
};

/// Opens a transaction, records `message` in it, runs `work` in the same transaction if this is
/// the first time, and commits: the record and the handler's own writes exist together or not at
/// all, and no lease is needed.
///
/// A message that cannot run now, a failing handler and a dropped future all roll back, and so does a
/// panic, which is not caught. What is final already commits an empty transaction, so that the answer is as
/// durable as what it tells of. A failed run leaves no trace and no counted
/// attempt: how often to deliver again is the broker's to limit. For a transaction that is opened
/// elsewhere, call [`record_in`](Transactional::record_in).
///
/// A [time to live](Message::with_time_to_live) counts from when a message was stored, which the transaction is not
/// told. So one that was stored before, as by a receiver, runs here however old it is; one that comes first with
/// this delivery is in time.
///
/// `work` answers `()`, or a [`Completion`] with a [result](Completion::with_result) that is kept in the
/// same transaction, for [duplicates](OnDuplicate::ReturnResult). A result over the store's limit is
/// returned but not kept, and a warning logged.
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use inbox::inline::{Consumed, OnDuplicate, consume_in_transaction};
/// use inbox::sqlite::{SqliteStore, sqlx};
/// use inbox::{Completion, Message};
///
/// async fn book(store: &SqliteStore, message: &Message) -> Result<Consumed, Box<dyn std::error::Error>> {
///     let work = async |transaction: &mut sqlx::SqliteTransaction<'static>| {
///         let insert = sqlx::query("INSERT INTO booking (message) VALUES (?)");
///         let id = message.id().as_str();
///         let booked = insert.bind(id).execute(&mut **transaction).await?;
///         let number = booked.last_insert_rowid().to_string();
///         Ok::<_, sqlx::Error>(Completion::with_result(number))
///     };
///     Ok(consume_in_transaction(store, message, OnDuplicate::ReturnResult, work).await?)
/// }
/// # }
/// ```
///
/// # Errors
/// [`ConsumeError::Handler`] with the handler's error; [`ConsumeError::Duplicate`] if
/// `on_duplicate` says so; [`ConsumeError::Busy`] and [`ConsumeError::Blocked`] for a message that
/// a worker holds, that is not due, or that is not first of its ordering key;
/// [`ConsumeError::Unrecorded`] when the reply to the commit of the work was lost; otherwise
/// [`ConsumeError::Store`], after which nothing has happened.
pub async fn consume_in_transaction<S, F, C, E>(
    store: &S,
    message: &Message,
    on_duplicate: OnDuplicate,
    work: F,
) -> Result<Consumed, ConsumeError<E>>
where
    S: Transactional,
    F: AsyncFnOnce(&mut S::Transaction) -> Result<C, E>,
    C: Into<Completion>,
    E: fmt::Display,
{
    consume_in_transaction_within(store, message, on_duplicate, STORE_TIMEOUT, work).await
}

/// [`consume_in_transaction`] with one's own time limit for each call of the store: to open the
/// transaction, to record the message, to commit and to roll back. It does not cover `work`. Without
/// it the limit is 60 seconds, twice the `operation_timeout` of the stores. Less than a millisecond
/// is taken as one.
///
/// # Errors
/// As [`consume_in_transaction`]. A call that exceeds the limit is given up: as
/// [`ConsumeError::Unrecorded`] if it is the commit of work that ran, which may have happened.
pub async fn consume_in_transaction_within<S, F, C, E>(
    store: &S,
    message: &Message,
    on_duplicate: OnDuplicate,
    store_timeout: Duration,
    work: F,
) -> Result<Consumed, ConsumeError<E>>
where
    S: Transactional,
    F: AsyncFnOnce(&mut S::Transaction) -> Result<C, E>,
    C: Into<Completion>,
    E: fmt::Display,
{
    let patience = Patience::new(store_timeout.max(SHORTEST));
    let answer = consume(store, message, on_duplicate, &patience, work).await;
    answer::tell(message, &answer);
    answer
}

async fn consume<S, F, C, E>(
    store: &S,
    message: &Message,
    on_duplicate: OnDuplicate,
    patience: &Patience,
    work: F,
) -> Result<Consumed, ConsumeError<E>>
where
    S: Transactional,
    F: AsyncFnOnce(&mut S::Transaction) -> Result<C, E>,
    C: Into<Completion>,
    E: fmt::Display,
{
    let mut transaction = patience
        .within("open", store.open())
        .await
        .map_err(ConsumeError::Store)?;
    let recording = store.record_in(&mut transaction, message, None);
    let answer = match patience.within("record_in", recording).await {
        Ok(Recorded::First) => match work(&mut transaction).await {
            Ok(completion) => {
                let result = completion.into().into_result();
                match keep(store, &mut transaction, message, result.clone(), patience).await {
                    Ok(()) => return commit(store, transaction, result, patience).await,
                    Err(error) => Err(ConsumeError::Store(error)),
                }
            }
            Err(error) => Err(ConsumeError::Handler(error)),
        },
        Ok(Recorded::Processed { result }) => {
            rest_on_others(store, transaction, patience).await?;
            return on_duplicate.decide(message, result);
        }
        Ok(Recorded::Dead { reason }) => {
            rest_on_others(store, transaction, patience).await?;
            return Ok(Consumed::Dead { reason });
        }
        Ok(Recorded::Discarded) => {
            rest_on_others(store, transaction, patience).await?;
            return Ok(Consumed::Discarded);
        }
        Ok(Recorded::Busy { until }) => Err(ConsumeError::Busy { until }),
        Ok(Recorded::Blocked) => Err(ConsumeError::Blocked),
        Err(error) => Err(ConsumeError::Store(error)),
    };
    // Nothing in it is to be kept, so a failing rollback changes nothing about the answer.
    if let Err(error) = patience
        .within("roll back", store.roll_back(transaction))
        .await
    {
        tracing::debug!(key = %message.key(), %error, "rollback failed");
    }
    answer
}

/// Ends a transaction that was told what others have made of the message, and has written nothing. The answer is
/// as durable as that only behind a commit, and the caller acknowledges the delivery by it.
async fn rest_on_others<S: Transactional, E>(
    store: &S,
    transaction: S::Transaction,
    patience: &Patience,
) -> Result<(), ConsumeError<E>> {
    let committed = patience.within("commit", store.commit(transaction)).await;
    committed.map_err(ConsumeError::Store)
}

/// Keeps a result for duplicates, as far as the store will have it.
async fn keep<S: Transactional>(
    store: &S,
    transaction: &mut S::Transaction,
    message: &Message,
    result: Option<Bytes>,
    patience: &Patience,
) -> Result<(), Error> {
    let Some(result) = result else { return Ok(()) };
    let key = message.key();
    let keeping = store.keep_result_in(transaction, key, result);
    match patience.within("keep_result_in", keeping).await {
        // Refused before anything was changed, and the work is done.
        Err(error) if error.kind() == ErrorKind::Invalid => {
            tracing::warn!(%key, %error, "result not kept");
            Ok(())
        }
        kept => kept,
    }
}

async fn commit<S: Transactional, E>(
    store: &S,
    transaction: S::Transaction,
    result: Option<Bytes>,
    patience: &Patience,
) -> Result<Consumed, ConsumeError<E>> {
    match patience.within("commit", store.commit(transaction)).await {
        Ok(()) => Ok(Consumed::Ran { result }),
        Err(error) if error.effect() == Effect::Unknown => {
            Err(ConsumeError::Unrecorded(Some(error)))
        }
        Err(error) => Err(ConsumeError::Store(error)),
    }
}
