//! A server, and what tests ask and tell it, past the source.

use std::{
    collections::HashMap,
    error::Error as StdError,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use inbox_redis_streams::{Connection, RedisStreamsOptions, RedisStreamsPublisher};
use inbox_source::{Envelope, Publisher as _};
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, Value, cmd};
use source_tests::Proxy;
use test_servers::{Kind, START_LIMIT, Server, or_skip};

pub(crate) type Failure = Box<dyn StdError + Send + Sync>;
pub(crate) type Outcome<T = ()> = Result<T, Failure>;
/// An entry: its number and its fields, in which no name repeats.
pub(crate) type Entry = (String, HashMap<String, Vec<u8>>);

/// How long a server that was just started may need.
const PATIENCE: Duration = START_LIMIT;
/// The one group of each stream.
pub(crate) const GROUP: &str = "g";
pub(crate) const CLAIM_AFTER: Duration = Duration::from_secs(3);

pub(crate) struct Redis {
    server: Option<Mutex<Server>>,
    proxy: Option<Proxy>,
    /// Where sources connect.
    address: String,
    /// Where nothing is cut.
    direct: String,
    publisher: RedisStreamsPublisher,
}

impl Redis {
    /// One that may be harmed, and whose consumers go through a proxy, to be cut off.
    pub(crate) fn own(kind: Kind) -> Outcome<Option<Self>> {
        let found = test_servers::find_own(kind, &[]);
        let Some(server) = or_skip(kind, found)? else {
            return Ok(None);
        };
        let direct = server
            .url()
            .trim_start_matches("redis://")
            .trim_end_matches('/')
            .to_owned();
        let proxy = Proxy::listen()?;
        proxy.forward_to(&direct);
        let mut made = Self::at(&format!("127.0.0.1:{}", proxy.port()))?;
        made.publisher = RedisStreamsPublisher::new(connection(&direct)?);
        made.direct = direct;
        made.proxy = Some(proxy);
        made.server = Some(Mutex::new(server));
        Ok(Some(made))
    }

    /// One of another process, by its address.
    pub(crate) fn at(address: &str) -> Outcome<Self> {
        Ok(Self {
            server: None,
            proxy: None,
            address: address.to_owned(),
            direct: address.to_owned(),
            publisher: RedisStreamsPublisher::new(connection(address)?),
        })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Past the proxy.
    pub(crate) fn direct(&self) -> Outcome<Connection> {
        connection(&self.direct)
    }

    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Outcome<T> {
        let client = redis::Client::open(format!("redis://{}", self.direct))?;
        // Unless told it waits for half a second, which a busy machine takes.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await?;
        Ok(command.query_async(&mut connection).await?)
    }

    /// The group of a stream, which is created if it is not there.
    pub(crate) fn options(&self, stream: &str) -> Outcome<RedisStreamsOptions> {
        let options = RedisStreamsOptions::new(connection(&self.address)?, stream, GROUP)?;
        Ok(options.create(true).claim_after(CLAIM_AFTER)?)
    }

    /// A publisher whose connections are cut.
    pub(crate) fn publisher(&self) -> Outcome<RedisStreamsPublisher> {
        Ok(RedisStreamsPublisher::new(connection(&self.address)?))
    }

    pub(crate) fn cut(&self) -> Outcome {
        self.proxy.as_ref().ok_or("there is no proxy")?.cut();
        Ok(())
    }

    pub(crate) fn harm(
        &self,
        harm: impl Fn(&mut Server) -> Result<(), test_servers::Error>,
    ) -> Outcome {
        let server = self.server.as_ref().ok_or("it is another's")?;
        let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(harm(&mut server)?)
    }

    /// Makes a stream and its group.
    pub(crate) async fn create(&self, stream: &str) -> Outcome {
        let mut create = cmd("XGROUP");
        create
            .arg("CREATE")
            .arg(stream)
            .arg(GROUP)
            .arg("0")
            .arg("MKSTREAM");
        self.ask::<Value>(&create).await?;
        Ok(())
    }

    /// Tries again for a minute while the server is away.
    pub(crate) async fn publish(&self, stream: &str, messages: &[Envelope]) -> Outcome {
        let mut messages = messages.to_vec();
        for message in &mut messages {
            stream.clone_into(&mut message.address);
        }
        let deadline = Instant::now() + PATIENCE;
        while !messages.is_empty() {
            let answers = self.publisher.publish(&messages).await;
            // Order is kept: what comes after a failed one is sent again, too.
            let mut failed = answers.into_iter().enumerate();
            let failed = failed.find_map(|(place, answer)| Some((place, answer.err()?)));
            let Some((first, error)) = failed else { break };
            if !error.is_transient() || Instant::now() > deadline {
                return Err(error.into());
            }
            messages.drain(..first);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Sends so many messages, numbered from one.
    pub(crate) async fn publish_numbers(&self, stream: &str, count: usize) -> Outcome {
        let number = |number: usize| Envelope::new(stream, number.to_string());
        let messages: Vec<_> = (1..=count).map(number).collect();
        self.publish(stream, &messages).await
    }

    /// How many entries the group has not been given, and has been given and not acknowledged.
    pub(crate) async fn outstanding(&self, stream: &str) -> Outcome<(u64, u64)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.counts(stream).await {
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                counts => return counts,
            }
        }
    }

    async fn counts(&self, stream: &str) -> Outcome<(u64, u64)> {
        let groups: Vec<HashMap<String, Value>> =
            self.ask(cmd("XINFO").arg("GROUPS").arg(stream)).await?;
        let group = groups.first().ok_or("there is no group")?;
        let pending = u64::from_redis_value(group.get("pending").ok_or("no count")?.clone())?;
        let last = group.get("last-delivered-id").ok_or("no number")?.clone();
        let last = String::from_redis_value(last)?;
        let entries = self.entries_after(stream, &format!("({last}")).await?;
        Ok((u64::try_from(entries.len())?, pending))
    }

    async fn entries_after(&self, stream: &str, from: &str) -> Outcome<Vec<Entry>> {
        self.ask(cmd("XRANGE").arg(stream).arg(from).arg("+")).await
    }

    /// All entries of a stream.
    pub(crate) async fn entries(&self, stream: &str) -> Outcome<Vec<Entry>> {
        self.entries_after(stream, "-").await
    }

    /// The names of the group's consumers.
    pub(crate) async fn consumers(&self, stream: &str) -> Outcome<Vec<String>> {
        let mut ask = cmd("XINFO");
        ask.arg("CONSUMERS").arg(stream).arg(GROUP);
        let consumers: Vec<HashMap<String, Value>> = self.ask(&ask).await?;
        let mut names = Vec::new();
        for consumer in consumers {
            names.push(String::from_redis_value(
                consumer.get("name").ok_or("no name")?.clone(),
            )?);
        }
        Ok(names)
    }

    pub(crate) async fn until(&self, stream: &str, wanted: (u64, u64)) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let counts = self.outstanding(stream).await?;
            if counts == wanted {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("in the end there are {counts:?}, not {wanted:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

pub(crate) fn dead(stream: &str) -> String {
    format!("{stream}-dead")
}

fn connection(address: &str) -> Outcome<Connection> {
    Ok(Connection::from_url(&format!("redis://{address}"))?)
}
