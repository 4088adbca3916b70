//! URLs of stores and brokers, with a password that must not be told.

use std::fmt::Debug;

use inbox::StoreKind;
use inbox_source::Mapping;

use super::sure;
use crate::{SECRET, Target, has_secret};

/// What became of a URL.
struct Read {
    error: Option<String>,
    debug: Option<String>,
}

impl Read {
    fn of<T: Debug>(read: inbox_api::Result<T>) -> Self {
        Self::by_ref(&read)
    }

    fn by_ref<T: Debug>(read: &inbox_api::Result<T>) -> Self {
        match read {
            Ok(read) => Self {
                error: None,
                debug: Some(format!("{read:?} {read:#?}")),
            },
            Err(error) => Self {
                error: Some(format!("{error} {error:?}")),
                debug: None,
            },
        }
    }
}

fn check(url: &str, what: &str, read: &Read) -> Result<(), String> {
    let tells = |said: &Option<String>| said.as_ref().is_some_and(|said| said.contains(SECRET));
    if has_secret(url, false) && tells(&read.error) {
        let said = read.error.as_deref().unwrap_or_default();
        return Err(format!("an error of {what} tells the password\n{said}"));
    }
    if has_secret(url, true) && tells(&read.debug) {
        let said = read.debug.as_deref().unwrap_or_default();
        return Err(format!("Debug of {what} tells the password\n{said}"));
    }
    Ok(())
}

pub(super) fn stores() -> Target {
    let corpus = include_str!("../../corpus/urls.txt");
    Target::new("urls", corpus, |input| {
        let url = &*String::from_utf8_lossy(input);
        let _ = StoreKind::of(url);
        check(url, "ddl", &Read::of(inbox::ddl(url)))?;
        check(url, "exists_query", &Read::of(inbox::exists_query(url)))?;
        let mongo = inbox_mongo::MongoOptions::from_url(url);
        check(url, "MongoOptions", &Read::of(mongo))?;
        let mysql = inbox_mysql::MySqlOptions::from_url(url);
        check(url, "MySqlOptions", &Read::of(mysql))?;
        let postgres = inbox_postgres::PostgresOptions::from_url(url);
        check(url, "PostgresOptions", &Read::of(postgres))?;
        let redis = inbox_redis::RedisOptions::from_url(url);
        check(url, "RedisOptions", &Read::of(redis))?;
        let sqlite = inbox_sqlite::SqliteOptions::from_url(url);
        match sqlite {
            // A path has no password.
            Ok(_) => Ok(()),
            Err(_) => check(url, "SqliteOptions", &Read::of(sqlite)),
        }
    })
    // The statements of a whole schema are made of it.
    .limit(64, 2 * 1024 * 1024)
}

pub(super) fn brokers() -> Target {
    let mapping = sure(Mapping::new("h"));
    let corpus = include_str!("../../corpus/broker-urls.txt");
    Target::new("broker-urls", corpus, move |input| {
        let url = &*String::from_utf8_lossy(input);
        let kafka = inbox_kafka::KafkaOptions::from_url(url);
        check(url, "KafkaOptions", &Read::of(kafka))?;
        let kafka = inbox_kafka::Connection::from_url(url);
        check(url, "Kafka's Connection", &Read::of(kafka))?;

        let nats = inbox_nats::NatsOptions::from_url(url);
        check(url, "NatsOptions", &Read::by_ref(&nats))?;
        let source = nats.and_then(|options| inbox_nats::NatsSource::new(options, mapping.clone()));
        check(url, "NatsSource", &Read::of(source))?;
        let nats = inbox_nats::Connection::from_url(url);
        check(url, "NATS's Connection", &Read::of(nats))?;

        let rabbitmq = inbox_rabbitmq::RabbitMqOptions::from_url(url);
        check(url, "RabbitMqOptions", &Read::by_ref(&rabbitmq))?;
        let source = rabbitmq
            .and_then(|options| inbox_rabbitmq::RabbitMqSource::new(options, mapping.clone()));
        check(url, "RabbitMqSource", &Read::of(source))?;
        let rabbitmq = inbox_rabbitmq::Connection::from_url(url);
        check(url, "RabbitMQ's Connection", &Read::of(rabbitmq))?;
        let stream = inbox_rabbitmq::RabbitMqStreamOptions::from_url(url);
        check(url, "RabbitMqStreamOptions", &Read::by_ref(&stream))?;
        let source = stream.and_then(|options| {
            inbox_rabbitmq::RabbitMqStreamSource::new(options, mapping.clone())
        });
        check(url, "RabbitMqStreamSource", &Read::of(source))?;
        let stream = inbox_rabbitmq::StreamConnection::from_url(url);
        check(url, "RabbitMQ's StreamConnection", &Read::of(stream))?;

        let streams = inbox_redis_streams::RedisStreamsOptions::from_url(url);
        check(url, "RedisStreamsOptions", &Read::by_ref(&streams))?;
        let source = streams.and_then(|options| {
            inbox_redis_streams::RedisStreamsSource::new(options, mapping.clone())
        });
        check(url, "RedisStreamsSource", &Read::of(source))?;
        let streams = inbox_redis_streams::Connection::from_url(url);
        check(url, "Redis Streams' Connection", &Read::of(streams))?;

        let sqs = inbox_sqs::SqsOptions::from_url(url);
        check(url, "SqsOptions", &Read::by_ref(&sqs))?;
        let source = sqs.and_then(|options| inbox_sqs::SqsSource::new(options, mapping.clone()));
        check(url, "SqsSource", &Read::of(source))?;
        let sqs = inbox_sqs::Connection::from_url(url);
        check(url, "SQS's Connection", &Read::of(sqs))
    })
    .limit(64, 256 * 1024)
}
