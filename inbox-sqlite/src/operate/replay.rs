//! Replaying: pending again, as if just accepted.

use inbox_api::{Bytes, Filter, Intervention, Key, Progress, Result, Slice, State, check_size};
use tokio::time::Instant;

use super::{
    records::find,
    slice::{change, change_slice},
};
use crate::{connection::Database, error::failed};

pub(crate) async fn replay(
    database: &Database,
    key: &Key,
    payload: Option<&Bytes>,
) -> Result<Intervention> {
    if let Some(payload) = payload {
        check_size("payload", payload.len(), database.options.payload_limit)?;
    }
    database
        .run(|until| attempt(database, key, payload, until))
        .await
}

async fn attempt(
    database: &Database,
    key: &Key,
    payload: Option<&Bytes>,
    until: Instant,
) -> Result<Intervention> {
    let statements = &database.statements;
    let mut transaction = database.begin(until).await?;
    let now = database.now();
    let refused = match find(database, &mut transaction, key, now).await? {
        None => Intervention::NotFound,
        Some(stored) if !stored.stored_state.is_final() => {
            Intervention::WrongState(stored.record.state)
        }
        Some(stored) if payload.is_none() && stored.record.payload.is_none() => {
            Intervention::PayloadDropped
        }
        Some(stored) => {
            change(&mut transaction, &statements.replay, &[stored.seq], now).await?;
            if let Some(payload) = payload {
                sqlx::query(statements.replay_payload.clone())
                    .bind(stored.seq)
                    .bind(payload.as_ref())
                    .execute(&mut *transaction)
                    .await
                    .map_err(failed)?;
            }
            transaction.commit().await.map_err(failed)?;
            database.signal.raise();
            return Ok(Intervention::Done);
        }
    };
    transaction.rollback().await.map_err(failed)?;
    Ok(refused)
}

pub(crate) async fn replay_slice(
    database: &Database,
    filter: &Filter,
    slice: &Slice,
) -> Result<Progress> {
    let text = &database.statements.replay;
    let eligible = [State::Processed, State::Dead, State::Discarded];
    change_slice(database, text, filter, &eligible, slice).await
}
