//! Reads a queue.

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
    time::{Instant, timeout_at},
};

use crate::{
    SqsDelivery, SqsOptions,
    options::invalid,
    queue::{BATCH, Queue},
    reader,
};

/// How long the last request is waited for at the end, and all of the end: the receiver gives ten seconds.
const END_LIMIT: Duration = Duration::from_secs(8);
const LEAVE_LIMIT: Duration = Duration::from_secs(9);

type Outcome<T> = Result<T, SourceError>;

/// A consumer of a queue, standard or FIFO. See the [crate](crate).
pub struct SqsSource {
    queue: Arc<Queue>,
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
    came: mpsc::Receiver<Outcome<SqsDelivery>>,
}

impl SqsSource {
    /// A source that asks the service when it is first asked itself.
    ///
    /// # Errors
    /// `Invalid` when the mapping names no place for an id.
    pub fn new(options: SqsOptions, mapping: Mapping) -> inbox_api::Result<Self> {
        // That is the message id. A receipt handle changes with each delivery, and no mapping sees it.
        let checked = mapping.check(Positions::Stable);
        checked.map_err(|error| invalid(error.to_string()))?;
        Ok(Self {
            queue: Arc::new(Queue::new(options, mapping)),
            reading: None,
            keeper: None,
        })
    }

    fn read(&mut self) -> &mut Reading {
        self.keeper.get_or_insert_with(|| {
            let queue = Arc::clone(&self.queue);
            Task(tokio::spawn(async move { queue.keep().await }))
        });
        self.reading.get_or_insert_with(|| {
            let (stop, stopped) = watch::channel(false);
            let (to, came) = mpsc::channel(BATCH);
            let reading = reader::read(Arc::clone(&self.queue), to, stopped);
            Reading {
                task: Task(tokio::spawn(reading)),
                stop,
                came,
            }
        })
    }
}

impl Source for SqsSource {
    type Delivery = SqsDelivery;

    async fn next(&mut self) -> Outcome<Option<SqsDelivery>> {
        let ended = || SourceError::transient("receiving: the request was given up");
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
        self.queue.most.store(most, Ordering::Relaxed);
        let most_bytes = flow.max_unacknowledged_bytes.max(1);
        self.queue.most_bytes.store(most_bytes, Ordering::Relaxed);
    }

    async fn close(&mut self) -> Outcome<()> {
        let began = Instant::now();
        self.keeper = None;
        if let Some(mut reading) = self.reading.take() {
            reading.stop.send_replace(true);
            reading.came.close();
            while let Ok(Some(_)) = timeout_at(began + END_LIMIT, reading.came.recv()).await {}
            let _ = timeout_at(began + END_LIMIT, &mut reading.task.0).await;
        }
        self.queue.leave(began + LEAVE_LIMIT).await
    }

    fn name(&self) -> Cow<'static, str> {
        format!("sqs/{}", self.queue.options.queue).into()
    }

    fn lag(&self) -> Option<u64> {
        self.queue.lag()
    }
}

impl fmt::Debug for SqsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsSource")
            .field("options", &self.queue.options)
            .field("mapping", &self.queue.mapping)
            .finish_non_exhaustive()
    }
}
