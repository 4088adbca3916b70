//! Kafka's client for a word in a topic.

use std::error::Error;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

type Failure = Box<dyn Error + Send + Sync>;

const TOPIC: &str = "note";
/// A client tries again for as long.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn write(port: u16, word: &str) -> Result<(), Failure> {
    create(port)?;
    let producer: BaseProducer = config(port)?.set("acks", "all").create()?;
    let record: BaseRecord<'_, str, str> = BaseRecord::to(TOPIC).payload(word);
    producer.send(record).map_err(|(error, _)| error)?;
    Ok(producer.flush(LIMIT)?)
}

/// The newest word.
pub(crate) fn read(port: u16) -> Result<String, Failure> {
    let consumer: BaseConsumer = config(port)?
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .create()?;
    let (_, end) = consumer.fetch_watermarks(TOPIC, 0, LIMIT)?;
    let mut newest = TopicPartitionList::new();
    newest.add_partition_offset(TOPIC, 0, Offset::Offset(end - 1))?;
    consumer.assign(&newest)?;
    let deadline = Instant::now() + LIMIT;
    let record = loop {
        // It also ends without a record when the client has called back, whatever the limit.
        match consumer.poll(LIMIT) {
            Some(record) => break record?,
            None if Instant::now() > deadline => return Err("no record came".into()),
            None => {}
        }
    };
    Ok(String::from_utf8(
        record.payload().unwrap_or_default().to_vec(),
    )?)
}

fn create(port: u16) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let admin: AdminClient<DefaultClientContext> = config(port)?.create()?;
        let topic = NewTopic::new(TOPIC, 1, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(LIMIT));
        let made = admin.create_topics(&[topic], &options).await?.remove(0);
        match made {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => Ok(()),
            Err((_, code)) => Err(code.into()),
        }
    })
}

/// Fails at once where nothing listens, which the client itself would wait for.
fn config(port: u16) -> Result<ClientConfig, Failure> {
    TcpStream::connect(("127.0.0.1", port))?;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", format!("127.0.0.1:{port}"));
    Ok(config)
}
