//! The inbox compared with what else one might use, on the same server, run by run in turns. Each
//! peer is a separate program in `benchmarks/peers`, with dependencies that would hold back ours.

mod list;
mod own;
mod program;
mod server;
mod table;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use self::{
    list::{PEERS, Peer},
    program::Program,
    server::Server,
    table::{Rates, Row},
};
use crate::shape::load;

/// The inbox's own.
const CONTRACT: &str = "fenced, deduplicating, batches";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What all of them store in
    #[arg(long, value_enum, default_value_t = Kind::Postgres)]
    server: Kind,
    /// Which peers, by the name in the table; default: all that use the server
    #[arg(long = "peer", value_delimiter = ',')]
    peers: Vec<String>,
    /// Messages per run; slow peers get a part of it
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..))]
    messages: u64,
    /// Milliseconds that each handler waits; where a batch is handled by the caller, all of it at the same time
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..1_000))]
    handling: u64,
    /// Runs of each, in turns, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// `appendfsync` of a Redis server
    #[arg(long, default_value = "always")]
    appendfsync: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// With `fsync`, `synchronous_commit` and `full_page_writes`
    Postgres,
    /// A file with a write-ahead log and `synchronous=full`
    Sqlite,
    /// With an append-only file
    Redis,
}

/// What each run of each of them does.
#[derive(Clone, Copy, Debug)]
struct Load {
    messages: u64,
    payload: usize,
    batch: u32,
    /// How long each handler waits.
    handling: Duration,
}

pub(crate) async fn measure(
    options: &Options,
    batch: u32,
    payload: usize,
    json: bool,
) -> Result<()> {
    let chosen: Vec<&Peer> = PEERS
        .iter()
        .filter(|peer| peer.server == options.server)
        .filter(|peer| options.peers.is_empty() || options.peers.iter().any(|n| n == peer.name))
        .collect();
    ensure!(!chosen.is_empty(), "no such peer on that server");
    let mut programs = Vec::new();
    for peer in &chosen {
        programs.push(Program::build(peer).await?);
    }
    let all = Load {
        messages: options.messages,
        payload,
        batch,
        handling: Duration::from_millis(options.handling),
    };
    let mut server = Server::start(options.server, &options.appendfsync).await?;
    let about = server.about().await?;
    let before = load()?;
    let own = own::on(options.server);
    let mut own_rates: Vec<Vec<Rates>> = vec![Vec::new(); own.len()];
    let mut rates: Vec<Vec<Rates>> = vec![Vec::new(); chosen.len()];
    let places = chosen.len() + own.len();
    for run in 0..options.runs as usize {
        // None is always first, or always behind the same one.
        for place in 0..places {
            let place = (place + run) % places;
            let url = server.fresh().await?;
            let Some(peer) = chosen.get(place) else {
                let place = place - chosen.len();
                eprintln!("run {}: inbox, {}", run + 1, own[place].settings);
                own_rates[place].push(own::measure(own[place], &url, all).await?);
                continue;
            };
            eprintln!("run {}: {}, {}", run + 1, peer.name, peer.settings);
            let part = Load {
                messages: all.messages / peer.part,
                ..all
            };
            rates[place].push(programs[place].measure(peer, &url, part).await?);
        }
    }
    let best = own_rates.last().map_or(&[][..], Vec::as_slice);
    let notes = [
        ("server", about),
        ("load", format!("{before} before, {} after", load()?)),
    ];
    let mut rows = Vec::with_capacity(places);
    for (own, rates) in own.iter().zip(&own_rates) {
        rows.push(Row::new("inbox", own.settings, CONTRACT, rates, best));
    }
    for (peer, rates) in chosen.iter().zip(&rates) {
        let (name, settings) = (peer.name, peer.settings);
        rows.push(Row::new(name, settings, peer.contract, rates, best));
    }
    table::print(&notes, &rows, json)
}
