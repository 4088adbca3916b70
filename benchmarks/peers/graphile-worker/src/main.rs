//! Measures graphile_worker: a job queue on PostgreSQL.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use peer_common::{Handled, Run, until};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, postgres::PgPoolOptions};

const SCHEMA: &str = "graphile_worker";

#[derive(Debug, Serialize, Deserialize)]
struct Event {
    payload: String,
}

impl TaskHandler for Event {
    const IDENTIFIER: &'static str = "event";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(handled) = context.get_ext::<Handled>() {
            handled.one().await;
        }
        Ok::<(), String>(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let run = Run::new(
        "graphile_worker",
        "graphile_worker",
        include_str!("../Cargo.lock"),
    )?;
    let handled = run.handled();
    let options = WorkerOptions::default()
        .schema(SCHEMA)
        .add_extension(handled.clone())
        .define_job::<Event>();
    // A worker takes one job each time that it polls while none are being added: at the default
    // interval of a second, draining a backlog would take hours.
    let (connections, options) = match run.settings() {
        "plain, 100 workers" => (
            100,
            options
                .concurrency(100)
                .poll_interval(Duration::from_millis(5))
                .complete_job_batch_delay(Duration::from_millis(5)),
        ),
        // Those of its own benchmark of throughput.
        "local queue of 5000, 500 workers" => (
            100,
            options
                .concurrency(500)
                .poll_interval(Duration::from_millis(5))
                .complete_job_batch_delay(Duration::from_millis(5))
                .local_queue(LocalQueueConfig::default().with_size(5000)),
        ),
        other => bail!("unknown settings {other}"),
    };
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        .connect(run.url())
        .await?;
    let worker = Arc::new(options.pg_pool(pool.clone()).init().await?);

    let utils = Arc::new(worker.create_utils());
    run.receive(move |messages| {
        let utils: Arc<WorkerUtils> = Arc::clone(&utils);
        async move {
            let jobs: Vec<_> = messages
                .into_iter()
                .map(|message| {
                    Ok(RawJobSpec {
                        identifier: Event::IDENTIFIER.to_owned(),
                        payload: serde_json::to_value(Event {
                            payload: message.payload,
                        })?,
                        spec: JobSpec::default(),
                    })
                })
                .collect::<Result<_>>()?;
            utils.add_raw_jobs(&jobs).await?;
            Ok(())
        }
    })
    .await?;
    // Completed jobs are deleted: none may be missing before.
    anyhow::ensure!(jobs(&pool).await? == run.messages(), "jobs are missing");

    let mut running = None;
    run.drain(async {
        let worker = Arc::clone(&worker);
        running = Some(tokio::spawn(async move { worker.run().await }));
        handled.all(run.messages()).await?;
        until(0, || jobs(&pool)).await
    })
    .await?;
    worker.request_shutdown();
    running.context("not started")?.await??;
    Ok(())
}

/// The jobs that are stored.
async fn jobs(pool: &PgPool) -> Result<u64> {
    let number: i64 = sqlx::query_scalar("SELECT count(*) FROM graphile_worker._private_jobs")
        .fetch_one(pool)
        .await?;
    Ok(u64::try_from(number)?)
}
