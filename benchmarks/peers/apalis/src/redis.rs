//! On Redis.

use anyhow::{Result, anyhow};
use apalis::prelude::{BoxDynError, Data, TaskSink as _, WorkerBuilder};
use apalis_redis::{Config, RedisStorage};
use peer_common::{Handled, Run};

use crate::{
    Settings,
    queue::{Event, drain, events},
};

const QUEUE: &str = "bench";

pub(crate) async fn measure(run: &Run, settings: Settings) -> Result<()> {
    let connection = apalis_redis::connect(run.url()).await?;
    let mut config = Config::default().queue(QUEUE).lock_tasks(settings.lock);
    if let Some(batch) = settings.batch {
        config = config.batch_size(batch);
    }
    let done = config.done_jobs_set();
    let storage = RedisStorage::<Event>::new(connection.clone()).with_config(config);
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
    drain(run, &handled, worker.run(), || {
        let (mut connection, done) = (connection.clone(), done.clone());
        async move {
            let number = redis::cmd("SCARD")
                .arg(done)
                .query_async(&mut connection)
                .await?;
            Ok(number)
        }
    })
    .await
}
