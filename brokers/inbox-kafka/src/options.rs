//! What a source is told: where the brokers are, and how it consumes.

use std::time::Duration;

use inbox_api::{Result, error_text, hide_password};
use inbox_source::settings::{invalid, unknown};
use rdkafka::ClientConfig;

use crate::connection::{Connection, set_unless_set};

/// The URL schemes of this source.
pub const SCHEMES: &[&str] = &["kafka"];

const KEYS: &str = "topic, group, dead_letters, rejected, start, instance, isolation, sasl, tls, \
    tls_ca_file, session_timeout_ms, revoke_wait_ms, prefetch_kb";

/// Of a consumer whose properties do not say otherwise.
const UNLESS_SET: [(&str, &str); 3] = [
    // So long the broker keeps a fetch that finds nothing. The client has one fetch under way at each broker, so
    // while this one waits for partitions that have nothing, a partition whose records have all been taken
    // meanwhile is not fetched.
    ("fetch.wait.max.ms", "50"),
    // Of each partition, if their bytes allow it: more than is taken while such a fetch waits.
    ("queued.min.messages", "10000"),
    // New topics and partitions are seen after this.
    ("topic.metadata.refresh.interval.ms", "10000"),
];

/// What becomes of a delivery that the receiver rejects: one that is no message, or that the store
/// refuses, unless the receiver keeps it in the inbox or stops at it by itself. Kafka has no dead letters
/// of its own, so this has to be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejections {
    /// It is written to this topic, with its key, body and headers as they came, and counts as finished
    /// once all replicas in sync have it. The topic has to be there. One that is refused there for good, as it is
    /// larger than the topic's `max.message.bytes`, makes the source fail for good, as with [`Stop`](Self::Stop).
    DeadLetters(String),
    /// The source fails for good. The delivery and what comes after it on its partition are not committed, so
    /// that they come again when the source is started again. Right where the receiver has
    /// `keep_rejected` or `stop_at_rejected`.
    Stop,
    /// It is committed, and so lost, with a warning in the log.
    Discard,
}

/// Where a group begins on a partition for which it has committed nothing, or whose committed
/// offset is no longer there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the oldest message that is there.
    #[default]
    Earliest,
    /// After the newest: what was sent before is never received.
    Latest,
    /// Nowhere: the source fails for good.
    Error,
}

/// The settings of a [`KafkaSource`](crate::KafkaSource).
///
/// ```
/// use inbox_kafka::{Connection, KafkaOptions, Rejections};
///
/// # fn main() -> inbox_api::Result<()> {
/// let options = KafkaOptions::new(Connection::new("broker.example:9092"), "billing", ["orders"])
///     .rejections(Rejections::DeadLetters("orders.dead".into()));
/// let same = KafkaOptions::from_url(
///     "kafka://broker.example:9092/?topic=orders&group=billing&dead_letters=orders.dead",
/// )?;
/// # let _ = (options, same);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    pub(crate) connection: Connection,
    pub(crate) topics: Vec<String>,
    pub(crate) group: String,
    pub(crate) rejections: Option<Rejections>,
    pub(crate) revoke_wait: Duration,
    pub(crate) start: Start,
    pub(crate) read_committed: bool,
    instance: Option<String>,
    session_timeout: Duration,
    prefetch_kb: u32,
}

