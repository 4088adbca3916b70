//! Claims of 100 while a transaction holds a snapshot from before all messages were processed, so that
//! nothing of them can be cleared away, compared with claims on an empty inbox.

use std::{sync::Arc, time::Instant};

use anyhow::{Context as _, Result, ensure};
use inbox::Inbox;
use sqlx::{ConnectOptions as _, Executor as _, MySqlConnection, PgConnection, SqliteConnection};

use super::{Bench, depth, ratios, work};
use crate::{
    maker::Maker,
    target::{Site, Slot},
};

const CLAIM: u32 = 100;
const CLAIMS: u64 = 500;
const SLOT: Slot = Slot::First;

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    bench.report.adjust("batch", u64::from(CLAIM));
    let mut measured = Vec::new();
    for number in [0, bench.options.depth] {
        let inbox = bench.fresh(SLOT).await?.inbox();
        let snapshot = Snapshot::hold(&bench.site).await?;
        depth::fill(&inbox, depth::Kind::Retained, number).await?;
        bench.site.rest().await?;
        let times = claims(bench, &inbox).await?;
        drop(snapshot);
        inbox.close().await;
        for (what, times) in Claims::PARTS.iter().zip(times.parts()) {
            let step = format!("{what} of {CLAIM}, {number} processed under a snapshot");
            bench.figures(step, times.to_vec(), "ms");
        }
        measured.push(times);
    }
    if let [empty, full] = measured.as_slice() {
        let parts = full.parts().into_iter().zip(empty.parts());
        // The first claim of a process does not know yet where to start.
        for (what, (full, empty)) in Claims::PARTS.iter().zip(parts).skip(1) {
            let step = format!("{what}, processed under a snapshot, of the empty inbox");
            bench.figures(step, ratios(full, empty), "ratio");
        }
    }
    Ok(())
}

/// A transaction that sees the inbox as it was. It ends when this is dropped.
#[expect(dead_code, reason = "connections are kept open, not used")]
enum Snapshot {
    Postgres(PgConnection),
    MySql(MySqlConnection),
    Sqlite(SqliteConnection),
}

impl Snapshot {
    async fn hold(site: &Site) -> Result<Self> {
        if let Some(options) = site.postgres(SLOT) {
            let mut connection = options.connect().await?;
            let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
            connection.execute(sqlx::raw_sql(begin)).await?;
            return Ok(Self::Postgres(connection));
        }
        if let Some(options) = site.mysql(SLOT) {
            let mut connection = options.connect().await?;
            let begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT";
            connection.execute(sqlx::raw_sql(begin)).await?;
            return Ok(Self::MySql(connection));
        }
        let options = site
            .sqlite(SLOT)
            .context("only SQL stores have snapshots")?;
        let mut connection = options.connect().await?;
        let begin = "BEGIN; SELECT count(*) FROM sqlite_master";
        connection.execute(sqlx::raw_sql(begin)).await?;
        Ok(Self::Sqlite(connection))
    }
}

/// How long claims took, in milliseconds, run by run.
#[derive(Default)]
struct Claims {
    first: Vec<f64>,
    median: Vec<f64>,
    /// Of all but the first.
    mean: Vec<f64>,
}

impl Claims {
    const PARTS: [&'static str; 3] = ["first claim", "median claim", "mean of claims"];

    fn parts(&self) -> [&[f64]; 3] {
        [&self.first, &self.median, &self.mean]
    }
}

async fn claims(bench: &Bench<'_>, inbox: &Arc<dyn Inbox>) -> Result<Claims> {
    let mut maker = Maker::new(bench.shape.payload)?;
    let request = work::request(CLAIM)?;
    let mut all = Claims::default();
    for _ in 0..bench.options.runs {
        work::prefill(inbox, &mut maker, CLAIMS * u64::from(CLAIM)).await?;
        let mut times = Vec::new();
        for _ in 0..CLAIMS {
            let start = Instant::now();
            let claimed = work::claim(inbox, &request).await?;
            times.push(start.elapsed().as_secs_f64() * 1000.0);
            ensure!(claimed.len() == CLAIM as usize, "{} claimed", claimed.len());
            work::settle(inbox, &claimed).await?;
        }
        all.first.push(times.remove(0));
        all.mean
            .push(times.iter().sum::<f64>() / times.len() as f64);
        times.sort_by(f64::total_cmp);
        all.median.push(times[times.len() / 2]);
    }
    Ok(all)
}
