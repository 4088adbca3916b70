//! One connection, and the consumer as it was found over it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{
    Client, ConnectError, Event, Subject,
    jetstream::{
        self, AckKind,
        consumer::{AckPolicy, PullConsumer, pull},
        context::{ConsumerInfoErrorKind, GetStreamErrorKind},
        stream::{ConsumerError, ConsumerErrorKind, Stream},
    },
};
use futures_util::StreamExt as _;
use inbox_source::SourceError;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use crate::{
    error::{connecting, transient},
    held::Held,
    options::{Connection, NatsOptions},
};

const STREAM_NOT_FOUND: u64 = 10059;
const CONSUMER_NOT_FOUND: u64 = 10014;
/// From this status on it is the server that fails, and not what it was asked.
const SERVER_FAILS: usize = 500;
/// An older server may have open requests of a source that is gone; it takes what comes back for delivered to
/// one, and delivers in its place the newest message once more.
const GIVES_BACK_SINCE: (i64, i64, i64) = (2, 10, 0);
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the server is asked for the consumer.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// So long what it has said of the consumer is good enough to acknowledge by.
const FRESH: Duration = Duration::from_secs(1);
const UNKNOWN: u64 = u64::MAX;

pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) context: jetstream::Context,
    pub(crate) held: Held,
    pub(crate) confirm: bool,
    pub(crate) dead_letters: Option<String>,
    /// When the stream was created, in nanoseconds.
    pub(crate) created: i128,
    pub(crate) ack_wait: Duration,
    consumer: PullConsumer,
    /// When the server last said that the consumer is there, in milliseconds since it was found.
    looked: AtomicU64,
    began: Instant,
    lag: AtomicU64,
    lost: Arc<Lost>,
}

/// Whether a connection was lost, once and for all.
#[derive(Default)]
pub(crate) struct Lost {
    is_lost: AtomicBool,
    changed: Notify,
}

impl Lost {
    pub(crate) fn set(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    pub(crate) async fn wait(&self) {
        // It hears of what happens from here on.
        let changed = self.changed.notified();
        if !self.is_lost() {
            changed.await;
        }
    }
}

impl Session {
    pub(crate) async fn open(options: &NatsOptions) -> Result<(Self, PullConsumer), SourceError> {
        let lost = Arc::new(Lost::default());
        let client = connect(&options.connection, Arc::clone(&lost)).await;
        let client = client.map_err(|error| connecting(&error))?;
        let context = jetstream::new(client.clone());
        let stream = get_stream(&context, &options.stream).await?;
        let consumer = get_consumer(&stream, options).await?;
        check_dead_letters(&stream, &consumer, options)?;
        let ack_wait = consumer.cached_info().config.ack_wait;
        let session = Self {
            client,
            context,
            held: Held::default(),
            confirm: options.confirm,
            dead_letters: options.dead_letters.clone(),
            created: stream.cached_info().created.unix_timestamp_nanos(),
            ack_wait: if ack_wait.is_zero() {
                options.ack_wait
            } else {
                ack_wait
            },
            looked: AtomicU64::new(0),
            began: Instant::now(),
            lag: AtomicU64::new(consumer.cached_info().num_pending),
            consumer: consumer.clone(),
            lost,
        };
        Ok((session, consumer))
    }

    /// Whether the connection that the delivery came over is there: it is used for no longer than the consumer that
    /// was found over it.
    pub(crate) fn check(&self) -> Result<(), SourceError> {
        if self.lost.is_lost() {
            return Err(SourceError::transient(
                "the delivery is of a former connection or consumer; it comes again",
            ));
        }
        Ok(())
    }

    /// Whether answers still go to the consumer that the delivery came from. Those of one that was made again since, with
    /// its stream, would go to other messages of the same numbers.
    pub(crate) async fn check_consumer(&self) -> Result<(), SourceError> {
        self.check()?;
        let looked = Duration::from_millis(self.looked.load(Ordering::Relaxed));
        if self.began.elapsed().saturating_sub(looked) > FRESH {
            self.look().await?;
        }
        Ok(())
    }

    /// Asks for the consumer: whether it is the one that was found, and how much it has left. The server says by itself
    /// that it has deleted one only while messages are asked for.
    async fn look(&self) -> Result<(), SourceError> {
        let doing = "looking for the consumer";
        let asked = self.began.elapsed();
        let Ok(found) = timeout(PATIENCE, self.consumer.get_info()).await else {
            return Err(transient(doing, "no answer in time"));
        };
        match found {
            Ok(info) if info.created == self.consumer.cached_info().created => {
                self.set_lag(info.num_pending);
                let asked = u64::try_from(asked.as_millis()).unwrap_or_default();
                self.looked.fetch_max(asked, Ordering::Relaxed);
            }
            // The next connection finds what there is.
            Ok(_) => self.lose(),
            Err(error)
                if is_missing(&error.kind())
                    || matches!(error.kind(), ConsumerInfoErrorKind::StreamNotFound) =>
            {
                self.lose();
            }
            Err(error) => return Err(transient(doing, error)),
        }
        self.check()
    }

