//! Topics that are not there. The client tells of each once, without its name, and a source that is silent counts as
//! back after a while.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use inbox_source::SourceError;
use rdkafka::{
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataTopic,
};

use crate::{context::Consumer, error::source_error};

/// How often it is told that no topic is there.
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
    /// When to look again, while one of them is missing as far as is known.
    next_look: Option<Instant>,
    /// Those that were warned of, as others are there.
    warned_of: BTreeSet<String>,
}

impl MissingTopics {
    pub(crate) fn new(subscribed: &[String]) -> Self {
        Self {
            subscribed: subscribed.to_vec(),
            next_look: None,
            warned_of: BTreeSet::new(),
        }
    }

    /// Whether this says that a topic is missing. Then it is [looked](Self::look) for.
    pub(crate) fn note(&mut self, error: &KafkaError) -> bool {
        let code = error.rdkafka_error_code();
        let is_missing = code.is_some_and(|code| MISSING.contains(&code));
        if is_missing {
            self.next_look.get_or_insert_with(Instant::now);
        }
        is_missing
    }

    /// The failure to be told if no topic is there, where it is time to look.
    pub(crate) fn look(&mut self, consumer: &Consumer) -> Option<SourceError> {
        if Instant::now() < self.next_look? {
            return None;
        }
        self.next_look = Some(Instant::now() + EVERY);
        let mut missing = BTreeSet::new();
        for topic in &self.subscribed {
            // What is wrong with the connection is told by the client.
            let metadata = consumer.fetch_metadata(Some(topic), ASK_LIMIT).ok()?;
            let mut errors = metadata.topics().iter().filter_map(MetadataTopic::error);
            if errors.any(|error| MISSING.contains(&error.into())) {
                missing.insert(topic.clone());
            }
        }
        self.tell(missing)
    }

    /// Tells of these: as a failure if no other is there, else in the log, once.
    fn tell(&mut self, missing: BTreeSet<String>) -> Option<SourceError> {
        if missing.is_empty() {
            self.next_look = None;
        }
        let is_none_there = self.subscribed.iter().all(|topic| missing.contains(topic));
        if is_none_there {
            self.warned_of.clear();
            let error = KafkaError::MessageConsumption(MISSING[0]);
            let names: Vec<String> = missing.into_iter().collect();
            let text = format!(
                "{}: {}",
                source_error("receiving", &error),
                names.join(", ")
            );
            return Some(SourceError::transient(text));
        }
        if missing == self.warned_of {
            return None;
        }
        if missing.is_empty() {
            tracing::info!("all topics are there now");
        } else {
            tracing::warn!(topics = ?missing, "topics are not there, and are waited for; the others are received");
        }
        self.warned_of = missing;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(topics: &[&str]) -> BTreeSet<String> {
        topics.iter().map(|topic| (*topic).to_owned()).collect()
    }

    /// Defect: the source was away and back again every 15 seconds while one of several topics was missing.
    #[test]
    fn only_a_source_of_which_no_topic_is_there_has_failed() {
        let mut topics = MissingTopics::new(&["orders".into(), "refunds".into()]);
        assert!(topics.tell(set(&["refunds"])).is_none());
        assert_eq!(topics.warned_of, set(&["refunds"]));
        let failure = topics.tell(set(&["orders", "refunds"])).unwrap();
        assert!(failure.is_transient());
        let text = failure.to_string();
        assert!(
            text.ends_with("create the topic: orders, refunds"),
            "{text}"
        );
        assert!(topics.tell(set(&["orders"])).is_none());
        assert_eq!(topics.warned_of, set(&["orders"]));
        assert!(topics.tell(set(&[])).is_none());
        assert_eq!(topics.warned_of, set(&[]));
    }

    #[test]
    fn it_is_looked_at_once_and_then_in_a_while() {
        let mut topics = MissingTopics::new(&["orders".into()]);
        assert!(topics.note(&KafkaError::MessageConsumption(MISSING[1])));
        let at_once = topics.next_look;
        assert!(at_once.is_some_and(|at| at <= Instant::now()));
        assert!(topics.note(&KafkaError::MessageConsumption(MISSING[0])));
        assert_eq!(topics.next_look, at_once);
        let away = KafkaError::MessageConsumption(RDKafkaErrorCode::AllBrokersDown);
        assert!(!topics.note(&away));
        assert!(topics.tell(set(&[])).is_none());
        assert!(topics.next_look.is_none());
    }
}
