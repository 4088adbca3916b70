//! The operator's side of the store.

mod interventions;
mod purge;
mod records;

use async_trait::async_trait;
use inbox_api::{
    Bytes, Filter, Intervention, Key, Listing, Operate, Page, Progress, PurgeRequest, Record,
    Result, Slice, Statistics,
};

use crate::{queues::Queues, store::MemoryStore};

#[async_trait]
impl Operate for MemoryStore {
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

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        self.open()
            .and_then(|queues| interventions::replay(queues, key, payload))
            .map_err(|error| error.in_operation("replay"))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.open()
            .and_then(|queues| interventions::replay_slice(queues, filter, slice))
            .map_err(|error| error.in_operation("replay_slice"))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.open()
            .map(|queues| interventions::discard(queues, key))
            .map_err(|error| error.in_operation("discard"))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.open()
            .and_then(|queues| interventions::discard_slice(queues, filter, slice))
            .map_err(|error| error.in_operation("discard_slice"))
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
}

fn statistics(queues: &Queues) -> Statistics {
    queues.lock(&queues.all(), |locked, now| Statistics {
        handlers: locked
            .iter()
            .filter_map(|queue| queue.statistics(now))
            .collect(),
    })
}
