//! Measures what the stores and the runtime cost. Build it with `--release`.

mod chart;
mod client;
mod layouts;
mod machine;
mod mongodb;
mod mysql;
mod peers;
mod postgres;
mod redis;
mod report;
mod scenarios;
mod sqlite;
mod stores;
mod target;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::report::Report;

/// Measure what the stores and the runtime cost.
#[derive(Debug, Parser)]
#[command(name = "benchmarks", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print JSON lines instead of a table
    #[arg(long, global = true)]
    json: bool,
    /// Payload size in bytes
    #[arg(long, global = true, default_value_t = 1024)]
    payload: usize,
    /// Messages per call
    #[arg(long, global = true, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run scenarios on any store
    Run(scenarios::Options),
    /// Draw charts of what `run --json` printed
    Chart(chart::Options),
    /// Compare storage layouts for PostgreSQL with each other
    Layouts(layouts::Options),
    /// Compare the MongoDB store with bare commands
    Mongodb(mongodb::Options),
    /// Compare the MySQL and MariaDB store with bare statements, and wear it down
    Mysql(mysql::Options),
    /// Compare the inbox with other queues and inboxes on the same server
    Peers(peers::Options),
    /// Compare the PostgreSQL store with bare statements, and wear it down
    Postgres(postgres::Options),
    /// Compare the Redis store with bare calls of its scripts, and give it a long history
    Redis(redis::Options),
    /// Compare the SQLite store with bare statements
    Sqlite(sqlite::Options),
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    let (batch, payload) = (cli.batch, cli.payload);
    let mut report = Report::new(cli.json)?;
    match &cli.command {
        Command::Run(options) => scenarios::measure(&mut report, options, batch, payload).await?,
        Command::Chart(options) => return chart::draw(options),
        Command::Layouts(options) => layouts::measure(&mut report, options, batch, payload).await?,
        Command::Mongodb(options) => mongodb::measure(&mut report, options, batch, payload).await?,
        Command::Mysql(options) => mysql::measure(&mut report, options, batch, payload).await?,
        Command::Peers(options) => return peers::measure(options, batch, payload, cli.json).await,
        Command::Postgres(options) => {
            postgres::measure(&mut report, options, batch, payload).await?;
        }
        Command::Redis(options) => redis::measure(&mut report, options, batch, payload).await?,
        Command::Sqlite(options) => sqlite::measure(&mut report, options, batch, payload).await?,
    }
    report.print()
}
