//! Measures awa: a job queue on PostgreSQL whose attempts are fenced.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use awa::{
    Client, InsertOpts, JobArgs, JobResult, QueueConfig,
    model::{QueueStorage, QueueStorageConfig, insert, migrations},
};
use peer_common::{Run, until};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;

const QUEUE: &str = "bench";
/// As awa's documentation sizes the pool of one queue, and as its own benchmark does.
const CONNECTIONS: u32 = 24;

#[derive(Debug, Serialize, Deserialize, JobArgs)]
struct Event {
    payload: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let run = Run::new("awa", "awa", include_str!("../Cargo.lock"))?;
    let config = match run.settings() {
        "default" => QueueConfig::default(),
        "256 workers" => QueueConfig {
            max_workers: 256,
            ..QueueConfig::default()
        },
        // As awa's own benchmark of throughput: without deadlines it takes its short path.
        "256 workers, no deadline" => QueueConfig {
            max_workers: 256,
            deadline_duration: Duration::ZERO,
            poll_interval: Duration::from_millis(50),
            ..QueueConfig::default()
        },
        "1024 workers, no deadline, 4 claimers" => QueueConfig {
            max_workers: 1024,
            claimers: 4,
            deadline_duration: Duration::ZERO,
            poll_interval: Duration::from_millis(50),
            ..QueueConfig::default()
        },
        other => bail!("unknown settings {other}"),
    };
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .connect(run.url())
        .await?;
    migrations::run(&pool).await?;
    // What a first start of its client would do, but before anything is sent.
    let storage = Arc::new(QueueStorage::new(QueueStorageConfig::default())?);
    storage.install(&pool).await?;

    run.receive({
        let (storage, pool) = (Arc::clone(&storage), pool.clone());
        move |messages| {
            let (storage, pool) = (Arc::clone(&storage), pool.clone());
            async move {
                let jobs: Vec<_> = messages
                    .into_iter()
                    .map(|message| {
                        let options = InsertOpts {
                            queue: QUEUE.to_owned(),
                            ..InsertOpts::default()
                        };
                        insert::params_with(
                            &Event {
                                payload: message.payload,
                            },
                            options,
                        )
                    })
                    .collect::<Result<_, _>>()?;
                storage.enqueue_params_batch(&pool, &jobs).await?;
                Ok(())
            }
        }
    })
    .await?;

    let handled = run.handled();
    let client = {
        let handled = handled.clone();
        Client::builder(pool.clone())
            .queue(QUEUE, config)
            .register::<Event, _, _>(move |event: Event, _| {
                drop(event);
                let handled = handled.clone();
                async move {
                    handled.one().await;
                    Ok(JobResult::Completed)
                }
            })
            .build()?
    };
    run.drain(async {
        client.start().await?;
        handled.all(run.messages()).await?;
        until(run.messages(), || async {
            let counts = storage.queue_counts(&pool, QUEUE).await?;
            Ok(u64::try_from(counts.terminal)?)
        })
        .await
    })
    .await?;
    client.shutdown(Duration::from_secs(10)).await;
    Ok(())
}
