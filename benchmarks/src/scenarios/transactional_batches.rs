//! Batch handlers that write in the transaction that completes their messages, on PostgreSQL: compared
//! with a hand-written queue that selects a batch `FOR UPDATE SKIP LOCKED`, writes the same rows and
//! marks it as done in one transaction, and with handlers that get one message at a time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{Batch, Batches, Message, Processor, Router, batch_in_transaction_fn};
use sqlx::{
    ConnectOptions as _, Connection as _, PgConnection, Row as _, postgres::PgConnectOptions,
};

use super::{
    Bench, Runs, drain, ratios,
    transactional::{self, Mode},
    work,
};
use crate::{
    maker::Maker,
    stores::AnyStore,
    target::{Slot, handler},
};

/// Batches that run at a time, and connections of the hand-written queue.
const AT_ONCE: usize = 2;
/// Single handlers that run at a time, and how many times fewer messages they get.
const SINGLE: (u32, u64) = (8, 20);

const EFFECT: &str = "INSERT INTO effect (id) SELECT * FROM unnest($1::text[])";

const TABLE: &str = "CREATE TABLE queue (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    handler text NOT NULL, id text NOT NULL, kind text NOT NULL, headers text NOT NULL,
    payload bytea NOT NULL, state smallint NOT NULL DEFAULT 0, finished_at timestamptz,
    UNIQUE (handler, id));
    CREATE INDEX queue_due ON queue (handler, seq) WHERE state = 0;";

const FILL: &str = "INSERT INTO queue (handler, id, kind, headers, payload)
    SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[], $5::bytea[])";

const SELECT: &str = "SELECT seq, id, kind, headers, payload FROM queue
    WHERE handler = $1 AND state = 0 ORDER BY seq LIMIT $2 FOR UPDATE SKIP LOCKED";

const UPDATE: &str = "UPDATE queue SET state = 2, finished_at = now() WHERE seq = ANY ($1)";

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let (number, batch) = (bench.options.messages, bench.shape.batch);
    let (single, fewer) = (SINGLE.0, (number / SINGLE.1).max(1));
    let (mut batches, mut bares, mut singles) = (Runs::default(), Runs::default(), Runs::default());
    for run in 0..bench.options.runs {
        // None is always first.
        for place in 0..3 {
            match (run + place) % 3 {
                0 => {
                    let Some(time) = in_batches(bench, number, batch).await? else {
                        let text = format!("for PostgreSQL, not {}", bench.site.target.name());
                        bench.report.note("transactional-batches", text);
                        return Ok(());
                    };
                    batches.add(number, time);
                }
                1 => bares.add(number, by_hand(bench, number, batch).await?),
                _ => {
                    let mode = Mode::Each { look_ahead: 0 };
                    let time = transactional::one_store(bench, fewer, single, mode).await?;
                    singles.add(fewer, time.unwrap_or_default());
                }
            }
        }
    }
    bench.rates("drain in transactions of a batch", None, &batches);
    bench.rates("hand-written, a batch in a transaction", None, &bares);
    bench.rates(
        format!("drain in transactions of one, {single} at a time"),
        None,
        &singles,
    );
    let of_bare = ratios(&batches.rates, &bares.rates);
    bench.figures("of hand-written", of_bare, "ratio");
    let of_single = ratios(&batches.rates, &singles.rates);
    bench.figures("of transactions of one", of_single, "ratio");
    Ok(())
}

