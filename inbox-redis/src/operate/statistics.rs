//! Counts and lag of each handler, put together from the shards.

use std::{collections::BTreeMap, time::Duration};

use inbox_api::{HandlerName, HandlerStatistics, Result, Statistics};

use crate::{
    reply::{self, Reply, Taker, unexpected},
    scripts::READ,
    store::RedisStore,
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
        Ok(())
    }
}

impl RedisStore {
    pub(super) async fn sum_up(&self) -> Result<Statistics> {
        const OPERATION: &str = "statistics";
        let mapped = unexpected(OPERATION);
        let handlers = self.handlers(OPERATION).await?;
        let calls = self.layout().all().map(|shard| {
            let mut call = self.inner.caller.call(&READ, shard, &handlers);
            call.arg("statistics");
            call
        });
        let mut statistics: BTreeMap<HandlerName, Sum> = BTreeMap::new();
        if !handlers.is_empty() {
            let answers = self.run_all(OPERATION, calls.collect()).await?;
            for (shard, answer) in self.layout().all().zip(answers) {
                let common = |time| self.inner.caller.clocks.common(shard, time);
                for row in reply::list(answer).map_err(mapped)? {
                    let mut row = Taker::of(row).map_err(mapped)?;
                    let name = row.next().map_err(mapped)?;
                    let name = reply::text(&name).map_err(mapped)?.unwrap_or_default();
                    let Ok(handler) = HandlerName::new(name) else {
                        continue;
                    };
                    let entry = statistics.entry(handler.clone()).or_insert_with(|| Sum {
                        statistics: HandlerStatistics::empty(handler),
                        first: None,
                    });
                    entry.add(row, common).map_err(mapped)?;
                }
            }
        }
        Ok(Statistics {
            handlers: statistics.into_values().map(|sum| sum.statistics).collect(),
        })
    }

    async fn handlers(&self, operation: &'static str) -> Result<Vec<HandlerName>> {
        let looks = self
            .layout()
            .all()
            .map(|shard| self.handlers_in(operation, shard));
        let mut handlers = futures_util::future::try_join_all(looks).await?.concat();
        handlers.sort();
        handlers.dedup();
        Ok(handlers)
    }

    /// The handlers that have messages in a shard.
    pub(crate) async fn handlers_in(
        &self,
        operation: &'static str,
        shard: u16,
    ) -> Result<Vec<HandlerName>> {
        let mapped = unexpected(operation);
        let mut call = self.inner.caller.call(&READ, shard, []);
        call.arg("handlers");
        let mut handlers = Vec::new();
        for name in reply::list(self.run(operation, call).await?).map_err(mapped)? {
            let Ok(Some(name)) = reply::text(&name) else {
                continue;
            };
            let name = name.split_once('\0').map_or(name, |(name, _)| name);
            // A name that breaks the rules is a corrupt row, which claim and list report.
            if let Ok(handler) = HandlerName::new(name) {
                handlers.push(handler);
            }
        }
        Ok(handlers)
    }
}
