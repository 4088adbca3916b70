//! The operator's side: looks on the read connections, changes on the write connection.

mod clear;
mod discard;
mod pauses;
mod purge;
mod records;
mod replay;
mod reschedule;
mod selection;
mod slice;
mod statistics;

use std::sync::Arc;

use async_trait::async_trait;
use inbox_api::{
    Due, Edit, Filter, HandlerName, Intervention, Key, Listing, Operate, OperatorName, Page,
    Progress, PurgeRequest, Record, Result, Slice, Statistics,
};

use crate::store::SqliteStore;

#[async_trait]
impl Operate for SqliteStore {
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        let mut signing = self.clone();
        signing.operator = Some(operator.clone());
        Arc::new(signing)
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        records::get(&self.database, key)
            .await
            .map_err(|error| error.in_operation("get"))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        records::list(&self.database, filter, page)
            .await
            .map_err(|error| error.in_operation("list"))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        records::count(&self.database, filter)
            .await
            .map_err(|error| error.in_operation("count"))
    }

    async fn statistics(&self) -> Result<Statistics> {
        statistics::statistics(&self.database)
            .await
            .map_err(|error| error.in_operation("statistics"))
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        replay::replay(&self.database, key, edit, self.operator.as_ref())
            .await
            .map_err(|error| error.in_operation("replay"))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        replay::replay_slice(&self.database, filter, slice, self.operator.as_ref())
            .await
            .map_err(|error| error.in_operation("replay_slice"))
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        reschedule::reschedule(&self.database, key, due, self.operator.as_ref())
            .await
            .map_err(|error| error.in_operation("reschedule"))
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        reschedule::reschedule_slice(&self.database, filter, slice, due, self.operator.as_ref())
            .await
            .map_err(|error| error.in_operation("reschedule_slice"))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        discard::discard(&self.database, key, self.operator.as_ref())
            .await
            .map_err(|error| error.in_operation("discard"))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        discard::discard_slice(&self.database, filter, slice, self.operator.as_ref())
            .await
            .map_err(|error| error.in_operation("discard_slice"))
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        clear::clear_slice(&self.database, handler, slice)
            .await
            .map_err(|error| error.in_operation("clear_slice"))
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        pauses::pause(&self.database, handler)
            .await
            .map_err(|error| error.in_operation("pause"))
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        pauses::resume(&self.database, handler)
            .await
            .map_err(|error| error.in_operation("resume"))
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        pauses::paused(&self.database)
            .await
            .map_err(|error| error.in_operation("paused"))
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        purge::purge(&self.database, request)
            .await
            .map_err(|error| error.in_operation("purge"))
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        purge::expired(&self.database, request)
            .await
            .map_err(|error| error.in_operation("expired"))
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        purge::purge_archived(&self.database, request, keys)
            .await
            .map_err(|error| error.in_operation("purge_archived"))
    }

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        purge::drop_payloads(&self.database, request)
            .await
            .map_err(|error| error.in_operation("drop_payloads"))
    }
}
