//! Topics that are not there. The client tells of each once, and a source that is silent counts as back after a while.

use std::time::{Duration, Instant};

use inbox_source::SourceError;
use rdkafka::{
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataTopic,
};

use crate::{context::Consumer, error::source_error};

/// How often it is told that a topic is not there.
const EVERY: Duration = Duration::from_secs(15);
/// How long one question to the broker may take.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// What the client and the brokers say of such a topic.
const MISSING: [RDKafkaErrorCode; 2] = [
    RDKafkaErrorCode::UnknownTopicOrPartition,
    RDKafkaErrorCode::UnknownTopic,
];

pub(crate) struct MissingTopics {
    subscribed: Vec<String>,
    /// When to look again, while one of them was missing the last time.
    next_look: Option<Instant>,
}

impl MissingTopics {
    pub(crate) fn new(subscribed: &[String]) -> Self {
        Self {
            subscribed: subscribed.to_vec(),
            next_look: None,
        }
    }

    /// Looks again in a while if this says that a topic is missing.
    pub(crate) fn note(&mut self, error: &KafkaError) {
        let code = error.rdkafka_error_code();
        if code.is_some_and(|code| MISSING.contains(&code)) {
            self.next_look = Some(Instant::now() + EVERY);
        }
    }

    /// The failure to be told if a topic is still missing, where it is time to look.
    pub(crate) fn look(&mut self, consumer: &Consumer) -> Option<SourceError> {
        if Instant::now() < self.next_look? {
            return None;
        }
        self.next_look = Some(Instant::now() + EVERY);
        for topic in &self.subscribed {
            // What is wrong with the connection is told by the client.
            let metadata = consumer.fetch_metadata(Some(topic), ASK_LIMIT).ok()?;
            let mut errors = metadata.topics().iter().filter_map(MetadataTopic::error);
            if errors.any(|error| MISSING.contains(&error.into())) {
                let missing = KafkaError::MessageConsumption(MISSING[0]);
                return Some(source_error("receiving", &missing));
            }
        }
        self.next_look = None;
        None
    }
}
