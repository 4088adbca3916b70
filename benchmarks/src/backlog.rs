//! A large backlog, drained by the processor: its memory must not grow with the backlog.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use inbox::{CancellationToken, Context, Processor, Router, State};

use crate::{
    Cli,
    report::Report,
    target::{Target, handler, messages},
};

pub(crate) async fn measure(
    report: &mut Report,
    target: Target,
    cli: &Cli,
    number: u64,
) -> Result<()> {
    let fresh = target.fresh().await?;
    let store = Arc::clone(&fresh.store);
    let chunk = 10_000;
    let start = Instant::now();
    for from in (0..number).step_by(chunk) {
        let to = number.min(from + chunk as u64);
        for batch in messages(from, to, cli.payload)?.chunks(cli.batch as usize) {
            let _ = store.receive(batch).await?;
        }
    }
    report.rates(target.name(), "prefill", number, &[start.elapsed()]);

    let before = resident()?;
    let peak = Arc::new(AtomicU64::new(before));
    let watcher = {
        let peak = Arc::clone(&peak);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                if let Ok(now) = resident() {
                    peak.fetch_max(now, Ordering::Relaxed);
                }
            }
        })
    };
    let router = Router::new(handler()?).fallback_handler(|_: Context| async { Ok(()) });
    let processor = Processor::builder(Arc::clone(&store))
        .router(router)
        .concurrency(2 * cli.batch as usize)
        .batch(cli.batch)
        .settle_batching(cli.batch as usize, Duration::from_millis(2))
        .build()?;
    let start = Instant::now();
    let summary = processor
        .run_until_drained(
            Arc::<dyn inbox::Inbox>::clone(&store),
            CancellationToken::new(),
        )
        .await?;
    report.rates(target.name(), "drain", number, &[start.elapsed()]);
    watcher.abort();
    ensure!(
        summary.processed == number,
        "processed {}",
        summary.processed
    );
    ensure!(store.statistics().await?.count(State::Processed) == number);

    #[expect(clippy::cast_precision_loss, reason = "megabytes")]
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let peak = peak.load(Ordering::Relaxed);
    report.figures(
        target.name(),
        "memory before draining",
        vec![megabytes(before)],
        "MB",
    );
    report.figures(
        target.name(),
        "peak memory while draining",
        vec![megabytes(peak)],
        "MB",
    );
    store.close().await;
    Ok(())
}

/// This process's resident memory, in bytes.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("needs Linux's /proc")?;
    let kilobytes: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
        .context("no VmRSS in /proc/self/status")?
        .trim()
        .parse()?;
    Ok(kilobytes * 1024)
}
