//! What retention deletes.

use inbox_api::{HandlerName, PurgeRequest, Result, duration_micros};

use crate::{
    reply::{Taker, unexpected},
    rows::{self, Row},
    scripts::{OPERATE, READ},
    store::RedisStore,
};

impl RedisStore {
    /// What `expired` means, the longest-finished of all shards first.
    pub(super) async fn find_expired(
        &self,
        operation: &'static str,
        expired: &PurgeRequest,
        limit: usize,
    ) -> Result<Vec<Row>> {
        let mapped = unexpected(operation);
        let calls = self.layout().all().map(|shard| {
            let mut call = self.inner.caller.call(&READ, shard, []);
            call.arg("expired")
                .arg(expired.state().code())
                .arg(duration_micros(expired.older_than()))
                .arg(limit);
            call
        });
        let answers = self.run_all(operation, calls.collect()).await?;
        let mut found = Vec::new();
        for (shard, answer) in self.layout().all().zip(answers) {
            let mut answer = Taker::of(answer).map_err(mapped)?;
            let now = answer.number().map_err(mapped)?;
            for entry in answer.list().map_err(mapped)? {
                let mut entry = Taker::of(entry).map_err(mapped)?;
                let at = entry.number().map_err(mapped)?;
                let value = entry.next().map_err(mapped)?;
                let mut row = rows::row(shard, 0, now, value).map_err(mapped)?;
                row.at = at;
                found.push((self.inner.caller.clocks.common(shard, at), row));
            }
        }
        found.sort_by_key(|(at, _)| *at);
        found.truncate(limit);
        Ok(found.into_iter().map(|(_, row)| row).collect())
    }

    pub(super) async fn purge_in(
        &self,
        operation: &'static str,
        shard: u16,
        expired: &PurgeRequest,
        fields: &[String],
    ) -> Result<u64> {
        let mapped = unexpected(operation);
        let handlers: Vec<HandlerName> = fields
            .iter()
            .filter_map(|field| HandlerName::new(field.split_once('\0')?.0).ok())
            .collect();
        let mut call = self.inner.caller.call(&OPERATE, shard, &handlers);
        call.arg("purge")
            .arg(expired.state().code())
            .arg(duration_micros(expired.older_than()));
        for field in fields {
            call.arg(field);
        }
        let mut answer = Taker::of(self.run(operation, call).await?).map_err(mapped)?;
        let purged = answer.unsigned().map_err(mapped)?;
        let gone = answer.list().map_err(mapped)?;
        self.forget_places(operation, shard, gone).await;
        Ok(purged)
    }
}
