//! Claims of 100 while a transaction holds a snapshot from before all messages were processed, so that
//! nothing of them can be cleared away, compared with claims on an empty inbox.

use std::{sync::Arc, time::Instant};

use anyhow::{Result, ensure};
use inbox::{
    Schema as _, Store as _,
    postgres::{PostgresOptions, PostgresStore},
};
use sqlx::{ConnectOptions as _, Connection as _};

use super::{Options, client::Client, depth::prefill};
use crate::{
    layouts::{Shape, server::Server},
    report::Report,
};

const CLAIM: u32 = 100;
const CLAIMS: u64 = 500;

/// A message that is processed leaves a row of each of its states behind.
const PROCESSED: &str = include_str!("sql/processed.sql");

pub(crate) async fn measure(
    report: &mut Report,
    server: &mut Server,
    options: &Options,
    shape: Shape,
) -> Result<()> {
    let shape = Shape {
        batch: CLAIM,
        ..shape
    };
    let mut measured = Vec::new();
    for number in [0, options.retained] {
        let database = format!("bench_snapshot_{number}");
        server.drop(&database).await?;
        server.run(format!("CREATE DATABASE {database}")).await?;
        let connection = server.plain_options(&database);
        let store = PostgresOptions::new().max_connections(2);
        let store = Arc::new(PostgresStore::connect(connection.clone(), store).await?);
        store.create().await?;
        prefill(&connection, "", 0).await?;
        let mut holding = connection.connect().await?;
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
        sqlx::raw_sql(begin).execute(&mut holding).await?;
        eprintln!("snapshot {number}: filling");
        prefill(&connection, PROCESSED, number).await?;
        let times = claims(&store, shape, options.runs).await?;
        holding.close().await?;
        store.close().await;
        server.drop(&database).await?;
        let part = |what: &str| format!("{what} of {CLAIM}, {number} processed under a snapshot");
        let each = |of: fn(&Claims) -> f64| times.iter().map(of).collect();
        report.figures(
            "inbox-postgres",
            part("first claim"),
            each(|c| c.first),
            "ms",
        );
        report.figures(
            "inbox-postgres",
            part("median claim"),
            each(|c| c.median),
            "ms",
        );
        report.figures(
            "inbox-postgres",
            part("mean of claims"),
            each(|c| c.mean),
            "ms",
        );
        measured.push(times);
    }
    let [empty, full] = measured.as_slice() else {
        return Ok(());
    };
    for (what, of) in PARTS {
        report.figures(
            "inbox-postgres",
            format!("{what}, processed under a snapshot, of the empty one"),
            full.iter()
                .zip(empty)
                .map(|(full, empty)| of(full) / of(empty))
                .collect(),
            "ratio",
        );
    }
    Ok(())
}

/// How long claims took, in milliseconds.
struct Claims {
    /// The one that does not know yet where to start.
    first: f64,
    median: f64,
    /// Of all but the first.
    mean: f64,
}

type Part = (&'static str, fn(&Claims) -> f64);

const PARTS: [Part; 2] = [
    ("median claim", |claims| claims.median),
    ("mean of claims", |claims| claims.mean),
];

/// For each run, what claims took.
async fn claims(store: &Arc<PostgresStore>, shape: Shape, runs: u32) -> Result<Vec<Claims>> {
    let mut client = Client::new(store.clone(), shape)?;
    let mut all = Vec::new();
    for _ in 0..runs {
        client.receive(CLAIMS * u64::from(CLAIM)).await?;
        let mut times = Vec::new();
        for _ in 0..CLAIMS {
            let start = Instant::now();
            let leased = client.claim().await?;
            times.push(start.elapsed().as_secs_f64() * 1000.0);
            ensure!(leased.len() == CLAIM as usize, "{} claimed", leased.len());
            client.settle(&leased).await?;
        }
        let first = times.remove(0);
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        all.push(Claims {
            first,
            median,
            mean,
        });
    }
    Ok(all)
}
