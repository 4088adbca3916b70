//! Scenarios that run on any store.

mod bare;
#[cfg(feature = "brokers")]
mod brokers;
mod confirmed;
mod cost;
mod dashboard;
mod depth;
mod drain;
mod http;
mod inline;
mod keys;
mod pair;
mod purge;
mod receive;
mod snapshot;
mod soak;
mod steady;
mod sweeps;
mod transactional;
mod transactional_batches;
mod wakeup;
pub(crate) mod work;
mod workers;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::{
    report::{self, At, Latencies, Report, Setting, latencies, rate},
    shape::{Shape, load},
    stores::AnyStore,
    target::{Site, Slot, Target},
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What to measure
    #[arg(required = true, value_enum)]
    scenarios: Vec<Scenario>,
    /// On which stores; their servers are started for this
    #[arg(long = "store", value_enum, value_delimiter = ',', default_values_t = [Target::Memory, Target::Sqlite])]
    stores: Vec<Target>,
    /// An idle server to measure on instead, with a single --store, in databases that are made
    /// and dropped
    #[arg(long)]
    url: Option<String>,
    /// Messages per run; scenarios that are slow by nature take a part of them
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Runs, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Tasks that share the store, in bare, confirmed, receive, work, batch-size and payload
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    tasks: u32,
    /// Messages a second of steady traffic
    #[arg(long, value_delimiter = ',', default_values = ["500", "2000"], value_parser = clap::value_parser!(u64).range(1..))]
    rate: Vec<u64>,
    /// Seconds of steady traffic per run, of inline use, of requests, and of traffic before a purge
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Messages retained, pending or purged, compared with none, of 16 bytes each
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    depth: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Receive fresh messages, half duplicates, and nothing but duplicates
    Receive,
    /// Claim, and settle, each by itself
    Work,
    /// Drain a backlog with a processor, and watch its memory
    Drain,
    /// Receive at a given rate and process at the same time: latency from receive to the
    /// handler's end
    Steady,
    /// Receive, and claim and settle, compared with hand-written statements or bare calls
    Bare,
    /// Begin and finish one message at a time, compared with a bare insert and update in SQL
    Inline,
    /// Requests to an idempotent endpoint and webhooks over 1, 8 and 64 connections, compared with the same service
    /// without the layer and with hand-written SQL, on SQLite and PostgreSQL
    Http,
    /// Handlers that write in the transaction that completes their message
    Transactional,
    /// Batch handlers that write in the transaction that completes their messages, on PostgreSQL
    TransactionalBatches,
    /// Drain messages without ordering keys, with many, with a few and with one
    OrderingKeys,
    /// Receive, and claim and settle, in batches of 1 to 1,000
    BatchSize,
    /// Receive, and claim and settle, payloads of 100 B to 100 kB
    Payload,
    /// Drain with 1 to 16 processors, each with its own connections
    Workers,
    /// Latency from receive to the start of the handler in an idle system
    WakeUp,
    /// The same for a router whose neighbour in the processor is slow and has a backlog
    Neighbours,
    /// Drain a backlog while an overview of the dashboard is renewed every two seconds, and without
    Dashboard,
    /// What the processor costs beyond the store's claims and settlements
    ProcessorCost,
    /// Claim and settle with a history of processed messages
    Retained,
    /// Claim and settle at the head of a backlog
    Pending,
    /// Latency of claims in live traffic, without and with a purge of a history
    Purge,
    /// A day's messages at an even rate through a whole service: latency, memory, open files and what is stored, for each
    /// tenth of them
    Soak,
    /// Claims while an open transaction keeps what was processed from being cleared away, in SQL
    Snapshot,
    /// Receive confirmed by a replica, compared with the same without, on Redis
    Confirmed,
    /// Receive from each broker, compared with consumers that are written by hand, on SQLite and PostgreSQL
    #[cfg(feature = "brokers")]
    Brokers,
}

pub(crate) async fn measure(
    report: &mut Report,
    options: &Options,
    batch: u32,
    payload: usize,
) -> Result<()> {
    let single = options.stores.len() == 1;
    ensure!(single || options.url.is_none(), "--url needs one --store");
    for target in &options.stores {
        let mut bench = Bench {
            site: target.start(options.url.as_deref()).await?,
            report,
            options,
            shape: Shape { batch, payload },
        };
        let server = bench.site.about().await?;
        bench.report.note("server", format!("{target:?}: {server}"));
        for scenario in &options.scenarios {
            bench.run(*scenario, &server).await?;
        }
        bench.site.clear_all().await?;
    }
    Ok(())
}

