//! A backlog, drained by a processor: its memory must not grow with the backlog.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{CancellationToken, Context, Inbox, Processor, Router};

use super::{Bench, Runs, work};
use crate::{
    machine::resident,
    maker::Maker,
    target::{Slot, handler},
};

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let number = bench.options.messages;
    let mut drains = Runs::default();
    let (mut befores, mut peaks) = (Vec::new(), Vec::new());
    for _ in 0..bench.options.runs {
        let inbox = bench.fresh(Slot::First).await?.inbox();
        work::prefill(&inbox, &mut Maker::new(bench.shape.payload)?, number).await?;
        bench.site.rest().await?;

        let before = resident()?;
        let peak = Arc::new(AtomicU64::new(before));
        let watcher = tokio::spawn({
            let peak = Arc::clone(&peak);
            async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    if let Ok(now) = resident() {
                        peak.fetch_max(now, Ordering::Relaxed);
                    }
                }
            }
        });
        drains.add(
            number,
            drain(&inbox, bench.shape.batch, idle()?, number).await?,
        );
        watcher.abort();
        befores.push(megabytes(before));
        peaks.push(megabytes(peak.load(Ordering::Relaxed)));
        inbox.close().await;
    }
    bench.rates("drain", None, &drains);
    bench.figures("memory before draining", befores, "MB");
    bench.figures("peak memory while draining", peaks, "MB");
    Ok(())
}

/// Handlers that do nothing.
pub(super) fn idle() -> Result<Router> {
    Ok(Router::new(handler()?).fallback_handler(|_: Context| async { Ok::<_, Infallible>(()) }))
}

/// With twice a batch in hand, so that one is claimed while another runs.
pub(super) fn processor(inbox: &Arc<dyn Inbox>, batch: u32, router: Router) -> Result<Processor> {
    Ok(Processor::builder(Arc::clone(inbox))
        .router(router)
        .concurrency(2 * batch as usize)
        .batch(batch)
        .settle_batching(batch as usize, Duration::from_millis(2))
        .build()?)
}

/// Processes all that there is, and says how long that took.
pub(super) async fn drain(
    inbox: &Arc<dyn Inbox>,
    batch: u32,
    router: Router,
    number: u64,
) -> Result<Duration> {
    run(inbox, &processor(inbox, batch, router)?, number).await
}

/// The same with a processor of the caller's.
pub(super) async fn run(
    inbox: &Arc<dyn Inbox>,
    processor: &Processor,
    number: u64,
) -> Result<Duration> {
    let start = Instant::now();
    let summary = processor
        .run_until_drained(Arc::clone(inbox) as _, CancellationToken::new())
        .await?;
    let time = start.elapsed();
    let processed = summary.processed;
    ensure!(processed == number, "processed {processed} of {number}");
    Ok(time)
}

#[expect(clippy::cast_precision_loss, reason = "megabytes")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
