//! What a case works with: a channel of its own, messages to send, consumers, and waiting.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use inbox::{
    CancellationToken,
    receiver::{
        Envelope, IdFrom, Mapping, Receiver, ReceiverError, Source as _, Summary, TextFrom,
    },
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    Abilities, Broker, Failure, Harm,
    counted::{Counted, Counts},
    shelf::Shelf,
};

/// How long cases wait for what has to happen: machines are slow.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// How long cases look whether something happens that must not.
const MOMENT: Duration = Duration::from_millis(300);
/// How often cases look whether something has happened.
const TICK: Duration = Duration::from_millis(30);

/// Whom messages are for.
pub(crate) const HANDLER: &str = "orders";
/// How many keys there are.
pub(crate) const KEYS: usize = 8;
/// The header of a message's id.
pub(crate) const ID: &str = "event-id";
/// The header of a message's key.
pub(crate) const KEY: &str = "event-key";

/// Ends the case with what was seen unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($seen:tt)+) => {
        if !$condition {
            return Err(format!($($seen)+).into());
        }
    };
}
pub(crate) use ensure;

pub(crate) struct Context<B> {
    pub(crate) broker: Arc<B>,
    pub(crate) abilities: Abilities,
    patience: Duration,
    name: &'static str,
    test_path: Option<String>,
    channels: Channels,
}

/// The channels that a case has made.
pub(crate) type Channels = Arc<Mutex<Vec<String>>>;

impl<B: Broker> Context<B> {
    pub(crate) fn new(
        broker: Arc<B>,
        name: &'static str,
        patience: Duration,
        test_path: Option<String>,
    ) -> Self {
        let abilities = broker.abilities();
        Self {
            broker,
            abilities,
            patience: patience + abilities.redelivery * 2,
            name,
            test_path,
            channels: Channels::default(),
        }
    }

    /// What it has made, also when the case has it.
    pub(crate) fn channels(&self) -> Channels {
        Arc::clone(&self.channels)
    }

    /// Where this program runs the case as a test, if it does.
    pub(crate) fn test_path(&self) -> Option<&str> {
        self.test_path.as_deref()
    }

    /// An empty channel that no other case has.
    pub(crate) async fn channel(&self) -> Result<String, Failure> {
        let name = self.name.rsplit("::").next().unwrap_or_default();
        let name: String = name.chars().take(30).collect();
        let channel = format!("{}-{:x}", name.replace('_', "-"), fastrand::u64(..1 << 40));
        self.broker.create(&channel).await?;
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.push(channel.clone());
        Ok(channel)
    }

    /// Messages by number: `m-7`, of the key `k-7`, with padding if there is to be some.
    pub(crate) async fn publish(
        &self,
        channel: &str,
        numbers: Range<usize>,
    ) -> Result<(), Failure> {
        let messages: Vec<_> = numbers.map(|number| envelope(channel, number)).collect();
        self.broker.publish(channel, &messages).await
    }

    /// The same, each message with a key of its own to the broker: some deliver no more of a key while any of it is out.
    pub(crate) async fn publish_apart(
        &self,
        channel: &str,
        numbers: Range<usize>,
    ) -> Result<(), Failure> {
        let messages: Vec<_> = numbers.map(|number| apart(channel, number)).collect();
        self.broker.publish(channel, &messages).await
    }

    /// Sends messages a few at a time while the case goes on.
    pub(crate) fn keep_publishing(
        &self,
        channel: &str,
        numbers: Range<usize>,
        pause: Duration,
    ) -> Publishing {
        let (broker, channel) = (Arc::clone(&self.broker), channel.to_owned());
        Publishing(tokio::spawn(async move {
            let all: Vec<_> = numbers.map(|number| envelope(&channel, number)).collect();
            for some in all.chunks(10) {
                broker.publish(&channel, some).await?;
                sleep(pause).await;
            }
            Ok(())
        }))
    }

    pub(crate) async fn shelf(&self) -> Result<Arc<Shelf>, Failure> {
        Shelf::new().await
    }

