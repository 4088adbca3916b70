//! From brokers into an inbox, compared with consumers that are written by hand: one that acknowledges and
//! stores nothing, and those that insert with `ON CONFLICT DO NOTHING` before they acknowledge, one by one and
//! in batches.

mod kafka;
mod nats;
mod rabbitmq;
mod redis_streams;
mod sqs;
mod table;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use inbox::{
    CancellationToken,
    receiver::{Envelope, Flow, Mapping, Publisher, Receiver, Source, SourceError},
};

use self::table::Table;
use super::{Bench, Runs, ratios};
use crate::{maker::Maker, target::Slot};

/// How many times fewer messages are stored one by one.
const SINGLE: u64 = 10;
/// How long a broker has for what the sending leaves it to do, such as rewriting its log.
const REST: Duration = Duration::from_secs(2);
/// Messages that are sent at a time.
const SENT_AT_ONCE: usize = 500;

/// A broker of this run's own.
trait Broker: Sized {
    const NAME: &'static str;
    /// How many times fewer messages it gets, where the server is slow.
    const FEWER: u64 = 1;
    type Publisher: Publisher;
    type Source: Source;
    type Hand: Hand;

    async fn start() -> Result<Self>;
    /// Makes an empty queue, topic or stream.
    async fn create(&self, channel: &str) -> Result<()>;
    fn publisher(&self) -> Result<Self::Publisher>;
    fn source(&self, channel: &str, mapping: Mapping) -> Result<Self::Source>;
    /// A consumer by the broker's client alone, in a group of its own.
    async fn hand(&self, channel: &str) -> Result<Self::Hand>;
}

/// A consumer by hand.
trait Hand {
    /// Waits for a message, and takes those that are there already, up to `most`.
    async fn take(&mut self, most: usize) -> Result<Vec<Taken>>;
    /// Acknowledges all that was taken.
    async fn acknowledge(&mut self) -> Result<()>;
}

/// A message's id and payload.
type Taken = (String, Vec<u8>);

/// What receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consumer {
    ClientAlone,
    OneByOne,
    InBatches,
    Inbox,
}

impl Consumer {
    const ALL: [Self; 4] = [
        Self::ClientAlone,
        Self::OneByOne,
        Self::InBatches,
        Self::Inbox,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ClientAlone => "acknowledged, not stored",
            Self::OneByOne => "by hand, one by one",
            Self::InBatches => "by hand, in batches",
            Self::Inbox => "inbox",
        }
    }
}

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    if !Table::fits(&bench.site) {
        let text = format!("not measured on {}", bench.site.target.name());
        bench.report.note("brokers", text);
        return Ok(());
    }
    of::<redis_streams::RedisStreams>(bench).await?;
    of::<nats::Nats>(bench).await?;
    of::<kafka::Kafka>(bench).await?;
    of::<rabbitmq::RabbitMq>(bench).await?;
    of::<sqs::Sqs>(bench).await
}

async fn of<B: Broker>(bench: &mut Bench<'_>) -> Result<()> {
    let broker = B::start().await?;
    let mut all = Consumer::ALL.map(|_| Runs::default());
    for run in 0..bench.options.runs as usize {
        // Each run begins with another one, so that none is always first.
        for place in 0..all.len() {
            let number = (place + run) % all.len();
            let consumer = Consumer::ALL[number];
            let messages = bench.options.messages.div_ceil(B::FEWER);
            let messages = match consumer {
                Consumer::OneByOne => messages.div_ceil(SINGLE),
                _ => messages,
            };
            let channel = format!("bench-{run}-{number}");
            let time = one(bench, &broker, consumer, &channel, messages).await?;
            all[number].add(messages, time);
        }
    }
    for (consumer, runs) in Consumer::ALL.iter().zip(&all) {
        bench.rates(format!("{}, {}", B::NAME, consumer.name()), None, runs);
    }
    let inbox = &all[Consumer::Inbox as usize].rates;
    for by_hand in [Consumer::OneByOne, Consumer::InBatches] {
        let step = format!("{}, inbox, of {}", B::NAME, by_hand.name());
        bench.figures(step, ratios(inbox, &all[by_hand as usize].rates), "ratio");
    }
    Ok(())
}

