//! The operator's side.

mod change;
mod expired;
mod records;
mod scan;
mod statistics;

use std::collections::BTreeMap;

use async_trait::async_trait;
use inbox_api::{
    Bytes, Cursor, Filter, Intervention, Key, Listing, Operate, Page, Progress, PurgeRequest,
    Record, Result, Slice, Statistics, check_size,
};

use self::{
    change::{FINAL, UNWANTED, eligible},
    scan::{LAST, SCAN},
};
use crate::{keys::field, store::RedisStore};

/// One script purges or changes at most so many, so that live traffic gets in between.
const STEP: usize = 500;

/// The number behind which a cursor says to go on.
fn after(operation: &'static str, cursor: Option<&Cursor>) -> Result<Option<i64>> {
    cursor
        .map(|cursor| cursor.sequence().map(|seq| seq.clamp(0, LAST)))
        .transpose()
        .map_err(|e| e.in_operation(operation))
}

#[async_trait]
impl Operate for RedisStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let home = self.layout().home(key);
        if let Some(found) = self.get_in(home, key).await? {
            return Ok(Some(found));
        }
        let looks = self
            .layout()
            .others(home)
            .map(|shard| self.get_in(shard, key));
        let found = futures_util::future::try_join_all(looks).await?;
        Ok(found.into_iter().flatten().next())
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        const OPERATION: &str = "list";
        self.connection(OPERATION)?;
        let after = after(OPERATION, page.after.as_ref())?;
        let limit = page.limit.min(Page::MAX) as usize;
        if limit == 0 {
            return Ok(Listing::default());
        }
        let range = match after {
            Some(after) if page.newest_first => (0, after - 1),
            Some(after) => (after + 1, LAST),
            None => (0, LAST),
        };
        let scans = self.scans(OPERATION, filter, &filter.states, range, page.newest_first);
        // One more than asked for tells whether there is a next page.
        let mut found = self.scan(scans, limit + 1).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found
            .last()
            .filter(|_| more)
            .and_then(|row| i64::try_from(row.seq).ok())
            .map(Cursor::from);
        let mut listing = self.listing(OPERATION, found, page.with_payload).await?;
        listing.next = next;
        Ok(listing)
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        const OPERATION: &str = "count";
        let scans = self.scans(OPERATION, filter, &filter.states, (0, LAST), false);
        let mut count = 0;
        for mut scan in scans {
            while !scan.is_over() {
                count += scan.look(SCAN).await?.len() as u64;
            }
        }
        Ok(count)
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.sum_up().await
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        const OPERATION: &str = "replay";
        if let Some(payload) = &payload {
            check_size("payload", payload.len(), self.inner.options.payload_limit)
                .map_err(|invalid| invalid.in_operation(OPERATION))?;
        }
        self.change_one(OPERATION, key, &FINAL, payload.as_ref())
            .await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        const OPERATION: &str = "replay_slice";
        self.connection(OPERATION)?;
        let states = eligible(filter, &FINAL);
        self.change_slice(OPERATION, filter, &states, slice).await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.change_one("discard", key, &UNWANTED, None).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        const OPERATION: &str = "discard_slice";
        self.connection(OPERATION)?;
        let states = eligible(filter, &UNWANTED);
        self.change_slice(OPERATION, filter, &states, slice).await
    }

    async fn purge(&self, expired: &PurgeRequest) -> Result<u64> {
        const OPERATION: &str = "purge";
        let (mut purged, mut left) = (0, expired.limit() as usize);
        self.connection(OPERATION)?;
        while left > 0 {
            let wanted = left.min(STEP);
            let started = std::time::Instant::now();
            let found = self.find_expired(OPERATION, expired, wanted).await?;
            let full = found.len() == wanted;
            let mut by_shard: BTreeMap<u16, Vec<String>> = BTreeMap::new();
            for row in found {
                by_shard.entry(row.shard).or_default().push(row.field);
            }
            let mut step = 0;
            for (shard, fields) in by_shard {
                step += self.purge_in(OPERATION, shard, expired, &fields).await?;
            }
            purged += step;
            left = left.saturating_sub(usize::try_from(step).unwrap_or(usize::MAX));
            if !full || step == 0 {
                break;
            }
            // Rests as long as it worked, since the server runs one script at a time; also behind the
            // last, since a caller that reaches the limit asks for more.
            tokio::time::sleep(started.elapsed()).await;
        }
        Ok(purged)
    }

    async fn expired(&self, expired: &PurgeRequest) -> Result<Listing> {
        const OPERATION: &str = "expired";
        self.connection(OPERATION)?;
        let limit = expired.limit().min(Page::MAX) as usize;
        if limit == 0 {
            return Ok(Listing::default());
        }
        let found = self.find_expired(OPERATION, expired, limit).await?;
        self.listing(OPERATION, found, true).await
    }

    async fn purge_archived(&self, expired: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        const OPERATION: &str = "purge_archived";
        self.connection(OPERATION)?;
        let mut purged = 0;
        // Each may be in the shard of its ordering key, which is not known here.
        let mut fields: Vec<String> = keys.iter().map(field).collect();
        // One that is named twice is removed once.
        fields.sort_unstable();
        fields.dedup();
        for step in fields.chunks(STEP) {
            for shard in self.layout().all() {
                purged += self.purge_in(OPERATION, shard, expired, step).await?;
            }
        }
        Ok(purged)
    }
}
