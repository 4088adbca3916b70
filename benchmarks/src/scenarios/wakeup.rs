//! How long from the call of `receive` to the start of the handler, in an idle system and in one whose
//! processor has another router with slow handlers and a backlog.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use inbox::{CancellationToken, Context, HandlerName, Processor, Router, StoreExt as _};
use tokio::sync::mpsc;

use super::Bench;
use crate::{
    maker::Maker,
    report::{Latencies, latencies, quantile, record},
    target::{Slot, handler},
};

const MESSAGES: u32 = 200;
const SLOW_MESSAGES: u64 = 3000;
const SLOW_HANDLER: &str = "slow";
const SLOW_TIME: Duration = Duration::from_millis(200);
/// Pauses are random, so that they do not run in step with anything that ticks.
const PAUSE_MS: std::ops::Range<u64> = 5..50;

/// What else the processor has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbour {
    None,
    Slow,
}

pub(super) async fn measure(bench: &mut Bench<'_>, neighbour: Neighbour) -> Result<()> {
    bench.report.adjust("messages", u64::from(MESSAGES));
    let (mut medians, mut tails) = (Vec::new(), Vec::new());
    for _ in 0..bench.options.runs {
        let run = run(bench, neighbour).await?;
        medians.push(quantile(&run, 0.5));
        tails.push(quantile(&run, 0.99));
    }
    for (name, figures) in [("median", medians), ("99th percentile", tails)] {
        bench.figures(format!("receive to handler, {name}"), figures, "ms");
    }
    Ok(())
}

async fn run(bench: &mut Bench<'_>, neighbour: Neighbour) -> Result<Latencies> {
    let inbox = bench.fresh(Slot::First).await?.inbox();
    let mut maker = Maker::new(bench.shape.payload)?;
    let (started, mut starts) = mpsc::unbounded_channel();
    let router = Router::new(handler()?).fallback_handler(move |_: Context| {
        let started = started.clone();
        async move {
            let _ = started.send(Instant::now());
            Ok::<_, Infallible>(())
        }
    });
    let mut builder = Processor::builder(inbox.clone()).router(router);
    if neighbour == Neighbour::Slow {
        let name: HandlerName = SLOW_HANDLER.parse()?;
        for batch in maker.messages(SLOW_MESSAGES)?.chunks(500) {
            let batch = batch.iter().map(|one| one.for_handler(name.clone()));
            let _ = inbox.receive(&batch.collect::<Vec<_>>()).await?;
        }
        builder = builder.router(Router::new(name).fallback_handler(|_: Context| async {
            tokio::time::sleep(SLOW_TIME).await;
            Ok::<_, Infallible>(())
        }));
    }
    let processor = builder.build()?;
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { processor.run(stop).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;

    let mut latencies = latencies()?;
    for message in maker.messages(u64::from(MESSAGES))? {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS))).await;
        let sent = Instant::now();
        let _ = inbox.receive_one(&message).await?;
        let start = starts.recv().await.context("the processor ended")?;
        // The handler may have begun before `receive` returned, but not before its call.
        record(&mut latencies, start - sent);
    }
    stop.cancel();
    running.await??;
    inbox.close().await;
    Ok(latencies)
}
