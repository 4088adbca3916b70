//! Claims of 100 while a transaction holds a snapshot from before all messages were processed, so that
//! nothing of them can be cleared away, compared with claims on an empty inbox.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

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
const CLAIMS: u64 = 200;

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
    let mut medians = Vec::new();
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
        report.figures(
            "inbox-postgres",
            format!("a claim of {CLAIM}, {number} processed under a snapshot"),
            times
                .iter()
                .map(Duration::as_secs_f64)
                .map(|s| s * 1000.0)
                .collect(),
            "ms",
        );
        medians.push(times);
    }
    let ratios = medians[1].iter().zip(&medians[0]);
    report.figures(
        "inbox-postgres",
        format!("a claim of {CLAIM}, processed under a snapshot, of the empty one"),
        ratios
            .map(|(many, none)| many.as_secs_f64() / none.as_secs_f64())
            .collect(),
        "ratio",
    );
    Ok(())
}

/// For each run, how long a claim took on average.
async fn claims(store: &Arc<PostgresStore>, shape: Shape, runs: u32) -> Result<Vec<Duration>> {
    let mut client = Client::new(store.clone(), shape)?;
    let mut times = Vec::new();
    for _ in 0..runs {
        client.receive(CLAIMS * u64::from(CLAIM)).await?;
        let mut spent = Duration::ZERO;
        for _ in 0..CLAIMS {
            let start = Instant::now();
            let leased = client.claim().await?;
            spent += start.elapsed();
            ensure!(leased.len() == CLAIM as usize, "{} claimed", leased.len());
            client.settle(&leased).await?;
        }
        times.push(spent / u32::try_from(CLAIMS)?);
    }
    Ok(times)
}
