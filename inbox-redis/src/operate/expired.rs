//! What retention deletes.

use std::collections::BTreeMap;

use inbox_api::{Expired, HandlerName, Key, Result, duration_micros};
use redis::Value;

use crate::{
    keys::field,
    reply::{self, Taker, unexpected},
    rows::{self, Row},
    scripts::{OPERATE, READ},
    store::RedisStore,
};

impl RedisStore {
    /// What `expired` means, the longest-finished of all shards first.
    pub(super) async fn find_expired(
        &self,
        operation: &'static str,
        expired: &Expired,
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
                found.push(row);
            }
        }
        found.sort_by_key(|row| row.at);
        found.truncate(limit);
        Ok(found)
    }

    pub(super) async fn purge_in(
        &self,
        operation: &'static str,
        shard: u16,
        expired: &Expired,
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
        let guards = answer.list().map_err(mapped)?;
        self.drop_guards(operation, guards).await;
        Ok(purged)
    }

    /// Where the messages of `keys` are: at home, or where a guard says.
    pub(super) async fn find_shards(
        &self,
        operation: &'static str,
        keys: &[Key],
    ) -> Result<BTreeMap<u16, Vec<String>>> {
        let mut by_shard: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for key in keys {
            let home = self.layout().home(key);
            by_shard.entry(home).or_default().push(field(key));
        }
        if self.layout().shards() == 1 {
            return Ok(by_shard);
        }
        let mapped = unexpected(operation);
        let mut found: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for (home, fields) in by_shard {
            let mut call = self.inner.caller.call(&READ, home, []);
            call.arg("places");
            for field in &fields {
                call.arg(field);
            }
            let places = reply::list(self.run(operation, call).await?).map_err(mapped)?;
            for (field, place) in fields.into_iter().zip(places) {
                let shard = match place {
                    Value::Nil => home,
                    place => reply::small(&place).map_err(mapped)?,
                };
                found.entry(shard).or_default().push(field);
            }
        }
        Ok(found)
    }
}
