//! Retention beside live traffic: the latency of claims while nothing is purged, and while a long
//! history is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{Expired, Operate as _, State, Store as _};

use super::{
    Options,
    client::{self, Client, DATABASE},
    depth::prefill,
};
use crate::{
    layouts::{Shape, server::Server},
    report::{Latencies, Report, latencies, quantile, record},
};

const STORE: &str = "inbox-postgres";
/// How long the traffic without a purge is measured.
const ALONE: Duration = Duration::from_secs(15);
/// A batch of this many messages is received, claimed and settled...
const BATCH: u32 = 50;
/// ...and then a pause: about 2,500 messages a second.
const PAUSE: Duration = Duration::from_millis(15);

pub(crate) async fn measure(
    report: &mut Report,
    server: &mut Server,
    options: &Options,
    shape: Shape,
) -> Result<()> {
    let shape = Shape {
        batch: BATCH,
        ..shape
    };
    let (mut alone, mut beside, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut seconds, mut rates) = (Vec::new(), Vec::new());
    for run in 0..options.runs {
        eprintln!("purge: run {}", run + 1);
        let store = Arc::new(client::fresh(server, 4).await?);
        let connection = server.plain_options(DATABASE);
        prefill(
            &connection,
            include_str!("sql/retained.sql"),
            options.purged,
        )
        .await?;
        server.checkpoint().await?;

        let (stop, traffic) = traffic(Client::new(store.clone(), shape)?);
        tokio::time::sleep(ALONE).await;
        stop.store(true, Ordering::Relaxed);
        let before = traffic.await??;

        let (stop, traffic) = self::traffic(Client::new(store.clone(), shape)?);
        let start = Instant::now();
        let expired = Expired::new(State::Processed, Duration::from_secs(60), u32::MAX)?;
        let purged = store.purge(&expired).await?;
        let time = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        let during = traffic.await??;
        ensure!(purged >= options.purged, "purged only {purged}");

        let tail = |latencies: &Latencies| quantile(latencies, 0.99);
        alone.push(tail(&before));
        beside.push(tail(&during));
        ratios.push(tail(&during) / tail(&before));
        seconds.push(time);
        rates.push(quantile(&during, 0.5));
        store.close().await;
        server.drop(DATABASE).await?;
    }
    let purged = options.purged;
    report.figures(STORE, "claim, 99th percentile, no purge", alone, "ms");
    report.figures(STORE, "claim, median, beside a purge", rates, "ms");
    report.figures(
        STORE,
        "claim, 99th percentile, beside a purge",
        beside,
        "ms",
    );
    report.figures(
        STORE,
        "claim, 99th percentile, beside of without",
        ratios,
        "ratio",
    );
    report.rates(
        STORE,
        format!("purge of {purged} beside traffic"),
        purged,
        &seconds,
    );
    Ok(())
}

type Traffic = tokio::task::JoinHandle<Result<Latencies>>;

/// Steady traffic until it is told to stop; gives the latencies of its claims.
fn traffic(mut client: Client) -> (Arc<AtomicBool>, Traffic) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let task = tokio::spawn(async move {
        let mut claims = latencies()?;
        while !stopped.load(Ordering::Relaxed) {
            client.receive(u64::from(BATCH)).await?;
            let start = Instant::now();
            let claimed = client.claim().await?;
            record(&mut claims, start.elapsed());
            client.settle(&claimed).await?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(claims)
    });
    (stop, task)
}
