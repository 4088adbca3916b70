//! Consumes a queue.

use std::{borrow::Cow, fmt, sync::Arc};

use futures_util::StreamExt as _;
use inbox_source::{Flow, Mapping, Positions, Source, SourceError};
use lapin::{Consumer, message::Delivery};
use tokio::{runtime::Handle, task::JoinHandle};

use crate::{
    RabbitMqDelivery, RabbitMqOptions, envelope::envelope, error::transient, options::invalid,
    session::Session, stop::Stop,
};

const UNSTABLE: &str = "RabbitMQ numbers deliveries on each channel, so a delivery tag is another one when a \
                        message comes again";

type Outcome<T> = Result<T, SourceError>;

/// A consumer of a queue. See the [crate](crate).
pub struct RabbitMqSource {
    options: RabbitMqOptions,
    mapping: Arc<Mapping>,
    max_unacknowledged: usize,
    open: Option<Open>,
    opening: Option<Opening>,
    /// A rejected delivery ended it.
    stop: Arc<Stop>,
}

struct Open {
    session: Arc<Session>,
    consumer: Option<Consumer>,
    keeper: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.session.lose();
        self.keeper.abort();
        // A consumer that is dropped is cancelled, which would leave what it has with it while others go on.
        let (session, consumer) = (Arc::clone(&self.session), self.consumer.take());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = session.close().await {
                    tracing::debug!("{error}");
                }
                drop(consumer);
            });
        }
    }
}

/// The next connection, made by a task of its own: the receiver may drop [`Source::next`] at any time, and an
/// attempt would otherwise begin again and again. It is never aborted: what the server has given to a consumer
/// that was just made would stay with a connection that nobody closes. One that nobody waits for is closed when
/// it is there.
struct Opening(JoinHandle<Outcome<Open>>);

impl RabbitMqSource {
    /// A source that connects when it is first asked.
    ///
    /// # Errors
    /// `Invalid` when the mapping names no place for an id, or the position: a delivery tag is not the same when a
    /// message comes again.
    pub fn new(options: RabbitMqOptions, mapping: Mapping) -> inbox_api::Result<Self> {
        let checked = mapping.check(Positions::Unstable(UNSTABLE));
        checked.map_err(|error| invalid(error.to_string()))?;
        Ok(Self {
            options,
            mapping: Arc::new(mapping),
            max_unacknowledged: 1000,
            open: None,
            opening: None,
            stop: Arc::default(),
        })
    }

    async fn connect(&mut self) -> Outcome<&mut Open> {
        if self.open.is_none() {
            let opening = self.opening.get_or_insert_with(|| {
                let (options, most) = (self.options.clone(), self.max_unacknowledged);
                Opening(tokio::spawn(async move { open(&options, most).await }))
            });
            let opened = (&mut opening.0).await;
            self.opening = None;
            let opened =
                opened.map_err(|_| SourceError::transient("connecting was given up"))??;
            return Ok(self.open.insert(opened));
        }
        let gone = || SourceError::transient("not connected");
        self.open.as_mut().ok_or_else(gone)
    }

    fn delivery(&self, session: Arc<Session>, mut delivery: Delivery) -> RabbitMqDelivery {
        let tag = delivery.delivery_tag;
        session.held.add(tag);
        let no_text = session.replaced.take(tag);
        RabbitMqDelivery {
            envelope: envelope(&self.options.queue, &mut delivery, &no_text),
            no_text: no_text.first().map(|part| part.place),
            tag,
            mapping: Arc::clone(&self.mapping),
            session,
            rejections: self.options.what_of_rejected(),
            stop: Arc::clone(&self.stop),
        }
    }
}

async fn open(options: &RabbitMqOptions, most: usize) -> Outcome<Open> {
    let (session, consumer) = Session::open(options, most).await?;
    let session = Arc::new(session);
    let keeper = tokio::spawn({
        let session = Arc::clone(&session);
        async move { session.keep().await }
    });
    Ok(Open {
        session,
        consumer: Some(consumer),
        keeper,
    })
}

impl Open {
    /// The next message over this connection.
    async fn next(&mut self) -> Outcome<Delivery> {
        let Some(consumer) = &mut self.consumer else {
            return Err(SourceError::transient("receiving: not connected"));
        };
        let lost = || SourceError::transient("receiving: the connection is lost");
        if self.session.is_lost() {
            return Err(lost());
        }
        // What is there already is taken without listening for anything else.
        tokio::select! {
            biased;
            came = consumer.next() => match came {
                Some(Ok(delivery)) => Ok(delivery),
                Some(Err(error)) => Err(transient("receiving", error)),
                None => Err(SourceError::transient(
                    "receiving: the server cancelled the consumer; its queue has moved or is gone",
                )),
            },
            () = self.session.lost() => Err(lost()),
        }
    }
}

impl Source for RabbitMqSource {
    type Delivery = RabbitMqDelivery;

    async fn next(&mut self) -> Outcome<Option<RabbitMqDelivery>> {
        let stop = Arc::clone(&self.stop);
        loop {
            if let Some(stopped) = stop.error() {
                return Err(stopped);
            }
            let open = self.connect().await?;
            let came = tokio::select! {
                biased;
                came = open.next() => came,
                () = stop.wait() => continue,
            };
            let session = Arc::clone(&open.session);
            return match came {
                Ok(delivery) => Ok(Some(self.delivery(session, delivery))),
                Err(error) => {
                    self.open = None;
                    Err(error)
                }
            };
        }
    }

    fn set_flow(&mut self, flow: Flow) {
        self.max_unacknowledged = flow.max_unacknowledged.max(1);
    }

    async fn close(&mut self) -> Outcome<()> {
        self.opening = None;
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        open.keeper.abort();
        let ended = match open.session.check() {
            Ok(()) => open.session.close().await,
            // What it had is given back already.
            Err(_) => Ok(()),
        };
        open.consumer = None;
        ended
    }

    fn name(&self) -> Cow<'static, str> {
        format!("rabbitmq/{}", self.options.queue).into()
    }

    fn lag(&self) -> Option<u64> {
        self.open.as_ref()?.session.lag()
    }
}

impl fmt::Debug for RabbitMqSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqSource")
            .field("options", &self.options)
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}
