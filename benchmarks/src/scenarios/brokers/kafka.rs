use anyhow::{Result, anyhow};
use futures_util::FutureExt as _;
use inbox::{
    kafka::{Connection, ID, KafkaOptions, KafkaPublisher, KafkaSource, Rejections},
    receiver::Mapping,
};
use rdkafka::{
    ClientConfig, Message as _,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{CommitMode, Consumer as _, StreamConsumer},
    message::{BorrowedMessage, Headers as _},
};
use test_servers::{Kind, Server};

use super::{Broker, Hand, Taken};

/// Of a topic.
const PARTITIONS: i32 = 4;

pub(super) struct Kafka(Server);

impl Broker for Kafka {
    const NAME: &'static str = "Kafka";
    type Publisher = KafkaPublisher;
    type Source = KafkaSource;
    type Hand = Member;

    async fn start() -> Result<Self> {
        Ok(Self(super::server(Kind::Kafka).await?))
    }

    async fn create(&self, channel: &str) -> Result<()> {
        let admin: AdminClient<DefaultClientContext> = self.config().create()?;
        let topic = NewTopic::new(channel, PARTITIONS, TopicReplication::Fixed(1));
        for made in admin.create_topics(&[topic], &AdminOptions::new()).await? {
            made.map_err(|(topic, code)| anyhow!("{topic}: {code}"))?;
        }
        Ok(())
    }

    fn publisher(&self) -> Result<KafkaPublisher> {
        Ok(KafkaPublisher::new(Connection::new(self.address())))
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<KafkaSource> {
        let options = KafkaOptions::new(Connection::new(self.address()), channel, [channel]);
        Ok(KafkaSource::new(
            options.rejections(Rejections::Stop),
            mapping,
        )?)
    }

    async fn hand(&self, channel: &str) -> Result<Member> {
        let mut config = self.config();
        config.set("group.id", format!("{channel}-by-hand"));
        config.set("enable.auto.commit", "false");
        config.set("auto.offset.reset", "earliest");
        let consumer: StreamConsumer = config.create()?;
        consumer.subscribe(&[channel])?;
        Ok(Member(consumer))
    }
}

impl Kafka {
    fn address(&self) -> &str {
        self.0
            .url()
            .trim_start_matches("kafka://")
            .trim_end_matches('/')
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.address());
        config
    }
}

pub(super) struct Member(StreamConsumer);

fn taken(message: &BorrowedMessage<'_>) -> Taken {
    let headers = message
        .headers()
        .into_iter()
        .flat_map(|headers| headers.iter());
    let mut ids = headers.filter(|header| header.key == ID);
    let id = ids
        .next()
        .and_then(|header| header.value)
        .unwrap_or_default();
    (
        String::from_utf8_lossy(id).into_owned(),
        message.payload().unwrap_or_default().to_vec(),
    )
}

impl Hand for Member {
    async fn take(&mut self, most: usize) -> Result<Vec<Taken>> {
        let mut all = vec![taken(&self.0.recv().await?)];
        while all.len() < most {
            let Some(message) = self.0.recv().now_or_never() else {
                break;
            };
            all.push(taken(&message?));
        }
        Ok(all)
    }

    /// What was received is the consumer's position.
    async fn acknowledge(&mut self) -> Result<()> {
        tokio::task::block_in_place(|| self.0.commit(&self.0.position()?, CommitMode::Sync))?;
        Ok(())
    }
}
