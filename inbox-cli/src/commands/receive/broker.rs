//! Which broker a URL means.

use std::borrow::Cow;

use anyhow::Result;
use inbox::{
    CancellationToken, Receiver,
    receiver::{Mapping, ReceiverError, Summary},
};

use crate::store;

/// A broker that can be received from.
struct Kind {
    name: &'static str,
    schemes: &'static [&'static str],
    feature: &'static str,
    is_built: bool,
    url: &'static str,
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "Kafka",
        schemes: &["kafka"],
        feature: "kafka",
        is_built: cfg!(feature = "kafka"),
        url: "kafka://HOST:9092,HOST:9092/?topic=TOPIC&group=GROUP&dead_letters=TOPIC",
    },
    Kind {
        name: "NATS",
        schemes: &["nats", "tls"],
        feature: "nats",
        is_built: cfg!(feature = "nats"),
        url: "nats://HOST:4222/?stream=STREAM&consumer=CONSUMER&dead_letters=SUBJECT",
    },
    Kind {
        name: "RabbitMQ",
        schemes: &["amqp", "amqps"],
        feature: "rabbitmq",
        is_built: cfg!(feature = "rabbitmq"),
        url: "amqp://HOST:5672/VHOST?queue=QUEUE",
    },
    Kind {
        name: "RabbitMQ streams",
        schemes: &["rabbitmq-stream", "rabbitmq-stream+tls"],
        feature: "rabbitmq",
        is_built: cfg!(feature = "rabbitmq"),
        url: "rabbitmq-stream://HOST:5552/VHOST?stream=STREAM&consumer=NAME",
    },
    Kind {
        name: "Redis Streams",
        schemes: &["redis+stream", "rediss+stream"],
        feature: "redis-streams",
        is_built: cfg!(feature = "redis-streams"),
        url: "redis+stream://HOST:6379/0?stream=STREAM&group=GROUP&dead_letters=STREAM",
    },
    Kind {
        name: "Amazon SQS",
        schemes: &["sqs", "sqs+http"],
        feature: "sqs",
        is_built: cfg!(feature = "sqs"),
        url: "sqs://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE?dead_letters=QUEUE",
    },
];

/// What stands below the options in `inbox receive --help`.
pub(crate) fn help() -> String {
    let mut text = "Brokers:\n".to_owned();
    for kind in KINDS {
        text.push_str(&format!("  {}\n", kind.url));
        if !kind.is_built {
            let feature = kind.feature;
            text.push_str(&format!(
                "      (not in this build: needs the feature `{feature}`)\n"
            ));
        }
    }
    text.push_str(
        "In user and password, write characters such as # ? @ as %XX. INBOX_FROM in the environment\n\
         names the broker in place of --from, and keeps a password out of the list of processes.\n\
         docs/brokers.md has more.\n\n\
         What is no message is rejected. NATS, Redis Streams and SQS throw it away then, unless the URL has\n\
         dead_letters; RabbitMQ ends the command. --keep-rejected keeps it here.\n\n\
         A message is acknowledged only after the store has it. While the store or the broker is away,\n\
         it waits. What comes again is a duplicate. SIGTERM ends it in order, with exit code 0.",
    );
    text
}

/// The kind of broker that `url` names.
fn kind(url: &str) -> Option<Kind> {
    let (scheme, _) = url.split_once("://")?;
    let mut kinds = KINDS.into_iter();
    kinds.find(|kind| {
        let mut schemes = kind.schemes.iter();
        schemes.any(|one| scheme.eq_ignore_ascii_case(one))
    })
}

/// Fails when the broker that `url` names was left out of this build, and says how to add it.
pub(crate) fn check_is_built(url: &str) -> Result<()> {
    match kind(url).filter(|kind| !kind.is_built) {
        Some(kind) => Err(store::left_out(
            &format!("receive from {}", kind.name),
            kind.feature,
        )),
        None => Ok(()),
    }
}

/// A source of a broker.
pub(crate) enum Broker {
    #[cfg(feature = "kafka")]
    Kafka(Box<inbox_kafka::KafkaSource>),
    #[cfg(feature = "nats")]
    Nats(Box<inbox_nats::NatsSource>),
    #[cfg(feature = "rabbitmq")]
    RabbitMq(Box<inbox_rabbitmq::RabbitMqSource>),
    #[cfg(feature = "rabbitmq")]
    RabbitMqStream(Box<inbox_rabbitmq::RabbitMqStreamSource>),
    #[cfg(feature = "redis-streams")]
    RedisStreams(Box<inbox_redis_streams::RedisStreamsSource>),
    #[cfg(feature = "sqs")]
    Sqs(Box<inbox_sqs::SqsSource>),
}

