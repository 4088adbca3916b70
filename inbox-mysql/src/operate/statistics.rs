//! Counts and ages by handler.

use std::time::Duration;

use inbox_api::{HandlerName, HandlerStatistics, Result, Statistics};
use sqlx::{Row as _, mysql::MySqlRow};

use crate::{connection::Connection, error::failed, multi_statement::Access, statement::Statement};

pub(super) async fn statistics(connection: Connection<'_>) -> Result<Statistics> {
    let mut script = connection.script(Access::Read);
    let due_counted = Statement::of_number(HandlerStatistics::DUE_COUNTED as i64);
    let text = &connection.context.sql.statistics;
    let at = script.fill(text, &[("due_counted", due_counted)]);
    let answers = connection.run(Access::Read, script).await?;
    let now = answers.now().map_err(failed)?;
    let mut handlers = Vec::new();
    for row in answers.rows(at) {
        let name: &[u8] = row.try_get_unchecked(0).map_err(failed)?;
        // A name that breaks the rules is a corrupt row, which claim and list report.
        let Some(handler) = std::str::from_utf8(name)
            .ok()
            .and_then(|name| HandlerName::new(name).ok())
        else {
            continue;
        };
        handlers.push(handler_statistics(handler, row, now).map_err(failed)?);
    }
    handlers.sort_by(|a, b| a.handler.cmp(&b.handler));
    Ok(Statistics { handlers })
}

fn handler_statistics(
    handler: HandlerName,
    row: &MySqlRow,
    now: i64,
) -> sqlx::Result<HandlerStatistics> {
    let count = |index: usize| -> sqlx::Result<u64> {
        Ok(u64::try_from(row.try_get_unchecked::<i64, _>(index)?).unwrap_or(0))
    };
    let micros = |index: usize| row.try_get_unchecked::<Option<i64>, _>(index);
    let age =
        |since: i64| Duration::from_micros(u64::try_from(now.saturating_sub(since)).unwrap_or(0));
    let (backlog, leased) = (count(1)?, count(5)?);
    let mut statistics = HandlerStatistics::empty(handler);
    statistics.pending = backlog.saturating_sub(leased);
    statistics.leased = leased;
    statistics.due = count(14)?.min(HandlerStatistics::DUE_COUNTED);
    statistics.processed = count(2)?;
    statistics.dead = count(3)?;
    statistics.discarded = count(4)?;
    statistics.blocking = count(12)?;
    statistics.paused = count(13)? == 1;
    // The longest due of those that wait and of those whose lease has run out.
    let waiting = (micros(6)?, micros(7)?, micros(8)?);
    let lost = (micros(9)?, micros(10)?, micros(11)?);
    let first = match (waiting, lost) {
        ((Some(a), seq_a, _), (Some(b), seq_b, _)) if (b, seq_b) < (a, seq_a) => lost,
        ((Some(_), _, _), _) => waiting,
        _ => lost,
    };
    statistics.lag = first.0.map(age);
    statistics.oldest_due_age = first.2.map(age);
    Ok(statistics)
}
