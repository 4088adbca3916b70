//! Measures what the stores and the runtime cost. Build it with `--release`.

mod backlog;
mod client;
mod layouts;
mod mysql;
mod peers;
mod postgres;
mod primitives;
mod redis;
mod report;
mod target;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{report::Report, target::Target};

/// Measure what the stores and the runtime cost.
#[derive(Debug, Parser)]
#[command(name = "benchmarks", version)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
    /// Print JSON lines instead of a table
    #[arg(long, global = true)]
    json: bool,
    /// Which stores
    #[arg(long = "store", global = true, value_enum, value_delimiter = ',', default_values_t = [Target::Memory, Target::Sqlite])]
    stores: Vec<Target>,
    /// Payload size in bytes
    #[arg(long, global = true, default_value_t = 1024)]
    payload: usize,
    /// Messages per call
    #[arg(long, global = true, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// Receive, claim and settle, each by itself, batch after batch
    Primitives {
        /// Messages per run
        #[arg(long, default_value_t = 50_000)]
        messages: u64,
        /// Runs, of which the median counts
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
    },
    /// Drain a large backlog with the processor and watch its memory
    Backlog {
        /// Pending messages
        #[arg(long, default_value_t = 1_000_000)]
        messages: u64,
    },
    /// Compare storage layouts for PostgreSQL with each other
    Layouts(layouts::Options),
    /// Compare the MySQL and MariaDB store with bare statements, and wear it down
    Mysql(mysql::Options),
    /// Compare the inbox with other queues and inboxes on the same server
    Peers(peers::Options),
    /// Compare the PostgreSQL store with bare statements, and wear it down
    Postgres(postgres::Options),
    /// Compare the Redis store with bare calls of its scripts, and give it a long history
    Redis(redis::Options),
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    let mut report = Report::new(cli.json);
    if let Scenario::Peers(options) = &cli.scenario {
        return peers::measure(options, cli.batch, cli.payload, cli.json).await;
    }
    if let Scenario::Layouts(options) = &cli.scenario {
        layouts::measure(&mut report, options, cli.batch, cli.payload).await?;
        return report.print();
    }
    if let Scenario::Mysql(options) = &cli.scenario {
        mysql::measure(&mut report, options, cli.batch, cli.payload).await?;
        return report.print();
    }
    if let Scenario::Postgres(options) = &cli.scenario {
        postgres::measure(&mut report, options, cli.batch, cli.payload).await?;
        return report.print();
    }
    if let Scenario::Redis(options) = &cli.scenario {
        redis::measure(&mut report, options, cli.batch, cli.payload).await?;
        return report.print();
    }
    for target in &cli.stores {
        match cli.scenario {
            Scenario::Primitives { messages, runs } => {
                primitives::measure(&mut report, *target, &cli, messages, runs).await?;
            }
            Scenario::Backlog { messages } => {
                backlog::measure(&mut report, *target, &cli, messages).await?;
            }
            // They have stores of their own, and were measured above.
            Scenario::Layouts(_)
            | Scenario::Mysql(_)
            | Scenario::Peers(_)
            | Scenario::Postgres(_)
            | Scenario::Redis(_) => {}
        }
    }
    report.print()
}
