//! Handlers that write a row in the transaction that completes their message.

use anyhow::Result;
use futures_util::future::BoxFuture;
use inbox::{
    Completion, Context, Failure, Processor, Router, Transactional, in_transaction_fn,
    mongodb::mongodb::bson::{Document, doc},
};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};

use super::{Bench, Runs, drain, work};
use crate::{
    client::Maker,
    stores::AnyStore,
    target::{Slot, handler},
};

/// A transaction for each message costs a commit for each, so there are that many times fewer.
const FEWER: u64 = 10;
/// Handlers that run at a time, each with a connection.
const CONCURRENCY: [usize; 2] = [1, 8];
const TABLE: &str = "CREATE TABLE effect (id VARCHAR(64) NOT NULL PRIMARY KEY)";

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let number = (bench.options.messages / FEWER).max(1);
    for concurrency in CONCURRENCY {
        let mut runs = Runs::default();
        for _ in 0..bench.options.runs {
            let store = bench.site.fresh(Slot::First).await?;
            let inbox = store.inbox();
            if !inbox.capabilities().transactions {
                let text = format!("{} has no transactions", bench.site.target.name());
                bench.report.note("transactional", text);
                inbox.close().await;
                return Ok(());
            }
            set_up(bench).await?;
            let Some(router) = router(&store)? else {
                return Ok(());
            };
            work::prefill(&inbox, &mut Maker::new(bench.shape.payload)?, number).await?;
            bench.site.rest().await?;
            let processor = Processor::builder(inbox.clone())
                .router(router)
                .concurrency(concurrency)
                .build()?;
            runs.add(number, drain::run(&inbox, &processor, number).await?);
            inbox.close().await;
        }
        let step = format!("drain in transactions, {concurrency} at a time");
        bench.rates(step, None, &runs);
    }
    Ok(())
}

/// The handlers' own table, in the database of the inbox. MongoDB needs none.
async fn set_up(bench: &Bench<'_>) -> Result<()> {
    let table = || AssertSqlSafe(TABLE.to_owned());
    if let Some(options) = bench.site.postgres(Slot::First) {
        options.connect().await?.execute(table()).await?;
    }
    if let Some(options) = bench.site.mysql(Slot::First) {
        options.connect().await?.execute(table()).await?;
    }
    if let Some(options) = bench.site.sqlite(Slot::First) {
        options.connect().await?.execute(table()).await?;
    }
    Ok(())
}

fn router(store: &AnyStore) -> Result<Option<Router>> {
    let router = match store.clone() {
        AnyStore::Memory(_) | AnyStore::Redis(_) => return Ok(None),
        AnyStore::Postgres(store) => with(store, |transaction, context| {
            Box::pin(async move {
                sqlx::query("INSERT INTO effect (id) VALUES ($1)")
                    .bind(context.message().id().as_str())
                    .execute(&mut **transaction)
                    .await?;
                Ok(Completion::default())
            })
        })?,
        AnyStore::MySql(store) => with(store, |transaction, context| {
            Box::pin(async move {
                sqlx::query("INSERT INTO effect (id) VALUES (?)")
                    .bind(context.message().id().as_str())
                    .execute(&mut **transaction)
                    .await?;
                Ok(Completion::default())
            })
        })?,
        AnyStore::Sqlite(store) => with(store, |transaction, context| {
            Box::pin(async move {
                sqlx::query("INSERT INTO effect (id) VALUES (?)")
                    .bind(context.message().id().as_str())
                    .execute(&mut **transaction)
                    .await?;
                Ok(Completion::default())
            })
        })?,
        AnyStore::Mongo(store) => with(store, |transaction, context| {
            Box::pin(async move {
                let session = transaction.session()?;
                let effects = session.client().database(Slot::First.database());
                effects
                    .collection::<Document>("effect")
                    .insert_one(doc! { "_id": context.message().id().as_str() })
                    .session(session)
                    .await?;
                Ok(Completion::default())
            })
        })?,
    };
    Ok(Some(router))
}

fn with<S, F>(store: S, handle: F) -> Result<Router>
where
    S: Transactional,
    F: for<'a> Fn(
            &'a mut S::Transaction,
            &'a Context,
        ) -> BoxFuture<'a, Result<Completion, Failure>>
        + Send
        + Sync
        + 'static,
{
    Ok(Router::new(handler()?).fallback_handler(in_transaction_fn(store, handle)))
}
