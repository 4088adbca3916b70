//! A broker in memory: the model of what a broker and its source have to do.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use inbox::{
    Message,
    receiver::{
        Delivery, Envelope, Flow, Mapping, Positions, Publisher, Raw, Rejection, Source,
        SourceError,
    },
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{Abilities, Broker, Failure, Harm};

const PARTITIONS: usize = 4;
const MAX_PAYLOAD: usize = 256 * 1024;
/// How long a consumer that vanished keeps what it has.
const REDELIVERY: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(5);
/// How long a publisher tries.
const PUBLISHING: Duration = Duration::from_secs(60);

/// What a [`MemoryBroker`] is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Any consumer gets any message, each acknowledged by itself; nothing about a message is the same
    /// when it comes again but what was sent; dead letters. As RabbitMQ and SQS are.
    Queue,
    /// Partitions with offsets, each read by one consumer at a time, which finishes what it has of one
    /// before another gets it. As Kafka is.
    Log,
}

/// A broker in memory, on which the suite passes: the model for [`Broker`] implementations, and what
/// deliberately broken sources are made of in the suite's own tests.
#[derive(Clone, Debug)]
pub struct MemoryBroker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    kind: MemoryKind,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    is_up: bool,
    is_paused: bool,
    last_consumer: u64,
    channels: BTreeMap<String, Channel>,
}

#[derive(Debug, Default)]
struct Channel {
    entries: Vec<Entry>,
    dead: Vec<Vec<u8>>,
    consumers: BTreeMap<u64, Consumer>,
    owners: BTreeMap<usize, u64>,
}

#[derive(Debug)]
struct Entry {
    envelope: Envelope,
    partition: usize,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Ready,
    /// Sent to this consumer.
    Out(u64),
    Done,
}

/// One connection of a source.
#[derive(Debug)]
struct Consumer {
    /// Sent, and not handed out yet.
    buffer: VecDeque<usize>,
    prefetch: usize,
    /// When what it has goes back, as it vanished.
    expires: Option<Instant>,
}

impl MemoryBroker {
    /// An empty one.
    #[must_use]
    pub fn new(kind: MemoryKind) -> Self {
        Self(Arc::new(Shared {
            kind,
            state: Mutex::new(State {
                is_up: true,
                is_paused: false,
                last_consumer: 0,
                channels: BTreeMap::new(),
            }),
            changed: Notify::new(),
        }))
    }
}

impl Shared {
    /// Nothing panics while this lock is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the broker answers, and does something with it.
    async fn ask<T>(&self, mut ask: impl FnMut(&mut State) -> T) -> T {
        loop {
            {
                let mut state = self.lock();
                if !state.is_paused {
                    let answer = ask(&mut state);
                    drop(state);
                    self.changed.notify_waiters();
                    return answer;
                }
            }
            sleep(TICK).await;
        }
    }
}

impl Channel {
    /// What a consumer had goes back.
    fn remove(&mut self, consumer: u64) {
        self.consumers.remove(&consumer);
        self.owners.retain(|_, owner| *owner != consumer);
        for entry in &mut self.entries {
            if entry.fate == Fate::Out(consumer) {
                entry.fate = Fate::Ready;
            }
        }
    }

    fn remove_all(&mut self) {
        let consumers: Vec<u64> = self.consumers.keys().copied().collect();
        for consumer in consumers {
            self.remove(consumer);
        }
    }

