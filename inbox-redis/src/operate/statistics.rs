//! Counts and lag of each handler, put together from the shards.

use std::{collections::BTreeMap, time::Duration};

use inbox_api::{HandlerName, HandlerStatistics, Result, Statistics};

use redis::Value;

use crate::{
    connection::Connection,
    reply::{self, Reply, Taker},
    scripts::{STATISTICS, STATISTICS_HANDLERS},
};

/// A handler's statistics while they are put together from the shards.
struct Sum {
    statistics: HandlerStatistics,
    /// When the longest-due message so far became claimable, as it compares with those of other
    /// shards, and its number.
    first: Option<(i64, i64)>,
}

impl Sum {
    fn add(&mut self, mut row: Taker, common: impl Fn(i64) -> i64) -> Reply<()> {
        let statistics = &mut self.statistics;
        let (pending, leased) = (row.unsigned()?, row.unsigned()?);
        statistics.processed += row.unsigned()?;
        statistics.dead += row.unsigned()?;
        statistics.discarded += row.unsigned()?;
        statistics.blocking += row.unsigned()?;
        let lost = row.unsigned()?;
        statistics.pending += pending + lost;
        statistics.leased += leased.saturating_sub(lost);
        let (now, at, seq, accepted) = (row.number()?, row.number()?, row.number()?, row.number()?);
        let first = (common(at), seq);
        if at >= 0 && self.first.is_none_or(|earlier| first < earlier) {
            let since =
                |at: i64| Duration::from_micros(u64::try_from(now.saturating_sub(at)).unwrap_or(0));
            self.first = Some(first);
            statistics.lag = Some(since(at));
            statistics.oldest_due_age = (accepted >= 0).then(|| since(accepted));
        }
        statistics.paused |= row.number()? == 1;
        statistics.due = (statistics.due + row.unsigned()?).min(HandlerStatistics::DUE_COUNTED);
        Ok(())
    }
}

pub(super) async fn statistics(connection: &Connection) -> Result<Statistics> {
    let handlers = handlers(connection).await?;
    let calls = connection.layout().all().map(|shard| {
        let mut call = connection.call(&STATISTICS, shard, &handlers);
        call.arg(HandlerStatistics::DUE_COUNTED);
        call
    });
    let mut statistics: BTreeMap<HandlerName, Sum> = BTreeMap::new();
    if !handlers.is_empty() {
        let answers = connection.run_all(calls.collect()).await?;
        for (shard, answer) in connection.layout().all().zip(answers) {
            let common = |time| connection.clocks().common(shard, time);
            for row in reply::list(answer)? {
                let mut row = Taker::of(row)?;
                let name = row.next()?;
                let name = reply::text(&name)?.unwrap_or_default();
                let Ok(handler) = HandlerName::new(name) else {
                    continue;
                };
                let entry = statistics.entry(handler.clone()).or_insert_with(|| Sum {
                    statistics: HandlerStatistics::empty(handler),
                    first: None,
                });
                entry.add(row, common)?;
            }
        }
    }
    Ok(Statistics {
        handlers: statistics.into_values().map(|sum| sum.statistics).collect(),
    })
}

pub(super) async fn handlers(connection: &Connection) -> Result<Vec<HandlerName>> {
    let looks = connection
        .layout()
        .all()
        .map(|shard| handlers_in(connection, shard));
    let mut handlers = futures_util::future::try_join_all(looks).await?.concat();
    handlers.sort();
    handlers.dedup();
    Ok(handlers)
}

/// The handlers that have messages in a shard.
async fn handlers_in(connection: &Connection, shard: u16) -> Result<Vec<HandlerName>> {
    let call = connection.call(&STATISTICS_HANDLERS, shard, []);
    Ok(read_handlers(reply::list(connection.run(call).await?)?))
}

/// The handlers in fields of `counts`.
pub(crate) fn read_handlers(fields: Vec<Value>) -> Vec<HandlerName> {
    let mut handlers = Vec::new();
    for name in fields {
        let Ok(Some(name)) = reply::text(&name) else {
            continue;
        };
        let name = name.split_once('\0').map_or(name, |(name, _)| name);
        // A name that breaks the rules is a corrupt row, which claim and list report.
        if let Ok(handler) = HandlerName::new(name) {
            handlers.push(handler);
        }
    }
    handlers
}
