//! Measures pgqrs: a queue on PostgreSQL, whose consumers archive what is done.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use peer_common::{Handled, Run, until};
use pgqrs::{Config, Consumer};
use serde_json::Value;
use sqlx::PgPool;

const QUEUE: &str = "bench";

#[tokio::main]
async fn main() -> Result<()> {
    let run = Run::new("pgqrs", "pgqrs", include_str!("../Cargo.lock"))?;
    // The sizes with which its documentation shows what batches are worth, and ours.
    let (consumers, batch) = match run.settings() {
        "4 consumers, batch 50" => (4, 50),
        "2 consumers, batch 500" => (2, 500),
        other => bail!("unknown settings {other}"),
    };
    let mut config = Config::from_dsn(run.url()).with_max_connections(8);
    // It limits what a producer sends in a second unless told not to.
    config.validation_config.max_enqueue_per_second = None;
    config.validation_config.max_enqueue_burst = None;
    config.validation_config.max_string_length = 1 << 20;
    let store = pgqrs::connect_with_config(&config).await?;
    pgqrs::admin(&store).install().await?;
    pgqrs::admin(&store).create_queue(QUEUE).await?;

    let producer = Arc::new(pgqrs::producer("producer", QUEUE).create(&store).await?);
    run.receive(move |messages| {
        let producer = Arc::clone(&producer);
        async move {
            let payloads = messages
                .into_iter()
                .map(|message| Value::String(message.payload));
            let payloads: Vec<_> = payloads.collect();
            producer.batch_enqueue(&payloads).await?;
            Ok(())
        }
    })
    .await?;

    let pool = PgPool::connect(run.url()).await?;
    let handled = run.handled();
    let mut working = Vec::new();
    for number in 0..consumers {
        let name = format!("consumer-{number}");
        working.push(pgqrs::consumer(&name, QUEUE).create(&store).await?);
    }
    run.drain(async {
        let working: Vec<_> = working
            .into_iter()
            .map(|consumer| tokio::spawn(consume(consumer, batch, handled.clone())))
            .collect();
        for consumer in working {
            consumer.await??;
        }
        handled.all(run.messages()).await?;
        until(run.messages(), || archived(&pool)).await
    })
    .await
}

/// Takes and archives batch after batch, until there is nothing left.
async fn consume(consumer: Consumer, batch: usize, handled: Handled) -> Result<()> {
    loop {
        let messages = consumer.dequeue_many(batch).await?;
        if messages.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
        drop(messages);
        handled.wait().await;
        let archived = consumer.archive_many(ids).await?;
        ensure!(archived.iter().all(|archived| *archived), "not archived");
        handled.add(u64::try_from(archived.len())?);
    }
}

/// The messages that are archived.
async fn archived(pool: &PgPool) -> Result<u64> {
    let sql = "SELECT count(*) FROM pgqrs_messages WHERE archived_at IS NOT NULL";
    let number: i64 = sqlx::query_scalar(sql).fetch_one(pool).await?;
    Ok(u64::try_from(number)?)
}
