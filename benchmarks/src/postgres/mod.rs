//! The PostgreSQL store beside hand-written statements through the same driver, and under the
//! conditions that wear an inbox down: a long history, a large backlog, many workers.

mod beside_sql;
mod client;
mod depth;
mod processors;
mod snapshot;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::{
    layouts::{Shape, load, server::Server},
    report::{self, Report},
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Messages per run
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Runs, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// What to measure
    #[arg(long = "part", value_enum, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    parts: Vec<Part>,
    /// Processed messages kept, beside none, of 16 bytes each
    #[arg(long, default_value_t = 1_000_000)]
    retained: u64,
    /// Messages waiting before those that are measured, beside none, of 16 bytes each
    #[arg(long, default_value_t = 1_000_000)]
    pending: u64,
    /// An idle PostgreSQL server (15 or newer) to measure on as a superuser, in databases that are
    /// made and dropped; default: one started for this
    #[arg(long)]
    url: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Receive, duplicates, and claim and settle, by two connections, beside bare statements
    BesideSql,
    /// Claim and settle beside a history of processed messages
    Retained,
    /// Claim and settle at the head of a backlog
    Pending,
    /// Claims while a transaction that was open all along keeps what was processed from being
    /// cleared away
    Snapshot,
    /// Throughput of one to eight processors on one inbox
    Processors,
}

pub(crate) async fn measure(
    report: &mut Report,
    options: &Options,
    batch: u32,
    payload: usize,
) -> Result<()> {
    let shape = Shape { batch, payload };
    let mut server = Server::start(options.url.as_deref()).await?;
    let about = server.about().await?;
    report.note("server", about.clone());
    for part in &options.parts {
        let before = load()?;
        let name = report::name(part);
        report.set(shape.setting(format!("postgres {name}"), &about, options.messages));
        match part {
            Part::BesideSql => {
                beside_sql::measure(report, &mut server, options, shape).await?;
            }
            Part::Retained => {
                depth::measure(report, &mut server, options, shape, depth::RETAINED).await?;
            }
            Part::Pending => {
                depth::measure(report, &mut server, options, shape, depth::PENDING).await?;
            }
            Part::Snapshot => {
                snapshot::measure(report, &mut server, options, shape).await?;
            }
            Part::Processors => {
                processors::measure(report, &mut server, options, shape).await?;
            }
        }
        report.note(
            "load",
            format!("{name}: {before} before, {} after", load()?),
        );
    }
    Ok(())
}
