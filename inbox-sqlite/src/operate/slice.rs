//! What interventions have in common: messages that were found eligible under the write lock.

use inbox_api::{
    Cursor, Due, Filter, Intervention, Key, OperatorName, Progress, Result, Slice, State,
};
use sqlx::{Connection as _, SqlStr, SqliteConnection};
use tokio::time::Instant;

use super::{
    records::find,
    selection::{Selection, start_after},
};
use crate::{
    batch::json,
    connection::{Database, Limited},
    error::failed,
    rows,
    statements::BEGIN,
};

const NOTHING: Progress = Progress {
    changed: 0,
    next: None,
};

/// The fourth parameter of an intervention's statement, if it has one.
pub(crate) enum LastParameter {
    None,
    Due(Due),
    IsEdited(bool),
}

/// What an intervention does.
pub(crate) struct Change<'a> {
    pub(crate) text: &'a SqlStr,
    /// The states in which messages are changed.
    pub(crate) eligible: Vec<State>,
    /// What a filter without states means.
    pub(crate) usual: State,
    /// Who signs it.
    pub(crate) by: Option<&'a OperatorName>,
    pub(crate) last: LastParameter,
    /// Whether messages without a payload are passed over.
    pub(crate) needs_payload: bool,
}

impl<'a> Change<'a> {
    pub(crate) fn new(text: &'a SqlStr, eligible: &[State], by: Option<&'a OperatorName>) -> Self {
        Self {
            text,
            eligible: eligible.to_vec(),
            usual: State::Dead,
            by,
            last: LastParameter::None,
            needs_payload: false,
        }
    }

    /// Of those states of the filter that are eligible.
    fn selection<'f>(&self, filter: &'f Filter, now: i64) -> Option<Selection<'f>> {
        Selection::eligible(filter, &self.eligible, self.usual, now)
    }

    /// Changes rows that were found eligible under the write lock.
    pub(crate) async fn apply(
        &self,
        connection: &mut SqliteConnection,
        sequences: &[i64],
        now: i64,
    ) -> Result<()> {
        let mut query = sqlx::query(self.text.clone())
            .bind(json(&sequences)?)
            .bind(now)
            .bind(self.by.map(|by| by.as_str().to_owned()));
        match self.last {
            LastParameter::None => {}
            LastParameter::Due(due) => query = query.bind(due.resolve(now)),
            LastParameter::IsEdited(is_edited) => query = query.bind(is_edited),
        }
        query.execute(connection).await.map_err(failed)?;
        Ok(())
    }
}

/// Changes the message of that key, if its state is eligible.
pub(crate) async fn change_one(
    database: &Database,
    change: &Change<'_>,
    key: &Key,
) -> Result<Intervention> {
    database
        .run(|until| attempt_one(database, change, key, until))
        .await
}

async fn attempt_one(
    database: &Database,
    change: &Change<'_>,
    key: &Key,
    until: Instant,
) -> Result<Intervention> {
    let mut transaction = database.begin(until).await?;
    let now = database.now();
    let refused = match find(database, &mut transaction, key, now).await? {
        None => Intervention::NotFound,
        Some(stored) if change.eligible.contains(&stored.record.state) => {
            change.apply(&mut transaction, &[stored.seq], now).await?;
            transaction.commit().await.map_err(failed)?;
            database.signal.raise();
            return Ok(Intervention::Done);
        }
        Some(stored) => Intervention::WrongState(stored.record.state),
    };
    transaction.rollback().await.map_err(failed)?;
    Ok(refused)
}

/// Changes one slice of those messages that `filter` selects and whose state is eligible.
pub(crate) async fn change_slice(
    database: &Database,
    change: &Change<'_>,
    filter: &Filter,
    slice: &Slice,
) -> Result<Progress> {
    let beyond = start_after(slice.after.as_ref(), 0)?;
    if slice.limit == 0 || change.selection(filter, 0).is_none() {
        return Ok(NOTHING);
    }
    database
        .run(|until| attempt(database, change, filter, (beyond, slice.limit), until))
        .await
}

async fn attempt(
    database: &Database,
    change: &Change<'_>,
    filter: &Filter,
    (beyond, limit): (i64, u32),
    until: Instant,
) -> Result<Progress> {
    let mut limited = Limited::new(database.writer(until).await?.into_inner(), until).await?;
    let connection = &mut limited.connection;
    let mut transaction = connection.begin_with(BEGIN).await.map_err(failed)?;
    let Some(selection) = change.selection(filter, database.now()) else {
        return Ok(NOTHING);
    };
    let texts = &database.statements.slice_select;
    let found = selection
        .page(&mut transaction, texts, beyond, limit, change.needs_payload)
        .await?;
    let sequences = found
        .iter()
        .map(rows::seq)
        .collect::<sqlx::Result<Vec<_>>>()
        .map_err(failed)?;
    let Some(last) = sequences.last() else {
        transaction.rollback().await.map_err(failed)?;
        limited.give_back();
        return Ok(NOTHING);
    };
    change
        .apply(&mut transaction, &sequences, selection.now)
        .await?;
    transaction.commit().await.map_err(failed)?;
    database.signal.raise();
    limited.give_back();
    let full = sequences.len() >= limit as usize;
    Ok(Progress {
        changed: sequences.len() as u64,
        next: full.then(|| Cursor::from(*last)),
    })
}
