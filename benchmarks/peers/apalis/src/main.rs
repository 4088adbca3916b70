//! Measures apalis: a job queue, here on PostgreSQL, SQLite or Redis as the URL says.

mod postgres;
mod queue;
mod redis;
mod sqlite;

use anyhow::{Result, bail};
use peer_common::Run;

/// What can be set, on each of the servers.
#[derive(Clone, Copy, Debug)]
struct Settings {
    /// Jobs fetched at a time; `None` for the default.
    batch: Option<usize>,
    /// Whether a job is marked as running before it runs, which is the default.
    lock: bool,
}

impl Settings {
    fn named(name: &str) -> Result<Self> {
        let (batch, lock) = match name {
            "default" => (None, true),
            "batch 500" => (Some(500), true),
            "batch 500, not locked" => (Some(500), false),
            other => bail!("unknown settings {other}"),
        };
        Ok(Self { batch, lock })
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let run = Run::new("apalis", "apalis", include_str!("../Cargo.lock"))?;
    let settings = Settings::named(run.settings())?;
    match run.url().split(':').next() {
        Some("postgres" | "postgresql") => postgres::measure(&run, settings).await,
        Some("redis") => redis::measure(&run, settings).await,
        Some("sqlite") => sqlite::measure(&run, settings).await,
        _ => bail!("unknown server"),
    }
}
