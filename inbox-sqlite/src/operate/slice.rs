//! What replay and discard have in common: messages that were found eligible under the write lock.

use inbox_api::{Cursor, Filter, Progress, Result, Slice, State};
use sqlx::{Connection as _, SqlStr, SqliteConnection};
use tokio::time::Instant;

use super::selection::{Selection, start_after};
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

/// Runs `replay.sql` or `discard.sql` on rows that were found eligible under the write lock.
pub(crate) async fn change(
    connection: &mut SqliteConnection,
    text: &SqlStr,
    sequences: &[i64],
    now: i64,
) -> Result<()> {
    sqlx::query(text.clone())
        .bind(json(&sequences)?)
        .bind(now)
        .execute(connection)
        .await
        .map_err(failed)?;
    Ok(())
}

/// Changes one slice of those messages that `filter` selects and whose state is `eligible`.
pub(crate) async fn change_slice(
    database: &Database,
    text: &SqlStr,
    filter: &Filter,
    eligible: &[State],
    slice: &Slice,
) -> Result<Progress> {
    let beyond = start_after(slice.after.as_ref(), 0)?;
    if slice.limit == 0 || Selection::eligible(filter, eligible, 0).is_none() {
        return Ok(NOTHING);
    }
    database
        .run(|until| {
            attempt(
                database,
                text,
                (filter, eligible),
                (beyond, slice.limit),
                until,
            )
        })
        .await
}

async fn attempt(
    database: &Database,
    text: &SqlStr,
    (filter, eligible): (&Filter, &[State]),
    (beyond, limit): (i64, u32),
    until: Instant,
) -> Result<Progress> {
    let mut limited = Limited::new(database.writer(until).await?, until).await?;
    let connection = &mut limited.connection;
    let mut transaction = connection.begin_with(BEGIN).await.map_err(failed)?;
    let Some(selection) = Selection::eligible(filter, eligible, database.now()) else {
        return Ok(NOTHING);
    };
    // What was dropped cannot be replayed; what is not processed has its payload.
    let with_payload_only = eligible.contains(&State::Processed);
    let found = selection
        .bind(
            selection.text(&database.statements.replay_select),
            beyond,
            i64::from(limit),
        )
        .bind(with_payload_only)
        .fetch_all(&mut *transaction)
        .await
        .map_err(failed)?;
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
    change(&mut transaction, text, &sequences, selection.now).await?;
    transaction.commit().await.map_err(failed)?;
    database.signal.raise();
    limited.give_back();
    let full = sequences.len() >= limit as usize;
    Ok(Progress {
        changed: sequences.len() as u64,
        next: full.then(|| Cursor::from(*last)),
    })
}
