//! Handlers that write a row in the transaction that completes their message, compared with
//! bare transactions that write the same row and mark a row that is there as done.

use std::time::{Duration, Instant};

use anyhow::Result;
use inbox::{
    Context, Failure, Message, Processor, Router, in_transaction_fn,
    mongo::mongodb::bson::{Document, doc},
};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};

use super::{
    Bench, Runs, drain,
    pair::{self, Bare},
    ratios, work,
};
use crate::{
    maker::Maker,
    stores::AnyStore,
    target::{Site, Slot, handler},
};

/// A transaction for each message costs a commit for each, so there are that many times fewer.
const FEWER: u64 = 10;
/// Handlers that run at a time, each with a connection.
const CONCURRENCY: [u32; 2] = [1, 8];
const LOOK_AHEAD: usize = 32;

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let number = (bench.options.messages / FEWER).max(1);
    bench.report.adjust("messages", number);
    for concurrency in CONCURRENCY {
        let (mut drains, mut ahead, mut bares) =
            (Runs::default(), Runs::default(), Runs::default());
        for run in 0..bench.options.runs {
            // None is always first.
            for place in 0..3 {
                let (runs, look_ahead) = match (run + place) % 3 {
                    0 => (&mut drains, 0),
                    1 => (&mut ahead, LOOK_AHEAD),
                    _ => {
                        if let Some(time) = one_bare(bench, number, concurrency).await? {
                            bares.add(number, time);
                        }
                        continue;
                    }
                };
                let Some(time) = one_store(bench, number, concurrency, look_ahead).await? else {
                    let text = format!("{} has no transactions", bench.site.target.name());
                    bench.report.note("transactional", text);
                    return Ok(());
                };
                runs.add(number, time);
            }
        }
        let with = format!("{concurrency} at a time");
        bench.rates(format!("drain in transactions, {with}"), None, &drains);
        bench.rates(format!("looking {LOOK_AHEAD} ahead, {with}"), None, &ahead);
        let gain = ratios(&ahead.rates, &drains.rates);
        bench.figures(format!("looking ahead, of not so, {with}"), gain, "ratio");
        if !bares.rates.is_empty() {
            bench.rates(format!("bare transactions, {with}"), None, &bares);
            let of_bare = ratios(&drains.rates, &bares.rates);
            bench.figures(format!("of bare transactions, {with}"), of_bare, "ratio");
            let of_bare = ratios(&ahead.rates, &bares.rates);
            bench.figures(
                format!("looking ahead, of bare ones, {with}"),
                of_bare,
                "ratio",
            );
        }
    }
    Ok(())
}

/// `None` if the store has no transactions.
pub(super) async fn one_store(
    bench: &mut Bench<'_>,
    number: u64,
    concurrency: u32,
    look_ahead: usize,
) -> Result<Option<Duration>> {
    let store = bench.fresh(Slot::First).await?;
    let inbox = store.inbox();
    if !inbox.capabilities().transactions {
        inbox.close().await;
        return Ok(None);
    }
    set_up(&bench.site, Slot::First).await?;
    let Some(router) = router(&store)? else {
        return Ok(None);
    };
    work::prefill(&inbox, &mut Maker::new(bench.shape.payload)?, number).await?;
    bench.site.rest().await?;
    let processor = Processor::builder(inbox.clone())
        .router(router)
        .concurrency(concurrency as usize)
        .look_ahead(look_ahead)
        .build()?;
    let time = drain::run(&inbox, &processor, number).await?;
    inbox.close().await;
    Ok(Some(time))
}

/// `None` without SQL.
async fn one_bare(
    bench: &mut Bench<'_>,
    number: u64,
    concurrency: u32,
) -> Result<Option<Duration>> {
    let inbox = bench.site.fresh(Slot::Second).await?.inbox();
    inbox.close().await;
    let Some(mut callers) = pair::callers(&bench.site, Slot::Second, concurrency).await? else {
        return Ok(None);
    };
    set_up(&bench.site, Slot::Second).await?;
    let messages = Maker::new(bench.shape.payload)?.messages(number)?;
    if let Some(caller) = callers.first_mut() {
        caller.fill(&messages).await?;
    }
    bench.site.rest().await?;
    let share = messages.len().div_ceil(callers.len());
    let shares: Vec<_> = messages.chunks(share).map(<[_]>::to_vec).collect();
    let start = Instant::now();
    let running: Vec<_> = callers
        .into_iter()
        .zip(shares)
        .map(|(caller, share)| tokio::spawn(finish(caller, share)))
        .collect();
    for running in running {
        running.await??;
    }
    Ok(Some(start.elapsed()))
}

async fn finish(mut caller: Bare, messages: Vec<Message>) -> Result<()> {
    for message in &messages {
        caller.effect_and_update(message).await?;
    }
    Ok(())
}

/// The handlers' own table, in the database of the inbox. MongoDB needs none.
pub(super) async fn set_up(site: &Site, slot: Slot) -> Result<()> {
    let table = || AssertSqlSafe("CREATE TABLE effect (id VARCHAR(64) NOT NULL PRIMARY KEY)");
    if let Some(options) = site.postgres(slot) {
        options.connect().await?.execute(table()).await?;
    }
    if let Some(options) = site.mysql(slot) {
        options.connect().await?.execute(table()).await?;
    }
    if let Some(options) = site.sqlite(slot) {
        options.connect().await?.execute(table()).await?;
    }
    Ok(())
}

fn router(store: &AnyStore) -> Result<Option<Router>> {
    macro_rules! in_sql {
        ($store:ident, $effect:expr) => {
            in_transaction_fn($store, |mut transaction, context: Context| async move {
                sqlx::query($effect)
                    .bind(context.message().id().as_str())
                    .execute(&mut **transaction)
                    .await?;
                Ok::<_, sqlx::Error>(())
            })
        };
    }
    let router = Router::new(handler()?);
    let router = match store.clone() {
        AnyStore::Memory(_) | AnyStore::Redis(_) => return Ok(None),
        AnyStore::Postgres(store) => {
            router.fallback_handler(in_sql!(store, pair::postgres::EFFECT))
        }
        AnyStore::MySql(store) => router.fallback_handler(in_sql!(store, pair::mysql::EFFECT)),
        AnyStore::Sqlite(store) => router.fallback_handler(in_sql!(store, pair::sqlite::EFFECT)),
        AnyStore::Mongo(store) => router.fallback_handler(in_transaction_fn(
            store,
            |mut transaction, context: Context| async move {
                let session = transaction.session()?;
                let effects = session.client().database(Slot::First.database());
                effects
                    .collection::<Document>("effect")
                    .insert_one(doc! { "_id": context.message().id().as_str() })
                    .session(session)
                    .await?;
                Ok::<_, Failure>(())
            },
        )),
    };
    Ok(Some(router))
}
