//! A day's traffic through a whole service: what a tenth of it takes, from the first to the last. Copies come, some
//! handlers fail, some messages have ordering keys, and a janitor deletes what has been final for a while.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use inbox::{
    Bytes, CancellationToken, Context, Failure, Inbox, Janitor, Kind, Message, MessageId,
    OrderingKey, Processor, Router, Service,
    receiver::{ChannelSource, Receiver, Submission},
};
use tokio::{runtime::Handle, sync::mpsc};

use super::Bench;
use crate::{
    machine::{open_files, resident},
    report::{At, Latencies, latencies, quantile, record},
    target::{Slot, handler},
};

const TENTHS: u32 = 10;
/// One in so many messages comes twice...
const COPIED: u64 = 10;
/// ...the second time behind so many others.
const BEHIND: u64 = 1_000;
/// One in so many fails at first.
const FAILS: u64 = 100;
/// One in so many cannot be handled.
const DIES: u64 = 1_000;
/// One in so many has one of so many ordering keys. None of them fails.
const ORDERED: u64 = 8;
const ORDERING_KEYS: u64 = 64;
/// How long final messages stay, and how often they are looked for.
const KEPT: Duration = Duration::from_secs(30);
const SWEEPS: Duration = Duration::from_secs(5);
/// How long the last messages may take.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let store = bench.site.target.name();
    for rate in bench.options.rate.clone() {
        eprintln!("soak: {rate} messages a second");
        for (tenth, sample) in (1..).zip(run(bench, rate).await?) {
            for (step, figure, unit) in sample.figures() {
                let at = At {
                    axis: "tenth".to_owned(),
                    value: tenth,
                };
                bench
                    .report
                    .all(store, step, Some(at), vec![figure], unit, None);
            }
        }
    }
    Ok(())
}

/// What the service takes at the end of a tenth, and what it took to handle a message in it.
struct Sample {
    median: f64,
    tail: f64,
    memory: u64,
    files: u64,
    tasks: u64,
    stored: Option<u64>,
}

impl Sample {
    #[expect(clippy::cast_precision_loss, reason = "megabytes")]
    fn figures(&self) -> Vec<(&'static str, f64, &'static str)> {
        let mut figures = vec![
            ("due to handler's end, median", self.median, "ms"),
            ("due to handler's end, 99th percentile", self.tail, "ms"),
            ("memory", self.memory as f64 / 1e6, "MB"),
            ("open files", self.files as f64, "files"),
            ("tasks", self.tasks as f64, "tasks"),
        ];
        if let Some(stored) = self.stored {
            figures.push(("stored", stored as f64 / 1e6, "MB"));
        }
        figures
    }
}

/// What the handlers have seen.
struct Seen {
    /// Of this tenth; what fails at first is not among them.
    latencies: Latencies,
    /// Whether each message has yet to be handled. All true at first, so that all of this is in memory from then on.
    awaited: Vec<bool>,
    left: u64,
    twice: u64,
}

impl Seen {
    fn is_handled(&mut self, number: u64, late: Option<Duration>) {
        if let Some(late) = late {
            record(&mut self.latencies, late);
        }
        let place = usize::try_from(number).ok();
        match place.and_then(|place| self.awaited.get_mut(place)) {
            Some(awaited) if *awaited => {
                *awaited = false;
                self.left -= 1;
            }
            _ => self.twice += 1,
        }
    }
}

/// The traffic: which messages there are, and when each is due.
#[derive(Clone, Copy)]
struct Traffic {
    start: Instant,
    rate: u64,
    number: u64,
    payload: usize,
}

impl Traffic {
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    fn due(self, number: u64) -> Instant {
        self.start + Duration::from_secs_f64(number as f64 / self.rate as f64)
    }

    /// The message of that number, always the same. Its id looks like any other's.
    fn message(self, number: u64) -> Result<Message> {
        let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut payload = vec![0; self.payload.max(8)];
        payload[..8].copy_from_slice(&number.to_be_bytes());
        let message = Message::new(
            handler()?,
            MessageId::new(format!("{id:016x}-{number}"))?,
            Kind::new("bench.event")?,
            Bytes::from(payload),
        );
        if number % ORDERED != 1 {
            return Ok(message);
        }
        let key = number / ORDERED % ORDERING_KEYS;
        Ok(message.with_ordering_key(OrderingKey::new(format!("key-{key}"))?))
    }

