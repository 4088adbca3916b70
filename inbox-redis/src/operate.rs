//! The operator's side, whose operations have a file each.

mod changes;
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
        let operation = self.shared.operation("get");
        let found = records::get(&operation, key).await;
        found.map_err(|error| operation.failed(error))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        let operation = self.shared.operation("list");
        let listing = records::list(&operation, filter, page).await;
        listing.map_err(|error| operation.failed(error))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        let operation = self.shared.operation("count");
        let count = records::count(&operation, filter).await;
        count.map_err(|error| operation.failed(error))
    }

    async fn statistics(&self) -> Result<Statistics> {
        let operation = self.shared.operation("statistics");
        let statistics = statistics::statistics(&operation).await;
        statistics.map_err(|error| operation.failed(error))
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        let operation = self.shared.operation("replay");
        let replayed = replay::replay(&operation, key, edit, self.operator.as_ref()).await;
        replayed.map_err(|error| operation.failed(error))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let operation = self.shared.operation("replay_slice");
        let progress =
            replay::replay_slice(&operation, filter, slice, self.operator.as_ref()).await;
        progress.map_err(|error| operation.failed(error))
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        let operation = self.shared.operation("reschedule");
        let rescheduled =
            reschedule::reschedule(&operation, key, due, self.operator.as_ref()).await;
        rescheduled.map_err(|error| operation.failed(error))
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        let operation = self.shared.operation("reschedule_slice");
        let progress =
            reschedule::reschedule_slice(&operation, filter, slice, due, self.operator.as_ref())
                .await;
        progress.map_err(|error| operation.failed(error))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        let operation = self.shared.operation("discard");
        let discarded = discard::discard(&operation, key, self.operator.as_ref()).await;
        discarded.map_err(|error| operation.failed(error))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let operation = self.shared.operation("discard_slice");
        let progress =
            discard::discard_slice(&operation, filter, slice, self.operator.as_ref()).await;
        progress.map_err(|error| operation.failed(error))
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        let operation = self.shared.operation("clear_slice");
        let progress = clear::clear_slice(&operation, handler, slice).await;
        progress.map_err(|error| operation.failed(error))
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        let operation = self.shared.operation("pause");
        let paused = pause::set_paused(&operation, handler, true).await;
        paused.map_err(|error| operation.failed(error))
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        let operation = self.shared.operation("resume");
        let resumed = pause::set_paused(&operation, handler, false).await;
        resumed.map_err(|error| operation.failed(error))
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        let operation = self.shared.operation("paused");
        let paused = pause::paused(&operation).await;
        paused.map_err(|error| operation.failed(error))
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        let operation = self.shared.operation("purge");
        let purged = purge::purge(&operation, request).await;
        purged.map_err(|error| operation.failed(error))
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        let operation = self.shared.operation("expired");
        let listing = purge::expired(&operation, request).await;
        listing.map_err(|error| operation.failed(error))
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        let operation = self.shared.operation("purge_archived");
        let purged = purge::purge_archived(&operation, request, keys).await;
        purged.map_err(|error| operation.failed(error))
    }

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        let operation = self.shared.operation("drop_payloads");
        let dropped = purge::drop_payloads(&operation, request).await;
        dropped.map_err(|error| operation.failed(error))
    }
}