async fn one<B: Broker>(
    bench: &mut Bench<'_>,
    broker: &B,
    consumer: Consumer,
    channel: &str,
    messages: u64,
) -> Result<Duration> {
    broker.create(channel).await?;
    send(broker, channel, messages, bench.shape.payload).await?;
    tokio::time::sleep(REST).await;
    let batch = bench.shape.batch;
    match consumer {
        Consumer::Inbox => {
            let inbox = bench.fresh(Slot::First).await?.inbox();
            let mut source = First {
                source: broker.source(channel, Mapping::new("bench")?)?,
                left: messages,
                began: None,
            };
            let receiver = Receiver::builder(inbox.clone())
                .batch_size(batch as usize)
                .max_unacknowledged(batch as usize * 4)
                .build();
            let summary = receiver.run(&mut source, CancellationToken::new()).await?;
            let time = source.began.map(|began| began.elapsed());
            ensure!(summary.accepted == messages, "{summary:?}");
            ensure!(summary.failed_acknowledgements == 0, "{summary:?}");
            let _ = source.source.close().await;
            inbox.close().await;
            Ok(time.unwrap_or_default())
        }
        _ => {
            bench.site.empty(Slot::Second).await?;
            let table = Table::create(&bench.site, Slot::Second).await?;
            bench.site.rest().await?;
            let hand = broker.hand(channel).await?;
            let time = by_hand(hand, table, consumer, messages, batch as usize).await?;
            Ok(time)
        }
    }
}

/// Until so many are acknowledged, from when the first was there: joining a group is not counted.
async fn by_hand(
    mut hand: impl Hand,
    mut table: Table,
    consumer: Consumer,
    messages: u64,
    batch: usize,
) -> Result<Duration> {
    let most = match consumer {
        Consumer::OneByOne => 1,
        _ => batch,
    };
    let mut began = None;
    let mut left = messages;
    while left > 0 {
        let most = most.min(usize::try_from(left).unwrap_or(most));
        let taken = hand.take(most).await?;
        began.get_or_insert_with(Instant::now);
        left -= taken.len() as u64;
        match consumer {
            Consumer::ClientAlone => {}
            _ => table.insert(&taken).await?,
        }
        hand.acknowledge().await?;
    }
    let time = began.map(|began| began.elapsed()).unwrap_or_default();
    if consumer != Consumer::ClientAlone {
        ensure!(table.count().await? == messages, "some were not stored");
    }
    Ok(time)
}

async fn send<B: Broker>(broker: &B, channel: &str, messages: u64, payload: usize) -> Result<()> {
    let publisher = broker.publisher()?;
    let messages = Maker::new(payload)?.messages(messages)?;
    for some in messages.chunks(SENT_AT_ONCE) {
        let envelopes: Vec<_> = some
            .iter()
            .map(|message| {
                let mut envelope = Envelope::new(channel, message.payload().clone());
                envelope.id = Some(message.id().as_str().into());
                envelope
            })
            .collect();
        for answer in publisher.publish(&envelopes).await {
            answer?;
        }
    }
    Ok(())
}

/// The first of a source's deliveries, and when they began to come.
struct First<S> {
    source: S,
    left: u64,
    began: Option<Instant>,
}

impl<S: Source> Source for First<S> {
    type Delivery = S::Delivery;

    async fn next(&mut self) -> Result<Option<Self::Delivery>, SourceError> {
        if self.left == 0 {
            return Ok(None);
        }
        let delivery = self.source.next().await?;
        self.began.get_or_insert_with(Instant::now);
        self.left -= 1;
        Ok(delivery)
    }

    fn set_flow(&mut self, flow: Flow) {
        self.source.set_flow(flow);
    }
}

/// A server of the kind, or why there is none.
async fn server(kind: test_servers::Kind) -> Result<test_servers::Server> {
    Ok(tokio::task::spawn_blocking(move || test_servers::find_own(kind, &[])).await??)
}