    pub(crate) fn lag(&self) -> Option<u64> {
        let lag = self.lag.load(Ordering::Relaxed);
        (lag != UNKNOWN).then_some(lag)
    }

    /// How many messages the server has for the consumer that were not delivered to anybody.
    pub(crate) fn set_lag(&self, pending: u64) {
        self.lag.store(pending, Ordering::Relaxed);
    }

    pub(crate) fn lose(&self) {
        self.lost.set();
    }

    pub(crate) async fn lost(&self) {
        self.lost.wait().await;
    }

    /// Answers for what is held, and looks for the consumer, until the connection is lost.
    pub(crate) async fn keep(self: Arc<Self>) {
        tokio::join!(self.keep_held(), self.keep_looking());
    }

    async fn keep_looking(&self) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while self.check().is_ok() {
            ticks.tick().await;
            if let Err(error) = self.look().await {
                tracing::debug!("{error}");
                self.set_lag(UNKNOWN);
            }
        }
    }

    /// Tells the server again and again that what is held is worked on, and at once what was dropped, and how long it
    /// is to stay away.
    async fn keep_held(&self) {
        let mut ticks = tokio::time::interval(self.ack_wait / 3);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while self.check().is_ok() {
            let answers: Vec<(Subject, AckKind)> = tokio::select! {
                _ = ticks.tick() => {
                    let at_work = self.held.at_work().into_iter();
                    at_work.map(|reply| (reply, AckKind::Progress)).collect()
                }
                () = self.held.dropped.notified() => {
                    let dropped = self.held.take_dropped().into_iter();
                    dropped.map(|(reply, pause)| (reply, come_again(pause))).collect()
                }
            };
            for (reply, answer) in answers {
                if self.client.publish(reply, answer.into()).await.is_err() {
                    return;
                }
            }
            self.held.freed.notify_one();
        }
    }

    /// Whether what is given back comes again while nobody asks.
    pub(crate) fn can_give_back(&self) -> bool {
        let (major, minor, patch) = GIVES_BACK_SINCE;
        self.client.is_server_compatible(major, minor, patch)
    }

    /// Gives these back, and returns when the server has read all that was sent before.
    pub(crate) async fn give_back(&self, replies: Vec<Subject>) -> Result<(), SourceError> {
        let failed = |error: &dyn std::fmt::Display| transient("giving back", error);
        let all = async {
            for reply in replies {
                let sent = self.client.publish(reply, "-NAK".into()).await;
                sent.map_err(|error| failed(&error))?;
            }
            // A server reads a connection in order: what comes back was behind all the rest.
            let inbox = self.client.new_inbox();
            let echo = self.client.subscribe(inbox.clone()).await;
            let mut echo = echo.map_err(|error| failed(&error))?;
            let sent = self.client.publish(inbox, "".into()).await;
            sent.map_err(|error| failed(&error))?;
            let answer = echo.next().await;
            answer.ok_or_else(|| failed(&"the connection is gone"))?;
            Ok(())
        };
        match timeout(PATIENCE, all).await {
            Ok(done) => done,
            Err(_) => Err(failed(&"no answer in time")),
        }
    }
}

fn come_again(pause: Duration) -> AckKind {
    AckKind::Nak((!pause.is_zero()).then_some(pause))
}

/// A client that is used until its connection is lost for the first time.
pub(crate) async fn connect(
    connection: &Connection,
    lost: Arc<Lost>,
) -> Result<Client, ConnectError> {
    let options = connection.options().event_callback(move |event| {
        let lost = Arc::clone(&lost);
        async move {
            if matches!(event, Event::Disconnected | Event::Closed) {
                lost.set();
            }
        }
    });
    options.connect(connection.server()).await
}

async fn get_stream(context: &jetstream::Context, name: &str) -> Result<Stream, SourceError> {
    context.get_stream(name).await.map_err(|error| {
        let text = format!("looking for the stream {name}: {error}");
        match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.error_code().0 == STREAM_NOT_FOUND => {
                SourceError::permanent(format!("{text}; create it"))
            }
            _ => SourceError::transient(text),
        }
    })
}

