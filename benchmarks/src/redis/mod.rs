//! The Redis store beside bare calls of its own scripts, its memory, and a long history.

mod raw;
pub(crate) mod server;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use inbox::{
    ClaimRequest, HandlerName, InboxName, LeaseTerms, Message, Outcome, Receipt, Schema as _,
    Settled, Settlement, Store as _, WorkerName,
    redis::{Confirmations, RedisOptions, RedisStore, StartChecks},
};

use self::{raw::Raw, server::Server};
use crate::{
    client::Maker,
    layouts::Shape,
    report::{self, Report, rates_of},
};

const STORE: &str = "inbox-redis";
/// Tasks that use the store at the same time.
const TASKS: u64 = 4;
/// Those of them that wait for a replica.
const CALLERS: u64 = 8;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Messages per run
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Runs, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// What to measure
    #[arg(long = "part", value_enum, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    parts: Vec<Part>,
    /// Processed messages kept, beside none, without their payloads
    #[arg(long, default_value_t = 1_000_000)]
    retained: u64,
    /// `appendfsync` of the server that is started
    #[arg(long, value_enum, default_value_t = Appendfsync::Everysec)]
    appendfsync: Appendfsync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Appendfsync {
    Always,
    Everysec,
    /// No append-only file
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Receive, and claim and settle, beside pipelined bare calls of the same scripts
    BesideRaw,
    /// Receive confirmed by a replica, beside the same without
    Confirmed,
    /// Claim and settle beside a history of processed messages, and the memory that it takes
    Retained,
}

pub(crate) async fn measure(
    report: &mut Report,
    options: &Options,
    batch: u32,
    payload: usize,
) -> Result<()> {
    let arguments: &'static [&'static str] = match options.appendfsync {
        Appendfsync::Always => &["--appendfsync", "always"],
        Appendfsync::Everysec => &["--appendfsync", "everysec"],
        Appendfsync::Off => &["--appendonly", "no", "--save", ""],
    };
    let server = Server::start(None, arguments).await?;
    let about = server.about().await?;
    report.note("server", about.clone());
    let bench = Bench {
        server,
        shape: Shape { batch, payload },
    };
    for part in &options.parts {
        let name = report::name(part);
        let messages = bench.shape.whole(options.messages, 1);
        report.set(
            bench
                .shape
                .setting(format!("redis {name}"), &about, messages),
        );
        match part {
            Part::BesideRaw => bench.beside_raw(report, options).await?,
            Part::Confirmed => bench.confirmed(report, options, arguments).await?,
            Part::Retained => bench.retained(report, options).await?,
        }
    }
    Ok(())
}

/// What each run of a step took.
#[derive(Default)]
struct Measured {
    times: Vec<Duration>,
    processor: Vec<Duration>,
}

impl Measured {
    async fn add<T>(&mut self, bench: &Bench, step: impl Future<Output = Result<T>>) -> Result<T> {
        let before = bench.processor_time().await?;
        let start = Instant::now();
        let answer = step.await?;
        self.times.push(start.elapsed());
        self.processor
            .push(bench.processor_time().await?.saturating_sub(before));
        Ok(answer)
    }

