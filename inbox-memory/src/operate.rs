//! The operator's side of the store.

mod interventions;
mod pauses;
mod purge;
mod records;

use std::sync::Arc;

use async_trait::async_trait;
use inbox_api::{
    Due, Edit, Filter, HandlerName, Intervention, Key, Listing, Operate, OperatorName, Page,
    Progress, PurgeRequest, Record, Result, Slice, Statistics,
};

use crate::{queues::Queues, store::MemoryStore};

#[async_trait]
impl Operate for MemoryStore {
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        let mut signing = self.clone();
        signing.operator = Some(operator.clone());
        Arc::new(signing)
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        self.open()
            .map(|queues| records::get(queues, key))
            .map_err(|error| error.in_operation("get"))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        self.open()
            .and_then(|queues| records::list(queues, filter, page))
            .map_err(|error| error.in_operation("list"))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        self.open()
            .map(|queues| records::count(queues, filter))
            .map_err(|error| error.in_operation("count"))
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.open()
            .map(statistics)
            .map_err(|error| error.in_operation("statistics"))
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        self.open()
            .and_then(|queues| interventions::replay(queues, key, edit, self.operator.as_ref()))
            .map_err(|error| error.in_operation("replay"))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.open()
            .and_then(|queues| {
                interventions::replay_slice(queues, filter, slice, self.operator.as_ref())
            })
            .map_err(|error| error.in_operation("replay_slice"))
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        self.open()
            .map(|queues| interventions::reschedule(queues, key, due, self.operator.as_ref()))
            .map_err(|error| error.in_operation("reschedule"))
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        self.open()
            .and_then(|queues| {
                interventions::reschedule_slice(queues, filter, slice, due, self.operator.as_ref())
            })
            .map_err(|error| error.in_operation("reschedule_slice"))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.open()
            .map(|queues| interventions::discard(queues, key, self.operator.as_ref()))
            .map_err(|error| error.in_operation("discard"))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.open()
            .and_then(|queues| {
                interventions::discard_slice(queues, filter, slice, self.operator.as_ref())
            })
            .map_err(|error| error.in_operation("discard_slice"))
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        self.open()
            .and_then(|queues| interventions::clear_slice(queues, handler, slice))
            .map_err(|error| error.in_operation("clear_slice"))
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        self.open()
            .map(|queues| pauses::pause(queues, handler))
            .map_err(|error| error.in_operation("pause"))
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        self.open()
            .map(|queues| pauses::resume(queues, handler))
            .map_err(|error| error.in_operation("resume"))
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        self.open()
            .map(pauses::paused)
            .map_err(|error| error.in_operation("paused"))
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        self.open()
            .map(|queues| purge::purge(queues, request))
            .map_err(|error| error.in_operation("purge"))
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        self.open()
            .map(|queues| purge::expired(queues, request))
            .map_err(|error| error.in_operation("expired"))
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        self.open()
            .map(|queues| purge::purge_archived(queues, request, keys))
            .map_err(|error| error.in_operation("purge_archived"))
    }

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        self.open()
            .map(|queues| purge::drop_payloads(queues, request))
            .map_err(|error| error.in_operation("drop_payloads"))
    }
}

fn statistics(queues: &Queues) -> Statistics {
    queues.lock(&queues.all(), |locked, now| Statistics {
        handlers: locked
            .iter()
            .filter_map(|queue| queue.statistics(now))
            .collect(),
    })
}
