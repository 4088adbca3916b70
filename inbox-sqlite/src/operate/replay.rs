//! Replaying: pending again, as if just accepted.

use inbox_api::{
    Edit, Filter, Headers, Intervention, Key, OperatorName, Progress, Result, Slice, State,
};
use tokio::time::Instant;

use super::{
    records::find,
    slice::{Change, LastParameter, change_slice},
};
use crate::{connection::Database, error::failed};

fn change<'a>(database: &'a Database, edit: &Edit, by: Option<&'a OperatorName>) -> Change<'a> {
    let finals = [State::Processed, State::Dead, State::Discarded];
    Change {
        needs_payload: true,
        last: LastParameter::IsEdited(*edit != Edit::default()),
        ..Change::new(&database.statements.replay, &finals, by)
    }
}

pub(crate) async fn replay(
    database: &Database,
    key: &Key,
    edit: &Edit,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    edit.check_payload(database.options.payload_limit)?;
    database
        .run(|until| attempt(database, key, edit, by, until))
        .await
}

async fn attempt(
    database: &Database,
    key: &Key,
    edit: &Edit,
    by: Option<&OperatorName>,
    until: Instant,
) -> Result<Intervention> {
    let mut transaction = database.begin(until).await?;
    let now = database.now();
    let refused = match find(database, &mut transaction, key, now).await? {
        None => Intervention::NotFound,
        Some(stored) if !stored.stored_state.is_final() => {
            Intervention::WrongState(stored.record.state)
        }
        Some(stored) if edit.payload.is_none() && stored.record.payload.is_none() => {
            Intervention::PayloadDropped
        }
        Some(stored) => {
            change(database, edit, by)
                .apply(&mut transaction, &[stored.seq], now)
                .await?;
            if *edit != Edit::default() {
                sqlx::query(database.statements.replay_edit.clone())
                    .bind(stored.seq)
                    .bind(edit.payload.as_deref())
                    .bind(edit.headers.as_ref().map(Headers::to_json))
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
    by: Option<&OperatorName>,
) -> Result<Progress> {
    change_slice(
        database,
        &change(database, &Edit::default(), by),
        filter,
        slice,
    )
    .await
}
