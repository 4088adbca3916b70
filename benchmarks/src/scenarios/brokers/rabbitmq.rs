use anyhow::{Context as _, Result};
use futures_util::{FutureExt as _, StreamExt as _};
use inbox::{
    rabbitmq::{Connection, RabbitMqOptions, RabbitMqPublisher, RabbitMqSource},
    receiver::Mapping,
};
use lapin::{
    Channel, ConnectionProperties, Consumer,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use test_servers::{Kind, Server};

use super::{Broker, Hand, Taken};

/// As many as the receiver may have unacknowledged, in batches of 500.
const PREFETCH: u16 = 2000;

pub(super) struct RabbitMq(Server);

impl Broker for RabbitMq {
    const NAME: &'static str = "RabbitMQ";
    type Publisher = RabbitMqPublisher;
    type Source = RabbitMqSource;
    type Hand = Queue;

    async fn start() -> Result<Self> {
        Ok(Self(super::server(Kind::RabbitMq4).await?))
    }

    async fn create(&self, channel: &str) -> Result<()> {
        let (connection, open) = self.channel().await?;
        let mut arguments = FieldTable::default();
        let quorum = AMQPValue::LongString("quorum".into());
        arguments.insert("x-queue-type".into(), quorum);
        open.queue_declare(channel.into(), QueueDeclareOptions::durable(), arguments)
            .await?;
        connection.close(200, "".into()).await?;
        Ok(())
    }

    fn publisher(&self) -> Result<RabbitMqPublisher> {
        Ok(RabbitMqPublisher::new(Connection::from_url(self.0.url())?))
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<RabbitMqSource> {
        let options = RabbitMqOptions::new(Connection::from_url(self.0.url())?, channel)?;
        Ok(RabbitMqSource::new(options, mapping)?)
    }

    async fn hand(&self, channel: &str) -> Result<Queue> {
        let (connection, open) = self.channel().await?;
        open.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let none = FieldTable::default();
        let consumer = open.basic_consume(
            channel.into(),
            "by-hand".into(),
            BasicConsumeOptions::default(),
            none,
        );
        Ok(Queue {
            consumer: consumer.await?,
            last: None,
            _connection: connection,
        })
    }
}

impl RabbitMq {
    async fn channel(&self) -> Result<(lapin::Connection, Channel)> {
        let properties = ConnectionProperties::default();
        let connection = lapin::Connection::connect(self.0.url(), properties).await?;
        let channel = connection.create_channel().await?;
        Ok((connection, channel))
    }
}

pub(super) struct Queue {
    consumer: Consumer,
    last: Option<Delivery>,
    _connection: lapin::Connection,
}

impl Queue {
    fn taken(&mut self, delivery: Delivery) -> Taken {
        let id = delivery.properties.message_id().as_ref();
        let id = id.map(ToString::to_string).unwrap_or_default();
        let payload = delivery.data.to_vec();
        self.last = Some(delivery);
        (id, payload)
    }
}

impl Hand for Queue {
    async fn take(&mut self, most: usize) -> Result<Vec<Taken>> {
        let first = self.consumer.next().await.context("no consumer")??;
        let mut all = vec![self.taken(first)];
        while all.len() < most {
            let Some(next) = self.consumer.next().now_or_never() else {
                break;
            };
            let next = next.context("no consumer")??;
            all.push(self.taken(next));
        }
        Ok(all)
    }

    /// All up to the last.
    async fn acknowledge(&mut self) -> Result<()> {
        if let Some(last) = self.last.take() {
            last.acker.ack(BasicAckOptions { multiple: true }).await?;
        }
        Ok(())
    }
}
