//! What the client calls back. Each call comes from within a poll, on the consumer's own thread; it is
//! only noted here, so that nothing ever waits within the client.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rdkafka::{
    ClientContext, Statistics, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol},
    error::{KafkaError, KafkaResult},
    types::RDKafkaRespErr,
};

use crate::{
    error::{is_of_connection, is_of_tls},
    offsets::Place,
    shared::Shared,
};

/// How often is warned of a connection that is refused over and over, at most.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// What happened.
pub(crate) enum Event {
    /// Partitions come. They are not fetched before they are assigned.
    Assign(TopicPartitionList),
    /// Partitions go. They go on being this member's until they are let go.
    Revoke {
        partitions: TopicPartitionList,
        /// They are gone already, perhaps to others.
        lost: bool,
    },
    /// An answer to a commit.
    Committed(KafkaResult<()>),
}

/// What was said of the last connection that failed, and when one was last warned of.
#[derive(Default)]
struct FailedConnection {
    reason: Option<String>,
    warned: Option<Instant>,
}

pub(crate) struct Context {
    shared: Arc<Shared>,
    read_committed: bool,
    events: Mutex<Vec<Event>>,
    failed_connection: Mutex<FailedConnection>,
    /// From now on partitions are let go at once.
    closing: AtomicBool,
}

pub(crate) type Consumer = BaseConsumer<Context>;

impl Context {
    pub(crate) fn new(shared: Arc<Shared>, read_committed: bool) -> Self {
        Self {
            shared,
            read_committed,
            events: Mutex::default(),
            failed_connection: Mutex::default(),
            closing: AtomicBool::new(false),
        }
    }

    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the client said of the last connection that failed.
    pub(crate) fn failed_connection(&self) -> Option<String> {
        let failed = self.failed_connection.lock();
        let failed = failed.unwrap_or_else(PoisonError::into_inner);
        failed.reason.clone()
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(crate) fn note(&self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(event);
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::info!(facility, "{text}"),
            _ => tracing::debug!(facility, "{text}"),
        }
    }

    fn stats(&self, statistics: Statistics) {
        let offsets = self.shared.offsets();
        let topics = statistics.topics.values();
        let known: Vec<u64> = topics
            .flat_map(|topic| topic.partitions.values().map(move |one| (topic, one)))
            .filter_map(|(topic, one)| {
                let end = if self.read_committed {
                    one.ls_offset
                } else {
                    one.hi_offset
                };
                // What it has fetched and not handed out is in a queue. If there is none, what is left of it, as marks and
                // what was aborted, never comes.
                let seen = (one.fetchq_cnt == 0).then_some(one.next_offset);
                offsets.behind(&Place::new(&topic.topic, one.partition), end, seen)
            })
            .collect();
        drop(offsets);
        self.shared
            .set_lag((!known.is_empty()).then(|| known.iter().sum()));
    }

    /// The same comes out of the poll, without the reason.
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "the client has trouble");
        if !is_of_connection(&error) {
            return;
        }
        let failed = self.failed_connection.lock();
        let mut failed = failed.unwrap_or_else(PoisonError::into_inner);
        failed.reason = Some(reason.to_owned());
        // One broker of several is no outage, but what is on it waits.
        let is_due = failed.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY);
        if is_of_tls(&error) && is_due {
            failed.warned = Some(Instant::now());
            tracing::warn!("a broker is not connected to, and tried again: {reason}");
        }
    }
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        error: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let assigned = error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.closing.load(Ordering::Acquire) {
            // Nobody takes anything any more.
            if !assigned {
                unassign(consumer, partitions);
            } else if let Err(error) = assign(consumer, partitions) {
                tracing::debug!(%error, "partitions that came while closing");
            }
            return;
        }
        let partitions = partitions.clone();
        self.note(if assigned {
            Event::Assign(partitions)
        } else {
            Event::Revoke {
                partitions,
                lost: consumer.assignment_lost(),
            }
        });
    }
}

pub(crate) fn assign(consumer: &Consumer, partitions: &TopicPartitionList) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_assign(partitions),
        RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.assign(partitions),
    }
}

/// Lets partitions go. A group that has thrown this member out says no, and then all of them go.
pub(crate) fn unassign(consumer: &Consumer, partitions: &TopicPartitionList) {
    let done = match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(partitions),
        RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.unassign(),
    };
    if let Err(error) = done.or_else(|_| consumer.unassign()) {
        tracing::debug!(%error, "letting partitions go");
    }
}
