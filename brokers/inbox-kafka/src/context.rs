//! What the client calls back. Each call comes from within a poll, on the consumer's own thread; it is
//! only noted here, so that nothing ever waits within the client.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use rdkafka::{
    ClientContext, Statistics, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol},
    error::{KafkaError, KafkaResult},
    types::RDKafkaRespErr,
};

use crate::{offsets::Place, shared::Shared};

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

pub(crate) struct Context {
    shared: Arc<Shared>,
    read_committed: bool,
    events: Mutex<Vec<Event>>,
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
            closing: AtomicBool::new(false),
        }
    }

    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
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
                offsets.behind(&Place::new(&topic.topic, one.partition), end)
            })
            .collect();
        drop(offsets);
        self.shared
            .set_lag((!known.is_empty()).then(|| known.iter().sum()));
    }

    /// The same comes out of the poll.
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "the client has trouble");
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
