//! Receiving and processing at the same time, at a given rate: how long a message takes from the
//! moment at which it was to be received to the end of its handler.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{Bytes, CancellationToken, Context, Failure, Processor, Receipt, Router};
use tokio::sync::Notify;

use super::Bench;
use crate::{
    maker::Maker,
    report::{At, Latencies, latencies, quantile, rate, record},
    target::{Slot, handler},
};

/// How long to wait at the end for a store that cannot keep up.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let store = bench.site.target.name();
    for goal in bench.options.rate.clone() {
        bench
            .report
            .adjust("messages", goal * bench.options.seconds);
        let (mut medians, mut tails, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..bench.options.runs {
            let (run, rate) = run(bench, goal).await?;
            medians.push(quantile(&run, 0.5));
            tails.push(quantile(&run, 0.99));
            rates.push(rate);
        }
        for (step, figures, unit) in [
            ("arrival to handler's end, median", medians, "ms"),
            ("arrival to handler's end, 99th percentile", tails, "ms"),
            ("handled", rates, "msg/s"),
        ] {
            let at = At {
                axis: "messages a second".to_owned(),
                value: goal,
            };
            bench.report.all(store, step, Some(at), figures, unit, None);
        }
    }
    Ok(())
}

/// What the handlers saw.
struct Seen {
    latencies: Latencies,
    left: u64,
}

/// The latencies, and how many messages were handled a second.
async fn run(bench: &mut Bench<'_>, goal: u64) -> Result<(Latencies, f64)> {
    let inbox = bench.fresh(Slot::First).await?.inbox();
    let number = goal * bench.options.seconds;
    let seen = Arc::new(Mutex::new(Seen {
        latencies: latencies()?,
        left: number,
    }));
    let done = Arc::new(Notify::new());
    let start = Instant::now() + Duration::from_millis(500);
    // A message's payload begins with its number, which says when it was due. So a store that
    // holds up those behind it is charged for that.
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let due = move |message: u64| start + Duration::from_secs_f64(message as f64 / goal as f64);
    let router = Router::new(handler()?).fallback_handler({
        let (seen, done) = (Arc::clone(&seen), Arc::clone(&done));
        move |context: Context| {
            let (seen, done) = (Arc::clone(&seen), Arc::clone(&done));
            async move {
                let Some(first) = context.message().payload().first_chunk() else {
                    return Err(Failure::dead("no number"));
                };
                let late = due(u64::from_be_bytes(*first)).elapsed();
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                record(&mut seen.latencies, late);
                seen.left = seen.left.saturating_sub(1);
                if seen.left == 0 {
                    done.notify_one();
                }
                Ok(())
            }
        }
    });
    let processor = Processor::builder(inbox.clone())
        .router(router)
        .concurrency(2 * bench.shape.batch as usize)
        .batch(bench.shape.batch)
        .build()?;
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { processor.run(stop).await }
    });

    let mut maker = Maker::new(0)?;
    let mut sent = 0;
    while sent < number {
        // As a receiver does: all that has come since the last call, up to a batch.
        let mut messages = Vec::new();
        while sent < number && messages.len() < bench.shape.batch as usize {
            if due(sent) > Instant::now() {
                break;
            }
            let mut payload = vec![0; bench.shape.payload.max(8)];
            payload[..8].copy_from_slice(&sent.to_be_bytes());
            messages.push(maker.message_of(Bytes::from(payload))?);
            sent += 1;
        }
        if messages.is_empty() {
            tokio::time::sleep_until(due(sent).into()).await;
            continue;
        }
        let receipts = inbox.receive(&messages).await?;
        ensure!(receipts.iter().all(|receipt| *receipt == Receipt::Accepted));
    }
    let in_time = tokio::time::timeout(PATIENCE, done.notified()).await;
    let time = start.elapsed();
    stop.cancel();
    running.await??;
    ensure!(in_time.is_ok(), "{goal} messages a second are too many");
    inbox.close().await;
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((seen.latencies.clone(), rate(number, time)))
}
