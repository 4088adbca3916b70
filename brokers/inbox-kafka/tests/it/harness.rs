//! A Kafka server, and what tests ask and tell it, past the source.

use std::{
    error::Error as StdError,
    sync::{LazyLock, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use inbox_kafka::{Connection, KafkaOptions, KafkaPublisher, Rejections};
use inbox_source::{Envelope, Publisher as _};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    config::FromClientConfig as _,
    consumer::{BaseConsumer, Consumer as _},
    message::OwnedMessage,
    producer::{FutureProducer, FutureRecord, Producer as _},
};
use source_tests::Proxy;
use test_servers::{Kind, START_LIMIT, Server, or_skip, require_or_skip};

pub(crate) type Failure = Box<dyn StdError + Send + Sync>;
pub(crate) type Outcome = Result<(), Failure>;

/// How long one question may take.
const LIMIT: Duration = Duration::from_secs(20);
/// How long the records of a partition, and a step of a transaction, may take.
const READ_LIMIT: Duration = Duration::from_secs(60);

static SERVER: LazyLock<Result<Option<Kafka>, Failure>> = LazyLock::new(|| {
    let server = require_or_skip(Kind::Kafka)?;
    Ok(server.map(Kafka::new))
});

pub(crate) struct Kafka {
    pub(crate) servers: String,
    server: Option<Mutex<Server>>,
    proxy: Option<Proxy>,
    publisher: OnceLock<KafkaPublisher>,
}

impl Kafka {
    fn new(server: Server) -> Self {
        let servers = server.url().trim_start_matches("kafka://");
        let servers = servers.trim_end_matches('/').to_owned();
        Self {
            servers,
            server: Some(Mutex::new(server)),
            proxy: None,
            publisher: OnceLock::new(),
        }
    }

    /// One of another process, by its address.
    pub(crate) fn at(servers: &str) -> Self {
        Self {
            servers: servers.to_owned(),
            server: None,
            proxy: None,
            publisher: OnceLock::new(),
        }
    }

    /// One that may be harmed, and whose clients all go through a proxy, to be cut off.
    pub(crate) fn own_behind_proxy() -> Result<Option<Self>, Failure> {
        let proxy = Proxy::listen()?;
        let advertised = format!(
            "advertised.listeners=PLAINTEXT://127.0.0.1:{}",
            proxy.port()
        );
        let found = test_servers::find_own(Kind::Kafka, &["--override", &advertised]);
        let Some(server) = or_skip(Kind::Kafka, found)? else {
            return Ok(None);
        };
        let mut kafka = Self::new(server);
        proxy.forward_to(&kafka.servers);
        kafka.servers = format!("127.0.0.1:{}", proxy.port());
        kafka.proxy = Some(proxy);
        Ok(Some(kafka))
    }

    /// A publisher whose connections are cut.
    pub(crate) fn publisher(&self) -> KafkaPublisher {
        KafkaPublisher::new(self.connection())
    }

    /// Closes all connections of clients.
    pub(crate) fn cut(&self) -> Outcome {
        self.proxy.as_ref().ok_or("there is no proxy")?.cut();
        Ok(())
    }

    /// The server that tests share. `None`: skipped, and reported so.
    pub(crate) fn shared() -> Result<Option<&'static Self>, Failure> {
        match &*SERVER {
            Ok(server) => Ok(server.as_ref()),
            Err(error) => Err(error.to_string().into()),
        }
    }

    /// One that may be harmed.
    pub(crate) fn own() -> Result<Option<Self>, Failure> {
        let found = test_servers::find_own(Kind::Kafka, &[]);
        Ok(or_skip(Kind::Kafka, found)?.map(Self::new))
    }

    pub(crate) fn harm(
        &self,
        harm: impl Fn(&mut Server) -> Result<(), test_servers::Error>,
    ) -> Outcome {
        let server = self.server.as_ref().ok_or("it is another's")?;
        let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(harm(&mut server)?)
    }

    pub(crate) fn connection(&self) -> Connection {
        Connection::new(&self.servers)
    }

    /// A member of a group that has the topic's name, with a short session.
    pub(crate) fn options(&self, topic: &str) -> KafkaOptions {
        KafkaOptions::new(self.connection(), topic, [topic])
            .session_timeout(Duration::from_secs(6))
            .revoke_wait(Duration::from_secs(20))
            .rejections(Rejections::DeadLetters(dead(topic)))
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.servers);
        config
    }

    /// Makes a topic, and one for its dead letters.
    pub(crate) async fn create(&self, topic: &str, partitions: i32) -> Outcome {
        let dead = dead(topic);
        self.create_all(&[
            NewTopic::new(topic, partitions, TopicReplication::Fixed(1)),
            NewTopic::new(&dead, 1, TopicReplication::Fixed(1)),
        ])
        .await
    }

    /// Makes a topic of one partition that takes no batches of more bytes.
    pub(crate) async fn create_with_limit(&self, topic: &str, bytes: &str) -> Outcome {
        let made = NewTopic::new(topic, 1, TopicReplication::Fixed(1));
        self.create_all(&[made.set("max.message.bytes", bytes)])
            .await
    }

    /// Makes a topic of one partition whose records need keys.
    pub(crate) async fn create_compacted(&self, topic: &str) -> Outcome {
        let made = NewTopic::new(topic, 1, TopicReplication::Fixed(1));
        self.create_all(&[made.set("cleanup.policy", "compact")])
            .await
    }

    async fn create_all(&self, topics: &[NewTopic<'_>]) -> Outcome {
        let admin: AdminClient<DefaultClientContext> = AdminClient::from_config(&self.config())?;
        let options = AdminOptions::new().operation_timeout(Some(LIMIT));
        for made in admin.create_topics(topics, &options).await? {
            made.map_err(|(topic, code)| format!("{topic}: {code}"))?;
        }
        Ok(())
    }

    /// Deletes a topic and makes it again, with one partition.
    pub(crate) async fn create_again(&self, topic: &str) -> Outcome {
        let admin: AdminClient<DefaultClientContext> = AdminClient::from_config(&self.config())?;
        let options = AdminOptions::new().operation_timeout(Some(LIMIT));
        for deleted in admin.delete_topics(&[topic], &options).await? {
            deleted.map_err(|(topic, code)| format!("{topic}: {code}"))?;
        }
        let deadline = Instant::now() + LIMIT;
        loop {
            let topics = [NewTopic::new(topic, 1, TopicReplication::Fixed(1))];
            let made = admin.create_topics(&topics, &options).await?.remove(0);
            match made {
                Ok(_) => return Ok(()),
                Err((topic, code)) if Instant::now() > deadline => {
                    return Err(format!("{topic}: {code}").into());
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Sends these by a producer of their own, which knows nothing of a former topic of the name.
    pub(crate) async fn publish_texts(&self, topic: &str, texts: &[&str]) -> Outcome {
        let publisher = self.publisher().timeout(START_LIMIT);
        let texts = texts.iter();
        let messages: Vec<_> = texts
            .map(|text| Envelope::new(topic, (*text).to_owned()))
            .collect();
        for answer in publisher.publish(&messages).await {
            answer?;
        }
        Ok(())
    }

    pub(crate) async fn publish(&self, topic: &str, messages: &[Envelope]) -> Outcome {
        let mut messages = messages.to_vec();
        for message in &mut messages {
            topic.clone_into(&mut message.address);
        }
        let own = || self.publisher().timeout(START_LIMIT);
        let publisher = self.publisher.get_or_init(own);
        for answer in publisher.publish(&messages).await {
            answer?;
        }
        Ok(())
    }

    /// Sends so many messages with these keys in turn, numbered from one.
    pub(crate) async fn publish_numbers(&self, topic: &str, count: usize, keys: usize) -> Outcome {
        let messages: Vec<_> = (1..=count)
            .map(|number| {
                let mut message = Envelope::new(topic, number.to_string());
                message.key = Some(format!("key-{}", number % keys));
                message
            })
            .collect();
        self.publish(topic, &messages).await
    }

    /// Sends each text in a transaction of its own, which is committed or aborted.
    pub(crate) async fn publish_in_transactions(
        &self,
        topic: &str,
        texts: &[(&str, bool)],
    ) -> Outcome {
        let producer: FutureProducer = ClientConfig::new()
            .set("bootstrap.servers", &self.servers)
            .set("transactional.id", topic)
            .create()?;
        producer.init_transactions(READ_LIMIT)?;
        for (text, commit) in texts {
            producer.begin_transaction()?;
            let record: FutureRecord<'_, str, str> = FutureRecord::to(topic).payload(text);
            let sent = producer.send(record, READ_LIMIT).await;
            sent.map_err(|(error, _)| error)?;
            if *commit {
                producer.commit_transaction(READ_LIMIT)?;
            } else {
                producer.abort_transaction(READ_LIMIT)?;
            }
        }
        Ok(())
    }

    /// What the group of the topic's name has committed of each partition, and where each begins and ends. A
    /// server that has just begun does not know it yet.
    pub(crate) fn offsets(&self, topic: &str) -> Result<Vec<Place>, Failure> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.ask_offsets(topic) {
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(200));
                }
                asked => return asked,
            }
        }
    }

    fn ask_offsets(&self, topic: &str) -> Result<Vec<Place>, Failure> {
        let mut config = self.config();
        let asker: BaseConsumer = config.set("group.id", topic).create()?;
        let metadata = asker.fetch_metadata(Some(topic), LIMIT)?;
        let described = metadata.topics().first().ok_or("no topic")?;
        let mut places = Vec::new();
        for partition in described.partitions() {
            let mut asked = TopicPartitionList::new();
            asked.add_partition(topic, partition.id());
            let committed = asker.committed_offsets(asked, LIMIT)?;
            let committed = committed.elements()[0].offset();
            let (low, high) = asker.fetch_watermarks(topic, partition.id(), LIMIT)?;
            places.push(Place {
                committed: match committed {
                    Offset::Offset(offset) => Some(offset),
                    _ => None,
                },
                low,
                high,
            });
        }
        Ok(places)
    }

    /// How many messages the group has not committed.
    pub(crate) fn outstanding(&self, topic: &str) -> Result<u64, Failure> {
        let places = self.offsets(topic)?;
        let places = places.iter();
        let left = places.map(|place| place.high - place.committed.unwrap_or(place.low));
        Ok(u64::try_from(left.sum::<i64>())?)
    }

    /// Waits until the group has committed so much of the first partition.
    pub(crate) async fn until_committed(&self, topic: &str, offset: i64) -> Outcome {
        self.until(topic, |places| places[0].committed == Some(offset))
            .await
    }

    pub(crate) async fn until(&self, topic: &str, wanted: impl Fn(&[Place]) -> bool) -> Outcome {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let places = tokio::task::block_in_place(|| self.offsets(topic))?;
            if wanted(&places) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("in the end the offsets are {places:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// All records of a topic.
    pub(crate) fn records(&self, topic: &str) -> Result<Vec<OwnedMessage>, Failure> {
        let mut config = self.config();
        config.set("group.id", "reader");
        let reader: BaseConsumer = config.set("enable.auto.commit", "false").create()?;
        let mut records = Vec::new();
        for (partition, place) in self.offsets(topic)?.iter().enumerate() {
            let partition = i32::try_from(partition)?;
            let mut from = TopicPartitionList::new();
            from.add_partition_offset(topic, partition, Offset::Beginning)?;
            reader.assign(&from)?;
            let mut next = place.low;
            let deadline = Instant::now() + READ_LIMIT;
            while next < place.high {
                // It also ends without a record when the client has called back, whatever the limit.
                if let Some(record) = reader.poll(READ_LIMIT) {
                    let record = record?;
                    next = record.offset() + 1;
                    records.push(record.detach());
                } else if Instant::now() > deadline {
                    return Err(format!("no record {next} of {topic} came: {place:?}").into());
                }
            }
        }
        Ok(records)
    }
}

/// How a partition stands.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) committed: Option<i64>,
    pub(crate) low: i64,
    pub(crate) high: i64,
}

pub(crate) fn dead(topic: &str) -> String {
    format!("{topic}.dead")
}