    fn tell(&self, report: &mut Report, store: &'static str, step: &str, messages: u64) {
        report.rates(store, step, messages, &self.times);
        let each = self.processor.iter().map(|time| micros(*time, messages));
        let step = format!("{step}, server's processor time");
        report.figures(store, step, each.collect(), "µs/msg");
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn micros(time: Duration, messages: u64) -> f64 {
    time.as_secs_f64() * 1e6 / messages as f64
}

struct Bench {
    server: Server,
    shape: Shape,
}

impl Bench {
    async fn memory(&self) -> Result<u64> {
        Ok(self
            .server
            .info("memory", "used_memory_dataset")
            .await?
            .parse()?)
    }

    /// The processor time that the server's main thread has used. Other than rates, it is about the
    /// same on a busy machine.
    async fn processor_time(&self) -> Result<Duration> {
        let mut all = Duration::ZERO;
        for name in ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"] {
            let seconds = self.server.info("cpu", name).await?;
            all += Duration::from_secs_f64(seconds.parse()?);
        }
        Ok(all)
    }

    /// An inbox on a server that has nothing else.
    async fn fresh(&self) -> Result<Arc<RedisStore>> {
        Ok(Arc::new(self.server.fresh(0, false).await?))
    }

    async fn made(&self, name: &str, drop_payloads: bool) -> Result<Arc<RedisStore>> {
        let options = RedisOptions::from_url(&self.server.url(0))?
            .inbox_name(InboxName::new(name)?)
            .drop_processed_payloads(drop_payloads)
            .start_checks(StartChecks::Warn);
        let store = RedisStore::connect(options).await?;
        store.create().await?;
        Ok(Arc::new(store))
    }

    async fn beside_raw(&self, report: &mut Report, options: &Options) -> Result<()> {
        let messages = self.shape.whole(options.messages, 1);
        // Receive, and claim and settle: the store's, then those of bare calls.
        let mut measured: [Measured; 4] = Default::default();
        for run in 0..options.runs {
            // Neither is always first.
            for place in 0..2 {
                let store = self.fresh().await?;
                if (run + place) % 2 == 0 {
                    let sent = batches(self.shape, messages)?;
                    measured[0].add(self, receive(&store, sent)).await?;
                    let worked = measured[1].add(self, work(&store, self.shape)).await?;
                    ensure!(worked == messages);
                } else {
                    // So that the server knows the scripts.
                    receive(&store, batches(self.shape, u64::from(self.shape.batch))?).await?;
                    work(&store, self.shape).await?;
                    let raw = Raw::new(&self.server.url(0), &store, self.shape).await?;
                    let calls = raw.receives(messages);
                    measured[2].add(self, raw.receive(calls)).await?;
                    ensure!(measured[3].add(self, raw.work()).await? == messages);
                }
                store.close().await;
            }
        }
        let [receive, work, raw_receive, raw_work] = measured;
        for (store, step, measured) in [
            ("scripts", "receive (bare calls)", &raw_receive),
            ("scripts", "claim and settle (bare calls)", &raw_work),
            (STORE, "receive", &receive),
            (STORE, "claim and settle", &work),
        ] {
            measured.tell(report, store, step, messages);
        }
        let cycles = receive.times.iter().zip(&work.times);
        let cycles: Vec<Duration> = cycles.map(|(a, b)| *a + *b).collect();
        report.rates(STORE, "the whole cycle", messages, &cycles);
        for (name, of, by) in [
            ("receive", &raw_receive, &receive),
            ("claim and settle", &raw_work, &work),
        ] {
            let ratios = rates_of(&by.times, &of.times);
            report.figures(STORE, format!("{name}, of bare calls"), ratios, "ratio");
        }
        Ok(())
    }

    /// With a replica that has nothing else to do.
    async fn confirmed(
        &self,
        report: &mut Report,
        options: &Options,
        arguments: &'static [&'static str],
    ) -> Result<()> {
        self.server.clear(0).await?;
        let replica = Server::start(None, arguments).await?;
        let port = self.server.port().to_string();
        let follow = ["REPLICAOF", "127.0.0.1", &port];
        replica.command::<()>(0, &follow).await?;
        while replica.info("replication", "master_link_status").await? != "up" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let messages = self.shape.whole(options.messages, CALLERS);
        let confirmations = Confirmations {
            replicas: 1,
            timeout: Duration::from_secs(10),
            ..Confirmations::default()
        };
        let mut measured: [Measured; 2] = Default::default();
        for run in 0..options.runs {
            // Neither is always first.
            for place in 0..2 {
                let is_confirmed = (run + place) % 2 == 0;
                self.server.fresh(0, false).await?.close().await;
                let mut settings =
                    RedisOptions::from_url(&self.server.url(0))?.start_checks(StartChecks::Warn);
                if is_confirmed {
                    settings = settings.confirmations(confirmations);
                }
                let store = Arc::new(RedisStore::connect(settings).await?);
                let sent = batches(self.shape, messages)?;
                let receiving = receive_by(CALLERS, &store, sent);
                measured[usize::from(is_confirmed)]
                    .add(self, receiving)
                    .await?;
                store.close().await;
            }
        }
        let [plain, sure] = &measured;
        plain.tell(report, STORE, "receive", messages);
        sure.tell(report, STORE, "receive, confirmed by a replica", messages);
        let ratios = rates_of(&sure.times, &plain.times);
        report.figures(STORE, "receive, confirmed, of unconfirmed", ratios, "ratio");
        Ok(())
    }

