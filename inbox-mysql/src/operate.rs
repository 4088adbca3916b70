//! The operator's side: looks, and changes of single messages and of slices.

mod change;
mod clear;
mod discard;
mod pauses;
mod purge;
mod records;
mod replay;
mod reschedule;
mod selection;
mod statistics;

use std::sync::Arc;

use async_trait::async_trait;
use inbox_api::{
    Due, Edit, Filter, HandlerName, Intervention, Key, Listing, Operate, OperatorName, Page,
    Progress, PurgeRequest, Record, Result, Slice, Statistics,
};

use crate::store::MySqlStore;

#[async_trait]
impl Operate for MySqlStore {
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        let mut signing = self.clone();
        signing.operator = Some(operator.clone());
        Arc::new(signing)
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let record = records::get(self.connection(), key).await;
        record.map_err(|e| e.in_operation("get"))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        let listing = records::list(self.connection(), filter, page).await;
        listing.map_err(|e| e.in_operation("list"))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        let count = records::count(self.connection(), filter).await;
        count.map_err(|e| e.in_operation("count"))
    }

    async fn statistics(&self) -> Result<Statistics> {
        let statistics = statistics::statistics(self.connection()).await;
        statistics.map_err(|e| e.in_operation("statistics"))
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        let intervention =
            replay::replay(self.connection(), key, edit, self.operator.as_ref()).await;
        intervention.map_err(|e| e.in_operation("replay"))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let progress =
            replay::replay_slice(self.connection(), filter, slice, self.operator.as_ref()).await;
        progress.map_err(|e| e.in_operation("replay_slice"))
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        let intervention =
            reschedule::reschedule(self.connection(), key, due, self.operator.as_ref()).await;
        intervention.map_err(|e| e.in_operation("reschedule"))
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        let progress = reschedule::reschedule_slice(
            self.connection(),
            filter,
            slice,
            due,
            self.operator.as_ref(),
        )
        .await;
        progress.map_err(|e| e.in_operation("reschedule_slice"))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        let intervention = discard::discard(self.connection(), key, self.operator.as_ref()).await;
        intervention.map_err(|e| e.in_operation("discard"))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let progress =
            discard::discard_slice(self.connection(), filter, slice, self.operator.as_ref()).await;
        progress.map_err(|e| e.in_operation("discard_slice"))
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        let progress = clear::clear_slice(self.connection(), handler, slice).await;
        progress.map_err(|e| e.in_operation("clear_slice"))
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        let paused = pauses::pause(self.connection(), handler).await;
        paused.map_err(|e| e.in_operation("pause"))
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        let resumed = pauses::resume(self.connection(), handler).await;
        resumed.map_err(|e| e.in_operation("resume"))
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        let paused = pauses::paused(self.connection()).await;
        paused.map_err(|e| e.in_operation("paused"))
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        let purged = purge::purge(&self.inner, request).await;
        purged.map_err(|e| e.in_operation("purge"))
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        let listing = purge::expired(self.connection(), request).await;
        listing.map_err(|e| e.in_operation("expired"))
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        let purged = purge::purge_archived(&self.inner, request, keys).await;
        purged.map_err(|e| e.in_operation("purge_archived"))
    }

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        let dropped = purge::drop_payloads(&self.inner, request).await;
        dropped.map_err(|e| e.in_operation("drop_payloads"))
    }
}
