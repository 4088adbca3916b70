//! On SQLite.

use std::str::FromStr as _;

use anyhow::{Result, anyhow};
use apalis::prelude::{BoxDynError, Data, TaskSink as _, WorkerBuilder};
use apalis_sqlite::{Config, SqliteStorage};
use peer_common::{Handled, Run};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use crate::{
    Settings,
    queue::{Event, drain, events},
};

const QUEUE: &str = "bench";

pub(crate) async fn measure(run: &Run, settings: Settings) -> Result<()> {
    let options = SqliteConnectOptions::from_str(run.url())?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    // Its own set-up gives up durability on the connection that it gets: that one is closed.
    let set_up = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_with(options.clone())
        .await?;
    SqliteStorage::setup(&set_up).await?;
    set_up.close().await;

    let pool = SqlitePoolOptions::new().connect_with(options).await?;
    let mut config = Config::default().queue(QUEUE).lock_tasks(settings.lock);
    if let Some(batch) = settings.batch {
        config = config.batch_size(batch);
    }
    let storage = SqliteStorage::<Event>::new(&pool).with_config(config);
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
        let done: i64 = sqlx::query_scalar("SELECT count(*) FROM Jobs WHERE status = 'Done'")
            .fetch_one(&pool)
            .await?;
        Ok(u64::try_from(done)?)
    })
    .await
}
