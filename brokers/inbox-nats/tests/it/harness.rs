//! A NATS server, and what tests ask and tell it, past the source.

use std::{
    error::Error as StdError,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, pull},
    stream,
};
use inbox_nats::{Connection, NatsOptions, NatsPublisher};
use inbox_source::{Envelope, Publisher as _};
use source_tests::Proxy;
use test_servers::{Kind, START_LIMIT, Server, or_skip};
use tokio::sync::OnceCell;

pub(crate) type Failure = Box<dyn StdError + Send + Sync>;
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// How long a server that was just started may need.
const PATIENCE: Duration = START_LIMIT;
/// The one consumer of each stream.
pub(crate) const CONSUMER: &str = "c";
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(4);

pub(crate) struct Nats {
    server: Option<Mutex<Server>>,
    proxy: Option<Proxy>,
    /// Where sources connect.
    address: String,
    /// Where nothing is cut.
    direct: String,
    publisher: NatsPublisher,
    context: OnceCell<jetstream::Context>,
}

impl Nats {
    /// One that may be harmed, and whose consumers go through a proxy, to be cut off.
    pub(crate) fn own(kind: Kind) -> Outcome<Option<Self>> {
        Self::with_arguments(kind, &[])
    }

    /// The same, with further arguments of the program.
    pub(crate) fn with_arguments(kind: Kind, arguments: &[&str]) -> Outcome<Option<Self>> {
        let found = test_servers::find_own(kind, arguments);
        let Some(server) = or_skip(kind, found)? else {
            return Ok(None);
        };
        let direct = server
            .url()
            .trim_start_matches("nats://")
            .trim_end_matches('/')
            .to_owned();
        let proxy = Proxy::listen()?;
        proxy.forward_to(&direct);
        let mut made = Self::at(&format!("127.0.0.1:{}", proxy.port()))?;
        made.publisher = NatsPublisher::new(connection(&direct)?);
        made.direct = direct;
        made.proxy = Some(proxy);
        made.server = Some(Mutex::new(server));
        Ok(Some(made))
    }

    /// One with a user `ann`, whose password is her name and who may not publish to `subject`.
    pub(crate) fn with_a_denial(subject: &str) -> Outcome<Option<Self>> {
        let name = format!("inbox-nats-{}-{subject}.conf", std::process::id());
        let settings = std::env::temp_dir().join(name);
        let rights = format!(
            r#"
            no_auth_user: all
            authorization: {{ users: [
                {{ user: all, password: all }},
                {{ user: ann, password: ann, permissions: {{ publish: {{ deny: "{subject}" }} }} }},
            ] }}
            "#
        );
        std::fs::write(&settings, rights)?;
        let arguments = ["--config", settings.to_str().ok_or("an odd path")?];
        let started = Self::with_arguments(Kind::Nats, &arguments);
        std::fs::remove_file(settings)?;
        started
    }

    /// One of another process, by its address.
    pub(crate) fn at(address: &str) -> Outcome<Self> {
        Ok(Self {
            server: None,
            proxy: None,
            address: address.to_owned(),
            direct: address.to_owned(),
            publisher: NatsPublisher::new(connection(address)?),
            context: OnceCell::new(),
        })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Past the proxy, by host and port.
    pub(crate) fn plain(&self) -> &str {
        &self.direct
    }

    /// Past the proxy.
    pub(crate) fn direct(&self) -> Outcome<Connection> {
        connection(&self.direct)
    }

    pub(crate) async fn context(&self) -> Outcome<&jetstream::Context> {
        let connect = async || {
            let client = async_nats::connect(format!("nats://{}", self.direct)).await?;
            Ok::<_, Failure>(jetstream::new(client))
        };
        self.context.get_or_try_init(connect).await
    }

    /// The consumer of a stream, which is created if it is not there.
    pub(crate) fn options(&self, stream: &str) -> Outcome<NatsOptions> {
        let options = NatsOptions::new(connection(&self.address)?, stream, CONSUMER)?;
        Ok(options.create(true).ack_wait(ACK_WAIT)?)
    }

    /// A publisher whose connections are cut.
    pub(crate) fn publisher(&self) -> Outcome<NatsPublisher> {
        Ok(NatsPublisher::new(connection(&self.address)?))
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

    /// Makes a stream of the subject of the same name, its consumer, and a stream for dead letters.
    pub(crate) async fn create(&self, stream: &str) -> Outcome {
        self.create_stream(&dead(stream)).await?;
        let made = self.create_stream(stream).await?;
        made.create_consumer(consumer()).await?;
        Ok(())
    }

    pub(crate) async fn create_stream(&self, name: &str) -> Outcome<stream::Stream> {
        let config = stream::Config {
            name: name.to_owned(),
            subjects: vec![name.to_owned()],
            ..stream::Config::default()
        };
        Ok(self.context().await?.create_stream(config).await?)
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

    /// How many messages the consumer has, not delivered, and delivered but not acknowledged.
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
        let context = self.context().await?;
        let stream = context.get_stream_no_info(stream).await?;
        let info = stream.consumer_info(CONSUMER).await?;
        Ok((info.num_pending, u64::try_from(info.num_ack_pending)?))
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

    /// All messages of a stream.
    pub(crate) async fn messages(
        &self,
        stream: &str,
    ) -> Outcome<Vec<jetstream::message::StreamMessage>> {
        let mut stream = self.context().await?.get_stream(stream).await?;
        let state = stream.info().await?.state.clone();
        let mut messages = Vec::new();
        // They are numbered from one; an empty stream has none.
        for sequence in state.first_sequence.max(1)..=state.last_sequence {
            messages.push(stream.get_raw_message(sequence).await?);
        }
        Ok(messages)
    }
}

/// As the source creates it.
pub(crate) fn consumer() -> pull::Config {
    pull::Config {
        durable_name: Some(CONSUMER.into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_ack_pending: -1,
        ..pull::Config::default()
    }
}

pub(crate) fn dead(stream: &str) -> String {
    format!("{stream}-dead")
}

fn connection(address: &str) -> Outcome<Connection> {
    Ok(Connection::from_url(&format!("nats://{address}"))?)
}
