//! One connection with one channel, until either is lost: tags count on one channel only.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use inbox_source::SourceError;
use lapin::{
    Channel, ConnectionProperties, Consumer,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
        QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::{
    Connection,
    clean::Replaced,
    error::{PRIORITY, connecting, consuming, declaring, is_gone, transient},
    flag::Flag,
    held::{Held, Tag},
    options::RabbitMqOptions,
    screen::{self, Cut},
};

type Outcome<T> = Result<T, SourceError>;

/// How long connecting may take, and then finding the queue and becoming its consumer.
const CONNECT_LIMIT: Duration = Duration::from_secs(8);
/// How long the server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an orderly end may take.
const END_LIMIT: Duration = Duration::from_secs(4);
/// How often the state of the connection is looked at.
const TICK: Duration = Duration::from_millis(500);
/// How often the server is asked how much is behind.
const LAG_EVERY: Duration = Duration::from_secs(5);
/// What is dropped is given back so much later: if the source is dropped with it, closing gives all back, in order.
const MOMENT: Duration = Duration::from_millis(100);

const UNKNOWN: u64 = u64::MAX;
const REPLY_SUCCESS: u16 = 200;

pub(crate) struct Session {
    connection: lapin::Connection,
    channel: Channel,
    queue: ShortString,
    pub(crate) held: Held,
    pub(crate) replaced: Arc<Replaced>,
    lost: Flag,
    lag: AtomicU64,
}

impl Session {
    /// Connects, finds or declares the queue, and consumes at most `most` messages at a time.
    pub(crate) async fn open(options: &RabbitMqOptions, most: usize) -> Outcome<(Self, Consumer)> {
        let late = |_| SourceError::transient("connecting: the server did not answer in time");
        let replaced = Arc::<Replaced>::default();
        let connecting = connect(&options.connection, Arc::clone(&replaced));
        let connecting = timeout(CONNECT_LIMIT, connecting).await;
        let (connection, mut cut) = connecting.map_err(late)??;
        let consuming = timeout(CONNECT_LIMIT, consume(&connection, options, most)).await;
        let (channel, consumer, waiting) = match consuming.map_err(late).flatten() {
            Ok(consuming) => consuming,
            Err(error) => {
                // Not by dropping it: the client keeps a connection whose consumer was being made.
                let closing = connection.close(REPLY_SUCCESS, ShortString::from("closing"));
                cut.on_drop = timeout(END_LIMIT, closing).await.is_err();
                return Err(error);
            }
        };
        // From now on it ends in order.
        cut.on_drop = false;
        let session = Self {
            connection,
            channel,
            queue: ShortString::from(options.queue.as_str()),
            held: Held::default(),
            replaced,
            lost: Flag::default(),
            lag: AtomicU64::new(u64::from(waiting)),
        };
        Ok((session, consumer))
    }

    /// Whether answers still go to the channel that the delivery came from.
    pub(crate) fn check(&self) -> Outcome<()> {
        if self.is_lost() || !self.is_connected() {
            return Err(SourceError::transient(
                "the delivery is of a former connection; it comes again",
            ));
        }
        Ok(())
    }

    fn is_connected(&self) -> bool {
        self.connection.status().connected() && self.channel.status().connected()
    }

    pub(crate) fn lose(&self) {
        self.lost.set();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_set()
    }

    pub(crate) async fn lost(&self) {
        self.lost.wait().await;
    }

    pub(crate) fn lag(&self) -> Option<u64> {
        let lag = self.lag.load(Ordering::Relaxed);
        (lag != UNKNOWN).then_some(lag)
    }

    /// Acknowledges one delivery, or all up to it.
    pub(crate) async fn acknowledge(&self, tag: Tag, multiple: bool) -> Outcome<()> {
        self.check()?;
        let sent = self.channel.basic_ack(tag, BasicAckOptions { multiple });
        sending("acknowledging", sent).await
    }

    /// Gives one delivery back to the queue, or to the queue's dead letters.
    pub(crate) async fn refuse(&self, tag: Tag, requeue: bool) -> Outcome<()> {
        self.check()?;
        let multiple = false;
        let order = BasicNackOptions { multiple, requeue };
        sending("rejecting", self.channel.basic_nack(tag, order)).await
    }

    /// Gives back what was dropped, asks how much is behind, and notices when the connection or the channel is gone.
    pub(crate) async fn keep(&self) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked = Instant::now();
        let mut looking = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.held.given_up.notified() => {
                    sleep(MOMENT).await;
                    self.give_back().await;
                }
            }
            if !self.is_connected() {
                return self.lose();
            }
            if asked.elapsed() >= LAG_EVERY {
                asked = Instant::now();
                let lag = timeout(PATIENCE, self.ask_lag(&mut looking)).await;
                let lag = lag.ok().flatten().unwrap_or(UNKNOWN);
                self.lag.store(lag, Ordering::Relaxed);
            }
        }
    }

    async fn give_back(&self) {
        for tag in self.held.dropped() {
            if let Err(error) = self.refuse(tag, true).await {
                tracing::debug!("giving back failed: {error}");
                return;
            }
            self.held.remove([tag]);
        }
    }

    /// Over a channel of its own: a queue that is gone ends the channel that asks for it.
    async fn ask_lag(&self, looking: &mut Option<Channel>) -> Option<u64> {
        let channel = match looking.take() {
            Some(channel) => channel,
            None => self.connection.create_channel().await.ok()?,
        };
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = channel.queue_declare(self.queue.clone(), passive, FieldTable::default());
        let waiting = queue.await.ok()?.message_count();
        *looking = Some(channel);
        Some(u64::from(waiting))
    }

    /// Ends in order. The server answers when it has read all that was sent before; what was not acknowledged
    /// is back in the queue, in its order. A consumer that was cancelled instead would keep it, and another one
    /// would get what is behind it.
    pub(crate) async fn close(&self) -> Outcome<()> {
        self.lose();
        // What is gone, or about to be, has given back what it had.
        let closed = |ended: lapin::Result<()>| match ended {
            Err(error) if is_gone(&error) => Ok(()),
            ended => ended,
        };
        let end = async {
            let text = || ShortString::from("closing");
            closed(self.channel.close(REPLY_SUCCESS, text()).await)?;
            closed(self.connection.close(REPLY_SUCCESS, text()).await)
        };
        match timeout(END_LIMIT, end).await {
            Ok(ended) => ended.map_err(|error| transient("closing", error)),
            Err(_) => Err(transient("closing", "no answer in time")),
        }
    }
}

