//! Reads a stream as a consumer of a group.

use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use inbox_source::{Flow, Mapping, Positions, Source, SourceError};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    RedisStreamsDelivery, RedisStreamsOptions,
    options::invalid,
    reader::{self, PAGE},
    shared::Shared,
};

/// How long the last answer of the server is waited for at the end.
const END_LIMIT: Duration = Duration::from_secs(3);
/// How long giving back may take.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

type Outcome<T> = Result<T, SourceError>;

/// A consumer of a group of a stream. See the [crate](crate).
pub struct RedisStreamsSource {
    shared: Arc<Shared>,
    reading: Option<Reading>,
    keeper: Option<Task>,
}

/// A task that ends with its owner.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Reading {
    task: Task,
    stop: watch::Sender<bool>,
    came: mpsc::Receiver<Outcome<RedisStreamsDelivery>>,
}

impl RedisStreamsSource {
    /// A source that connects when it is first asked.
    ///
    /// # Errors
    /// `Invalid` when the mapping names no place for an id.
    pub fn new(options: RedisStreamsOptions, mapping: Mapping) -> inbox_api::Result<Self> {
        let checked = mapping.check(Positions::Stable);
        checked.map_err(|error| invalid(error.to_string()))?;
        Ok(Self {
            shared: Arc::new(Shared::new(options, mapping)),
            reading: None,
            keeper: None,
        })
    }

    fn read(&mut self) -> &mut Reading {
        self.keeper.get_or_insert_with(|| {
            let shared = Arc::clone(&self.shared);
            Task(tokio::spawn(async move { shared.keep().await }))
        });
        self.reading.get_or_insert_with(|| {
            let (stop, stopped) = watch::channel(false);
            let (queue, came) = mpsc::channel(PAGE);
            let reading = reader::read(Arc::clone(&self.shared), queue, stopped);
            Reading {
                task: Task(tokio::spawn(reading)),
                stop,
                came,
            }
        })
    }
}

impl Source for RedisStreamsSource {
    type Delivery = RedisStreamsDelivery;

    async fn next(&mut self) -> Outcome<Option<RedisStreamsDelivery>> {
        let ended = || SourceError::transient("receiving: the connection was given up");
        let came = self.read().came.recv().await;
        match came.unwrap_or_else(|| Err(ended())) {
            Ok(delivery) => Ok(Some(delivery)),
            Err(error) => {
                self.reading = None;
                Err(error)
            }
        }
    }

    fn set_flow(&mut self, flow: Flow) {
        let most = flow.max_unacknowledged.max(1);
        self.shared.most.store(most, Ordering::Relaxed);
        let most_bytes = flow.max_unacknowledged_bytes.max(1);
        self.shared.most_bytes.store(most_bytes, Ordering::Relaxed);
    }

    async fn close(&mut self) -> Outcome<()> {
        if self.keeper.take().is_none() {
            // It was never asked for anything.
            return Ok(());
        }
        match self.reading.take() {
            Some(mut reading) => {
                // The server's last answer is waited for: what is in it would look as if it were worked on.
                reading.stop.send_replace(true);
                reading.came.close();
                while reading.came.recv().await.is_some() {}
                let _ = timeout(END_LIMIT, &mut reading.task.0).await;
            }
            // Reading has failed. What has broken its connection has broken the other one, too, most likely.
            None => self.shared.link.reset().await,
        }
        self.shared.leave(Instant::now() + LEAVE_LIMIT).await
    }

    fn name(&self) -> Cow<'static, str> {
        format!("redis-stream/{}", self.shared.options.stream).into()
    }

    fn lag(&self) -> Option<u64> {
        self.shared.lag()
    }
}

impl fmt::Debug for RedisStreamsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamsSource")
            .field("options", &self.shared.options)
            .field("mapping", &self.shared.mapping)
            .finish_non_exhaustive()
    }
}