    pub(crate) fn source(&self, channel: &str) -> Result<B::Source, Failure> {
        self.broker.source(channel, mapping()?)
    }

    /// A consumer with batches of 20, 40 unacknowledged.
    pub(crate) fn consumer(&self, channel: &str, shelf: &Arc<Shelf>) -> Result<Consumer, Failure> {
        self.consumer_with(channel, shelf, mapping()?, |builder| builder)
    }

    pub(crate) fn consumer_with(
        &self,
        channel: &str,
        shelf: &Arc<Shelf>,
        mapping: Mapping,
        set: impl FnOnce(inbox::receiver::ReceiverBuilder) -> inbox::receiver::ReceiverBuilder,
    ) -> Result<Consumer, Failure> {
        let source = self.broker.source(channel, mapping)?;
        let store: Arc<dyn inbox::Store> = Arc::clone(shelf) as _;
        let builder = Receiver::builder(store)
            .batch_size(20)
            .max_unacknowledged(40);
        let receiver = set(builder).build();
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        let counts = Arc::new(Counts::default());
        let mut source = Counted::new(source, Arc::clone(&counts));
        let task = tokio::spawn(async move { receiver.run(&mut source, token).await });
        Ok(Consumer {
            task,
            shutdown,
            counts,
            patience: self.patience,
        })
    }

    /// Waits until it holds.
    pub(crate) async fn until(
        &self,
        what: &str,
        holds: impl AsyncFn() -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + self.patience;
        loop {
            if holds().await? {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("after {:?} not {what}", self.patience).into());
            }
            sleep(TICK).await;
        }
    }

    /// Waits until so many messages are in the store, under ids of their own.
    pub(crate) async fn until_stored(&self, shelf: &Shelf, count: usize) -> Result<(), Failure> {
        let waited = self
            .until(&format!("{count} messages stored"), async || {
                Ok(shelf.accepted().len() >= count)
            })
            .await;
        waited.map_err(|failure| format!("{failure}: {}", shelf.accepted().len()).into())
    }

    pub(crate) async fn until_done(&self, channel: &str) -> Result<(), Failure> {
        self.until_outstanding(channel, 0).await
    }

    pub(crate) async fn until_outstanding(&self, channel: &str, count: u64) -> Result<(), Failure> {
        let waited = self
            .until(&format!("{count} messages outstanding"), async || {
                Ok(self.broker.outstanding(channel).await? == count)
            })
            .await;
        if let Err(failure) = waited {
            let outstanding = self.broker.outstanding(channel).await?;
            return Err(format!("{failure}: {outstanding}").into());
        }
        Ok(())
    }

    /// Long enough to see what must not happen.
    pub(crate) async fn moment(&self) {
        sleep(MOMENT).await;
    }

    /// Takes deliveries from the source itself until it has so many.
    pub(crate) async fn take(
        &self,
        source: &mut B::Source,
        count: usize,
    ) -> Result<Vec<<B::Source as inbox::receiver::Source>::Delivery>, Failure> {
        let mut deliveries = Vec::new();
        let deadline = Instant::now() + self.patience;
        while deliveries.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            match timeout(left, source.next()).await {
                Ok(Ok(Some(delivery))) => deliveries.push(delivery),
                Ok(Ok(None)) => return Err("the source ended by itself".into()),
                Ok(Err(error)) if error.is_transient() => sleep(Duration::from_millis(100)).await,
                Ok(Err(error)) => return Err(format!("the source failed: {error}").into()),
                Err(_) => {
                    let came = deliveries.len();
                    return Err(format!("only {came} of {count} deliveries came").into());
                }
            }
        }
        Ok(deliveries)
    }

    /// Harms the broker.
    pub(crate) async fn harm(&self, harm: Harm) -> Result<(), Failure> {
        self.broker.harm(harm).await
    }

    /// That these and no others are in the store, each once, and the broker has none of them left.
    pub(crate) async fn all_is_done(
        &self,
        channel: &str,
        shelf: &Shelf,
        numbers: Range<usize>,
    ) -> Result<(), Failure> {
        self.until_done(channel).await?;
        shelf.holds(numbers.map(id)).await
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }
}

