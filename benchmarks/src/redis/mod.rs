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
    ClaimRequest, HandlerName, LeaseTerms, Message, Outcome, Receipt, Settled, Settlement,
    Store as _, WorkerName, redis::RedisStore,
};

use self::{raw::Raw, server::Server};
use crate::{client::Maker, layouts::Shape, report::Report};

const STORE: &str = "inbox-redis";
/// Tasks that use the store at the same time.
const TASKS: u64 = 4;

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
    /// `appendfsync` of the server that is started; `off` for no append-only file
    #[arg(long, default_value = "everysec")]
    appendfsync: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Receive, and claim and settle, beside pipelined bare calls of the same scripts
    BesideRaw,
    /// Claim and settle beside a history of processed messages, and the memory that it takes
    Retained,
}

pub(crate) async fn measure(
    report: &mut Report,
    options: &Options,
    batch: u32,
    payload: usize,
) -> Result<()> {
    let arguments: &'static [&'static str] = match options.appendfsync.as_str() {
        "always" => &["--appendfsync", "always"],
        "off" => &["--appendonly", "no", "--save", ""],
        _ => &["--appendfsync", "everysec"],
    };
    let server = Server::start(None, arguments).await?;
    report.note("server", server.about().await?);
    let bench = Bench {
        server,
        shape: Shape { batch, payload },
    };
    for part in &options.parts {
        match part {
            Part::BesideRaw => bench.beside_raw(report, options).await?,
            Part::Retained => bench.retained(report, options).await?,
        }
    }
    Ok(())
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

    async fn fresh(&self, drop_payloads: bool) -> Result<Arc<RedisStore>> {
        Ok(Arc::new(self.server.fresh(0, drop_payloads).await?))
    }

    async fn beside_raw(&self, report: &mut Report, options: &Options) -> Result<()> {
        let messages = options.messages;
        let mut times: [Vec<Duration>; 4] = Default::default();
        for run in 0..options.runs {
            // Neither is always first.
            for place in 0..2 {
                let store = self.fresh(false).await?;
                if (run + place) % 2 == 0 {
                    let sent = batches(self.shape, messages)?;
                    let start = Instant::now();
                    receive(&store, sent).await?;
                    times[0].push(start.elapsed());
                    let start = Instant::now();
                    ensure!(work(&store, self.shape).await? == messages);
                    times[1].push(start.elapsed());
                } else {
                    // So that the server knows the scripts.
                    receive(&store, batches(self.shape, u64::from(self.shape.batch))?).await?;
                    work(&store, self.shape).await?;
                    let mut raw = Raw::new(&self.server.url(0), &store, self.shape).await?;
                    let calls = raw.receives(messages);
                    let start = Instant::now();
                    raw.receive(&calls).await?;
                    times[2].push(start.elapsed());
                    let start = Instant::now();
                    ensure!(raw.work().await? == messages);
                    times[3].push(start.elapsed());
                }
                store.close().await;
            }
        }
        let cycle = |first: &[Duration], second: &[Duration]| -> Vec<Duration> {
            first.iter().zip(second).map(|(a, b)| *a + *b).collect()
        };
        report.rates("scripts", "receive (bare calls)", messages, &times[2]);
        report.rates(
            "scripts",
            "claim and settle (bare calls)",
            messages,
            &times[3],
        );
        report.rates(STORE, "receive", messages, &times[0]);
        report.rates(STORE, "claim and settle", messages, &times[1]);
        report.rates(
            STORE,
            "the whole cycle",
            messages,
            &cycle(&times[0], &times[1]),
        );
        for (name, of, by) in [("receive", 2, 0), ("claim and settle", 3, 1)] {
            let ratios = times[of]
                .iter()
                .zip(&times[by])
                .map(|(raw, store)| raw.as_secs_f64() / store.as_secs_f64())
                .collect();
            report.figures(STORE, format!("{name}, of bare calls"), ratios, "ratio");
        }
        Ok(())
    }

    async fn retained(&self, report: &mut Report, options: &Options) -> Result<()> {
        let store = self.fresh(true).await?;
        let messages = options.messages;
        let mut rates: [Vec<Duration>; 2] = Default::default();
        let before = self.memory().await?;
        for (step, times) in rates.iter_mut().enumerate() {
            if step == 1 {
                let mut left = options.retained;
                while left > 0 {
                    let part = left.min(100_000);
                    receive(
                        &store,
                        batches(
                            Shape {
                                payload: 16,
                                ..self.shape
                            },
                            part,
                        )?,
                    )
                    .await?;
                    work(&store, self.shape).await?;
                    left -= part;
                }
            }
            for _ in 0..options.runs {
                receive(&store, batches(self.shape, messages)?).await?;
                let start = Instant::now();
                ensure!(work(&store, self.shape).await? == messages);
                times.push(start.elapsed());
            }
        }
        let kept = options.retained + 2 * u64::from(options.runs) * messages;
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let each = (self.memory().await? - before) as f64 / kept as f64;
        report.rates(
            STORE,
            "claim and settle, none retained",
            messages,
            &rates[0],
        );
        let name = format!("claim and settle, {} retained", options.retained);
        report.rates(STORE, name, messages, &rates[1]);
        report.figures(STORE, "memory per retained message", vec![each], "bytes");
        let expired = inbox::Expired::new(inbox::State::Processed, Duration::ZERO, u32::MAX)?;
        let start = Instant::now();
        ensure!(inbox::Operate::purge(&*store, &expired).await? == kept);
        report.rates(STORE, "purge", kept, &[start.elapsed()]);
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let left = self.memory().await?.saturating_sub(before) as f64 / kept as f64;
        report.figures(STORE, "memory per purged message", vec![left], "bytes");
        store.close().await;
        Ok(())
    }
}

fn batches(shape: Shape, number: u64) -> Result<Vec<Vec<Message>>> {
    let batch = u64::from(shape.batch);
    Maker::new(shape.payload)?.batches(number / batch * batch, shape.batch)
}

async fn receive(store: &Arc<RedisStore>, mut batches: Vec<Vec<Message>>) -> Result<()> {
    let share = batches.len().div_ceil(usize::try_from(TASKS)?).max(1);
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
