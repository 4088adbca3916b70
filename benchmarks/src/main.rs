//! Measures what the stores and the runtime cost. Build it with `--release`.

mod bare;
mod chart;
mod machine;
mod maker;
mod peers;
mod report;
mod scenarios;
mod servers;
mod shape;
mod stores;
mod target;

use std::{io, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

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
    /// Compare the inbox with other queues and inboxes on the same server
    Peers(peers::Options),
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let mut report = Report::new(cli.json)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let ended = tokio::select! {
        ended = measure(&cli, &mut report) => Some(ended),
        // What is under way is dropped, and with it its servers and files.
        _ = tokio::signal::ctrl_c() => None,
        _ = terminate.recv() => None,
    };
    if ended.is_none() {
        let text = "what was under way is not in the figures".to_owned();
        report.note("interrupted", text);
    }
    // What was measured before an early end took its time, too.
    let printed = report.print();
    let Some(ended) = ended else {
        // Not by returning, which would wait for a server that is just being started.
        std::process::exit(130);
    };
    match ended.and(printed) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The reader of the figures has seen enough.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::FAILURE),
        Err(error) => Err(error),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Scenarios add to the report; the others print by themselves.
async fn measure(cli: &Cli, report: &mut Report) -> Result<()> {
    let (batch, payload) = (cli.batch, cli.payload);
    match &cli.command {
        Command::Run(options) => scenarios::measure(report, options, batch, payload).await,
        Command::Chart(options) => chart::draw(options),
        Command::Peers(options) => peers::measure(options, batch, payload, cli.json).await,
    }
}