/// A channel that consumes at most `most` messages at a time, and how many wait in the queue.
async fn consume(
    connection: &lapin::Connection,
    options: &RabbitMqOptions,
    most: usize,
) -> Outcome<(Channel, Consumer, u32)> {
    let opening = |error| transient("opening a channel", error);
    let channel = connection.create_channel().await.map_err(opening)?;
    let waiting = find_queue(&channel, options).await?;
    let prefetch = u16::try_from(most).unwrap_or(u16::MAX);
    let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
    qos.await.map_err(|error| consuming(&error))?;
    let consumer = channel.basic_consume(
        ShortString::from(options.queue.as_str()),
        ShortString::default(),
        BasicConsumeOptions::default(),
        usual_priority(),
    );
    let consumer = consumer.await.map_err(|error| consuming(&error))?;
    Ok((channel, consumer, waiting))
}

/// What every consumer has that says nothing. But a stream knows no priorities, and so the server refuses one of a stream:
/// it would keep nothing of what was acknowledged, and begin behind the stream's end each time, so that what was sent in
/// between is lost.
fn usual_priority() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert(ShortString::from(PRIORITY), AMQPValue::LongInt(0));
    arguments
}

/// A connection that is used until it is lost for the first time. It is cut off when this is given up, and when what
/// comes with it is dropped.
pub(crate) async fn connect(
    connection: &Connection,
    replaced: Arc<Replaced>,
) -> Outcome<(lapin::Connection, Cut)> {
    let properties = ConnectionProperties::default().with_connection_name("inbox".into());
    let connected = screen::connect(connection.uri(), properties, replaced).await;
    connected.map_err(|error| connecting(&error))
}

async fn sending(doing: &str, sent: impl Future<Output = lapin::Result<()>>) -> Outcome<()> {
    match timeout(PATIENCE, sent).await {
        Ok(sent) => sent.map_err(|error| transient(doing, error)),
        Err(_) => Err(transient(doing, "the server takes nothing")),
    }
}

/// Finds the queue, or declares it, and says how many messages wait in it.
async fn find_queue(channel: &Channel, options: &RabbitMqOptions) -> Outcome<u32> {
    let settings = QueueDeclareOptions {
        passive: !options.create,
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let declare = async |name: &str, arguments| {
        let declared = channel.queue_declare(ShortString::from(name), settings, arguments);
        declared.await.map_err(|error| declaring(&error))
    };
    if !options.create {
        return Ok(declare(&options.queue, FieldTable::default())
            .await?
            .message_count());
    }
    if let Some(queue) = &options.dead_letters {
        declare(queue, options.kind_argument()).await?;
    }
    let queue = declare(&options.queue, options.arguments()).await?;
    Ok(queue.message_count())
}