impl Broker {
    /// The source that `url` names. Connects to nothing. The error says what is wrong, without the URL.
    pub(crate) fn new(url: &str, mapping: Mapping) -> Result<Self, String> {
        match kind(url).map(|kind| kind.name) {
            #[cfg(feature = "kafka")]
            Some("Kafka") => inbox_kafka::KafkaOptions::from_url(url)
                .and_then(|options| inbox_kafka::KafkaSource::new(options, mapping))
                .map(|source| Self::Kafka(Box::new(source)))
                .map_err(|error| error.context().to_owned()),
            #[cfg(feature = "nats")]
            Some("NATS") => inbox_nats::NatsOptions::from_url(url)
                .and_then(|options| inbox_nats::NatsSource::new(options, mapping))
                .map(|source| Self::Nats(Box::new(source)))
                .map_err(|error| error.context().to_owned()),
            #[cfg(feature = "rabbitmq")]
            Some("RabbitMQ") => inbox_rabbitmq::RabbitMqOptions::from_url(url)
                .and_then(|options| inbox_rabbitmq::RabbitMqSource::new(options, mapping))
                .map(|source| Self::RabbitMq(Box::new(source)))
                .map_err(|error| error.context().to_owned()),
            #[cfg(feature = "rabbitmq")]
            Some("RabbitMQ streams") => inbox_rabbitmq::RabbitMqStreamOptions::from_url(url)
                .and_then(|options| inbox_rabbitmq::RabbitMqStreamSource::new(options, mapping))
                .map(|source| Self::RabbitMqStream(Box::new(source)))
                .map_err(|error| error.context().to_owned()),
            #[cfg(feature = "redis-streams")]
            Some("Redis Streams") => inbox_redis_streams::RedisStreamsOptions::from_url(url)
                .and_then(|options| inbox_redis_streams::RedisStreamsSource::new(options, mapping))
                .map(|source| Self::RedisStreams(Box::new(source)))
                .map_err(|error| error.context().to_owned()),
            #[cfg(feature = "sqs")]
            Some("Amazon SQS") => inbox_sqs::SqsOptions::from_url(url)
                .and_then(|options| inbox_sqs::SqsSource::new(options, mapping))
                .map(|source| Self::Sqs(Box::new(source)))
                .map_err(|error| error.context().to_owned()),
            _ => {
                let schemes = KINDS.iter().flat_map(|kind| kind.schemes);
                let schemes: Vec<_> = schemes.map(|scheme| format!("{scheme}://")).collect();
                let schemes = schemes.join(", ");
                Err(format!("a broker's URL begins with one of: {schemes}"))
            }
        }
    }

    /// Its name in logs and metrics, such as `kafka/orders`.
    pub(crate) fn name(&self) -> Cow<'static, str> {
        use inbox::receiver::Source as _;
        match *self {
            #[cfg(feature = "kafka")]
            Self::Kafka(ref source) => source.name(),
            #[cfg(feature = "nats")]
            Self::Nats(ref source) => source.name(),
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(ref source) => source.name(),
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMqStream(ref source) => source.name(),
            #[cfg(feature = "redis-streams")]
            Self::RedisStreams(ref source) => source.name(),
            #[cfg(feature = "sqs")]
            Self::Sqs(ref source) => source.name(),
        }
    }

    /// Receives until `shutdown` is cancelled.
    pub(crate) async fn run(
        self,
        receiver: &Receiver,
        shutdown: CancellationToken,
    ) -> Result<Summary, ReceiverError> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(mut source) => receiver.run(&mut *source, shutdown).await,
            #[cfg(feature = "nats")]
            Self::Nats(mut source) => receiver.run(&mut *source, shutdown).await,
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(mut source) => receiver.run(&mut *source, shutdown).await,
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMqStream(mut source) => receiver.run(&mut *source, shutdown).await,
            #[cfg(feature = "redis-streams")]
            Self::RedisStreams(mut source) => receiver.run(&mut *source, shutdown).await,
            #[cfg(feature = "sqs")]
            Self::Sqs(mut source) => receiver.run(&mut *source, shutdown).await,
        }
    }
}
