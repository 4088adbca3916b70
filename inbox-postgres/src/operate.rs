//! The operator's side: looking and intervening.

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

use crate::{error::in_operation, store::PostgresStore};

#[async_trait]
impl Operate for PostgresStore {
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        let mut signing = self.clone();
        signing.operator = Some(operator.clone());
        Arc::new(signing)
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        records::get(&self.inner.database, key)
            .await
            .map_err(in_operation("get"))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        records::list(&self.inner.database, filter, page)
            .await
            .map_err(in_operation("list"))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        records::count(&self.inner.database, filter)
            .await
            .map_err(in_operation("count"))
    }

    async fn statistics(&self) -> Result<Statistics> {
        statistics::statistics(&self.inner.database)
            .await
            .map_err(in_operation("statistics"))
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        replay::replay(&self.inner.database, key, edit, self.operator.as_ref())
            .await
            .map_err(in_operation("replay"))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        replay::replay_slice(&self.inner.database, filter, slice, self.operator.as_ref())
            .await
            .map_err(in_operation("replay_slice"))
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        reschedule::reschedule(&self.inner.database, key, due, self.operator.as_ref())
            .await
            .map_err(in_operation("reschedule"))
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        reschedule::reschedule_slice(
            &self.inner.database,
            filter,
            slice,
            due,
            self.operator.as_ref(),
        )
        .await
        .map_err(in_operation("reschedule_slice"))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        discard::discard(&self.inner.database, key, self.operator.as_ref())
            .await
            .map_err(in_operation("discard"))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        discard::discard_slice(&self.inner.database, filter, slice, self.operator.as_ref())
            .await
            .map_err(in_operation("discard_slice"))
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        clear::clear_slice(&self.inner.database, handler, slice)
            .await
            .map_err(in_operation("clear_slice"))
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        pauses::pause(&self.inner.database, handler)
            .await
            .map_err(in_operation("pause"))
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        pauses::resume(&self.inner.database, handler)
            .await
            .map_err(in_operation("resume"))
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        pauses::paused(&self.inner.database)
            .await
            .map_err(in_operation("paused"))
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        purge::purge(&self.inner.database, request)
            .await
            .map_err(in_operation("purge"))
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        purge::expired(&self.inner.database, request)
            .await
            .map_err(in_operation("expired"))
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        purge::purge_archived(&self.inner.database, request, keys)
            .await
            .map_err(in_operation("purge_archived"))
    }

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        purge::drop_payloads(&self.inner.database, request)
            .await
            .map_err(in_operation("drop_payloads"))
    }
}
