//! On PostgreSQL.

use anyhow::{Result, anyhow};
use apalis::prelude::{BoxDynError, Data, TaskSink as _, WorkerBuilder};
use apalis_postgres::{Config, PostgresStorage};
use peer_common::{Handled, Run};
use sqlx::postgres::PgPoolOptions;

use crate::{
    Settings,
    queue::{Event, drain, events},
};

const QUEUE: &str = "bench";

pub(crate) async fn measure(run: &Run, settings: Settings) -> Result<()> {
    let pool = PgPoolOptions::new().connect(run.url()).await?;
    PostgresStorage::setup(&pool).await?;
    let mut config = Config::default().queue(QUEUE).lock_tasks(settings.lock);
    if let Some(batch) = settings.batch {
        config = config.batch_size(batch);
    }
    let storage = PostgresStorage::<Event>::new(&pool).with_config(config);
    run.receive({
        let storage = storage.clone();
        move |messages| {
            let mut storage = storage.clone();
            async move {
                let sent = storage.push_bulk(events(messages)).await;
                sent.map_err(|error| anyhow!("{error}"))
            }
        }
    })
    .await?;

    async fn handle(event: Event, handled: Data<Handled>) -> Result<(), BoxDynError> {
        drop(event);
        handled.one().await;
        Ok(())
    }
    let handled = run.handled();
    let worker = WorkerBuilder::new("bench")
        .backend(storage)
        .data(handled.clone())
        .build(handle);
    drain(run, &handled, worker.run(), || async {
        let done: i64 =
            sqlx::query_scalar("SELECT count(*) FROM apalis.jobs WHERE status = 'Done'")
                .fetch_one(&pool)
                .await?;
        Ok(u64::try_from(done)?)
    })
    .await
}
