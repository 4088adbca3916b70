//! The operator's side, whose operations have a file each.

mod discard;
mod intervention;
mod purge;
mod records;
mod replay;
mod scan;
pub(crate) mod statistics;

use async_trait::async_trait;
use inbox_api::{
    Bytes, Filter, Intervention, Key, Listing, Operate, Page, Progress, PurgeRequest, Record,
    Result, Slice, Statistics,
};

use crate::store::RedisStore;

#[async_trait]
impl Operate for RedisStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let found = records::get(&self.connection, key).await;
        found.map_err(|error| error.in_operation("get"))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        let listing = records::list(&self.connection, filter, page).await;
        listing.map_err(|error| error.in_operation("list"))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        let count = records::count(&self.connection, filter).await;
        count.map_err(|error| error.in_operation("count"))
    }

    async fn statistics(&self) -> Result<Statistics> {
        let statistics = statistics::statistics(&self.connection).await;
        statistics.map_err(|error| error.in_operation("statistics"))
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        let replayed = replay::replay(&self.connection, key, payload).await;
        replayed.map_err(|error| error.in_operation("replay"))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let progress = replay::replay_slice(&self.connection, filter, slice).await;
        progress.map_err(|error| error.in_operation("replay_slice"))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        let discarded = discard::discard(&self.connection, key).await;
        discarded.map_err(|error| error.in_operation("discard"))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let progress = discard::discard_slice(&self.connection, filter, slice).await;
        progress.map_err(|error| error.in_operation("discard_slice"))
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        let purged = purge::purge(&self.connection, request).await;
        purged.map_err(|error| error.in_operation("purge"))
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        let listing = purge::expired(&self.connection, request).await;
        listing.map_err(|error| error.in_operation("expired"))
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        let purged = purge::purge_archived(&self.connection, request, keys).await;
        purged.map_err(|error| error.in_operation("purge_archived"))
    }
}
