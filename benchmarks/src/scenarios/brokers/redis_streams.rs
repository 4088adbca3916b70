use anyhow::{Context as _, Result};
use inbox::{
    receiver::Mapping,
    redis::redis::{self, Value, aio::MultiplexedConnection, cmd},
    redis_streams::{
        Connection, ID, RedisStreamsOptions, RedisStreamsPublisher, RedisStreamsSource,
    },
};
use test_servers::{Kind, Server};

use super::{Broker, Hand, Taken};

pub(super) struct RedisStreams(Server);

impl Broker for RedisStreams {
    const NAME: &'static str = "Redis Streams";
    type Publisher = RedisStreamsPublisher;
    type Source = RedisStreamsSource;
    type Hand = Group;

    async fn start() -> Result<Self> {
        Ok(Self(super::server(Kind::Redis).await?))
    }

    async fn create(&self, channel: &str) -> Result<()> {
        let mut connection = self.connection().await?;
        let mut create = cmd("XGROUP");
        create
            .arg("CREATE")
            .arg(channel)
            .arg("g")
            .arg("0")
            .arg("MKSTREAM");
        create.query_async::<()>(&mut connection).await?;
        Ok(())
    }

    fn publisher(&self) -> Result<RedisStreamsPublisher> {
        Ok(RedisStreamsPublisher::new(Connection::from_url(
            self.0.url(),
        )?))
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<RedisStreamsSource> {
        let options = RedisStreamsOptions::new(Connection::from_url(self.0.url())?, channel, "g")?;
        Ok(RedisStreamsSource::new(options, mapping)?)
    }

    async fn hand(&self, channel: &str) -> Result<Group> {
        Ok(Group {
            connection: self.connection().await?,
            stream: channel.to_owned(),
            ids: Vec::new(),
        })
    }
}

impl RedisStreams {
    async fn connection(&self) -> Result<MultiplexedConnection> {
        let client = redis::Client::open(self.0.url())?;
        Ok(client.get_multiplexed_async_connection().await?)
    }
}

pub(super) struct Group {
    connection: MultiplexedConnection,
    stream: String,
    ids: Vec<String>,
}

/// Streams, of entries, of fields.
type Answer = Vec<(String, Vec<(String, Vec<(String, Vec<u8>)>)>)>;

impl Hand for Group {
    async fn take(&mut self, most: usize) -> Result<Vec<Taken>> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP")
            .arg("g")
            .arg("by-hand")
            .arg("COUNT")
            .arg(most);
        read.arg("BLOCK")
            .arg(400)
            .arg("STREAMS")
            .arg(&self.stream)
            .arg(">");
        let answer: Option<Answer> = read.query_async(&mut self.connection).await?;
        let mut taken = Vec::new();
        for (_, entries) in answer.context("no message came")? {
            for (number, fields) in entries {
                let mut id = String::new();
                let mut payload = Vec::new();
                for (name, value) in fields {
                    match name.as_str() {
                        ID => id = String::from_utf8(value)?,
                        "payload" => payload = value,
                        _ => {}
                    }
                }
                self.ids.push(number);
                taken.push((id, payload));
            }
        }
        Ok(taken)
    }

    async fn acknowledge(&mut self) -> Result<()> {
        let mut acknowledge = cmd("XACK");
        acknowledge.arg(&self.stream).arg("g").arg(&self.ids);
        acknowledge
            .query_async::<Value>(&mut self.connection)
            .await?;
        self.ids.clear();
        Ok(())
    }
}
