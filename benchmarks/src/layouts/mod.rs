//! Storage layouts for an inbox in PostgreSQL, side by side: the same messages are received,
//! claimed and settled in each, one statement a batch. It is independent of the store that uses
//! one of them, and leaves out what would be the same in all of them (ordering keys, counts).

pub(crate) mod client;
mod depth;
mod layout;
mod phases;
pub(crate) mod server;
mod steady;

use anyhow::Result;
use clap::{Args, ValueEnum};

pub(crate) use layout::Layout;
use server::Server;

use crate::report::{self, Report, Setting};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Messages per run
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Runs, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Which layouts
    #[arg(long = "layout", value_delimiter = ',', default_values = Layout::NAMES)]
    layouts: Vec<&'static Layout>,
    /// What to measure
    #[arg(long = "part", value_enum, value_delimiter = ',', default_values_t = [Part::Phases, Part::Retained, Part::Pending, Part::Steady])]
    parts: Vec<Part>,
    /// Numbers of processed messages kept, of 16 bytes each
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1_000_000])]
    retained: Vec<u64>,
    /// Numbers of messages waiting before those that are measured, of 16 bytes each
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1_000_000])]
    pending: Vec<u64>,
    /// Messages of steady traffic
    #[arg(long, default_value_t = 720_000, value_parser = clap::value_parser!(u64).range(1..))]
    steady: u64,
    /// An idle PostgreSQL server (15 or newer) to measure on as a superuser, in databases that are
    /// made and dropped; default: one started for this
    #[arg(long)]
    url: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Receive, claim and settle by one connection, each by itself, and the whole cycle by two,
    /// with the write-ahead log of each
    Phases,
    /// Claim and settle beside a history of processed messages
    Retained,
    /// Claim and settle at the head of a backlog
    Pending,
    /// The whole cycle by two connections for long, with autovacuum: dead rows and sizes
    Steady,
}

/// What does not differ between the layouts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) batch: u32,
    pub(crate) payload: usize,
}

impl Shape {
    /// The fewest messages, but no fewer than these, that are whole batches for that many clients.
    pub(crate) fn whole(self, messages: u64, clients: u64) -> u64 {
        messages.next_multiple_of(u64::from(self.batch) * clients)
    }

    /// What is the same in all steps of a part of a command, for lines of JSON.
    pub(crate) fn setting(self, scenario: String, server: &str, messages: u64) -> Setting {
        Setting::new(
            scenario,
            server,
            [
                ("messages", messages),
                ("batch", u64::from(self.batch)),
                ("payload", self.payload as u64),
            ],
        )
    }
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
    report.note("sessions", server::session_settings());
    for part in &options.parts {
        let before = load()?;
        let name = report::name(part);
        report.set(shape.setting(format!("layouts {name}"), &about, options.messages));
        match part {
            Part::Phases => phases::measure(report, &mut server, options, shape).await?,
            Part::Retained => {
                depth::measure(report, &mut server, options, shape, depth::RETAINED).await?;
            }
            Part::Pending => {
                depth::measure(report, &mut server, options, shape, depth::PENDING).await?;
            }
            Part::Steady => steady::measure(report, &mut server, options, shape).await?,
        }
        report.note(
            "load",
            format!("{name}: {before} before, {} after", load()?),
        );
    }
    Ok(())
}

/// The load averages of 1, 5 and 15 minutes: what else the machine did.
pub(crate) fn load() -> Result<String> {
    let all = std::fs::read_to_string("/proc/loadavg")?;
    Ok(all.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

/// A rate, or a size per message.
#[expect(
    clippy::cast_precision_loss,
    reason = "figures need no more than 52 bits"
)]
fn figure(number: u64) -> f64 {
    number as f64
}
