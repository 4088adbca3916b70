//! Eight processors on one inbox, each with connections of its own, draining a backlog.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{CancellationToken, Context, Inbox, Processor, Router, Store as _};

use super::{Options, STORE, server::Server};
use crate::{
    client::Client,
    layouts::Shape,
    report::{Report, rates_of},
    target::handler,
};

const DATABASE: &str = "bench_processors";
const NUMBERS: [usize; 2] = [2, 8];

pub(crate) async fn measure(
    report: &mut Report,
    server: &Server,
    options: &Options,
    shape: Shape,
) -> Result<()> {
    let mut times: [Vec<Duration>; NUMBERS.len()] = Default::default();
    let mut shares = Vec::new();
    let before = server.status("Innodb_deadlocks").await?;
    for run in 0..options.runs {
        for (number, times) in NUMBERS.iter().zip(&mut times) {
            eprintln!("processors: run {} of {number}", run + 1);
            let (time, least) = drain(server, *number, options.messages, shape).await?;
            times.push(time);
            if *number == 8 {
                shares.push(least);
            }
        }
    }
    for (number, times) in NUMBERS.iter().zip(&times) {
        let step = format!("drain, {number} processors");
        report.rates(STORE, step, options.messages, times);
    }
    let ratios = rates_of(&times[1], &times[0]);
    report.figures(STORE, "8 processors, of 2", ratios, "ratio");
    report.figures(
        STORE,
        "the least of 8 processors, of its fair share",
        shares,
        "ratio",
    );
    let deadlocks = server.status("Innodb_deadlocks").await? - before;
    report.note(
        "deadlocks",
        format!("{deadlocks} within the server (MariaDB counts them); none reached a processor"),
    );
    Ok(())
}

/// The time that it took, and what the least busy processor did, of its fair share.
async fn drain(
    server: &Server,
    number: usize,
    messages: u64,
    shape: Shape,
) -> Result<(Duration, f64)> {
    let store = server.fresh(DATABASE, 1).await?;
    Client::new(store.clone(), shape)?.receive(messages).await?;
    let mut processors = Vec::with_capacity(number);
    for _ in 0..number {
        let store = Arc::new(server.connect(DATABASE, 3).await?);
        let handled = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&handled);
        let router = Router::new(handler()?).fallback_handler(move |_: Context| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Ok(()) }
        });
        let batch = shape.batch.min(100);
        let processor = Processor::builder(Arc::clone(&store))
            .router(router)
            .concurrency(2 * batch as usize)
            .batch(batch)
            .settle_batching(batch as usize, Duration::from_millis(2))
            .build()?;
        processors.push((store, handled, processor));
    }
    let start = Instant::now();
    let running: Vec<_> = processors
        .into_iter()
        .map(|(store, handled, processor)| {
            tokio::spawn(async move {
                let inbox: Arc<dyn Inbox> = Arc::<inbox::mysql::MySqlStore>::clone(&store);
                let summary = processor
                    .run_until_drained(inbox, CancellationToken::new())
                    .await;
                store.close().await;
                (handled.load(Ordering::Relaxed), summary)
            })
        })
        .collect();
    let (mut processed, mut counts) = (0, Vec::new());
    for running in running {
        let (handled, summary) = running.await?;
        processed += summary?.processed;
        counts.push(handled);
    }
    let time = start.elapsed();
    ensure!(processed == messages, "processed {processed} of {messages}");
    ensure!(
        counts.iter().sum::<u64>() == messages,
        "a message was handled twice"
    );
    store.close().await;
    server.drop(DATABASE).await?;
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let share = counts.into_iter().min().unwrap_or(0) as f64 * number as f64 / messages as f64;
    Ok((time, share))
}
