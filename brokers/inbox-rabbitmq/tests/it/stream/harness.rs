//! A server with streams. Messages are sent over AMQP 0.9.1, as most are.

use std::time::Duration;

use inbox_rabbitmq::{RabbitMqStreamOptions, RabbitMqStreamSource, StreamConnection};
use inbox_source::{Envelope, Mapping, Source as _};
use lapin::types::{AMQPValue, FieldTable};
use source_tests::Proxy;
use test_servers::{Kind, START_LIMIT, Server};
use tokio::time::{Instant, sleep, timeout};

use super::asker::Asker;
use crate::harness::{Outcome, REMEMBERED, Rabbit, Setup, dead};

/// The name under which offsets are kept.
pub(crate) const CONSUMER: &str = "tests";

const PATIENCE: Duration = START_LIMIT;

pub(crate) struct Streams {
    pub(crate) rabbit: Rabbit,
    pub(crate) single_active_consumer: bool,
    proxy: Option<Proxy>,
    /// Where sources connect.
    address: String,
}

impl Streams {
    pub(crate) fn own(kind: Kind, single_active_consumer: bool) -> Outcome<Option<Self>> {
        let Some(rabbit) = Rabbit::of_kind(kind, Setup::CLASSIC, &[])? else {
            return Ok(None);
        };
        let proxy = Proxy::listen()?;
        proxy.forward_to(&rabbit.streams);
        let address = format!("127.0.0.1:{}", proxy.port());
        Ok(Some(Self {
            rabbit,
            single_active_consumer,
            proxy: Some(proxy),
            address,
        }))
    }

    /// One of another process, by what [`name`](Self::name) says there.
    pub(crate) fn at(name: &str) -> Outcome<Self> {
        let parts: Vec<_> = name.split(' ').collect();
        let [single, address, rabbit] = parts[..] else {
            return Err("not the name of a server".into());
        };
        Ok(Self {
            rabbit: Rabbit::at(rabbit)?,
            single_active_consumer: single == "single",
            proxy: None,
            address: address.to_owned(),
        })
    }

    pub(crate) fn name(&self) -> String {
        let kind = match self.single_active_consumer {
            true => "single",
            false => "all",
        };
        format!("{kind} {} {}", self.address, self.rabbit.name())
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn options(&self, stream: &str) -> Outcome<RabbitMqStreamOptions> {
        let server = format!("rabbitmq-stream://{}", self.address);
        let server = StreamConnection::from_url(&server)?;
        Ok(RabbitMqStreamOptions::new(server, stream, CONSUMER)?
            .single_active_consumer(self.single_active_consumer)
            .dead_letters(dead(stream))?)
    }

    /// Declares a stream and the one for its dead letters.
    pub(crate) async fn create(&self, stream: &str) -> Outcome {
        for name in [stream, &dead(stream)] {
            let mut arguments = FieldTable::default();
            let kind = AMQPValue::LongString("stream".into());
            arguments.insert("x-queue-type".into(), kind);
            self.rabbit.declare(name, arguments).await?;
        }
        sleep(REMEMBERED).await;
        Ok(())
    }

    pub(crate) async fn publish(&self, stream: &str, messages: &[Envelope]) -> Outcome {
        self.rabbit.publish(stream, messages).await
    }

    pub(crate) async fn asker(&self) -> Outcome<Asker> {
        Asker::connect(&self.rabbit.streams).await
    }

    pub(crate) async fn stored(&self, stream: &str) -> Outcome<Option<u64>> {
        self.asker().await?.stored(CONSUMER, stream).await
    }

    /// How many messages are behind the offset that the server keeps. Tries again while it is away.
    pub(crate) async fn outstanding(&self, stream: &str) -> Outcome<u64> {
        let deadline = Instant::now() + PATIENCE;
        let ask = async || {
            let mut asker = self.asker().await?;
            let next = asker.stored(CONSUMER, stream).await?;
            let next = next.map_or(0, |stored| stored + 1);
            asker.count(stream, next).await
        };
        loop {
            let asked = timeout(Duration::from_secs(20), ask()).await;
            match asked.unwrap_or_else(|_| Err("no answer".into())) {
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => sleep(Duration::from_millis(100)).await,
                outstanding => return outstanding,
            }
        }
    }

    pub(crate) async fn until(&self, stream: &str, wanted: u64) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let outstanding = self.outstanding(stream).await?;
            if outstanding == wanted {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("in the end {outstanding}, not {wanted}").into());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The payloads of a stream.
    pub(crate) async fn payloads(&self, stream: &str) -> Outcome<Vec<Vec<u8>>> {
        let count = self.asker().await?.count(stream, 0).await?;
        let server = StreamConnection::from_url(&format!("rabbitmq-stream://{}", self.address))?;
        let options = RabbitMqStreamOptions::new(server, stream, "reader")?;
        let mut source = RabbitMqStreamSource::new(options, Mapping::new("any")?)?;
        let mut all = Vec::new();
        for _ in 0..count {
            let delivery = timeout(PATIENCE, source.next()).await??;
            all.push(delivery.ok_or("the source has ended")?);
        }
        let payloads = all.iter().map(|one| one.envelope().payload.to_vec());
        Ok(payloads.collect())
    }

    pub(crate) fn cut(&self) -> Outcome {
        self.proxy.as_ref().ok_or("there is no proxy")?.cut();
        // Publishers' connections.
        self.rabbit.cut()
    }

    pub(crate) fn harm(
        &self,
        harm: impl Fn(&mut Server) -> Result<(), test_servers::Error>,
    ) -> Outcome {
        self.rabbit.harm(harm)
    }
}