    /// Sends what can be sent.
    fn deliver(&mut self, kind: MemoryKind) {
        let now = Instant::now();
        let consumers = self.consumers.iter();
        let expired: Vec<u64> = consumers
            .filter(|(_, consumer)| consumer.expires.is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for consumer in expired {
            self.remove(consumer);
        }
        let wanted = match kind {
            MemoryKind::Queue => BTreeMap::new(),
            MemoryKind::Log => self.rebalance(),
        };
        let mut out: BTreeMap<u64, usize> = BTreeMap::new();
        for entry in &self.entries {
            if let Fate::Out(consumer) = entry.fate {
                *out.entry(consumer).or_default() += 1;
            }
        }
        let mut stuck = BTreeSet::new();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.fate != Fate::Ready || stuck.contains(&entry.partition) {
                continue;
            }
            let has_room = |id: &u64, consumer: &Consumer| {
                consumer.expires.is_none()
                    && out.get(id).copied().unwrap_or_default() < consumer.prefetch
            };
            let owner = self.owners.get(&entry.partition);
            let chosen = match kind {
                MemoryKind::Queue => {
                    let free = self.consumers.iter().filter(|(id, one)| has_room(id, one));
                    let least = free.min_by_key(|(id, _)| out.get(id).copied().unwrap_or_default());
                    least.map(|(id, _)| *id)
                }
                MemoryKind::Log => owner.copied().filter(|owner| {
                    wanted.get(&entry.partition) == Some(owner)
                        && self
                            .consumers
                            .get(owner)
                            .is_some_and(|one| has_room(owner, one))
                }),
            };
            match chosen.and_then(|id| Some((id, self.consumers.get_mut(&id)?))) {
                Some((id, consumer)) => {
                    entry.fate = Fate::Out(id);
                    consumer.buffer.push_back(index);
                    *out.entry(id).or_default() += 1;
                }
                None if kind == MemoryKind::Log => {
                    stuck.insert(entry.partition);
                }
                None => return,
            }
        }
    }

    /// Gives each partition to its consumer as soon as the one that had it is through with it; returns
    /// who is to have which.
    fn rebalance(&mut self) -> BTreeMap<usize, u64> {
        let live = self.consumers.iter();
        let live: Vec<u64> = live
            .filter(|(_, consumer)| consumer.expires.is_none())
            .map(|(id, _)| *id)
            .collect();
        let mut wanted = BTreeMap::new();
        for partition in 0..PARTITIONS {
            let Some(next) = live.get(partition % live.len().max(1)).copied() else {
                break;
            };
            wanted.insert(partition, next);
            let owner = self.owners.get(&partition).copied();
            if owner == Some(next) {
                continue;
            }
            if let Some(owner) = owner {
                self.take_back(owner, partition);
                let has =
                    |entry: &Entry| entry.partition == partition && entry.fate == Fate::Out(owner);
                if self.entries.iter().any(has) {
                    continue;
                }
            }
            self.owners.insert(partition, next);
        }
        wanted
    }

