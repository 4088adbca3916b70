//! A RabbitMQ server, and what tests ask and tell it, past the source.

use std::{
    error::Error as StdError,
    fs,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use inbox_rabbitmq::{Connection, QueueKind, RabbitMqOptions, RabbitMqPublisher};
use inbox_source::{Envelope, Publisher as _};
use lapin::{
    Channel, ConnectionProperties, ErrorKind,
    options::{BasicGetOptions, QueueDeclareOptions},
    protocol::{AMQPErrorKind, AMQPHardError},
    types::{AMQPValue, FieldTable},
};
use source_tests::Proxy;
use test_servers::{Kind, START_LIMIT, Server, or_skip};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

pub(crate) type Failure = Box<dyn StdError + Send + Sync>;
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// How long a server that was just started may need.
const PATIENCE: Duration = START_LIMIT;
/// How often a quorum queue counts its messages, and longer than it takes.
const COUNTED: Duration = Duration::from_millis(250);
const TICK_MS: &str = "100";
/// A node writes the names of its quorum queues down, and that of what coordinates its streams, when there was
/// no new one for half a second. One that is killed before that does not know the queue when it starts again,
/// and answers nothing that is asked of it.
pub(crate) const REMEMBERED: Duration = Duration::from_millis(1500);

/// Arguments of a server by which it runs short of memory when it is [told](Rabbit::set_alarm).
pub(crate) const ALARMS: [&str; 2] = [
    "-eval",
    "Watch = fun Next(Was) -> \
         timer:sleep(100), \
         Is = filelib:is_regular(filename:join(os:getenv(\"HOME\"), \"alarm\")), \
         Alarm = {resource_limit, memory, node()}, \
         case {Was, Is} of \
             {false, true} -> rabbit_alarm:set_alarm({Alarm, []}); \
             {true, false} -> rabbit_alarm:clear_alarm(Alarm); \
             _ -> ok \
         end, \
         Next(Is) \
     end, \
     spawn(fun() -> Watch(false) end).",
];

/// How the queues of a server are declared.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) kind: QueueKind,
    pub(crate) single_active_consumer: bool,
}

impl Setup {
    pub(crate) const QUORUM: Self = Self {
        kind: QueueKind::Quorum,
        single_active_consumer: false,
    };
    pub(crate) const CLASSIC: Self = Self {
        kind: QueueKind::Classic,
        single_active_consumer: false,
    };
    pub(crate) const ORDERED: Self = Self {
        kind: QueueKind::Quorum,
        single_active_consumer: true,
    };
    const ALL: [(&str, Self); 3] = [
        ("quorum", Self::QUORUM),
        ("classic", Self::CLASSIC),
        ("ordered", Self::ORDERED),
    ];

    fn name(self) -> &'static str {
        match (self.kind, self.single_active_consumer) {
            (QueueKind::Classic, _) => "classic",
            (QueueKind::Quorum, false) => "quorum",
            (QueueKind::Quorum, true) => "ordered",
        }
    }
}

pub(crate) struct Rabbit {
    pub(crate) setup: Setup,
    server: Option<Mutex<Server>>,
    proxy: Option<Proxy>,
    /// Where sources connect.
    address: String,
    /// Where nothing is cut.
    direct: String,
    management: String,
    /// Where it takes connections for streams.
    pub(crate) streams: String,
    publisher: RabbitMqPublisher,
}

impl Rabbit {
    /// One that may be harmed, and whose consumers go through a proxy, to be cut off.
    pub(crate) fn own(setup: Setup) -> Outcome<Option<Self>> {
        Self::of_kind(Kind::RabbitMq, setup, &[])
    }

    /// The same of a version, with further arguments of the server.
    pub(crate) fn of_kind(kind: Kind, setup: Setup, arguments: &[&str]) -> Outcome<Option<Self>> {
        let mut all = vec!["-rabbit", "quorum_tick_interval", TICK_MS];
        all.extend(arguments);
        let found = test_servers::find_own(kind, &all);
        let Some(server) = or_skip(kind, found)? else {
            return Ok(None);
        };
        let url = server.url().trim_start_matches("amqp://guest:guest@");
        let direct = url.trim_end_matches("/%2f").to_owned();
        let management = format!("127.0.0.1:{}", setting(&server, "management.tcp.port")?);
        let streams = setting(&server, "stream.listeners.tcp.1")?;
        let proxy = Proxy::listen()?;
        proxy.forward_to(&direct);
        let address = format!("127.0.0.1:{}", proxy.port());
        Ok(Some(Self {
            setup,
            publisher: RabbitMqPublisher::new(connection(&direct)?),
            server: Some(Mutex::new(server)),
            proxy: Some(proxy),
            address,
            direct,
            management,
            streams,
        }))
    }

