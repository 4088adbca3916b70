//! The SQLite store beside hand-written statements through the same driver, by one task each.

mod bare;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use inbox::{
    Receipt, Schema as _, Store as _,
    sqlite::{SqliteOptions, SqliteStore, Synchronous},
};
use sqlx::{
    ConnectOptions as _,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use self::bare::{Bare, Layout};
use crate::{
    client::{Client, Maker},
    layouts::{Shape, load},
    report::{Report, rates_of, step},
};

const STORE: &str = "inbox-sqlite";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Messages per run
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Runs, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// When SQLite waits for the disk
    #[arg(long, value_enum, default_value_t = Wait::Normal)]
    synchronous: Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wait {
    /// At checkpoints
    Normal,
    /// At each commit
    Full,
}

pub(crate) async fn measure(
    report: &mut Report,
    options: &Options,
    batch: u32,
    payload: usize,
) -> Result<()> {
    let shape = Shape { batch, payload };
    let messages = options.messages.div_ceil(u64::from(batch)) * u64::from(batch);
    let before = load()?;
    let mut bare: [Vec<[Duration; 2]>; 2] = Default::default();
    let mut store: Vec<[Duration; 3]> = Vec::new();
    for run in 0..options.runs as usize {
        eprintln!("run {}", run + 1);
        // Each run begins with another contender, so that none is always first.
        for place in 0..3 {
            match (place + run) % 3 {
                2 => store.push(run_store(options.synchronous, messages, shape).await?),
                n => {
                    let times = run_bare(options.synchronous, Layout::ALL[n], messages, shape);
                    bare[n].push(times.await?);
                }
            }
        }
    }
    report.note("load", format!("{before} before, {} after", load()?));
    for (layout, times) in Layout::ALL.iter().zip(&bare) {
        let name = layout.name();
        report.rates(name, "receive (bare SQL)", messages, &step(times, 0));
        let work = step(times, 1);
        report.rates(name, "claim and settle (bare SQL)", messages, &work);
    }
    report.rates(STORE, "receive", messages, &step(&store, 0));
    let again = step(&store, 1);
    report.rates(STORE, "receive again (all duplicates)", messages, &again);
    report.rates(STORE, "claim and settle", messages, &step(&store, 2));
    for (layout, times) in Layout::ALL.iter().zip(&bare) {
        for (what, of, by) in [("receive", 0, 0), ("claim and settle", 1, 2)] {
            let ratios = rates_of(&step(&store, by), &step(times, of));
            report.figures(
                STORE,
                format!("{what}, of {}", layout.name()),
                ratios,
                "ratio",
            );
        }
    }
    Ok(())
}

/// How the store's writing connection is set, without what it takes to share the file.
fn connection(file: &Path, synchronous: Wait) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(match synchronous {
            Wait::Normal => SqliteSynchronous::Normal,
            Wait::Full => SqliteSynchronous::Full,
        })
        .row_buffer_size(1024)
        .pragma("cache_size", "-16384")
        .pragma("temp_store", "MEMORY")
        .pragma("wal_autocheckpoint", "4000")
        .disable_statement_logging()
}

/// Receive, then claim and settle.
async fn run_bare(
    synchronous: Wait,
    layout: Layout,
    messages: u64,
    shape: Shape,
) -> Result<[Duration; 2]> {
    let folder = tempfile::tempdir()?;
    let batches = Maker::new(shape.payload)?.batches(messages, shape.batch)?;
    let options = connection(&folder.path().join("bare.db"), synchronous);
    let mut bare = Bare::set_up(&options, layout, shape.batch).await?;
    let start = Instant::now();
    for batch in &batches {
        bare.receive(batch).await?;
    }
    let received = start.elapsed();
    let start = Instant::now();
    ensure!(bare.drain().await? == messages, "not all were drained");
    Ok([received, start.elapsed()])
}

/// Receive, receive again, claim and settle.
async fn run_store(synchronous: Wait, messages: u64, shape: Shape) -> Result<[Duration; 3]> {
    let folder = tempfile::tempdir()?;
    let options =
        SqliteOptions::new(folder.path().join("store.db")).synchronous(match synchronous {
            Wait::Normal => Synchronous::Normal,
            Wait::Full => Synchronous::Full,
        });
    let store = Arc::new(SqliteStore::connect(options).await?);
    store.create().await?;
    let client = Client::new(Arc::<SqliteStore>::clone(&store), shape)?;
    let batches = Maker::new(shape.payload)?.batches(messages, shape.batch)?;
    let mut times = [Duration::ZERO; 3];
    for (time, expected) in times
        .iter_mut()
        .zip([Receipt::Accepted, Receipt::Duplicate])
    {
        let start = Instant::now();
        for batch in &batches {
            client.receive_as(batch, &expected).await?;
        }
        *time = start.elapsed();
    }
    let start = Instant::now();
    client.work(messages).await?;
    times[2] = start.elapsed();
    ensure!(client.claim().await?.is_empty(), "more than was received");
    store.close().await;
    Ok(times)
}
