//! The operator's side: look, replay, discard, purge.
//!
//! Looking reads one snapshot and makes nobody wait. Every change is a write transaction that reads
//! the state again before it writes, so that two operators, or an operator and a worker, cannot
//! both win.

mod interventions;
mod purge;
mod records;
mod statistics;

use async_trait::async_trait;
use inbox_api::{
    Bytes, Cursor, Filter, Intervention, Key, Listing, Operate, Page, Progress, PurgeRequest,
    Record, Result, Slice, State, Statistics, check_size,
};

use crate::store::RedbStore;
use interventions::{change_one, discard, replay};

#[async_trait]
impl Operate for RedbStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let key = key.clone();
        self.inner()
            .read(move |snapshot, now| records::get(snapshot, &key, now))
            .await
            .map_err(|error| error.in_operation("get"))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        let after = page.after.as_ref().map(Cursor::sequence).transpose();
        let after = after.map_err(|invalid| invalid.in_operation("list"))?;
        let (filter, page) = (filter.clone(), page.clone());
        self.inner()
            .read(move |snapshot, now| records::list(snapshot, filter, &page, after, now))
            .await
            .map_err(|error| error.in_operation("list"))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        let filter = filter.clone();
        self.inner()
            .read(move |snapshot, now| records::count(snapshot, filter, now))
            .await
            .map_err(|error| error.in_operation("count"))
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.inner()
            .read(statistics::statistics)
            .await
            .map_err(|error| error.in_operation("statistics"))
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        if let Some(payload) = &payload {
            check_size("payload", payload.len(), self.options().payload_limit)
                .map_err(|invalid| invalid.in_operation("replay"))?;
        }
        let key = key.clone();
        self.inner()
            .write(move |transaction| {
                change_one(transaction, &key, |transaction, row| {
                    replay(transaction, row, payload)
                })
            })
            .await
            .map_err(|error| error.in_operation("replay"))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let eligible = [State::Processed, State::Dead, State::Discarded];
        self.change_slice(filter, slice, &eligible, |transaction, row| {
            replay(transaction, row, None)
        })
        .await
        .map_err(|error| error.in_operation("replay_slice"))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        let key = key.clone();
        self.inner()
            .write(move |transaction| change_one(transaction, &key, discard))
            .await
            .map_err(|error| error.in_operation("discard"))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let eligible = [State::Pending, State::Dead];
        self.change_slice(filter, slice, &eligible, discard)
            .await
            .map_err(|error| error.in_operation("discard_slice"))
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        let request = request.clone();
        self.inner()
            .write(move |transaction| purge::purge(transaction, &request))
            .await
            .map_err(|error| error.in_operation("purge"))
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        let request = request.clone();
        self.inner()
            .read(move |snapshot, now| purge::expired(snapshot, &request, now))
            .await
            .map_err(|error| error.in_operation("expired"))
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        let (request, keys) = (request.clone(), keys.to_vec());
        self.inner()
            .write(move |transaction| purge::purge_archived(transaction, &request, &keys))
            .await
            .map_err(|error| error.in_operation("purge_archived"))
    }
}
