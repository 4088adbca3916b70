//! Reads a stream.

use std::{borrow::Cow, fmt, sync::Arc};

use bytes::Bytes;
use inbox_source::{Flow, Mapping, Positions, Source, SourceError};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::JoinHandle,
};

use super::{
    chunk::{Chunk, Fault, Record},
    delivery::{RabbitMqStreamDelivery, Rejecter},
    envelope::envelope,
    error::Outcome,
    ledger::{Ledger, Mark, Progress},
    open::{self, Found},
    options::{RabbitMqStreamOptions, StreamStart},
    session::{Order, Session},
    shared::{Shared, Ticket},
};
use crate::{options::invalid, stop::Stop};

/// A consumer of a stream. See the [crate](crate#streams).
pub struct RabbitMqStreamSource {
    mapping: Arc<Mapping>,
    rejecter: Arc<Rejecter>,
    max_unacknowledged: usize,
    open: Option<Open>,
    opening: Option<Opening>,
    /// How far former connections came.
    progress: Progress,
}

/// A connection, which has a task of its own. Dropping this ends the task, which stores what is finished, and
/// nobody waits for it.
struct Open {
    shared: Arc<Shared>,
    orders: UnboundedSender<Order>,
    chunks: UnboundedReceiver<Outcome<Chunk>>,
    chunk: Option<Chunk>,
    /// Where a former connection was, until something comes that is there or behind it.
    expected: Option<u64>,
    /// Whether a record came that is before that.
    came_before: bool,
}

