//! Messages that belong to another shard than their home, while they are on their way there.
//!
//! All copies of a delivery have the same home, which stores or stages them in one step. From then
//! on they are stored, whoever dies: what stays staged is placed by the next who sees it.

use std::collections::BTreeMap;

use inbox_api::{Key, Result, duration_micros};

use crate::{
    keys::field,
    receive::PLACING,
    reply::{self, Reply, Taker, Unexpected, unexpected},
    rows,
    scripts::{READ, RECEIVE, UNSTAGE},
    store::RedisStore,
};

/// Of one shard, so many are placed at a time.
const STEP: usize = 100;

/// A message as its home has it.
struct Staged {
    field: String,
    shard: u16,
    number: u64,
    seq: u64,
    due: Vec<u8>,
    ordering_key: Vec<u8>,
    body: inbox_api::Bytes,
}

fn staged(value: redis::Value) -> Reply<Staged> {
    let mut parts = Taker::of(value)?;
    let bytes = |bytes: Option<inbox_api::Bytes>| bytes.ok_or(Unexpected);
    Ok(Staged {
        field: reply::text(&parts.next()?)?.ok_or(Unexpected)?.to_owned(),
        shard: parts.small()?,
        number: parts.unsigned()?,
        seq: parts.unsigned()?,
        due: bytes(parts.bytes()?)?.to_vec(),
        ordering_key: bytes(parts.bytes()?)?.to_vec(),
        body: bytes(parts.bytes()?)?,
    })
}

impl RedisStore {
    /// Places what was staged in any shard, however short ago: for those who want to see all.
    pub(crate) async fn place_all(&self, operation: &'static str) -> Result<()> {
        if self.layout().shards() == 1 {
            return Ok(());
        }
        let looks = self
            .layout()
            .all()
            .map(|home| self.place_staged(operation, home, std::time::Duration::ZERO));
        futures_util::future::try_join_all(looks).await.map(drop)
    }

    /// Places what has been staged in a shard for so long: its sender died, or is slow.
    pub(crate) async fn place_staged(
        &self,
        operation: &'static str,
        home: u16,
        age: std::time::Duration,
    ) -> Result<()> {
        while self.place_step(operation, home, age, None).await? == STEP {}
        Ok(())
    }

    /// Places a message if it is staged; answers whether it was.
    pub(crate) async fn place_staged_one(
        &self,
        operation: &'static str,
        key: &Key,
    ) -> Result<bool> {
        let home = self.layout().home(key);
        let placed = self.place_step(operation, home, std::time::Duration::ZERO, Some(key));
        Ok(placed.await? > 0)
    }

    async fn place_step(
        &self,
        operation: &'static str,
        home: u16,
        age: std::time::Duration,
        key: Option<&Key>,
    ) -> Result<usize> {
        let mapped = unexpected(operation);
        let mut call = self.inner.caller.call(&READ, home, []);
        call.arg("staged").arg(duration_micros(age)).arg(STEP);
        if let Some(key) = key {
            call.arg(field(key));
        }
        let mut answer = Taker::of(self.run(operation, call).await?).map_err(mapped)?;
        let time = answer.number().map_err(mapped)?;
        let mut by_shard: BTreeMap<u16, Vec<Staged>> = BTreeMap::new();
        for one in answer.list().map_err(mapped)? {
            let one = staged(one).map_err(mapped)?;
            by_shard.entry(one.shard).or_default().push(one);
        }
        let mut calls = Vec::new();
        for (shard, batch) in &by_shard {
            let keys = batch.iter().filter_map(|one| rows::key(&one.field).ok());
            let handlers: Vec<_> = keys.map(|key| key.handler).collect();
            let mut call = self.inner.caller.call(&RECEIVE, *shard, &handlers);
            // Numbers count from the first, here from 1.
            call.arg(1).arg(0);
            for one in batch {
                call.arg("one")
                    .arg(one.seq.saturating_sub(1))
                    .arg(&one.field)
                    .arg(one.due.as_slice())
                    .arg(one.ordering_key.as_slice())
                    .arg(&*one.body)
                    .arg("")
                    .arg(home)
                    .arg(one.number)
                    .arg(time.saturating_add(PLACING));
            }
            calls.push(call);
        }
        let answers = self.run_all_confirmed(operation, calls).await?;
        let (mut placed, mut gone) = (Vec::new(), Vec::new());
        for (batch, answer) in by_shard.into_values().zip(answers) {
            let answers = reply::list(answer).map_err(mapped)?;
            for (one, answer) in batch.into_iter().zip(answers) {
                match answer {
                    redis::Value::Int(0 | 1) => placed.push((home, one.field, one.number)),
                    // Fenced off: it was placed before, and has been purged since.
                    redis::Value::Int(4) => gone.push((one.field, one.number)),
                    _ => {}
                }
            }
        }
        let count = placed.len();
        self.unstage(operation, placed).await;
        if !gone.is_empty() {
            self.unguard(operation, home, &gone).await?;
        }
        Ok(count)
    }

    /// Removes what was placed from where it was staged. If that fails, the next who sees it finds
    /// that it is placed already.
    pub(crate) async fn unstage(&self, operation: &'static str, placed: Vec<(u16, String, u64)>) {
        let mut by_home: BTreeMap<u16, Vec<(String, u64)>> = BTreeMap::new();
        for (home, field, number) in placed {
            by_home.entry(home).or_default().push((field, number));
        }
        let calls = by_home
            .into_iter()
            .map(|(home, members)| {
                let mut call = self.inner.caller.call(&UNSTAGE, home, []);
                for (field, number) in members {
                    call.arg(field).arg(number);
                }
                call
            })
            .collect();
        if let Err(error) = self.run_all(operation, calls).await {
            tracing::debug!(%error, "messages that were placed are still staged");
        }
    }
}
