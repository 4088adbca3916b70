//! An idle system: how long from the call of `receive` to the start of the handler.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use inbox::{CancellationToken, Context, Processor, Router, Store as _, StoreExt as _};
use tokio::sync::mpsc;

use super::{
    Options,
    client::{self, Client, DATABASE},
};
use crate::{
    layouts::{Shape, server::Server},
    report::Report,
    target::handler,
};

const MESSAGES: u32 = 500;
/// Pauses are random, so that they do not run in step with anything that ticks.
const PAUSE_MS: std::ops::Range<u64> = 5..50;

pub(crate) async fn measure(
    report: &mut Report,
    server: &mut Server,
    options: &Options,
    shape: Shape,
) -> Result<()> {
    let (mut medians, mut tails) = (Vec::new(), Vec::new());
    for _ in 0..options.runs {
        let histogram = run(server, shape).await?;
        medians.push(milliseconds(histogram.value_at_quantile(0.5)));
        tails.push(milliseconds(histogram.value_at_quantile(0.99)));
    }
    report.figures(
        "inbox-postgres",
        "idle, receive to handler, median",
        medians,
        "ms",
    );
    report.figures(
        "inbox-postgres",
        "idle, receive to handler, 99th percentile",
        tails,
        "ms",
    );
    Ok(())
}

async fn run(server: &mut Server, shape: Shape) -> Result<Histogram<u64>> {
    let store = Arc::new(client::fresh(server, 4).await?);
    let (started, mut starts) = mpsc::unbounded_channel();
    let router = Router::new(handler()?).fallback_handler(move |_: Context| {
        let started = started.clone();
        async move {
            let _ = started.send(Instant::now());
            Ok(())
        }
    });
    let processor = Processor::builder(Arc::clone(&store))
        .router(router)
        .build()?;
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { processor.run(stop).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;

    let mut client = Client::new(&store, shape)?;
    let mut histogram = Histogram::new(3)?;
    for message in client.messages(u64::from(MESSAGES))? {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS))).await;
        let sent = Instant::now();
        let _ = store.receive_one(&message).await?;
        let start = starts.recv().await.context("the processor ended")?;
        histogram.record(u64::try_from((start - sent).as_micros())?)?;
    }
    stop.cancel();
    running.await??;
    store.close().await;
    server.drop(DATABASE).await?;
    Ok(histogram)
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds")]
pub(crate) fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1000.0
}
