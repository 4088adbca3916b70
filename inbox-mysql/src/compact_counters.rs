//! The tally, to which every operation adds rows, is summed up now and then. It is exact either way, so
//! that a failure does not matter.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use inbox_api::Result;
use sqlx::Row as _;

use crate::{
    connection::{Connection, Inner},
    error::failed,
    multi_statement::{Access, Answers},
    statement::Statement,
};

/// One of so many operations looks whether the tally is to be summed up.
const ONE_IN: u32 = 200;
/// The most rows that one transaction sums up.
const SLICE: i64 = 10_000;
/// The most transactions at a time.
const ROUNDS: u32 = 20;
/// With so many rows for each handler, and so many in addition, the tally is summed up: it hardly gets shorter with
/// fewer.
const ROWS_OF_HANDLER: i64 = 2;
const ROWS_IN_ADDITION: i64 = 100;

/// Sums up the tally, now and then. What takes more than one transaction is done in the background.
pub(crate) async fn compact_sometimes(connection: Connection<'_>) {
    if is_due(connection.inner) {
        report(compact(connection).await);
    }
}

/// The same behind an operation in a caller's transaction, which may commit without the store. On
/// another connection, since a transaction of the caller's may lock more than it reads; and not
/// waited for, since that may be the only connection there is.
pub(crate) fn compact_in_background(inner: &Arc<Inner>) {
    if is_due(inner) {
        let inner = Arc::clone(inner);
        tokio::spawn(async move { report(compact(Connection::new(&inner)).await) });
    }
}

fn is_due(inner: &Inner) -> bool {
    inner.tallied.fetch_add(1, Ordering::Relaxed) % ONE_IN == ONE_IN - 1
}

fn report(compacted: Result<()>) {
    if let Err(error) = compacted {
        tracing::debug!(%error, "the tally was not summed up; it will be later");
    }
}

async fn compact(connection: Connection<'_>) -> Result<()> {
    let tally = look(connection, SLICE + 1).await?;
    if tally.rows > SLICE {
        let inner = Arc::clone(connection.inner);
        tokio::spawn(async move { report(compact_long(&inner).await) });
    } else if tally.is_worth_it() {
        sum_up(connection, &tally, 1, 0).await?;
    }
    Ok(())
}

/// Sums up a tally of more than one slice, part after part of the handlers, unless that is being done.
async fn compact_long(inner: &Arc<Inner>) -> Result<()> {
    let Ok(_turn) = inner.compacting.try_lock() else {
        return Ok(());
    };
    let tally = look(Connection::new(inner), i64::MAX).await?;
    if !tally.is_worth_it() {
        return Ok(());
    }
    let parts = tally.rows / SLICE + 1;
    // Any, as there may be more of them than rounds.
    let mut part = fastrand::i64(0..parts);
    let mut left = parts;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let summed_up = sum_up(Connection::new(inner), &tally, parts, part).await?;
        if summed_up < SLICE {
            part = (part + 1) % parts;
            left -= 1;
        }
        if left == 0 {
            break;
        }
        // Rests as long as it worked, so that the server is never busy with it alone.
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(())
}

/// What the tally has.
struct Tally {
    rows: i64,
    handlers: i64,
    newest: i64,
}

impl Tally {
    fn is_worth_it(&self) -> bool {
        self.rows >= ROWS_OF_HANDLER * self.handlers + ROWS_IN_ADDITION
    }
}

/// Looks at the tally's oldest rows, up to so many.
async fn look(connection: Connection<'_>, most: i64) -> Result<Tally> {
    let mut script = connection.script(Access::Read);
    let most = [("most", Statement::of_number(most))];
    let at = script.fill(&connection.context.sql.compact_look, &most);
    script.commit();
    let answers = connection.run_once(Access::Read, &script).await?;
    read_tally(&answers, at).map_err(failed)
}

fn read_tally(answers: &Answers, at: usize) -> sqlx::Result<Tally> {
    let row = answers.rows(at).first().ok_or(sqlx::Error::RowNotFound)?;
    let newest: Option<i64> = row.try_get_unchecked(2)?;
    Ok(Tally {
        rows: row.try_get_unchecked(0)?,
        handlers: row.try_get_unchecked(1)?,
        newest: newest.unwrap_or_default(),
    })
}

/// Sums up a slice of one part of the handlers. Answers with how many rows it has summed up.
async fn sum_up(connection: Connection<'_>, tally: &Tally, parts: i64, part: i64) -> Result<i64> {
    let mut script = connection.script(Access::Write);
    let values = [
        ("newest", Statement::of_number(tally.newest)),
        ("parts", Statement::of_number(parts)),
        ("part", Statement::of_number(part)),
        ("slice", Statement::of_number(SLICE)),
    ];
    script.fill(&connection.context.sql.compact_counters, &values);
    let summed_up = script.changed();
    script.forget_lists();
    script.commit();
    let answers = connection.run_once(Access::Write, &script).await?;
    answers.number(summed_up).map_err(failed)
}
