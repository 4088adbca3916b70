//! The consumer's thread: it polls the client, and nothing else does.
//!
//! Events are polled all the time, whether or not the receiver takes anything: a store that is away for hours
//! does not make the group throw this member out. Deliveries come in a queue for each partition, and are
//! taken from it only while there is room.
//!
//! A rebalance is noted by the callback and done here, step by step between polls: partitions that go
//! are held until what is in flight is finished and committed, or the time for it is over. Nothing waits
//! within the client, and acknowledgements, which come from the receiver's task, need no thread of it.

use std::{
    collections::VecDeque,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use inbox_source::{Flow, Mapping, SourceError};
use rdkafka::{
    Message, Offset, TopicPartitionList,
    config::FromClientConfigAndContext as _,
    consumer::{Consumer as _, base_consumer::PartitionQueue},
    error::{KafkaError, KafkaResult},
    message::BorrowedMessage,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    KafkaOptions, Start,
    committer::Committer,
    context::{Consumer, Context, Event, assign, unassign},
    delivery::{KafkaDelivery, Rejecter, bytes},
    envelope::{Original, UNREADABLE, is_readable, read},
    error::{is_fatal, is_outage, outage, source_error},
    missing_topics::MissingTopics,
    offsets::{Commit, Place},
    shared::{Shared, Ticket},
};

/// How long it sleeps when nothing wakes it.
const NAP: Duration = Duration::from_millis(50);
/// What is taken from one partition before it is the next one's turn.
const TURN: usize = 64;
/// How long a partition rests before it is read again from a delivery that was given up.
const REWIND_PAUSE: Duration = Duration::from_millis(500);
/// How long it waits before it commits again what the broker did not take.
const COMMIT_PAUSE: Duration = Duration::from_millis(500);
/// How long the last commit may take when the source is closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// How long one question to the broker may take.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// What the thread sends. It ends when its source is gone.
pub(crate) type Supply = UnboundedSender<Result<KafkaDelivery, SourceError>>;

pub(crate) struct Poller {
    /// The next to be asked is the first. Stands before the consumer, as it has to be dropped before.
    queues: VecDeque<(Place, PartitionQueue<Context>)>,
    consumer: Arc<Consumer>,
    committer: Committer,
    shared: Arc<Shared>,
    supply: Supply,
    mapping: Arc<Mapping>,
    rejecter: Arc<Rejecter>,
    flow: Flow,
    revoke_wait: Duration,
    start: Start,
    missing_topics: MissingTopics,
    leaving: Vec<Leaving>,
    /// The commit that is on its way.
    committing: Option<Vec<Commit>>,
    commit_again: Instant,
}

/// Partitions that go to another member.
struct Leaving {
    partitions: TopicPartitionList,
    places: Vec<Place>,
    deadline: Instant,
}

impl Poller {
    pub(crate) fn new(
        options: &KafkaOptions,
        flow: Flow,
        shared: Arc<Shared>,
        supply: Supply,
        mapping: Arc<Mapping>,
        rejecter: Arc<Rejecter>,
    ) -> Result<Self, SourceError> {
        let context = Context::new(shared.clone(), options.read_committed);
        let config = options.consumer_config();
        let failed = |error| source_error("connecting", &error);
        let mut consumer = Consumer::from_config_and_context(&config, context).map_err(failed)?;
        let thread = thread::current();
        consumer.set_nonempty_callback(move || thread.unpark());
        let topics: Vec<&str> = options.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(failed)?;
        let consumer = Arc::new(consumer);
        let committer = Committer::start(consumer.clone(), thread::current());
        Ok(Self {
            committer: committer.map_err(SourceError::transient)?,
            consumer,
            shared,
            supply,
            mapping,
            rejecter,
            flow,
            revoke_wait: options.revoke_wait,
            start: options.start,
            missing_topics: MissingTopics::new(&options.topics),
            queues: VecDeque::new(),
            leaving: Vec::new(),
            committing: None,
            commit_again: Instant::now(),
        })
    }

    /// Works until the source is closed, or fails so that a new consumer is needed.
    pub(crate) fn run(mut self) {
        while !self.shared.is_stopping() && !self.supply.is_closed() {
            match self.step() {
                Ok(true) => {}
                Ok(false) => thread::park_timeout(NAP),
                Err(error) => {
                    let _ = self.supply.send(Err(error));
                    break;
                }
            }
        }
        self.close();
    }

    /// Whether there may be more to do at once.
    fn step(&mut self) -> Result<bool, SourceError> {
        let mut busy = self.serve()?;
        busy |= self.handle_events()?;
        self.let_go();
        self.commit();
        self.rewind()?;
        if let Some(failure) = self.missing_topics.look(&self.consumer) {
            self.tell(failure);
        }
        Ok(self.take()? || busy)
    }

    /// Lets the client call back. Deliveries do not come this way.
    fn serve(&mut self) -> Result<bool, SourceError> {
        let consumer = self.consumer.clone();
        let mut busy = false;
        while let Some(polled) = consumer.poll(Duration::ZERO) {
            busy = true;
            match polled {
                Ok(message) => {
                    let place = Place::new(message.topic(), message.partition());
                    self.accept(&place, &message);
                }
                Err(error) if is_fatal(&error) => return Err(source_error("receiving", &error)),
                Err(error) if is_outage(&error) => self.note_outage(&error),
                Err(error) => tracing::debug!(%error, "the client tries again"),
            }
        }
        Ok(busy)
    }

    fn handle_events(&mut self) -> Result<bool, SourceError> {
        let events = self.consumer.context().take_events();
        let any = !events.is_empty();
        for event in events {
            match event {
                Event::Assign(partitions) => self.assign(&partitions)?,
                Event::Revoke { partitions, lost } => self.revoke(partitions, lost),
                Event::Committed(result) => self.note_commit(result),
            }
        }
        Ok(any)
    }

    fn assign(&mut self, partitions: &TopicPartitionList) -> Result<(), SourceError> {
        let places = places(partitions);
        tracing::info!(?places, "partitions assigned");
        // Before they are fetched, so that no delivery goes elsewhere.
        for place in &places {
            let queue = self
                .consumer
                .split_partition_queue(&place.topic, place.partition);
            let Some(mut queue) = queue else {
                return Err(SourceError::transient(format!("no queue for {place}")));
            };
            let thread = thread::current();
            queue.set_nonempty_callback(move || thread.unpark());
            self.shared.offsets().assign(place.clone());
            self.queues.push_back((place.clone(), queue));
        }
        assign(&self.consumer, partitions).map_err(|error| source_error("assigning", &error))?;
        if !places.is_empty() {
            self.look_up_committed(partitions);
        }
        Ok(())
    }

    /// Says where a group begins that has committed nothing: it decides what is ever received.
    fn look_up_committed(&self, partitions: &TopicPartitionList) {
        let asked = self
            .consumer
            .committed_offsets(partitions.clone(), ASK_LIMIT);
        let Ok(committed) = asked else {
            return; // It will be asked by the client, too, and that one tries again.
        };
        let mut without = Vec::new();
        for element in committed.elements() {
            let place = Place::new(element.topic(), element.partition());
            match element.offset() {
                Offset::Offset(offset) => self.shared.offsets().begins_at(&place, offset),
                _ => without.push(place),
            }
        }
        if !without.is_empty() {
            let start = self.start;
            tracing::warn!(partitions = ?without, ?start, "the group has committed nothing; it begins at `start`");
        }
    }

    fn revoke(&mut self, partitions: TopicPartitionList, lost: bool) {
        let places = places(&partitions);
        let mut offsets = self.shared.offsets();
        for place in &places {
            offsets.leave(place);
        }
        drop(offsets);
        if lost {
            tracing::warn!(
                ?places,
                "partitions lost: the group had no sign of life of this member in time"
            );
        } else {
            tracing::info!(?places, "partitions go to another member");
        }
        let wait = if lost {
            Duration::ZERO
        } else {
            self.revoke_wait
        };
        self.leaving.push(Leaving {
            partitions,
            places,
            deadline: Instant::now() + wait,
        });
    }

    /// Lets partitions go of which nothing is in flight any more, or that have waited long enough.
    fn let_go(&mut self) {
        let now = Instant::now();
        let leaving = std::mem::take(&mut self.leaving);
        for one in leaving {
            let mut offsets = self.shared.offsets();
            let in_flight: usize = one
                .places
                .iter()
                .map(|place| offsets.in_flight(place))
                .sum();
            let is_done =
                in_flight == 0 && one.places.iter().all(|place| offsets.is_committed(place));
            if !is_done && now < one.deadline && !self.consumer.assignment_lost() {
                drop(offsets);
                self.leaving.push(one);
                continue;
            }
            for place in &one.places {
                offsets.remove(place);
            }
            drop(offsets);
            if in_flight > 0 {
                tracing::warn!(
                    partitions = ?one.places,
                    deliveries = in_flight,
                    "given up with their partitions; the group delivers them again"
                );
            }
            self.queues.retain(|(place, _)| !one.places.contains(place));
            unassign(&self.consumer, &one.partitions);
        }
    }

    /// Commits what is finished. One commit is on its way at a time; its answer is an event.
    fn commit(&mut self) {
        let now = Instant::now();
        if self.committing.is_some() || now < self.commit_again {
            return;
        }
        let finished = self.shared.offsets().to_commit();
        if finished.is_empty() {
            return;
        }
        let mut partitions = TopicPartitionList::with_capacity(finished.len());
        for Commit { place, offset, .. } in &finished {
            let offset = Offset::Offset(*offset);
            let added = partitions.add_partition_offset(&place.topic, place.partition, offset);
            if let Err(error) = added {
                tracing::warn!(%error, %place, "an offset cannot be committed");
            }
        }
        if self.committer.commit(partitions) {
            self.committing = Some(finished);
        }
    }

    fn note_commit(&mut self, done: KafkaResult<()>) {
        let asked = self.committing.take().unwrap_or_default();
        match done {
            Ok(()) => {
                let mut offsets = self.shared.offsets();
                for commit in &asked {
                    offsets.committed(commit);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "offsets not committed; trying again while the partitions are here");
                self.commit_again = Instant::now() + COMMIT_PAUSE;
            }
        }
    }

    /// Reads partitions again from a delivery that was given up.
    fn rewind(&mut self) -> Result<(), SourceError> {
        let Some(since) = Instant::now().checked_sub(REWIND_PAUSE) else {
            return Ok(());
        };
        let rewinds = self.shared.offsets().rewinds(since);
        for (place, to) in rewinds {
            tracing::info!(%place, offset = to, "reading again from a delivery that was given up");
            let (topic, offset) = (&place.topic, Offset::Offset(to));
            self.consumer
                .seek(topic, place.partition, offset, ASK_LIMIT)
                .map_err(|error| source_error("reading again", &error))?;
            self.shared.offsets().reopen(&place, to);
        }
        Ok(())
    }

    /// Takes deliveries while there is room, from one partition after the other.
    fn take(&mut self) -> Result<bool, SourceError> {
        let mut any = false;
        for _ in 0..self.queues.len() {
            let Some((place, queue)) = self.queues.pop_front() else {
                break;
            };
            let taken = self.take_from(&place, &queue);
            self.queues.push_back((place, queue));
            any |= taken?;
        }
        Ok(any)
    }

    fn take_from(
        &mut self,
        place: &Place,
        queue: &PartitionQueue<Context>,
    ) -> Result<bool, SourceError> {
        for taken in 0..TURN {
            if !self.has_room() {
                return Ok(false);
            }
            match queue.poll(Duration::ZERO) {
                None => return Ok(taken > 0),
                Some(Ok(message)) => self.accept(place, &message),
                Some(Err(error)) if is_fatal(&error) => {
                    return Err(source_error("receiving", &error));
                }
                Some(Err(error)) if is_outage(&error) => self.note_outage(&error),
                Some(Err(error)) => tracing::debug!(%error, %place, "the client tries again"),
            }
        }
        Ok(true)
    }

    /// One delivery always has.
    fn has_room(&self) -> bool {
        let Flow {
            max_unacknowledged: most,
            max_unacknowledged_bytes: most_bytes,
            ..
        } = self.flow;
        self.shared.deliveries() < most.max(1) && self.shared.bytes() < most_bytes.max(1)
    }

    fn note_outage(&mut self, error: &KafkaError) {
        if self.missing_topics.note(error) {
            return; // It is told when it is known which topics are missing.
        }
        let failed_connection = self.consumer.context().failed_connection();
        self.tell(outage(error, failed_connection.as_deref()));
    }

    fn tell(&self, failure: SourceError) {
        if self.shared.is_to_be_told(&failure) {
            let _ = self.supply.send(Err(failure));
        }
    }

    fn accept(&self, place: &Place, message: &BorrowedMessage<'_>) {
        let offset = message.offset();
        let taken = self.shared.offsets().take(place, offset);
        if let Some(expected) = taken.expected {
            tracing::warn!(
                %place, offset, expected,
                "the log begins again: the topic was made again, or the log cut off; what was in flight of it commits nothing"
            );
        }
        let Some(mark) = taken.mark else {
            return; // It is not this member's any more, or will come again.
        };
        let readable = is_readable(message.headers());
        let envelope = read(message, readable);
        let original = Original::of(message, readable);
        let ticket = Ticket::new(&self.shared, mark, bytes(&envelope, original.as_deref()));
        let delivery = KafkaDelivery::new(
            envelope,
            original,
            (!readable).then_some(UNREADABLE),
            self.mapping.clone(),
            self.rejecter.clone(),
            ticket,
        );
        // Where the source is gone, the delivery is given up.
        let _ = self.supply.send(Ok(delivery));
    }

    /// Commits what is finished and leaves the group, so that others get the rest at once.
    fn close(mut self) {
        let deadline = Instant::now() + CLOSE_LIMIT;
        let mut offsets = self.shared.offsets();
        for place in offsets.places() {
            offsets.leave(&place);
        }
        drop(offsets);
        loop {
            // What is assigned or revoked meanwhile is let go below.
            let served = self.serve().and_then(|_| self.handle_events());
            self.commit_again = self.commit_again.min(Instant::now());
            self.commit();
            let is_done = self.committing.is_none() && self.shared.offsets().to_commit().is_empty();
            if served.is_err() || is_done {
                break;
            }
            if Instant::now() > deadline {
                tracing::warn!("offsets not committed in time; the group delivers them again");
                break;
            }
            thread::park_timeout(Duration::from_millis(5));
        }
        for one in &mut self.leaving {
            one.deadline = Instant::now();
        }
        self.let_go();
        self.give_up_all();
        // Otherwise brokers are away, and the last to hold the consumer ends it.
        if self.committing.is_none() {
            self.committer.end();
        }
    }

    /// Lets everything go, so that the client can end: it waits until all that was revoked is let go.
    fn give_up_all(&mut self) {
        self.consumer.context().close();
        for one in std::mem::take(&mut self.leaving) {
            unassign(&self.consumer, &one.partitions);
        }
        // What came between the last look and now.
        for event in self.consumer.context().take_events() {
            match event {
                Event::Assign(partitions) => {
                    let _ = assign(&self.consumer, &partitions);
                }
                Event::Revoke { partitions, .. } => unassign(&self.consumer, &partitions),
                Event::Committed(_) => {}
            }
        }
        let mut offsets = self.shared.offsets();
        for place in offsets.places() {
            offsets.remove(&place);
        }
    }
}

impl Drop for Poller {
    /// After a panic, too: a client that does not end keeps its partitions from all others.
    fn drop(&mut self) {
        self.give_up_all();
    }
}

fn places(partitions: &TopicPartitionList) -> Vec<Place> {
    let elements = partitions.elements();
    let places = elements.iter();
    places
        .map(|element| Place::new(element.topic(), element.partition()))
        .collect()
}
