//! Discarding: an operator's decision that a message is not to be processed.

use inbox_api::{Filter, Intervention, Key, Progress, Result, Slice, State};
use tokio::time::Instant;

use super::{
    records::find,
    slice::{change, change_slice},
};
use crate::{connection::Database, error::failed};

pub(crate) async fn discard(database: &Database, key: &Key) -> Result<Intervention> {
    database.run(|until| attempt(database, key, until)).await
}

async fn attempt(database: &Database, key: &Key, until: Instant) -> Result<Intervention> {
    let text = &database.statements.discard;
    let mut transaction = database.begin(until).await?;
    let now = database.now();
    let refused = match find(database, &mut transaction, key, now).await? {
        None => Intervention::NotFound,
        Some(stored) => match stored.record.state {
            State::Pending | State::Dead => {
                change(&mut transaction, text, &[stored.seq], now).await?;
                transaction.commit().await.map_err(failed)?;
                database.signal.raise();
                return Ok(Intervention::Done);
            }
            state => Intervention::WrongState(state),
        },
    };
    transaction.rollback().await.map_err(failed)?;
    Ok(refused)
}

pub(crate) async fn discard_slice(
    database: &Database,
    filter: &Filter,
    slice: &Slice,
) -> Result<Progress> {
    let text = &database.statements.discard;
    change_slice(
        database,
        text,
        filter,
        &[State::Pending, State::Dead],
        slice,
    )
    .await
}
