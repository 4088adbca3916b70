//! The MySQL and MariaDB store beside hand-written statements through the same driver, beside a
//! long history, and under many workers.

mod beside_sql;
mod processors;
mod retained;
pub(crate) mod server;
mod sql;

use anyhow::Result;
use clap::{Args, ValueEnum};

use self::server::Server;
use crate::{
    layouts::{Shape, load},
    report::{self, Report},
};

const STORE: &str = "inbox-mysql";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Messages per run
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Runs, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Which server is started for this
    #[arg(long, value_enum, default_value_t = Kind::Mariadb)]
    server: Kind,
    /// What to measure
    #[arg(long = "part", value_enum, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    parts: Vec<Part>,
    /// Processed messages kept, beside none, of 16 bytes each
    #[arg(long, default_value_t = 5_000_000)]
    retained: u64,
    /// An idle server to measure on, in databases that are made and dropped, instead
    #[arg(long)]
    url: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Mariadb,
    Mysql,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Receive, duplicates, and claim and settle, by two connections, beside bare statements
    BesideSql,
    /// Claim and settle beside a history of processed messages
    Retained,
    /// Eight processors on one inbox
    Processors,
}

pub(crate) async fn measure(
    report: &mut Report,
    options: &Options,
    batch: u32,
    payload: usize,
) -> Result<()> {
    let shape = Shape { batch, payload };
    let kind = match options.server {
        Kind::Mariadb => test_servers::Kind::Mariadb,
        Kind::Mysql => test_servers::Kind::Mysql,
    };
    let server = Server::start(kind, options.url.as_deref()).await?;
    let about = server.about().await?;
    report.note("server", about.clone());
    for part in &options.parts {
        let before = load()?;
        let name = report::name(part);
        report.set(shape.setting(format!("mysql {name}"), &about, options.messages));
        match part {
            Part::BesideSql => beside_sql::measure(report, &server, options, shape).await?,
            Part::Retained => retained::measure(report, &server, options, shape).await?,
            Part::Processors => processors::measure(report, &server, options, shape).await?,
        }
        report.note(
            "load",
            format!("{name}: {before} before, {} after", load()?),
        );
    }
    Ok(())
}
