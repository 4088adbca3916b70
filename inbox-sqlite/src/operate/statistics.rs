//! Statistics: what stands where, by handler.

use std::time::Duration;

use inbox_api::{HandlerName, HandlerStatistics, Result, Statistics};
use sqlx::{Row as _, sqlite::SqliteRow};
use tokio::time::Instant;

use crate::{connection::Database, error::failed};

pub(crate) async fn statistics(database: &Database) -> Result<Statistics> {
    database.run(|until| attempt(database, until)).await
}

async fn attempt(database: &Database, until: Instant) -> Result<Statistics> {
    let mut connection = database.reader(until).await?;
    let now = database.now();
    let returned = sqlx::query(database.statements.statistics.clone())
        .bind(now)
        .bind(HandlerStatistics::DUE_COUNTED as i64)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed)?;
    let mut handlers = Vec::with_capacity(returned.len());
    for row in &returned {
        // A name that breaks the rules is a corrupt row, which claim and list report.
        let Ok(handler) = HandlerName::new(row.try_get::<&str, _>(0).unwrap_or_default()) else {
            continue;
        };
        handlers.push(handler_statistics(handler, row, now).map_err(failed)?);
    }
    handlers.sort_by(|a, b| a.handler.cmp(&b.handler));
    Ok(Statistics { handlers })
}

fn handler_statistics(
    handler: HandlerName,
    row: &SqliteRow,
    now: i64,
) -> sqlx::Result<HandlerStatistics> {
    let count = |index: usize| -> sqlx::Result<u64> {
        Ok(u64::try_from(row.try_get::<i64, _>(index)?).unwrap_or(0))
    };
    let age = |index: usize| -> sqlx::Result<Option<Duration>> {
        let since: Option<i64> = row.try_get(index)?;
        Ok(since.map(|since| {
            Duration::from_micros(u64::try_from(now.saturating_sub(since)).unwrap_or(0))
        }))
    };
    let mut statistics = HandlerStatistics::empty(handler);
    statistics.pending = count(1)?;
    statistics.leased = count(2)?;
    statistics.processed = count(3)?;
    statistics.dead = count(4)?;
    statistics.discarded = count(5)?;
    statistics.lag = age(6)?;
    statistics.oldest_due_age = age(7)?;
    statistics.blocking = count(8)?;
    statistics.paused = count(9)? == 1;
    statistics.due = count(10)?;
    Ok(statistics)
}