    /// What was sent to a consumer of a partition and is not handed out yet, unless it vanished: then
    /// nobody can tell.
    fn take_back(&mut self, owner: u64, partition: usize) {
        let entries = &mut self.entries;
        if let Some(consumer) = self.consumers.get_mut(&owner)
            && consumer.expires.is_none()
        {
            consumer
                .buffer
                .retain(|index| match entries.get_mut(*index) {
                    Some(entry) if entry.partition == partition => {
                        entry.fate = Fate::Ready;
                        false
                    }
                    _ => true,
                });
        }
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    type Source = MemorySource;
    type Publisher = MemoryPublisher;

    fn abilities(&self) -> Abilities {
        let is_log = self.0.kind == MemoryKind::Log;
        Abilities {
            stable_positions: is_log,
            order_by_key: true,
            order_across_consumers: is_log,
            order_after_a_kill: true,
            dead_letters: true,
            id_property: true,
            kind_property: true,
            key_property: true,
            binary_headers: true,
            binary_payloads: true,
            empty_payloads: true,
            max_payload: MAX_PAYLOAD,
            redelivery: REDELIVERY,
        }
    }

    async fn create(&self, channel: &str) -> Result<(), Failure> {
        let name = channel.to_owned();
        let create = move |state: &mut State| {
            state.channels.insert(name.clone(), Channel::default());
        };
        self.0.ask(create).await;
        Ok(())
    }

    async fn publish(&self, channel: &str, messages: &[Envelope]) -> Result<(), Failure> {
        let deadline = Instant::now() + PUBLISHING;
        let publish = |state: &mut State| {
            if !state.is_up {
                return Ok(false);
            }
            let mut all = messages.iter();
            all.try_for_each(|message| self.put(state, channel, message))?;
            Ok::<_, SourceError>(true)
        };
        while !self.0.ask(publish).await? {
            if Instant::now() > deadline {
                return Err("the broker is away".into());
            }
            sleep(TICK).await;
        }
        Ok(())
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<MemorySource, Failure> {
        mapping.check(match self.0.kind {
            MemoryKind::Queue => Positions::Unstable("it is a number of the connection"),
            MemoryKind::Log => Positions::Stable,
        })?;
        Ok(MemorySource {
            shared: Arc::clone(&self.0),
            channel: channel.into(),
            mapping: Arc::new(mapping),
            prefetch: usize::MAX,
            consumer: None,
            handed_out: 0,
            lag: None,
        })
    }

    fn publisher(&self, limit: Duration) -> Result<MemoryPublisher, Failure> {
        Ok(MemoryPublisher {
            broker: self.clone(),
            limit,
        })
    }

    async fn outstanding(&self, channel: &str) -> Result<u64, Failure> {
        let state = self.0.lock();
        let channel = state.channels.get(channel).ok_or("no such channel")?;
        let left = channel
            .entries
            .iter()
            .filter(|entry| entry.fate != Fate::Done);
        Ok(left.count() as u64)
    }

    async fn dead_letters(&self, channel: &str) -> Result<Vec<Vec<u8>>, Failure> {
        let state = self.0.lock();
        Ok(state
            .channels
            .get(channel)
            .ok_or("no such channel")?
            .dead
            .clone())
    }

    async fn harm(&self, harm: Harm) -> Result<(), Failure> {
        let mut state = self.0.lock();
        match harm {
            Harm::Kill => state.is_up = false,
            Harm::Start => state.is_up = true,
            Harm::Pause => state.is_paused = true,
            Harm::Resume => state.is_paused = false,
            Harm::Cut => {}
        }
        if matches!(harm, Harm::Kill | Harm::Cut) {
            state.channels.values_mut().for_each(Channel::remove_all);
        }
        drop(state);
        self.0.changed.notify_waiters();
        Ok(())
    }
}

impl MemoryBroker {
    fn put(&self, state: &mut State, channel: &str, message: &Envelope) -> Result<(), SourceError> {
        if !state.is_up {
            return Err(lost());
        }
        if message.payload.len() > MAX_PAYLOAD {
            return Err(SourceError::permanent("the message is too large"));
        }
        let missing = || SourceError::transient("no such channel");
        let to = state.channels.get_mut(channel).ok_or_else(missing)?;
        let entry = self.entry(channel, message, to.entries.len());
        to.entries.push(entry);
        Ok(())
    }

    fn entry(&self, channel: &str, message: &Envelope, offset: usize) -> Entry {
        let mut hasher = DefaultHasher::new();
        match &message.key {
            Some(key) => key.hash(&mut hasher),
            None => offset.hash(&mut hasher),
        }
        let partition = usize::try_from(hasher.finish() % PARTITIONS as u64).unwrap_or_default();
        let mut envelope = message.clone();
        envelope.address = channel.into();
        envelope.time = Some(SystemTime::now());
        envelope.position = match self.0.kind {
            MemoryKind::Queue => None,
            MemoryKind::Log => Some(format!("{partition}/{offset}")),
        };
        Entry {
            envelope,
            partition,
            fate: Fate::Ready,
        }
    }
}

/// The publisher of a [`MemoryBroker`].
#[derive(Debug)]
pub struct MemoryPublisher {
    broker: MemoryBroker,
    limit: Duration,
}

impl Publisher for MemoryPublisher {
    async fn publish(&self, messages: &[Envelope]) -> Vec<Result<(), SourceError>> {
        let put = |state: &mut State| -> Vec<_> {
            let all = messages.iter();
            all.map(|message| self.broker.put(state, &message.address, message))
                .collect()
        };
        match timeout(self.limit, self.broker.0.ask(put)).await {
            Ok(answers) => answers,
            Err(_) => messages.iter().map(|_| Err(lost())).collect(),
        }
    }
}

/// The source of a [`MemoryBroker`].
#[derive(Debug)]
pub struct MemorySource {
    shared: Arc<Shared>,
    channel: String,
    mapping: Arc<Mapping>,
    prefetch: usize,
    consumer: Option<u64>,
    handed_out: u64,
    lag: Option<u64>,
}

fn lost() -> SourceError {
    SourceError::transient("the connection is lost")
}

impl MemorySource {
    /// What is there now: a delivery, nothing, or why there will be none.
    fn poll(&mut self) -> Result<Option<MemoryDelivery>, SourceError> {
        let mut state = self.shared.lock();
        let state = &mut *state;
        if state.is_paused {
            return Ok(None);
        }
        if !state.is_up {
            self.consumer = None;
            return Err(lost());
        }
        let Some(channel) = state.channels.get_mut(&self.channel) else {
            return Err(SourceError::permanent("no such channel"));
        };
        let id = match self.consumer {
            Some(id) => id,
            None => {
                state.last_consumer += 1;
                let consumer = Consumer {
                    buffer: VecDeque::new(),
                    prefetch: self.prefetch,
                    expires: None,
                };
                channel.consumers.insert(state.last_consumer, consumer);
                self.handed_out = 0;
                state.last_consumer
            }
        };
        self.consumer = Some(id);
        channel.deliver(self.shared.kind);
        let Some(consumer) = channel.consumers.get_mut(&id) else {
            self.consumer = None;
            return Err(lost());
        };
        let Some(index) = consumer.buffer.pop_front() else {
            return Ok(None);
        };
        let ready = channel
            .entries
            .iter()
            .filter(|entry| entry.fate == Fate::Ready);
        self.lag = Some(ready.count() as u64);
        let Some(entry) = channel.entries.get(index) else {
            return Ok(None);
        };
        self.handed_out += 1;
        Ok(Some(MemoryDelivery {
            shared: Arc::clone(&self.shared),
            channel: self.channel.clone(),
            mapping: Arc::clone(&self.mapping),
            envelope: entry.envelope.clone(),
            consumer: id,
            index,
            tag: self.handed_out,
        }))
    }
}

impl Source for MemorySource {
    type Delivery = MemoryDelivery;

    async fn next(&mut self) -> Result<Option<MemoryDelivery>, SourceError> {
        let shared = Arc::clone(&self.shared);
        loop {
            let changed = shared.changed.notified();
            if let Some(delivery) = self.poll()? {
                return Ok(Some(delivery));
            }
            // Vanished consumers and a pause end without a word.
            let _ = timeout(TICK, changed).await;
        }
    }

    fn set_flow(&mut self, flow: Flow) {
        self.prefetch = flow.max_unacknowledged;
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        let Some(consumer) = self.consumer else {
            return Ok(());
        };
        let name = self.channel.clone();
        let remove = move |state: &mut State| {
            if let Some(channel) = state.channels.get_mut(&name) {
                channel.remove(consumer);
            }
        };
        self.shared.ask(remove).await;
        self.consumer = None;
        Ok(())
    }

    fn name(&self) -> Cow<'static, str> {
        format!("memory/{}", self.channel).into()
    }

    fn lag(&self) -> Option<u64> {
        self.lag
    }
}

impl Drop for MemorySource {
    /// Vanishes without a word.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let channel = state.channels.get_mut(&self.channel);
        if let Some(id) = self.consumer
            && let Some(consumer) = channel.and_then(|channel| channel.consumers.get_mut(&id))
        {
            consumer.expires = Some(Instant::now() + REDELIVERY);
        }
    }
}

