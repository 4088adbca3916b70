//! The way out: an idempotent producer.

use std::{collections::HashSet, fmt, time::Duration};

use inbox_api::{Result, hide_password, time_limit};
use inbox_source::{
    Envelope, Publisher, SourceError,
    settings::{invalid, unknown},
};
use rdkafka::{
    ClientConfig,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    producer::{FutureProducer, FutureRecord, future_producer::DeliveryFuture},
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    Connection,
    connection::set_unless_set,
    envelope::{headers, is_tombstone},
    error::is_of_batch,
    writer::Writer,
};

const DOING: &str = "publishing";
/// How long it waits before it looks whether the client's queue has room again.
const QUEUE_PAUSE: Duration = Duration::from_millis(10);

/// Sends messages to the topics that they are addressed to, once each and, per partition, in order.
///
/// A message is confirmed when all replicas in sync have it (`acks=all`), so set `min.insync.replicas` to two or
/// more. What the client sends again after a lost answer, the broker tells by its number (idempotent
/// producer); what is published again after an error is another record with the same header
/// [`message-id`](crate::ID), which an inbox refuses.
///
/// The key goes where it is hashed to, as Java clients do it (`murmur2_random`), so that both order alike, unless the
/// connection has another [property](Connection::property) `partitioner`. Of a
/// failed message and those behind it on the same partition, none overtakes another while the client tries again; one
/// that is given up after the time limit leaves a gap.
///
/// Brokers take a batch of messages or refuse it, and the client fills one without regard to what a topic allows, such as
/// its `max.message.bytes`. Those of a batch that is refused for its size, or for one of them, as one without a key where the
/// topic is compacted, are sent again, each in a batch of its own: one that is refused once more is refused for itself.
pub struct KafkaPublisher {
    connection: Connection,
    limit: Duration,
    writer: Writer,
    /// Puts one message into a batch.
    single: Writer,
}

impl KafkaPublisher {
    /// A publisher to these brokers. Connects with the first message.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            limit: Duration::from_secs(30),
            writer: Writer::default(),
            single: Writer::default(),
        }
    }

    /// Reads `kafka://user:password@host:9092/?timeout_ms=30000`, with the parameters of a
    /// [connection](Connection::from_url) and the time limit.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, an unknown parameter or a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let (connection, others) = Connection::parse(url)?;
        let mut publisher = Self::new(connection);
        for (key, value) in others {
            match (key.as_str(), value.parse()) {
                ("timeout_ms", Ok(limit)) => {
                    publisher = publisher.timeout(Duration::from_millis(limit));
                }
                ("timeout_ms", Err(_)) => {
                    return Err(invalid("timeout_ms must be a whole number"));
                }
                _ => {
                    return Err(unknown(&key, "sasl, timeout_ms, tls, tls_ca_file"));
                }
            }
        }
        Ok(publisher)
    }

    /// How long the brokers have to confirm a message; 30 seconds unless set, from one to a day.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = time_limit(limit).max(Duration::from_secs(1));
        self
    }

    fn config(&self) -> ClientConfig {
        let mut config = self.connection.producer_config(self.limit);
        set_unless_set(&mut config, &[("partitioner", "murmur2_random")]);
        // The client has two names for it.
        if config.get("queue.buffering.max.ms").is_none() {
            set_unless_set(&mut config, &[("linger.ms", "1")]);
        }
        config
    }

    /// Puts a message into the client's queue, as soon as there is room.
    async fn enqueue(
        &self,
        producer: &FutureProducer,
        message: &Envelope,
        deadline: Instant,
    ) -> KafkaResult<DeliveryFuture> {
        let mut record: FutureRecord<'_, str, [u8]> =
            FutureRecord::to(&message.address).headers(headers(message));
        if !is_tombstone(message) {
            record = record.payload(&message.payload);
        }
        if let Some(key) = &message.key {
            record = record.key(key);
        }
        let sent = message.time.and_then(|time| {
            let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
            i64::try_from(since.as_millis()).ok()
        });
        if let Some(sent) = sent {
            record = record.timestamp(sent);
        }
        loop {
            match producer.send_result(record) {
                Ok(sending) => return Ok(sending),
                Err((error, refused)) => {
                    let is_full = error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull);
                    if !is_full || Instant::now() >= deadline {
                        return Err(error);
                    }
                    record = refused;
                    sleep(QUEUE_PAUSE).await;
                }
            }
        }
    }

    /// Sends them in their order, all at once, and waits for an answer for each.
    async fn send(
        &self,
        producer: &FutureProducer,
        messages: &[&Envelope],
        deadline: Instant,
    ) -> Vec<KafkaResult<()>> {
        let mut sending = Vec::with_capacity(messages.len());
        for message in messages {
            sending.push(self.enqueue(producer, message, deadline).await);
        }
        let mut answers = Vec::with_capacity(messages.len());
        for sending in sending {
            answers.push(match sending {
                Err(error) => Err(error),
                Ok(sending) => match timeout_at(deadline, sending).await {
                    Ok(Ok(Ok(_))) => Ok(()),
                    Ok(Ok(Err((error, _)))) => Err(error),
                    Ok(Err(_)) => Err(KafkaError::Canceled),
                    Err(_) => Err(KafkaError::MessageProduction(
                        RDKafkaErrorCode::MessageTimedOut,
                    )),
                },
            });
        }
        answers
    }
}