impl KafkaOptions {
    /// A member of the consumer group `group` on `topics`.
    #[must_use]
    pub fn new(
        connection: Connection,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            connection,
            topics: topics.into_iter().map(Into::into).collect(),
            group: group.into(),
            rejections: None,
            start: Start::default(),
            read_committed: true,
            instance: None,
            session_timeout: Duration::from_secs(45),
            revoke_wait: Duration::from_secs(10),
            prefetch_kb: 4096,
        }
    }

    /// Reads `kafka://user:password@host:9092,host:9092/?topic=orders&group=billing&…`. The parameters are
    /// listed in the [crate's documentation](crate#settings).
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, topic or group, an unknown parameter or a value that does not
    /// fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let (connection, parameters) = Connection::parse(url)?;
        let mut options = Self::new(connection, "", [] as [String; 0]);
        for (key, value) in parameters {
            options = options.with_setting(&key, value)?;
        }
        options.check()?;
        Ok(options)
    }

    fn with_setting(mut self, key: &str, value: String) -> Result<Self> {
        match key {
            "topic" => self.topics.push(value),
            "group" => self.group = value,
            "dead_letters" => self = self.decide(Rejections::DeadLetters(value))?,
            "rejected" => {
                self = self.decide(match value.as_str() {
                    "stop" => Rejections::Stop,
                    "discard" => Rejections::Discard,
                    _ => return Err(invalid("rejected must be stop or discard")),
                })?;
            }
            "start" => {
                self.start = match value.as_str() {
                    "earliest" => Start::Earliest,
                    "latest" => Start::Latest,
                    "error" => Start::Error,
                    _ => return Err(invalid("start must be earliest, latest or error")),
                };
            }
            "instance" => self = self.instance(value),
            "isolation" => {
                self.read_committed = match value.as_str() {
                    "read_committed" => true,
                    "read_uncommitted" => false,
                    _ => {
                        return Err(invalid(
                            "isolation must be read_committed or read_uncommitted",
                        ));
                    }
                };
            }
            "session_timeout_ms" => {
                self = self.session_timeout(Duration::from_millis(number(key, &value)?));
            }
            "revoke_wait_ms" => {
                self = self.revoke_wait(Duration::from_millis(number(key, &value)?));
            }
            "prefetch_kb" => self = self.prefetch_kb(number(key, &value)?),
            _ => return Err(unknown(key, KEYS)),
        }
        Ok(self)
    }

    fn decide(mut self, rejections: Rejections) -> Result<Self> {
        if self.rejections.replace(rejections).is_some() {
            return Err(invalid("only one of dead_letters and rejected can be set"));
        }
        Ok(self)
    }

    /// What becomes of deliveries that the receiver rejects. Has to be set.
    #[must_use]
    pub fn rejections(mut self, rejections: Rejections) -> Self {
        self.rejections = Some(rejections);
        self
    }

    /// Where the group begins on a partition for which it has committed nothing; at the earliest
    /// message unless set.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Makes this a static member of the group (`group.instance.id`), which no other member may be
    /// called: a restart within the session time-out moves no partition. It keeps its partitions,
    /// unserved, for that long when it ends.
    #[must_use]
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        self.instance = Some(name.into());
        self
    }

    /// Whether messages of transactions that are open or were aborted are left out; `true` unless set.
    #[must_use]
    pub fn read_committed(mut self, only: bool) -> Self {
        self.read_committed = only;
        self
    }

    /// After how long without a sign of life the group gives this member's partitions to others; 45
    /// seconds unless set. Brokers refuse less than their `group.min.session.timeout.ms`, mostly 6 seconds.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long a partition that goes to another member is held for what is in flight to be stored and
    /// committed; 10 seconds unless set, at most a minute. What is not by then is delivered there again.
    #[must_use]
    pub fn revoke_wait(mut self, limit: Duration) -> Self {
        self.revoke_wait = limit.min(Duration::from_secs(60));
        self
    }

    /// How many kilobytes of each partition are fetched ahead of what the receiver has taken; 4,096
    /// unless set. One fetched batch more may be held.
    #[must_use]
    pub fn prefetch_kb(mut self, kilobytes: u32) -> Self {
        self.prefetch_kb = kilobytes.clamp(1, 2_000_000);
        self
    }

    /// What does not depend on the mapping.
    pub(crate) fn check(&self) -> Result<Rejections> {
        if self.group.is_empty() {
            return Err(invalid("a consumer group must be named (`group`)"));
        }
        if self.topics.is_empty() {
            return Err(invalid("a topic must be named (`topic`)"));
        }
        let is_name = |name: &String| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            (1..=249).contains(&name.len()) && name.bytes().all(allowed)
        };
        let dead_letters = match &self.rejections {
            Some(Rejections::DeadLetters(topic)) => Some(topic),
            _ => None,
        };
        if let Some(name) = self
            .topics
            .iter()
            .chain(dead_letters)
            .find(|name| !is_name(name))
        {
            return Err(invalid(format!(
                "{:?} is no name of a topic",
                error_text(name)
            )));
        }
        if dead_letters.is_some_and(|topic| self.topics.contains(topic)) {
            return Err(invalid(
                "dead letters cannot go to a topic that is received from",
            ));
        }
        self.rejections.clone().ok_or_else(|| {
            invalid(
                "what becomes of rejected deliveries must be decided: `dead_letters` names a topic \
                 for them, or `rejected` is stop or discard",
            )
        })
    }

    pub(crate) fn consumer_config(&self) -> ClientConfig {
        let mut config = self.connection.client_config();
        let session = self.session_timeout;
        let heartbeat = (session / 5).min(Duration::from_secs(3));
        config
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "false")
            .set("allow.auto.create.topics", "false")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", session.as_millis().to_string())
            .set(
                "heartbeat.interval.ms",
                heartbeat.as_millis().max(1).to_string(),
            )
            .set(
                "auto.offset.reset",
                match self.start {
                    Start::Earliest => "earliest",
                    Start::Latest => "latest",
                    Start::Error => "error",
                },
            )
            .set(
                "isolation.level",
                if self.read_committed {
                    "read_committed"
                } else {
                    "read_uncommitted"
                },
            )
            .set("queued.max.messages.kbytes", self.prefetch_kb.to_string())
            // When that much is there, the next fetch waits for this long, a second unless set, within which
            // it would have been taken many times.
            .set("fetch.queue.backoff.ms", "10")
            .set("statistics.interval.ms", "1000");
        if let Some(instance) = &self.instance {
            config.set("group.instance.id", instance);
        }
        set_unless_set(&mut config, &UNLESS_SET);
        config
    }
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
    let number = value.parse();
    number.map_err(|_| invalid(format!("{key} must be a whole number in its range")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_all() {
        let options = KafkaOptions::from_url(
            "kafka://app:p%40ss%2Fword@a:1,b:2/?topic=orders&topic=refunds&group=billing&sasl=plain\
             &dead_letters=orders.dead&start=latest&instance=one&isolation=read_uncommitted\
             &session_timeout_ms=6000&revoke_wait_ms=2500&prefetch_kb=64",
        )
        .unwrap();
        assert_eq!(options.topics, ["orders", "refunds"]);
        assert_eq!(options.revoke_wait, Duration::from_millis(2500));
        assert_eq!(
            options.rejections,
            Some(Rejections::DeadLetters("orders.dead".into()))
        );
        let config = options.consumer_config();
        for (name, value) in [
            ("bootstrap.servers", "a:1,b:2"),
            ("sasl.password", "p@ss/word"),
            ("security.protocol", "sasl_plaintext"),
            ("group.instance.id", "one"),
            ("auto.offset.reset", "latest"),
            ("isolation.level", "read_uncommitted"),
            ("session.timeout.ms", "6000"),
            ("queued.max.messages.kbytes", "64"),
            ("enable.auto.commit", "false"),
        ] {
            assert_eq!(config.get(name), Some(value), "{name}");
        }
        let shown = format!("{options:?}");
        assert!(
            !shown.contains("p@ss") && !shown.contains("p%40ss"),
            "{shown}"
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_reason() {
        let good = "kafka://h/?topic=t&group=g&rejected=stop";
        assert!(KafkaOptions::from_url(good).is_ok());
        for (url, reason) in [
            ("amqp://h/?topic=t", "kafka://"),
            ("kafka:///?topic=t&group=g&rejected=stop", "hosts"),
            ("kafka://h/?group=g&rejected=stop", "topic"),
            ("kafka://h/?topic=t&rejected=stop", "group"),
            ("kafka://h/?topic=t&group=g", "must be decided"),
            (
                "kafka://h/?topic=t&group=g&rejected=drop",
                "stop or discard",
            ),
            ("kafka://h/?topic=t&group=g&dead_letters=t", "received from"),
            (
                "kafka://h/?topic=t&group=g&dead_letters=d&rejected=stop",
                "only one",
            ),
            (
                "kafka://h/?topic=t&group=g&rejected=stop&acks=0",
                "unknown setting \"acks\"",
            ),
            ("kafka://h/?topic=^t&group=g&rejected=stop", "no name"),
            ("kafka://u:p@h/?topic=t&group=g&rejected=stop", "sasl"),
            (
                "kafka://h/?topic=t&group=g&rejected=stop&tls_ca_file=ca.pem",
                "needs tls=true",
            ),
            (
                "kafka://h/?topic=t&group=g&rejected=stop&tls=true&tls_ca_file=nowhere.pem",
                "reading tls_ca_file",
            ),
            (
                "kafka://h/?topic=t&group=g&rejected=stop&prefetch_kb=-1",
                "prefetch_kb",
            ),
        ] {
            let error = KafkaOptions::from_url(url).unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }

    #[test]
    fn what_no_guarantee_rests_on_can_be_set() {
        let with = |connection| KafkaOptions::new(connection, "g", ["t"]).consumer_config();
        let connection = Connection::new("h");
        let wait = "fetch.wait.max.ms";
        assert_eq!(with(connection.clone()).get(wait), Some("50"));
        let patient = connection.property(wait, "500").unwrap();
        assert_eq!(with(patient).get(wait), Some("500"));
    }
}
