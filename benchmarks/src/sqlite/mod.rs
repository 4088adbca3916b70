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
    Schema as _, Store as _,
    sqlite::{SqliteOptions, SqliteStore, Synchronous},
};
use sqlx::{
    ConnectOptions as _,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use self::bare::{Bare, Layout};
use crate::{
    beside_sql,
    client::{Client, Maker},
    layouts::{Shape, load},
    report::Report,
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
    let messages = shape.whole(options.messages, 1);
    let server = format!("SQLite synchronous={:?}", options.synchronous).to_lowercase();
    report.set(shape.setting("sqlite beside-sql".to_owned(), &server, messages));
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
    let bare = [0, 1].map(|n| (Layout::ALL[n].name(), bare[n].as_slice()));
    beside_sql::tell(report, STORE, messages, bare, &store);
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
    let times = client.receive_twice_and_work(&batches).await?;
    store.close().await;
    Ok(times)
}