async fn get_consumer(stream: &Stream, options: &NatsOptions) -> Result<PullConsumer, SourceError> {
    let name = &options.consumer;
    // The client's `get_consumer` hides which error it was.
    let found = stream.consumer_info(name).await;
    let is_missing = match found {
        Ok(info) => {
            check(name, &info.config, options).map_err(SourceError::permanent)?;
            false
        }
        Err(error) if is_missing(&error.kind()) => true,
        Err(error) => return Err(transient("looking for the consumer", error)),
    };
    if !is_missing {
        let got = stream.get_consumer(name).await;
        return got.map_err(|error| transient("looking for the consumer", error));
    }
    if !options.create {
        return Err(SourceError::permanent(format!(
            "there is no consumer {name}; create it, or let the source do so by `create`"
        )));
    }
    tracing::info!(
        consumer = name,
        stream = options.stream,
        "creating the consumer"
    );
    let config = pull::Config {
        durable_name: Some(name.clone()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: options.ack_wait,
        // Each source asks for no more than it may hold; a limit of all of them would leave some idle.
        max_ack_pending: -1,
        max_deliver: options.max_deliver.map_or(-1, i64::from),
        filter_subject: options.filter.clone().unwrap_or_default(),
        ..pull::Config::default()
    };
    let created = stream.create_consumer(config).await;
    created.map_err(|error| not_created(&error))
}

/// Whether its stream has no such consumer.
fn is_missing(error: &ConsumerInfoErrorKind) -> bool {
    match error {
        ConsumerInfoErrorKind::NotFound => true,
        ConsumerInfoErrorKind::JetStream(answer) => answer.error_code().0 == CONSUMER_NOT_FOUND,
        _ => false,
    }
}

/// What does not fit waits for a change. That the server cannot create one at the moment passes.
fn not_created(error: &ConsumerError) -> SourceError {
    let text = format!("creating the consumer: {error}");
    match error.kind() {
        ConsumerErrorKind::JetStream(answer) if answer.code() < SERVER_FAILS => {
            SourceError::permanent(text)
        }
        _ => SourceError::transient(text),
    }
}

/// Dead letters that the consumer gets would be rejected again, and each be one more dead letter.
fn check_dead_letters(
    stream: &Stream,
    consumer: &PullConsumer,
    options: &NatsOptions,
) -> Result<(), SourceError> {
    let Some(subject) = &options.dead_letters else {
        return Ok(());
    };
    let subjects = &stream.cached_info().config.subjects;
    let is_in = subjects.iter().any(|one| fits(one, subject));
    if is_in && gets(&consumer.cached_info().config, subject) {
        return Err(SourceError::permanent(format!(
            "dead letters would come again: the consumer {} gets what is sent to {subject}; use a subject of another stream, \
             or one that the consumer's filter leaves out",
            options.consumer
        )));
    }
    Ok(())
}

/// Whether a consumer gets what its stream has of a subject.
pub(crate) fn gets(config: &jetstream::consumer::Config, subject: &str) -> bool {
    let one = Some(&config.filter_subject).filter(|filter| !filter.is_empty());
    let mut all = config.filter_subjects.iter().chain(one).peekable();
    all.peek().is_none() || all.any(|filter| fits(filter, subject))
}

/// Whether a subject is one of those that `pattern` stands for.
fn fits(pattern: &str, subject: &str) -> bool {
    let (mut wanted, mut parts) = (pattern.split('.'), subject.split('.'));
    loop {
        match (wanted.next(), parts.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(wanted), Some(part)) if wanted == part => {}
            _ => return false,
        }
    }
}

/// What of a consumer's settings would break a promise.
fn check(
    name: &str,
    config: &jetstream::consumer::Config,
    options: &NatsOptions,
) -> Result<(), String> {
    let refuse = |reason: String| Err(format!("the consumer {name} does not fit: {reason}"));
    match config.ack_policy {
        AckPolicy::Explicit => {}
        AckPolicy::None => return refuse("it counts messages as acknowledged once sent".into()),
        _ => return refuse("acknowledging one message acknowledges others; use explicit".into()),
    }
    if config.deliver_subject.is_some() {
        return refuse("it pushes; use a pull consumer".into());
    }
    if config.headers_only {
        return refuse("it delivers headers without payloads".into());
    }
    if !config.inactive_threshold.is_zero() {
        return refuse("the server deletes it when it is not used for a while".into());
    }
    let wanted = options.max_deliver.map_or(-1, i64::from);
    if config.max_deliver > 0 && config.max_deliver != wanted {
        return refuse(format!(
            "it gives a message up after {} deliveries; set max_deliver to the same",
            config.max_deliver
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde::{
        Deserialize as _,
        de::value::{Error as Unreadable, MapDeserializer},
    };

    use super::*;

    #[test]
    fn a_consumer_that_cannot_be_created_now_is_waited_for() {
        for (status, is_transient) in [(400, false), (404, false), (500, true), (503, true)] {
            let answer = [("code", status)].into_iter();
            let answer = MapDeserializer::<_, Unreadable>::new(answer);
            let answer = jetstream::Error::deserialize(answer).unwrap();
            let error = not_created(&ConsumerError::new(ConsumerErrorKind::JetStream(answer)));
            assert_eq!(error.is_transient(), is_transient, "{error}");
        }
        let silent = not_created(&ConsumerError::new(ConsumerErrorKind::TimedOut));
        assert!(silent.is_transient(), "{silent}");
    }

    #[test]
    fn a_subject_fits() {
        for pattern in ["a.b.c", "a.*.c", "a.>", ">", "*.b.>"] {
            assert!(fits(pattern, "a.b.c"), "{pattern}");
        }
        for pattern in ["a.b", "a.b.c.d", "a.b.c.>", "*", "a.*", "b.>", "a.b.*.*"] {
            assert!(!fits(pattern, "a.b.c"), "{pattern}");
        }
    }
}
