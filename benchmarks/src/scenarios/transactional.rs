//! Handlers that write a row in the transaction that completes their message, compared with
//! bare transactions that write the same row and mark a row that is there as done.

use std::time::{Duration, Instant};

use anyhow::Result;
use inbox::{
    Batches, Context, Failure, LentTransaction, Message, Processor, Router, in_transaction_fn,
    mongo::{
        MongoTransaction,
        mongodb::bson::{Document, doc},
    },
    one_by_one_in_transaction_fn,
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
const MODES: [(&str, Mode); 3] = [
    ("a transaction each", Mode::Each { look_ahead: 0 }),
    ("looking 32 ahead", Mode::Each { look_ahead: 32 }),
    ("up to 100 in one", Mode::Shared { most: 100 }),
];
/// How messages get their transactions.
#[derive(Clone, Copy)]
pub(super) enum Mode {
    /// One each, and claims look so far ahead.
    Each { look_ahead: usize },
    /// So many messages share one at most.
    Shared { most: usize },
}

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let number = (bench.options.messages / FEWER).max(1);
    bench.report.adjust("messages", number);
    for concurrency in CONCURRENCY {
        let mut drains = MODES.map(|(name, mode)| (name, mode, Runs::default()));
        let mut bares = Runs::default();
        for run in 0..bench.options.runs as usize {
            // None is always first.
            for place in 0..=MODES.len() {
                let turn = (run + place) % (MODES.len() + 1);
                let Some((_, mode, runs)) = drains.get_mut(turn) else {
                    if let Some(time) = one_bare(bench, number, concurrency).await? {
                        bares.add(number, time);
                    }
                    continue;
                };
                let Some(time) = one_store(bench, number, concurrency, *mode).await? else {
                    let text = format!("{} has no transactions", bench.site.target.name());
                    bench.report.note("transactional", text);
                    return Ok(());
                };
                runs.add(number, time);
            }
        }
        let with = format!("{concurrency} at a time");
        for (name, _, runs) in &drains {
            bench.rates(format!("{name}, {with}"), None, runs);
        }
        if bares.rates.is_empty() {
            continue;
        }
        bench.rates(format!("bare transactions, {with}"), None, &bares);
        for (name, _, runs) in &drains {
            let of_bare = ratios(&runs.rates, &bares.rates);
            bench.figures(format!("{name}, of bare ones, {with}"), of_bare, "ratio");
        }
    }
    Ok(())
}

/// `None` if the store has no transactions.
pub(super) async fn one_store(
    bench: &mut Bench<'_>,
    number: u64,
    concurrency: u32,
    mode: Mode,
) -> Result<Option<Duration>> {
    let store = bench.fresh(Slot::First).await?;
    let inbox = store.inbox();
    if !inbox.capabilities().transactions {
        inbox.close().await;
        return Ok(None);
    }
    set_up(&bench.site, Slot::First).await?;
    let Some(router) = router(&store, mode, concurrency)? else {
        return Ok(None);
    };
    work::prefill(&inbox, &mut Maker::new(bench.shape.payload)?, number).await?;
    bench.site.rest().await?;
    let processor = Processor::builder(inbox.clone()).router(router);
    let processor = match mode {
        Mode::Each { look_ahead } => processor
            .concurrency(concurrency as usize)
            .look_ahead(look_ahead),
        Mode::Shared { .. } => processor,
    };
    let processor = processor.build()?;
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

fn router(store: &AnyStore, mode: Mode, concurrency: u32) -> Result<Option<Router>> {
    let router = Router::new(handler()?);
    macro_rules! runs {
        ($store:ident, $effect:expr) => {
            match mode {
                Mode::Each { .. } => router.fallback_handler(in_transaction_fn($store, $effect)),
                Mode::Shared { most } => router
                    .fallback_batch_handler(one_by_one_in_transaction_fn($store, $effect))
                    .batches(Batches::up_to(most).at_once(concurrency as usize)),
            }
        };
    }
    macro_rules! in_sql {
        ($store:ident, $database:ty, $effect:expr) => {
            runs!($store, |mut transaction: LentTransaction<
                sqlx::Transaction<'static, $database>,
            >,
                           context: Context| async move {
                sqlx::query($effect)
                    .bind(context.message().id().as_str())
                    .execute(&mut **transaction)
                    .await?;
                Ok::<_, sqlx::Error>(())
            })
        };
    }
    Ok(Some(match store.clone() {
        AnyStore::Memory(_) | AnyStore::Redis(_) => return Ok(None),
        AnyStore::Postgres(store) => in_sql!(store, sqlx::Postgres, pair::postgres::EFFECT),
        AnyStore::MySql(store) => in_sql!(store, sqlx::MySql, pair::mysql::EFFECT),
        AnyStore::Sqlite(store) => in_sql!(store, sqlx::Sqlite, pair::sqlite::EFFECT),
        AnyStore::Mongo(store) => {
            runs!(store, |mut transaction: LentTransaction<
                MongoTransaction,
            >,
                          context: Context| async move {
                let session = transaction.session()?;
                let effects = session.client().database(Slot::First.database());
                effects
                    .collection::<Document>("effect")
                    .insert_one(doc! { "_id": context.message().id().as_str() })
                    .session(session)
                    .await?;
                Ok::<_, Failure>(())
            })
        }
    }))
}
