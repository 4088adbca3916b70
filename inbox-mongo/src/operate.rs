//! The operator's side, whose operations have a file each.

mod clear;
mod discard;
mod filter;
mod intervention;
mod pauses;
pub(crate) mod purge;
mod records;
mod replay;
mod reschedule;
mod statistics;

use std::sync::Arc;

use async_trait::async_trait;
use inbox_api::{
    Due, Edit, Filter, HandlerName, Intervention, Key, Listing, Operate, OperatorName, Page,
    Progress, PurgeRequest, Record, Result, Slice, Statistics,
};

use self::{
    filter::Query,
    intervention::{Act, What, intervene, intervene_in_slice},
};
use crate::{connection::Database, schema::version::checked_task, store::MongoStore};

async fn in_task(database: &Arc<Database>, key: &Key, act: Act) -> Result<Intervention> {
    let key = key.clone();
    checked_task(database, |database| async move {
        let outcome = intervene(&mut database.connection(), &key, &act).await?;
        database.wakers.raise();
        Ok(outcome)
    })
    .await
}

async fn slice_in_task(
    database: &Arc<Database>,
    filter: &Filter,
    slice: &Slice,
    act: Act,
) -> Result<Progress> {
    let (filter, slice) = (filter.clone(), slice.clone());
    checked_task(database, |database| async move {
        let mut connection = database.connection();
        let progress = intervene_in_slice(&mut connection, &filter, &slice, &act).await?;
        database.wakers.raise();
        Ok(progress)
    })
    .await
}

impl MongoStore {
    fn act(&self, what: What) -> Act {
        let by = self.operator.clone();
        Act { what, by }
    }
}

#[async_trait]
impl Operate for MongoStore {
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate> {
        let mut signing = self.clone();
        signing.operator = Some(operator.clone());
        Arc::new(signing)
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let key = key.clone();
        let found = checked_task(&self.database, |database| async move {
            records::get(&mut database.connection(), &key).await
        });
        found.await.map_err(|error| error.in_operation("get"))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        let (query, page) = (Query::of(filter), page.clone());
        let listing = checked_task(&self.database, |database| async move {
            records::list(&mut database.connection(), query, &page).await
        });
        listing.await.map_err(|error| error.in_operation("list"))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        let query = Query::of(filter);
        let count = checked_task(&self.database, |database| async move {
            records::count(&mut database.connection(), &query).await
        });
        count.await.map_err(|error| error.in_operation("count"))
    }

    async fn statistics(&self) -> Result<Statistics> {
        let statistics = checked_task(&self.database, |database| async move {
            statistics::statistics(&mut database.connection()).await
        });
        let statistics = statistics.await;
        statistics.map_err(|error| error.in_operation("statistics"))
    }

    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention> {
        let replayed = async {
            edit.check_payload(self.database.options.payload_limit)?;
            in_task(&self.database, key, self.act(What::Replay(edit.clone()))).await
        };
        let replayed: Result<_> = replayed.await;
        replayed.map_err(|error| error.in_operation("replay"))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let act = self.act(What::Replay(Edit::default()));
        let progress = slice_in_task(&self.database, filter, slice, act).await;
        progress.map_err(|error| error.in_operation("replay_slice"))
    }

    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention> {
        let rescheduled = in_task(&self.database, key, self.act(What::Reschedule(due))).await;
        rescheduled.map_err(|error| error.in_operation("reschedule"))
    }

    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress> {
        let progress = slice_in_task(
            &self.database,
            filter,
            slice,
            self.act(What::Reschedule(due)),
        )
        .await;
        progress.map_err(|error| error.in_operation("reschedule_slice"))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        let discarded = in_task(&self.database, key, self.act(What::Discard)).await;
        discarded.map_err(|error| error.in_operation("discard"))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let progress = slice_in_task(&self.database, filter, slice, self.act(What::Discard)).await;
        progress.map_err(|error| error.in_operation("discard_slice"))
    }

    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress> {
        let (handler, slice) = (handler.clone(), slice.clone());
        let progress = checked_task(&self.database, |database| async move {
            let progress = clear::clear_slice(&mut database.connection(), &handler, &slice).await;
            // What was deleted may have held up its ordering key.
            database.wakers.raise();
            progress
        });
        let progress = progress.await;
        progress.map_err(|error| error.in_operation("clear_slice"))
    }

    async fn pause(&self, handler: &HandlerName) -> Result<()> {
        let handler = handler.clone();
        let paused = checked_task(&self.database, |database| async move {
            pauses::pause(&database.connection(), &handler).await
        });
        paused.await.map_err(|error| error.in_operation("pause"))
    }

    async fn resume(&self, handler: &HandlerName) -> Result<()> {
        let handler = handler.clone();
        let resumed = checked_task(&self.database, |database| async move {
            pauses::resume(&mut database.connection(), &handler).await?;
            database.wakers.raise();
            Ok(())
        });
        resumed.await.map_err(|error| error.in_operation("resume"))
    }

    async fn paused(&self) -> Result<Vec<HandlerName>> {
        let paused = checked_task(&self.database, |database| async move {
            pauses::paused(&database.connection()).await
        });
        paused.await.map_err(|error| error.in_operation("paused"))
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<u64> {
        let purged = purge::purge(&self.database, request).await;
        purged.map_err(|error| error.in_operation("purge"))
    }

    async fn expired(&self, request: &PurgeRequest) -> Result<Listing> {
        let listing = purge::expired(&self.database, request).await;
        listing.map_err(|error| error.in_operation("expired"))
    }

    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        let purged = purge::purge_archived(&self.database, request, keys).await;
        purged.map_err(|error| error.in_operation("purge_archived"))
    }

    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64> {
        let dropped = purge::drop_payloads(&self.database, request).await;
        dropped.map_err(|error| error.in_operation("drop_payloads"))
    }
}