    /// Sends all, and copies, each when it is due.
    async fn send(self, sender: mpsc::Sender<Submission>) -> Result<u64> {
        let mut copies = 0;
        for number in 0..self.number {
            if self.due(number) > Instant::now() {
                tokio::time::sleep_until(self.due(number).into()).await;
            }
            sender
                .send(Submission::new(self.message(number)?).0)
                .await?;
            let copied = number.checked_sub(BEHIND);
            if let Some(copied) = copied.filter(|copied| copied.is_multiple_of(COPIED)) {
                copies += 1;
                sender
                    .send(Submission::new(self.message(copied)?).0)
                    .await?;
            }
        }
        Ok(copies)
    }
}

async fn run(bench: &mut Bench<'_>, rate: u64) -> Result<Vec<Sample>> {
    let inbox = bench.fresh(Slot::First).await?.inbox();
    let number = bench.options.messages;
    let seen = Arc::new(Mutex::new(Seen {
        latencies: latencies()?,
        awaited: vec![true; usize::try_from(number)?],
        left: number,
        twice: 0,
    }));
    let traffic = Traffic {
        start: Instant::now() + Duration::from_secs(1),
        rate,
        number,
        payload: bench.shape.payload,
    };
    let (sender, channel) = mpsc::channel(bench.shape.batch as usize);
    let service = service(&inbox, bench.shape.batch, traffic, &seen, channel)?;
    let stop = CancellationToken::new();
    let running = tokio::spawn(service.run(stop.clone()));
    let sending = tokio::spawn(traffic.send(sender));

    let mut samples = Vec::new();
    let tenth = traffic.due(number).duration_since(traffic.start) / TENTHS;
    for end in (1..=TENTHS).map(|passed| traffic.start + passed * tenth) {
        tokio::time::sleep_until(end.into()).await;
        let passed = std::mem::replace(&mut lock(&seen).latencies, latencies()?);
        samples.push(Sample {
            median: quantile(&passed, 0.5),
            tail: quantile(&passed, 0.99),
            memory: resident()?,
            files: open_files()?,
            tasks: Handle::current().metrics().num_alive_tasks() as u64,
            stored: bench.site.stored(Slot::First).await?,
        });
        eprintln!("soak: tenth {} of {TENTHS}", samples.len());
    }
    let copies = sending.await??;
    let late = Instant::now() + PATIENCE;
    while lock(&seen).left > 0 && Instant::now() < late {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.cancel();
    let summary = running.await??;
    eprintln!("soak: {summary}");
    let Seen { left, twice, .. } = *lock(&seen);
    ensure!(left == 0, "{left} of {number} messages were not handled");
    ensure!(twice == 0, "{twice} messages were handled twice");
    let refused = summary.receivers.duplicates;
    ensure!(refused == copies, "{refused} of {copies} copies refused");
    Ok(samples)
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn service(
    inbox: &Arc<dyn Inbox>,
    batch: u32,
    traffic: Traffic,
    seen: &Arc<Mutex<Seen>>,
    channel: mpsc::Receiver<Submission>,
) -> Result<Service> {
    let seen = seen.clone();
    let router = Router::new(handler()?).fallback_handler(move |context: Context| {
        let handled = handle(traffic, &seen, &context);
        async { handled }
    });
    let processor = Processor::builder(inbox.clone())
        .router(router)
        .concurrency(2 * batch as usize)
        .batch(batch)
        .build()?;
    let janitor = Janitor::builder(inbox.clone())
        .keep_processed(KEPT)
        .keep_dead(KEPT)
        .interval(SWEEPS)
        .build()?;
    let receiver = Receiver::builder(inbox.clone()).build();
    let service = Service::builder(inbox.clone())
        .receiver("receiver", receiver, ChannelSource::new(channel))
        .processor("processor", processor)
        .janitor("janitor", janitor);
    Ok(service.build()?)
}

fn handle(traffic: Traffic, seen: &Mutex<Seen>, context: &Context) -> Result<(), Failure> {
    let first = context.message().payload().first_chunk();
    let number = first.copied().map(u64::from_be_bytes);
    let number = number.context("no number").map_err(Failure::dead)?;
    if number % DIES == DIES / 2 {
        lock(seen).is_handled(number, None);
        return Err(Failure::dead("as planned"));
    }
    let fails = number.is_multiple_of(FAILS);
    if fails && context.leased().attempts.finished == 0 {
        return Err(Failure::retry("as planned"));
    }
    let late = traffic.due(number).elapsed();
    lock(seen).is_handled(number, (!fails).then_some(late));
    Ok(())
}
