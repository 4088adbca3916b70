//! Measures pgmq's bare read and delete, driven in batches: a queue on PostgreSQL. Its SQL objects
//! are those that its Rust crate carries, installed without the extension.

use anyhow::{Result, bail, ensure};
use peer_common::{Handled, Run, until};
use pgmq::PGMQueueExt;
use sqlx::{PgPool, postgres::PgPoolOptions};

const QUEUE: &str = "bench";
/// Seconds for which what was read stays hidden.
const HIDDEN: i32 = 60;

#[tokio::main]
async fn main() -> Result<()> {
    let run = Run::new("pgmq", "pgmq", include_str!("../Cargo.lock"))?;
    let consumers = match run.settings() {
        "1 consumer" => 1,
        "2 consumers" => 2,
        "4 consumers" => 4,
        other => bail!("unknown settings {other}"),
    };
    let pool = PgPoolOptions::new()
        .max_connections(consumers.max(2))
        .connect(run.url())
        .await?;
    let queue = PGMQueueExt::new_with_pool(pool.clone()).await;
    queue.install_sql_from_embedded().await?;
    queue.create(QUEUE).await?;

    run.receive({
        let queue = queue.clone();
        move |messages| {
            let queue = queue.clone();
            async move {
                let payloads: Vec<_> = messages
                    .into_iter()
                    .map(|message| message.payload)
                    .collect();
                queue.send_batch(QUEUE, &payloads).await?;
                Ok(())
            }
        }
    })
    .await?;
    ensure!(
        count_stored(&pool).await? == run.messages(),
        "messages are missing"
    );

    let handled = run.handled();
    let batch = i32::try_from(run.batch())?;
    run.drain(async {
        let consumers: Vec<_> = (0..consumers)
            .map(|_| tokio::spawn(consume(queue.clone(), batch, handled.clone())))
            .collect();
        for consumer in consumers {
            consumer.await??;
        }
        handled.all(run.messages()).await?;
        until(0, || count_stored(&pool)).await
    })
    .await
}

/// Reads and deletes batch after batch, until there is nothing left.
async fn consume(queue: PGMQueueExt, batch: i32, handled: Handled) -> Result<()> {
    loop {
        let messages = queue.read_batch::<String>(QUEUE, HIDDEN, batch).await?;
        if messages.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = messages.iter().map(|message| message.msg_id).collect();
        drop(messages);
        handled.wait().await;
        let deleted = queue.delete_batch(QUEUE, &ids).await?;
        handled.add(u64::try_from(deleted)?);
    }
}

/// The messages that are in the queue.
async fn count_stored(pool: &PgPool) -> Result<u64> {
    let number: i64 = sqlx::query_scalar("SELECT count(*) FROM pgmq.q_bench")
        .fetch_one(pool)
        .await?;
    Ok(u64::try_from(number)?)
}
