//! The operator's side, whose operations have a file each.

mod clear;
mod discard;
mod intervention;
mod pause;
mod purge;
pub(crate) mod records;
mod replay;
mod reschedule;
mod scan;
pub(crate) mod statistics;

use std::sync::Arc;

use async_trait::async_trait;
use inbox_api::{
    Due, Edit, Filter, HandlerName, Intervention, Key, Listing, Operate, OperatorName, Page,
    Progress, PurgeRequest, Record, Result, Slice, Statistics,
};

use crate::store::RedisStore;

#[async_trait]
impl Operate for RedisStore {
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        let mut signing = self.clone();
        signing.operator = Some(operator.clone());
        Arc::new(signing)
    }

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

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        let replayed = replay::replay(&self.connection, key, edit, self.operator.as_ref()).await;
        replayed.map_err(|error| error.in_operation("replay"))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let progress =
            replay::replay_slice(&self.connection, filter, slice, self.operator.as_ref()).await;
        progress.map_err(|error| error.in_operation("replay_slice"))
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        let rescheduled =
            reschedule::reschedule(&self.connection, key, due, self.operator.as_ref()).await;
        rescheduled.map_err(|error| error.in_operation("reschedule"))
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        let progress = reschedule::reschedule_slice(
            &self.connection,
            filter,
            slice,
            due,
            self.operator.as_ref(),
        )
        .await;
        progress.map_err(|error| error.in_operation("reschedule_slice"))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        let discarded = discard::discard(&self.connection, key, self.operator.as_ref()).await;
        discarded.map_err(|error| error.in_operation("discard"))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let progress =
            discard::discard_slice(&self.connection, filter, slice, self.operator.as_ref()).await;
        progress.map_err(|error| error.in_operation("discard_slice"))
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        let progress = clear::clear_slice(&self.connection, handler, slice).await;
        progress.map_err(|error| error.in_operation("clear_slice"))
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        let paused = pause::set_paused(&self.connection, handler, true).await;
        paused.map_err(|error| error.in_operation("pause"))
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        let resumed = pause::set_paused(&self.connection, handler, false).await;
        resumed.map_err(|error| error.in_operation("resume"))
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        let paused = pause::paused(&self.connection).await;
        paused.map_err(|error| error.in_operation("paused"))
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

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        let dropped = purge::drop_payloads(&self.connection, request).await;
        dropped.map_err(|error| error.in_operation("drop_payloads"))
    }
}
