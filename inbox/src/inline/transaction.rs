//! The inline consumer's transactional form.

use std::fmt;

use super::{ConsumeError, Consumed, OnDuplicate};
use crate::{
    Effect, Message, Recorded, Transactional,
    patience::{STORE_TIMEOUT, within},
};

/// Opens a transaction, records `message` in it, runs `work` in the same transaction if this is
/// the first time, and commits: the record and the handler's own writes exist together or not at
/// all, and no lease is needed.
///
/// A duplicate, a message that cannot run now, a failing handler and a dropped future all roll
/// back, and so does a panic, which is not caught. A failed run leaves no trace and no counted
/// attempt: how often to deliver again is the broker's to limit. Nothing is kept for duplicates
/// but the record itself. For a transaction that is opened elsewhere, call
/// [`record_in`](Transactional::record_in).
///
/// # Errors
/// [`ConsumeError::Handler`] with the handler's error; [`ConsumeError::Duplicate`] if
/// `on_duplicate` says so; [`ConsumeError::Busy`] and [`ConsumeError::Blocked`] for a message that
/// a worker holds, that is not due, or that is not first of its ordering key;
/// [`ConsumeError::Unrecorded`] when the reply to the commit was lost; otherwise
/// [`ConsumeError::Store`], after which nothing has happened.
pub async fn consume_in_transaction<S, F, E>(
    store: &S,
    message: &Message,
    on_duplicate: OnDuplicate,
    work: F,
) -> Result<Consumed, ConsumeError<E>>
where
    S: Transactional,
    F: AsyncFnOnce(&mut S::Transaction) -> Result<(), E>,
    E: fmt::Display,
{
    let mut transaction = within(STORE_TIMEOUT, "open", store.open())
        .await
        .map_err(ConsumeError::Store)?;
    let recording = store.record_in(&mut transaction, message, None);
    let answer = match within(STORE_TIMEOUT, "record_in", recording).await {
        Ok(Recorded::First) => match work(&mut transaction).await {
            Ok(()) => {
                return match within(STORE_TIMEOUT, "commit", store.commit(transaction)).await {
                    Ok(()) => Ok(Consumed::Ran { result: None }),
                    Err(error) if error.effect() == Effect::Unknown => {
                        Err(ConsumeError::Unrecorded(Some(error)))
                    }
                    Err(error) => Err(ConsumeError::Store(error)),
                };
            }
            Err(error) => Err(ConsumeError::Handler(error)),
        },
        Ok(Recorded::Processed { result }) => on_duplicate.decide(message, result),
        Ok(Recorded::Busy { until }) => Err(ConsumeError::Busy { until }),
        Ok(Recorded::Blocked) => Err(ConsumeError::Blocked),
        Ok(Recorded::Dead { reason }) => Ok(Consumed::Dead { reason }),
        Ok(Recorded::Discarded) => Ok(Consumed::Discarded),
        Err(error) => Err(ConsumeError::Store(error)),
    };
    // Nothing in it is to be kept, so a failing rollback changes nothing about the answer.
    if let Err(error) = within(STORE_TIMEOUT, "roll back", store.roll_back(transaction)).await {
        tracing::debug!(key = %message.key(), %error, "rollback failed");
    }
    answer
}