/// The places of those that a broker refused for what may be the fault of their batch, to be sent again in their order.
/// One that has a later one of its key written already is not among them: it would come after that.
fn refused_with_others(messages: &[Envelope], sent: &[KafkaResult<()>]) -> Vec<usize> {
    let mut written: HashSet<(&str, &str)> = HashSet::new();
    let mut again = Vec::new();
    for (place, (message, result)) in messages.iter().zip(sent).enumerate().rev() {
        let key = message.key.as_deref();
        let key = key.map(|key| (message.address.as_str(), key));
        match result {
            Ok(()) => written.extend(key),
            Err(error) if is_of_batch(error) && key.is_none_or(|key| !written.contains(&key)) => {
                again.push(place);
            }
            Err(_) => {}
        }
    }
    again.reverse();
    again
}

impl Publisher for KafkaPublisher {
    async fn publish(&self, messages: &[Envelope]) -> Vec<std::result::Result<(), SourceError>> {
        let deadline = Instant::now() + self.limit;
        let producer = match self.writer.get(DOING, || self.config()) {
            Ok(producer) => producer,
            Err(error) => {
                let again = |_| Err(SourceError::transient(error.to_string()));
                return messages.iter().map(again).collect();
            }
        };
        let all: Vec<&Envelope> = messages.iter().collect();
        let sent = self.send(&producer, &all, deadline).await;
        let again = refused_with_others(messages, &sent);
        let mut answers = Vec::with_capacity(messages.len());
        for result in sent {
            answers.push(result.map_err(|error| {
                let failure = self.writer.failed(DOING, &producer, &error);
                match is_of_batch(&error) {
                    // It may be another one of the batch, of which this says nothing.
                    true => SourceError::transient(failure.to_string()),
                    false => failure,
                }
            }));
        }
        if again.is_empty() || Instant::now() >= deadline {
            return answers;
        }
        let one_each = || {
            let mut config = self.config();
            config.set("batch.num.messages", "1");
            config
        };
        let Ok(single) = self.single.get(DOING, one_each) else {
            return answers;
        };
        let alone: Vec<&Envelope> = again.iter().map(|place| &messages[*place]).collect();
        let sent = self.send(&single, &alone, deadline).await;
        for (place, result) in again.into_iter().zip(sent) {
            answers[place] = result.map_err(|error| self.single.failed(DOING, &single, &error));
        }
        answers
    }
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaPublisher")
            .field("connection", &self.connection)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_is_not_encoded_is_not_repeated() {
        let error = KafkaPublisher::from_url("kafka://ann:1?hunter2@h:9092/").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        let error = KafkaPublisher::from_url("kafka://h:9092/?colour=red").unwrap_err();
        assert!(error.to_string().contains("colour"), "{error}");
    }

    #[test]
    fn properties_that_are_not_reserved_are_heeded() {
        let config = |properties: &[(&str, &str)]| {
            let mut connection = Connection::new("h");
            for (name, value) in properties {
                connection = connection.property(name, *value).unwrap();
            }
            KafkaPublisher::new(connection).config()
        };
        let usual = config(&[]);
        for (name, usually, other) in [
            ("partitioner", "murmur2_random", "consistent"),
            ("linger.ms", "1", "20"),
        ] {
            assert_eq!(usual.get(name), Some(usually), "{name}");
            assert_eq!(config(&[(name, other)]).get(name), Some(other), "{name}");
        }
        let renamed = config(&[("queue.buffering.max.ms", "20")]);
        assert_eq!(renamed.get("linger.ms"), None);
    }

    #[test]
    fn what_is_refused_with_others_does_not_pass_a_later_one_of_its_key() {
        let of = |address: &str, key: Option<&str>| {
            let mut message = Envelope::new(address, "");
            message.key = key.map(String::from);
            message
        };
        let refused = |code| Err(KafkaError::MessageProduction(code));
        let large = || refused(RDKafkaErrorCode::MessageSizeTooLarge);
        let (messages, sent): (Vec<_>, Vec<_>) = [
            (of("orders", Some("a")), large()),
            (of("orders", Some("b")), large()),
            (of("orders", None), large()),
            (of("orders", Some("c")), Ok(())),
            (
                of("orders", Some("d")),
                refused(RDKafkaErrorCode::MessageTimedOut),
            ),
            (of("orders", Some("a")), large()),
            (of("orders", Some("b")), Ok(())),
            (of("refunds", Some("a")), Ok(())),
            (of("orders", None), Ok(())),
            (of("orders", Some("c")), large()),
        ]
        .into_iter()
        .unzip();
        assert_eq!(refused_with_others(&messages, &sent), [0, 2, 5, 9]);
    }
}