/// The next connection, made by a task of its own: the receiver may drop [`Source::next`] at any time, and an
/// attempt would otherwise begin again and again.
struct Opening(JoinHandle<Outcome<Open>>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RabbitMqStreamSource {
    /// A source that connects when it is first asked.
    ///
    /// # Errors
    /// `Invalid` when the mapping names no place for an id.
    pub fn new(options: RabbitMqStreamOptions, mapping: Mapping) -> inbox_api::Result<Self> {
        let checked = mapping.check(Positions::Stable);
        checked.map_err(|error| invalid(error.to_string()))?;
        let stop = Stop::default();
        Ok(Self {
            mapping: Arc::new(mapping),
            rejecter: Arc::new(Rejecter { options, stop }),
            max_unacknowledged: 1000,
            open: None,
            opening: None,
            progress: Progress::default(),
        })
    }

    async fn connect(&mut self) -> Outcome<()> {
        if self.open.is_some() {
            return Ok(());
        }
        let opening = self.opening.get_or_insert_with(|| {
            let (options, progress) = (self.rejecter.options.clone(), self.progress);
            Opening(tokio::spawn(open(options, progress)))
        });
        let opened = (&mut opening.0).await;
        self.opening = None;
        let opened = opened.map_err(|_| SourceError::transient("connecting was given up"))??;
        self.open = Some(opened);
        Ok(())
    }

    /// The next record that was not handed out before.
    async fn take(&mut self) -> Outcome<RabbitMqStreamDelivery> {
        let Some(open) = &mut self.open else {
            return Err(SourceError::transient("receiving: not connected"));
        };
        let (written, record, mark) = open.next(self.max_unacknowledged).await?;
        let ticket = Ticket::new(&open.shared, mark);
        let options = &self.rejecter.options;
        let (envelope, fault) = envelope(&options.stream, written, &record);
        Ok(RabbitMqStreamDelivery {
            envelope,
            fault,
            record: match options.dead_letters {
                Some(_) => record.bytes,
                None => Bytes::new(),
            },
            mapping: Arc::clone(&self.mapping),
            rejecter: Arc::clone(&self.rejecter),
            ticket,
        })
    }

    /// Gives the connection up, and remembers where it was.
    fn lose(&mut self) {
        if let Some(open) = self.open.take() {
            let mut ledger = open.shared.ledger();
            ledger.end();
            self.progress = match open.is_shorter() {
                true => Progress::in_another(),
                false => ledger.progress(),
            };
        }
    }
}

async fn open(mut options: RabbitMqStreamOptions, mut progress: Progress) -> Outcome<Open> {
    let Found { link, kept, is_new } = open::to_read(&options).await?;
    if progress.was_elsewhere(kept) || (is_new && progress.next().is_some()) {
        tracing::warn!(
            stream = options.stream,
            consumer = options.consumer,
            kept,
            "the server does not keep the offset that it was told; the stream was deleted and made again, or the offset is lost; \
             what is behind the one that it keeps is read"
        );
        progress = Progress::in_another();
    }
    let starts_late = matches!(options.start, StreamStart::Last | StreamStart::Next);
    if progress.is_another() && starts_late {
        // What is there was sent while the source was at work.
        options.start = StreamStart::First;
    }
    let start = match options.start {
        // A chunk may begin before it.
        StreamStart::Offset(offset) => Some(offset),
        _ => None,
    };
    let expected = progress.next().filter(|_| kept.is_none());
    let shared = Arc::new(Shared::new(Ledger::new(kept, progress, start)));
    let (supply, chunks) = unbounded_channel();
    let (orders, ordered) = unbounded_channel();
    let session = Session::new(link, options, Arc::clone(&shared), supply, ordered);
    tokio::spawn(session.run());
    Ok(Open {
        shared,
        orders,
        chunks,
        chunk: None,
        expected,
        came_before: false,
    })
}

impl Open {
    /// Whether the stream has ended before the place where a former connection was: a server that is asked for
    /// more begins at the end, and otherwise with what was asked for.
    fn is_shorter(&self) -> bool {
        self.expected.is_some() && self.came_before && self.chunk.is_none()
    }

    /// The next record, with when it was written. A future that is dropped loses nothing.
    async fn next(&mut self, most: usize) -> Outcome<(i64, Record, Mark)> {
        self.shared.room(most).await;
        loop {
            if let Some(chunk) = &mut self.chunk {
                let Some(record) = chunk.next().map_err(unreadable)? else {
                    self.chunk = None;
                    if self.is_shorter() {
                        return Err(SourceError::transient(
                            "receiving: the stream is shorter than it was; it was deleted and made again, and all of the \
                             new one is read",
                        ));
                    }
                    continue;
                };
                match self.expected {
                    Some(expected) if record.offset < expected => self.came_before = true,
                    _ => self.expected = None,
                }
                let written = chunk.written;
                let mark = self.shared.ledger().take(chunk.reading, record.offset);
                if let Some(mark) = mark {
                    return Ok((written, record, mark));
                }
                continue;
            }
            let gone = || SourceError::transient("receiving: the connection is lost");
            let chunk = self.chunks.recv().await.ok_or_else(gone)??;
            // The next one comes while this one is handed out.
            let _ = self.orders.send(Order::More(chunk.reading));
            self.chunk = Some(chunk);
        }
    }
}

fn unreadable(fault: Fault) -> SourceError {
    match fault {
        Fault::Malformed => SourceError::transient("receiving: the server sent what is no chunk"),
        Fault::Compressed(by) => SourceError::permanent(format!(
            "receiving: the stream has batches that their producer compressed with {by}, which are not read here"
        )),
    }
}

impl Source for RabbitMqStreamSource {
    type Delivery = RabbitMqStreamDelivery;

    async fn next(&mut self) -> Outcome<Option<RabbitMqStreamDelivery>> {
        let rejecter = Arc::clone(&self.rejecter);
        loop {
            if let Some(stopped) = rejecter.stop.error() {
                return Err(stopped);
            }
            self.connect().await?;
            let came = tokio::select! {
                biased;
                came = self.take() => came,
                () = rejecter.stop.wait() => continue,
            };
            return came.map(Some).inspect_err(|error| {
                // After one for good, what is in flight is to be acknowledged still.
                if error.is_transient() {
                    self.lose();
                }
            });
        }
    }

    fn set_flow(&mut self, flow: Flow) {
        self.max_unacknowledged = flow.max_unacknowledged.max(1);
    }

    async fn close(&mut self) -> Outcome<()> {
        self.opening = None;
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let (end, ended) = oneshot::channel();
        if open.orders.send(Order::Close(end)).is_err() {
            // The connection was lost before.
            return Ok(());
        }
        ended.await.unwrap_or(Ok(()))
    }

    fn name(&self) -> Cow<'static, str> {
        format!("rabbitmq-stream/{}", self.rejecter.options.stream).into()
    }

    fn lag(&self) -> Option<u64> {
        self.open.as_ref()?.shared.lag()
    }
}

impl fmt::Debug for RabbitMqStreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqStreamSource")
            .field("options", &self.rejecter.options)
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}