/// What a scenario works with.
struct Bench<'a> {
    site: Site,
    report: &'a mut Report,
    options: &'a Options,
    shape: Shape,
}

impl Bench<'_> {
    async fn run(&mut self, scenario: Scenario, server: &str) -> Result<()> {
        let name = report::name(&scenario);
        eprintln!("{} on {}", name, self.site.target.name());
        self.report.set(Setting::new(
            name.clone(),
            server,
            [
                ("messages", self.options.messages),
                ("batch", u64::from(self.shape.batch)),
                ("payload", self.shape.payload as u64),
                ("tasks", u64::from(self.options.tasks)),
                ("seconds", self.options.seconds),
                ("depth", self.options.depth),
            ],
        ));
        let before = load()?;
        match scenario {
            Scenario::Receive => receive::measure(self).await?,
            Scenario::Work => work::measure(self).await?,
            Scenario::Drain => drain::measure(self).await?,
            Scenario::Steady => steady::measure(self).await?,
            Scenario::Bare => bare::measure(self).await?,
            Scenario::Inline => inline::measure(self).await?,
            Scenario::Http => http::measure(self).await?,
            Scenario::Transactional => transactional::measure(self).await?,
            Scenario::TransactionalBatches => transactional_batches::measure(self).await?,
            Scenario::OrderingKeys => keys::measure(self).await?,
            Scenario::BatchSize => sweeps::batch_sizes(self).await?,
            Scenario::Payload => sweeps::payloads(self).await?,
            Scenario::Workers => workers::measure(self).await?,
            Scenario::WakeUp => wakeup::measure(self, wakeup::Neighbour::None).await?,
            Scenario::Neighbours => wakeup::measure(self, wakeup::Neighbour::Slow).await?,
            Scenario::Dashboard => dashboard::measure(self).await?,
            Scenario::ProcessorCost => cost::measure(self).await?,
            Scenario::Retained => depth::measure(self, depth::Kind::Retained).await?,
            Scenario::Pending => depth::measure(self, depth::Kind::Pending).await?,
            Scenario::Purge => purge::measure(self).await?,
            Scenario::Soak => soak::measure(self).await?,
            Scenario::Snapshot => snapshot::measure(self).await?,
            Scenario::Confirmed => confirmed::measure(self).await?,
            #[cfg(feature = "brokers")]
            Scenario::Brokers => brokers::measure(self).await?,
        }
        let load = format!(
            "{name} on {}: {before} before, {} after",
            self.site.target.name(),
            load()?
        );
        self.report.note("load", load);
        Ok(())
    }

    /// An empty inbox, in the place of the one that was there, that has been used a little.
    async fn fresh(&mut self, slot: Slot) -> Result<AnyStore> {
        let store = self.site.fresh(slot).await?;
        work::warm_up(&store.inbox()).await?;
        self.site.rest().await?;
        Ok(store)
    }

    /// Reports rates, with the latencies of the calls behind them.
    fn rates(&mut self, step: impl Into<String>, at: Option<At>, runs: &Runs) {
        let calls = runs.calls.as_ref();
        let rates = runs.rates.clone();
        self.report
            .all(self.site.target.name(), step, at, rates, "msg/s", calls);
    }

    /// Reports figures that are no rates.
    fn figures(&mut self, step: impl Into<String>, figures: Vec<f64>, unit: &'static str) {
        self.report
            .figures(self.site.target.name(), step, figures, unit);
    }
}

/// The rates of several runs of one step.
#[derive(Default)]
struct Runs {
    rates: Vec<f64>,
    /// Of all of them.
    calls: Option<Latencies>,
}

impl Runs {
    fn add(&mut self, messages: u64, time: Duration) {
        self.rates.push(rate(messages, time));
    }

    fn add_with_calls(&mut self, messages: u64, time: Duration, calls: &Latencies) -> Result<()> {
        self.add(messages, time);
        match &mut self.calls {
            Some(all) => all.add(calls)?,
            none => {
                let mut all = latencies()?;
                all.add(calls)?;
                *none = Some(all);
            }
        }
        Ok(())
    }
}

/// The figures of one by those of another, run by run.
fn ratios(figures: &[f64], of: &[f64]) -> Vec<f64> {
    figures.iter().zip(of).map(|(one, of)| one / of).collect()
}
