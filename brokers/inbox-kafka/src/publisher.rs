//! The way out: an idempotent producer.

use std::{fmt, time::Duration};

use inbox_api::Result;
use inbox_source::{Envelope, Publisher, SourceError};
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    producer::{FutureProducer, FutureRecord, future_producer::DeliveryFuture},
};
use tokio::time::{Instant, sleep};

use crate::{
    Connection,
    envelope::{headers, is_tombstone},
    options::invalid,
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
/// The key goes where it is hashed to, as Java clients do it (`murmur2_random`), so that both order alike. Of a
/// failed message and those behind it on the same partition, none overtakes another while the client tries again; one
/// that is given up after the time limit leaves a gap.
pub struct KafkaPublisher {
    connection: Connection,
    limit: Duration,
    writer: Writer,
}

impl KafkaPublisher {
    /// A publisher to these brokers. Connects with the first message.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            limit: Duration::from_secs(30),
            writer: Writer::default(),
        }
    }

    /// Reads `kafka://user:password@host:9092/?timeout_ms=30000`, with the parameters of a
    /// [connection](Connection::from_url) and the time limit.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, an unknown parameter or a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
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
                    return Err(crate::options::unknown(
                        &key,
                        "sasl, timeout_ms, tls, tls_ca_file",
                    ));
                }
            }
        }
        Ok(publisher)
    }

    /// How long the brokers have to confirm a message; 30 seconds unless set, at least one.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit.max(Duration::from_secs(1));
        self
    }

    fn producer(&self) -> std::result::Result<FutureProducer, SourceError> {
        self.writer.get(DOING, || {
            let mut config = self.connection.producer_config(self.limit);
            config.set("partitioner", "murmur2_random");
            config.set("linger.ms", "1");
            config
        })
    }

    /// Puts a message into the client's queue, as soon as there is room.
    async fn enqueue(
        &self,
        producer: &FutureProducer,
        message: &Envelope,
        deadline: Instant,
    ) -> std::result::Result<DeliveryFuture, KafkaError> {
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
}

impl Publisher for KafkaPublisher {
    async fn publish(&self, messages: &[Envelope]) -> Vec<std::result::Result<(), SourceError>> {
        let producer = match self.producer() {
            Ok(producer) => producer,
            Err(error) => {
                let again = |_| Err(SourceError::transient(error.to_string()));
                return messages.iter().map(again).collect();
            }
        };
        let deadline = Instant::now() + self.limit;
        let mut sending = Vec::with_capacity(messages.len());
        for message in messages {
            sending.push(self.enqueue(&producer, message, deadline).await);
        }
        let mut answers = Vec::with_capacity(messages.len());
        for sending in sending {
            let result = match sending {
                Err(error) => Err(error),
                Ok(sending) => match sending.await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err((error, _))) => Err(error),
                    Err(_) => Err(KafkaError::Canceled),
                },
            };
            answers.push(result.map_err(|error| self.writer.failed(DOING, &producer, &error)));
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