pub(crate) fn id(number: usize) -> String {
    format!("m-{number}")
}

pub(crate) fn key(number: usize) -> String {
    format!("k-{}", number % KEYS)
}

/// The message of a number. Its id and key are in headers, so that every broker has room for them.
pub(crate) fn envelope(channel: &str, number: usize) -> Envelope {
    let payload = format!(r#"{{"number":{number},"id":"{}"}}"#, id(number));
    let mut envelope = Envelope::new(channel, payload);
    envelope.headers = vec![(ID.into(), id(number)), (KEY.into(), key(number))];
    envelope.key = Some(key(number));
    envelope
}

/// The same, with a key of its own to the broker.
pub(crate) fn apart(channel: &str, number: usize) -> Envelope {
    let mut envelope = envelope(channel, number);
    envelope.key = Some(format!("k-of-{number}"));
    envelope
}

/// What is no message by [`mapping`]: it has no id.
pub(crate) fn poison(channel: &str, payload: impl Into<bytes::Bytes>, number: usize) -> Envelope {
    let mut envelope = Envelope::new(channel, payload);
    envelope.headers = vec![("poison".into(), number.to_string())];
    envelope.key = Some(key(number));
    envelope
}

/// Id and key from headers.
pub(crate) fn mapping() -> Result<Mapping, Failure> {
    Ok(Mapping::new(HANDLER)?
        .id_from([IdFrom::Header(ID.into())])
        .kind_from([TextFrom::Fixed("order.placed".into())])
        .ordering_key_from([TextFrom::Header(KEY.into())]))
}

/// Messages on their way. A case that waits for all of them first [finishes](Self::finish), so that it tells a message
/// that could not be sent from one that never came.
pub(crate) struct Publishing(JoinHandle<Result<(), Failure>>);

impl Publishing {
    pub(crate) async fn finish(mut self) -> Result<(), Failure> {
        (&mut self.0).await?
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A receiver at work.
pub(crate) struct Consumer {
    task: JoinHandle<Result<Summary, ReceiverError>>,
    shutdown: CancellationToken,
    pub(crate) counts: Arc<Counts>,
    patience: Duration,
}

impl Consumer {
    /// An orderly shutdown.
    pub(crate) async fn stop(self) -> Result<Summary, Failure> {
        self.shutdown.cancel();
        self.end().await?.map_err(|error| told(&error))
    }

    /// Waits until it ends by itself.
    pub(crate) async fn end(mut self) -> Result<Result<Summary, ReceiverError>, Failure> {
        let Ok(ended) = timeout(self.patience, &mut self.task).await else {
            return Err("the receiver did not end".into());
        };
        Ok(ended?)
    }

    /// Drops it where it stands, with its source.
    pub(crate) async fn vanish(mut self) -> Result<(), Failure> {
        self.task.abort();
        match (&mut self.task).await {
            Err(error) if error.is_cancelled() => Ok(()),
            Err(error) => Err(format!("the receiver panicked: {error}").into()),
            Ok(ended) => Err(match ended {
                Ok(_) => "the source ended by itself".into(),
                Err(error) => told(&error),
            }),
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn told(error: &ReceiverError) -> Failure {
    use std::error::Error as _;
    match error.source() {
        Some(source) => format!("{error}: {source}").into(),
        None => error.to_string().into(),
    }
}

/// How often each text is there.
pub(crate) fn count<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for text in texts {
        *counts.entry(text.as_ref().to_owned()).or_default() += 1;
    }
    counts
}

/// A few of them, to tell.
pub(crate) fn some<'a>(texts: impl IntoIterator<Item = &'a String>) -> String {
    let all: BTreeSet<&String> = texts.into_iter().collect();
    let mut told: Vec<&str> = all.iter().take(5).map(|text| text.as_str()).collect();
    if all.len() > told.len() {
        told.push("…");
    }
    format!("{} ({})", all.len(), told.join(", "))
}
