use anyhow::{Result, anyhow};
use async_nats::jetstream::{
    self, AckKind, Message,
    consumer::{AckPolicy, PullConsumer, pull},
    stream,
};
use futures_util::StreamExt as _;
use inbox::{
    nats::{Connection, ID, NatsOptions, NatsPublisher, NatsSource},
    receiver::Mapping,
};
use test_servers::{Kind, Server};

use super::{Broker, Hand, Taken};

pub(super) struct Nats(Server);

impl Broker for Nats {
    const NAME: &'static str = "NATS";
    type Publisher = NatsPublisher;
    type Source = NatsSource;
    type Hand = Pull;

    async fn start() -> Result<Self> {
        Ok(Self(super::server(Kind::NatsNewest).await?))
    }

    async fn create(&self, channel: &str) -> Result<()> {
        let config = stream::Config {
            name: channel.to_owned(),
            subjects: vec![channel.to_owned()],
            ..stream::Config::default()
        };
        let stream = self.context().await?.create_stream(config).await?;
        let config = pull::Config {
            durable_name: Some("c".into()),
            ack_policy: AckPolicy::Explicit,
            max_ack_pending: -1,
            ..pull::Config::default()
        };
        stream.create_consumer(config).await?;
        Ok(())
    }

    fn publisher(&self) -> Result<NatsPublisher> {
        Ok(NatsPublisher::new(Connection::from_url(self.0.url())?))
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<NatsSource> {
        let options = NatsOptions::new(Connection::from_url(self.0.url())?, channel, "c")?;
        Ok(NatsSource::new(options, mapping)?)
    }

    async fn hand(&self, channel: &str) -> Result<Pull> {
        let context = self.context().await?;
        Ok(Pull {
            consumer: context.get_consumer_from_stream("c", channel).await?,
            taken: Vec::new(),
        })
    }
}

impl Nats {
    async fn context(&self) -> Result<jetstream::Context> {
        Ok(jetstream::new(async_nats::connect(self.0.url()).await?))
    }
}

pub(super) struct Pull {
    consumer: PullConsumer,
    taken: Vec<Message>,
}

impl Hand for Pull {
    async fn take(&mut self, most: usize) -> Result<Vec<Taken>> {
        let mut messages = self.consumer.fetch().max_messages(most).messages().await?;
        let mut taken = Vec::new();
        while let Some(message) = messages.next().await {
            let message = message.map_err(|error| anyhow!("{error}"))?;
            let headers = message.headers.as_ref();
            let id = headers.and_then(|headers| headers.get(ID));
            let id = id.map(ToString::to_string).unwrap_or_default();
            taken.push((id, message.payload.to_vec()));
            self.taken.push(message);
        }
        Ok(taken)
    }

    async fn acknowledge(&mut self) -> Result<()> {
        for message in self.taken.drain(..) {
            let acknowledged = message.ack_with(AckKind::Ack).await;
            acknowledged.map_err(|error| anyhow!("{error}"))?;
        }
        Ok(())
    }
}
