//! The operator's side: look, replay, reschedule, discard, pause, purge.
//!
//! Looking reads one snapshot and makes nobody wait. Every change is a write transaction that reads
//! the state again before it writes, so that two operators, or an operator and a worker, cannot
//! both win.

mod interventions;
mod pauses;
mod purge;
mod records;
mod statistics;

use std::sync::Arc;

use async_trait::async_trait;
use inbox_api::{
    Cursor, Due, Edit, Filter, HandlerName, Intervention, Key, Listing, Operate, OperatorName,
    Page, Progress, PurgeRequest, Record, Result, Slice, State, Statistics,
};

use crate::store::RedbStore;
use interventions::{Eligible, change_one, clear, discard, replay, reschedule};

#[async_trait]
impl Operate for RedbStore {
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        Arc::new(self.clone().with_operator(operator.clone()))
    }

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

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        let by = self.operator().cloned();
        edit.check_payload(self.options().payload_limit)
            .map_err(|invalid| invalid.in_operation("replay"))?;
        let (key, edit) = (key.clone(), edit.clone());
        self.inner()
            .write(move |transaction| {
                change_one(transaction, &key, |transaction, row| {
                    replay(transaction, row, &edit, by.as_ref())
                })
            })
            .await
            .map_err(|error| error.in_operation("replay"))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let by = self.operator().cloned();
        let eligible = Eligible {
            states: vec![State::Processed, State::Dead, State::Discarded],
            usual: State::Dead,
            needs_payload: true,
        };
        self.change_slice(filter, slice, eligible, move |transaction, row| {
            replay(transaction, row, &Edit::default(), by.as_ref())
        })
        .await
        .map_err(|error| error.in_operation("replay_slice"))
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        let by = self.operator().cloned();
        let key = key.clone();
        self.inner()
            .write(move |transaction| {
                change_one(transaction, &key, |transaction, row| {
                    reschedule(transaction, row, due, by.as_ref())
                })
            })
            .await
            .map_err(|error| error.in_operation("reschedule"))
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        let by = self.operator().cloned();
        let eligible = Eligible {
            states: vec![State::Pending],
            usual: State::Pending,
            needs_payload: false,
        };
        self.change_slice(filter, slice, eligible, move |transaction, row| {
            reschedule(transaction, row, due, by.as_ref())
        })
        .await
        .map_err(|error| error.in_operation("reschedule_slice"))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        let by = self.operator().cloned();
        let key = key.clone();
        self.inner()
            .write(move |transaction| {
                change_one(transaction, &key, |transaction, row| {
                    discard(transaction, row, by.as_ref())
                })
            })
            .await
            .map_err(|error| error.in_operation("discard"))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let by = self.operator().cloned();
        let eligible = Eligible {
            states: vec![State::Pending, State::Dead],
            usual: State::Dead,
            needs_payload: false,
        };
        self.change_slice(filter, slice, eligible, move |transaction, row| {
            discard(transaction, row, by.as_ref())
        })
        .await
        .map_err(|error| error.in_operation("discard_slice"))
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        let states = State::ALL.into_iter();
        let states: Vec<State> = states.filter(|state| *state != State::Leased).collect();
        let filter = Filter {
            handler: Some(handler.clone()),
            states: states.clone(),
            ..Filter::default()
        };
        let eligible = Eligible {
            states,
            usual: State::Dead,
            needs_payload: false,
        };
        self.change_slice(&filter, slice, eligible, clear)
            .await
            .map_err(|error| error.in_operation("clear_slice"))
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        let handler = handler.clone();
        self.inner()
            .write(move |transaction| pauses::pause(transaction, &handler))
            .await
            .map_err(|error| error.in_operation("pause"))
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        let handler = handler.clone();
        self.inner()
            .write(move |transaction| pauses::resume(transaction, &handler))
            .await
            .map_err(|error| error.in_operation("resume"))
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        self.inner()
            .read(|snapshot, _| pauses::paused(snapshot))
            .await
            .map_err(|error| error.in_operation("paused"))
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

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        let request = request.clone();
        self.inner()
            .write(move |transaction| purge::drop_payloads(transaction, &request))
            .await
            .map_err(|error| error.in_operation("drop_payloads"))
    }
}