/// A delivery of a [`MemoryBroker`]. A copy of it is the same delivery.
#[derive(Clone, Debug)]
pub struct MemoryDelivery {
    shared: Arc<Shared>,
    channel: String,
    mapping: Arc<Mapping>,
    envelope: Envelope,
    consumer: u64,
    index: usize,
    tag: u64,
}

impl MemoryDelivery {
    /// What was sent.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// What makes a message of it.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Its number on its connection.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Ends it for the broker, if it still is its connection's.
    async fn finish(&self, is_rejected: bool) -> Result<(), SourceError> {
        let finish = |state: &mut State| {
            if !state.is_up {
                return Err(lost());
            }
            let channel = state.channels.get_mut(&self.channel).ok_or_else(lost)?;
            let entry = channel.entries.get_mut(self.index).ok_or_else(lost)?;
            if entry.fate != Fate::Out(self.consumer) {
                return Err(SourceError::transient("a delivery of a former connection"));
            }
            entry.fate = Fate::Done;
            if is_rejected {
                channel.dead.push(entry.envelope.payload.to_vec());
            }
            Ok(())
        };
        self.shared.ask(finish).await
    }
}

impl Delivery for MemoryDelivery {
    fn message(&self) -> Result<Message, Rejection> {
        self.mapping.message(&self.envelope)
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.envelope.bytes())
    }

    fn raw(&self) -> Option<Raw> {
        Some(self.envelope.raw())
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        self.finish(false).await
    }

    async fn reject(self, _: Rejection) -> Result<(), SourceError> {
        self.finish(true).await
    }
}
