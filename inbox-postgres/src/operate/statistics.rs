//! Counts and ages by handler.

use std::time::Duration;

use inbox_api::{HandlerName, HandlerStatistics, Result, Statistics};
use sqlx::{Row as _, postgres::PgRow};

use crate::{
    arguments::Arguments,
    connection::{Database, On},
    error::failed,
    time::Instant,
};

pub(super) async fn statistics(database: &Database) -> Result<Statistics> {
    let text = &database.statements.statistics;
    let arguments = Arguments::new()
        .with(HandlerStatistics::DUE_COUNTED as i64)
        .finish()?;
    let answer = database.run(On::Pool, text, arguments).await?;
    let mut handlers = Vec::with_capacity(answer.len());
    for row in &answer {
        // A name that breaks the rules is a corrupt row, which claim and list report.
        let Ok(handler) = HandlerName::new(row.try_get::<&str, _>(0).unwrap_or_default()) else {
            continue;
        };
        handlers.push(read(handler, row).map_err(failed)?);
    }
    handlers.sort_by(|a, b| a.handler.cmp(&b.handler));
    Ok(Statistics { handlers })
}

fn read(handler: HandlerName, row: &PgRow) -> sqlx::Result<HandlerStatistics> {
    let count = |index: usize| -> sqlx::Result<u64> {
        Ok(u64::try_from(row.try_get::<i64, _>(index)?).unwrap_or(0))
    };
    let now = row.try_get::<Instant, _>(10)?.0;
    let age = |index: usize| -> sqlx::Result<Option<Duration>> {
        let since: Option<Instant> = row.try_get(index)?;
        Ok(since.map(|since| {
            Duration::from_micros(u64::try_from(now.saturating_sub(since.0)).unwrap_or(0))
        }))
    };
    let lost = count(6)?;
    let mut statistics = HandlerStatistics::empty(handler);
    statistics.pending = count(1)? + lost;
    statistics.due = count(12)?;
    statistics.leased = count(2)?.saturating_sub(lost);
    statistics.processed = count(3)?;
    statistics.dead = count(4)?;
    statistics.discarded = count(5)?;
    statistics.blocking = count(7)?;
    statistics.paused = row.try_get(11)?;
    statistics.lag = age(8)?;
    statistics.oldest_due_age = age(9)?;
    Ok(statistics)
}