    async fn retained(&self, report: &mut Report, options: &Options) -> Result<()> {
        self.server.clear(0).await?;
        let messages = self.shape.whole(options.messages, 1);
        let retained = self.shape.whole(options.retained, 1);
        let long = self.made("long", true).await?;
        let before = self.memory().await?;
        let small = Shape {
            payload: 16,
            ..self.shape
        };
        let mut left = retained;
        while left > 0 {
            let part = left.min(100_000);
            receive(&long, batches(small, part)?).await?;
            work(&long, self.shape).await?;
            left -= part;
        }
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let each = |bytes: u64| bytes as f64 / retained as f64;
        let taken = each(self.memory().await? - before);
        report.figures(STORE, "memory per retained message", vec![taken], "bytes");

        // Beside nothing, and beside the history.
        let mut measured: [Measured; 2] = Default::default();
        for run in 0..options.runs {
            // Neither is always first.
            for place in 0..2 {
                let is_long = (run + place) % 2 == 0;
                let store = if is_long {
                    Arc::clone(&long)
                } else {
                    self.made(&format!("empty{run}"), true).await?
                };
                receive(&store, batches(self.shape, messages)?).await?;
                self.server.rest().await?;
                let worked = measured[usize::from(is_long)]
                    .add(self, work(&store, self.shape))
                    .await?;
                ensure!(worked == messages);
                if !is_long {
                    store.remove().await?;
                    store.close().await;
                }
            }
        }
        let names = ["empty".to_owned(), format!("{retained} retained")];
        for (name, measured) in names.iter().zip(&measured) {
            let step = format!("claim and settle, {name}");
            measured.tell(report, STORE, &step, messages);
        }
        let [empty, long_history] = &measured;
        let ratios = rates_of(&long_history.times, &empty.times);
        let step = format!("claim and settle, {retained} retained, of empty");
        report.figures(STORE, step, ratios, "ratio");

        let kept = retained + u64::from(options.runs) * messages;
        let expired = inbox::Expired::new(inbox::State::Processed, Duration::ZERO, u32::MAX)?;
        let start = Instant::now();
        ensure!(inbox::Operate::purge(&*long, &expired).await? == kept);
        report.rates(STORE, "purge", kept, &[start.elapsed()]);
        let left = each(self.memory().await?.saturating_sub(before));
        report.figures(STORE, "memory left after the purge", vec![left], "bytes");
        long.close().await;
        Ok(())
    }
}

fn batches(shape: Shape, number: u64) -> Result<Vec<Vec<Message>>> {
    let batch = u64::from(shape.batch);
    Maker::new(shape.payload)?.batches(number / batch * batch, shape.batch)
}

async fn receive(store: &Arc<RedisStore>, batches: Vec<Vec<Message>>) -> Result<()> {
    receive_by(TASKS, store, batches).await
}

async fn receive_by(
    tasks: u64,
    store: &Arc<RedisStore>,
    mut batches: Vec<Vec<Message>>,
) -> Result<()> {
    let share = batches.len().div_ceil(usize::try_from(tasks)?).max(1);
    let mut tasks = Vec::new();
    while !batches.is_empty() {
        let rest = batches.split_off(share.min(batches.len()));
        let (part, store) = (std::mem::replace(&mut batches, rest), Arc::clone(store));
        tasks.push(tokio::spawn(async move {
            for messages in part {
                let receipts = store.receive(&messages).await?;
                ensure!(receipts.iter().all(|receipt| *receipt == Receipt::Accepted));
            }
            Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Claims and settles all that there is; answers how many.
async fn work(store: &Arc<RedisStore>, shape: Shape) -> Result<u64> {
    let request = ClaimRequest {
        handlers: vec![HandlerName::new("bench")?],
        limit: shape.batch,
        terms: LeaseTerms::new(Duration::from_secs(3600), WorkerName::new("worker-1")?)?,
    };
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (store, request) = (Arc::clone(store), request.clone());
            tokio::spawn(async move {
                let mut done = 0;
                loop {
                    let claims = store.claim(&request).await?;
                    let settlements: Vec<Settlement> = claims
                        .leased
                        .into_iter()
                        .map(|leased| Settlement {
                            lease: leased.lease,
                            outcome: Outcome::Processed { result: None },
                        })
                        .collect();
                    if settlements.is_empty() {
                        return Ok::<u64, anyhow::Error>(done);
                    }
                    let settled = store.settle(&settlements).await?;
                    ensure!(settled.iter().all(|one| *one == Settled::Done));
                    done += settlements.len() as u64;
                }
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += task.await??;
    }
    Ok(done)
}