    /// One of another process, by what [`name`](Self::name) says there.
    pub(crate) fn at(name: &str) -> Outcome<Self> {
        let (setup, address) = name.split_once('@').ok_or("no address")?;
        let mut all = Setup::ALL.into_iter();
        let setup = all.find(|(name, _)| *name == setup);
        Ok(Self {
            setup: setup.ok_or("no such setup")?.1,
            server: None,
            proxy: None,
            address: address.to_owned(),
            direct: address.to_owned(),
            management: String::new(),
            streams: String::new(),
            publisher: RabbitMqPublisher::new(connection(address)?),
        })
    }

    pub(crate) fn name(&self) -> String {
        format!("{}@{}", self.setup.name(), self.address)
    }

    /// Where sources connect, by host and port.
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

    /// The queue and its dead letters, which are declared if they are not there.
    pub(crate) fn options(&self, queue: &str) -> Outcome<RabbitMqOptions> {
        Ok(RabbitMqOptions::new(connection(&self.address)?, queue)?
            .create(true)
            .kind(self.setup.kind)
            .single_active_consumer(self.setup.single_active_consumer)
            .dead_letters(dead(queue))?)
    }

    /// A publisher whose connections are cut.
    pub(crate) fn publisher(&self) -> Outcome<RabbitMqPublisher> {
        Ok(RabbitMqPublisher::new(connection(&self.address)?))
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

    /// Whether one that was started with [`ALARMS`] is short of memory from now on: soon.
    pub(crate) fn set_alarm(&self, is_short: bool) -> Outcome {
        let server = self.server.as_ref().ok_or("it is another's")?;
        let server = server.lock().unwrap_or_else(PoisonError::into_inner);
        let home = server.directory().ok_or("it has no directory")?;
        let alarm = home.join("alarm");
        match is_short {
            true => Ok(fs::write(alarm, "")?),
            false => Ok(fs::remove_file(alarm)?),
        }
    }

    /// A connection past the source, and a channel.
    pub(crate) async fn channel(&self) -> Outcome<(lapin::Connection, Channel)> {
        let url = format!("amqp://guest:guest@{}/%2f", self.direct);
        let connection = lapin::Connection::connect(&url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        Ok((connection, channel))
    }

    /// Declares a queue and the one for its dead letters, as the source does.
    pub(crate) async fn create(&self, queue: &str) -> Outcome {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let is_quorum = self.setup.kind == QueueKind::Quorum;
        let kind = if is_quorum { "quorum" } else { "classic" };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), text(kind));
        self.declare(&dead(queue), arguments.clone()).await?;
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(&dead(queue)));
        if is_quorum {
            arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
            arguments.insert("x-overflow".into(), text("reject-publish"));
        }
        if self.setup.single_active_consumer {
            let yes = AMQPValue::Boolean(true);
            arguments.insert("x-single-active-consumer".into(), yes);
        }
        self.declare(queue, arguments).await?;
        sleep(REMEMBERED).await;
        Ok(())
    }

    /// Again, while the server says that something went wrong within it: a busy one does that when it was just
    /// started.
    pub(crate) async fn declare(&self, queue: &str, arguments: FieldTable) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (connection, channel) = self.channel().await?;
            let durable = QueueDeclareOptions::durable();
            let declared = channel.queue_declare(queue.into(), durable, arguments.clone());
            match declared.await {
                Ok(_) => return Ok(connection.close(200, "".into()).await?),
                Err(error) if is_internal(&error) && Instant::now() < deadline => {}
                Err(error) => return Err(error.into()),
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    pub(crate) async fn delete(&self, queue: &str) -> Outcome {
        let (connection, channel) = self.channel().await?;
        channel
            .queue_delete(queue.into(), Default::default())
            .await?;
        connection.close(200, "".into()).await?;
        Ok(())
    }

    /// Tries again for a minute while the server is away.
    pub(crate) async fn publish(&self, queue: &str, messages: &[Envelope]) -> Outcome {
        let mut messages = messages.to_vec();
        for message in &mut messages {
            queue.clone_into(&mut message.address);
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
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Sends so many messages, numbered from one, each with its number as its id.
    pub(crate) async fn publish_numbers(&self, queue: &str, count: usize) -> Outcome {
        let number = |number: usize| {
            let mut message = Envelope::new(queue, number.to_string());
            message.id = Some(number.to_string());
            message
        };
        let messages: Vec<_> = (1..=count).map(number).collect();
        self.publish(queue, &messages).await
    }

    /// How many messages a queue has, not delivered, and delivered but not acknowledged.
    pub(crate) async fn outstanding(&self, queue: &str) -> Outcome<(u64, u64)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            sleep(COUNTED).await;
            let counts = timeout(Duration::from_secs(5), self.counts(queue)).await;
            match counts.unwrap_or_else(|_| Err("no answer".into())) {
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => {}
                counts => return counts,
            }
        }
    }

    async fn counts(&self, queue: &str) -> Outcome<(u64, u64)> {
        let mut stream = TcpStream::connect(&self.management).await?;
        let question = "GET /api/queues/%2f?disable_stats=true&enable_queue_totals=true HTTP/1.0\r\n\
                        Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n";
        stream.write_all(question.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let all: Vec<serde_json::Value> = serde_json::from_str(body)?;
        let found = all.iter().find(|one| one["name"] == queue);
        let found = found.ok_or("no such queue")?;
        let count = |name: &str| found[name].as_u64().ok_or("not counted yet");
        Ok((count("messages_ready")?, count("messages_unacknowledged")?))
    }

    /// Sets something by the management plug-in.
    pub(crate) async fn manage(&self, path: &str, value: &str) -> Outcome {
        let mut stream = TcpStream::connect(&self.management).await?;
        let order = format!(
            "PUT /api/{path} HTTP/1.0\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{value}",
            value.len()
        );
        stream.write_all(order.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        match answer.split(' ').nth(1) {
            Some("201" | "204") => Ok(()),
            _ => Err(answer.into()),
        }
    }

    pub(crate) async fn until(&self, queue: &str, wanted: (u64, u64)) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let counts = self.outstanding(queue).await?;
            if counts == wanted {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("in the end there are {counts:?}, not {wanted:?}").into());
            }
        }
    }

    /// The payloads of a queue, which keeps them.
    pub(crate) async fn payloads(&self, queue: &str) -> Outcome<Vec<Vec<u8>>> {
        let (connection, channel) = self.channel().await?;
        let mut payloads = Vec::new();
        let get = || channel.basic_get(queue.into(), BasicGetOptions::default());
        while let Some(message) = get().await? {
            payloads.push(message.delivery.data);
        }
        // What is not acknowledged goes back.
        connection.close(200, "".into()).await?;
        Ok(payloads)
    }
}

/// What stands in the server's configuration.
fn setting(server: &Server, name: &str) -> Outcome<String> {
    let home = server.directory().ok_or("it has no directory")?;
    let settings = fs::read_to_string(home.join("rabbitmq.conf"))?;
    let lines = settings.lines().filter_map(|line| line.split_once(" = "));
    let found = lines.into_iter().find(|(one, _)| *one == name);
    let (_, value) = found.ok_or_else(|| format!("{name} is not set"))?;
    Ok(value.to_owned())
}

pub(crate) fn dead(queue: &str) -> String {
    format!("{queue}-dead")
}

pub(crate) fn connection(address: &str) -> Outcome<Connection> {
    Ok(Connection::from_url(&format!("amqp://{address}"))?)
}

/// Whether something went wrong within the server, by its own account.
fn is_internal(error: &lapin::Error) -> bool {
    let internal = AMQPErrorKind::Hard(AMQPHardError::INTERNALERROR);
    matches!(error.kind(), ErrorKind::ProtocolError(error) if *error.kind() == internal)
}
