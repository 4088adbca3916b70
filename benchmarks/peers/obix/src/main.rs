//! Measures the inbox of obix on PostgreSQL: each event is a row and a job of its own.

use anyhow::{Result, anyhow, bail, ensure};
use job::{JobPollerConfig, JobSvcConfig, JobType, Jobs};
use obix::inbox::{Inbox, InboxAttempt, InboxConfig, InboxEvent, InboxHandler, InboxResult};
use peer_common::{Handled, Run, until};
use sqlx::postgres::PgPoolOptions;

/// Its jobs each hold a connection.
const CONNECTIONS: u32 = 50;

/// Only waits, if that.
struct Handler(Handled);

impl InboxHandler for Handler {
    async fn handle(
        &self,
        event: &InboxEvent,
        _attempt: InboxAttempt,
    ) -> Result<InboxResult, Box<dyn std::error::Error + Send + Sync>> {
        let _payload: String = event.payload()?;
        self.0.one().await;
        Ok(InboxResult::Complete)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let run = Run::new("obix", "obix", include_str!("../Cargo.lock"))?;
    if run.settings() != "default, 50 connections" {
        bail!("unknown settings {}", run.settings());
    }
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .connect(run.url())
        .await?;
    set_up(&pool).await?;
    let config = JobSvcConfig::builder()
        .pool(pool.clone())
        .poller_config(JobPollerConfig::default())
        .build()
        .map_err(|error| anyhow!("{error}"))?;
    let mut jobs = Jobs::init(config)
        .await
        .map_err(|error| anyhow!("{error}"))?;
    let handled = run.handled();
    let handler = Handler(handled.clone());
    let config = InboxConfig::new(JobType::new("bench"));
    let inbox: std::sync::Arc<Inbox> =
        std::sync::Arc::new(Inbox::new(&pool, &mut jobs, config, handler));

    run.receive(move |messages| {
        let inbox = std::sync::Arc::clone(&inbox);
        async move {
            let mut operation = inbox.begin_op().await?;
            for message in messages {
                let stored = inbox
                    .persist_and_queue_job_in_op(&mut operation, message.id, message.payload)
                    .await
                    .map_err(|error| anyhow!("{error}"))?;
                ensure!(stored.did_execute(), "a duplicate");
            }
            operation.commit().await?;
            Ok(())
        }
    })
    .await?;

    run.drain(async {
        jobs.start_poll()
            .await
            .map_err(|error| anyhow!("{error}"))?;
        handled.all(run.messages()).await?;
        until(run.messages(), || async {
            let sql = "SELECT count(*) FROM inbox_events WHERE status = 'completed'";
            let number: i64 = sqlx::query_scalar(sql).fetch_one(&pool).await?;
            Ok(u64::try_from(number)?)
        })
        .await
    })
    .await
}

/// Applies the migrations that come with it, in the order of their names.
async fn set_up(pool: &sqlx::PgPool) -> Result<()> {
    let mut files: Vec<_> = std::fs::read_dir(env!("OBIX_MIGRATIONS"))?
        .map(|file| Ok(file?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    for file in files {
        sqlx::raw_sql(&std::fs::read_to_string(file)?)
            .execute(pool)
            .await?;
    }
    Ok(())
}