/// `None` on another database.
async fn in_batches(bench: &mut Bench<'_>, number: u64, batch: u32) -> Result<Option<Duration>> {
    let store = bench.fresh(Slot::First).await?;
    let inbox = store.inbox();
    let AnyStore::Postgres(store) = store else {
        inbox.close().await;
        return Ok(None);
    };
    transactional::set_up(&bench.site, Slot::First).await?;
    let write = batch_in_transaction_fn(store, |mut transaction, batch: Batch| async move {
        let ids: Vec<&str> = batch
            .iter()
            .map(|one| one.message().id().as_str())
            .collect();
        sqlx::query(EFFECT)
            .bind(&ids)
            .execute(&mut **transaction)
            .await?;
        Ok::<_, sqlx::Error>(())
    });
    let router = Router::new(handler()?)
        .fallback_batch_handler(write)
        .batches(Batches::up_to(batch as usize).at_once(AT_ONCE));
    work::prefill(&inbox, &mut Maker::new(bench.shape.payload)?, number).await?;
    bench.site.rest().await?;
    let processor = Processor::builder(Arc::clone(&inbox))
        .router(router)
        .build()?;
    let time = drain::run(&inbox, &processor, number).await?;
    inbox.close().await;
    Ok(Some(time))
}

async fn by_hand(bench: &mut Bench<'_>, number: u64, batch: u32) -> Result<Duration> {
    let inbox = bench.site.fresh(Slot::Second).await?.inbox();
    inbox.close().await;
    transactional::set_up(&bench.site, Slot::Second).await?;
    let Some(options) = bench.site.postgres(Slot::Second) else {
        anyhow::bail!("no PostgreSQL to be compared with");
    };
    let options: PgConnectOptions = options.disable_statement_logging();
    let mut connections = Vec::new();
    for _ in 0..AT_ONCE {
        connections.push(options.connect().await?);
    }
    let messages = Maker::new(bench.shape.payload)?.messages(number)?;
    if let Some(first) = connections.first_mut() {
        sqlx::raw_sql(TABLE).execute(&mut *first).await?;
        fill(first, &messages).await?;
    }
    bench.site.rest().await?;
    let start = Instant::now();
    let running: Vec<_> = connections
        .into_iter()
        .map(|connection| tokio::spawn(work_off(connection, batch)))
        .collect();
    let mut done = 0;
    for running in running {
        done += running.await??;
    }
    let time = start.elapsed();
    ensure!(done == number, "done {done} of {number}");
    Ok(time)
}

async fn fill(connection: &mut PgConnection, messages: &[Message]) -> Result<()> {
    for some in messages.chunks(1000) {
        let all = some.iter();
        let ids: Vec<_> = all.clone().map(|one| one.id().as_str()).collect();
        let kinds: Vec<_> = all.clone().map(|one| one.kind().as_str()).collect();
        let headers: Vec<_> = all.clone().map(|one| one.headers().to_json()).collect();
        let payloads: Vec<&[u8]> = all.map(|one| one.payload().as_ref()).collect();
        sqlx::query(FILL)
            .bind(handler()?.as_str())
            .bind(ids)
            .bind(kinds)
            .bind(headers)
            .bind(payloads)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Takes batches until there is nothing left. Answers how many messages that were.
async fn work_off(mut connection: PgConnection, batch: u32) -> Result<u64> {
    let (handler, mut done) = (handler()?, 0);
    loop {
        let mut transaction = connection.begin().await?;
        let rows = sqlx::query(SELECT)
            .bind(handler.as_str())
            .bind(i64::from(batch))
            .fetch_all(&mut *transaction)
            .await?;
        if rows.is_empty() {
            return Ok(done);
        }
        let (mut seqs, mut ids) = (Vec::<i64>::new(), Vec::<&str>::new());
        for row in &rows {
            // What a handler would be given.
            let _: (&str, &str, &[u8]) = (
                row.try_get("kind")?,
                row.try_get("headers")?,
                row.try_get("payload")?,
            );
            seqs.push(row.try_get("seq")?);
            ids.push(row.try_get("id")?);
        }
        let effect = sqlx::query(EFFECT).bind(&ids);
        effect.execute(&mut *transaction).await?;
        let update = sqlx::query(UPDATE).bind(&seqs);
        let updated = update.execute(&mut *transaction).await?.rows_affected();
        transaction.commit().await?;
        ensure!(updated == rows.len() as u64, "updated {updated} rows");
        done += updated;
    }
}
