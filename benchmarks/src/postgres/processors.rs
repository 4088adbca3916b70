//! Several processors on one inbox, each with connections of its own, draining a backlog.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{CancellationToken, Context, Inbox, Processor, Router, Store as _};

use super::{
    Options,
    client::{self, DATABASE},
    depth::prefill,
};
use crate::{
    layouts::{Shape, server::Server},
    report::{Report, rates_of},
    target::handler,
};

const NUMBERS: [usize; 4] = [1, 2, 4, 8];

pub(crate) async fn measure(
    report: &mut Report,
    server: &mut Server,
    options: &Options,
    shape: Shape,
) -> Result<()> {
    let mut times: [Vec<Duration>; NUMBERS.len()] = Default::default();
    let mut deadlocks = 0;
    for run in 0..options.runs as usize {
        for place in 0..NUMBERS.len() {
            let place = (place + run) % NUMBERS.len();
            eprintln!("processors: run {} of {}", run + 1, NUMBERS[place]);
            let (time, more) = drain(server, NUMBERS[place], options.messages, shape).await?;
            times[place].push(time);
            deadlocks += more;
        }
    }
    for (number, times) in NUMBERS.iter().zip(&times) {
        let step = format!("drain of 16-byte messages, {number} processors");
        report.rates("inbox-postgres", step, options.messages, times);
    }
    let ratios = rates_of(&times[3], &times[1]);
    report.figures("inbox-postgres", "8 processors, of 2", ratios, "ratio");
    report.note(
        "deadlocks",
        format!("{deadlocks} in all runs with several processors"),
    );
    Ok(())
}

/// The time that it took, and the deadlocks that the server saw.
async fn drain(
    server: &mut Server,
    number: usize,
    messages: u64,
    shape: Shape,
) -> Result<(Duration, i64)> {
    let store = client::fresh(server, 1).await?;
    let connection = server.plain_options(DATABASE);
    prefill(&connection, include_str!("sql/pending.sql"), messages).await?;
    server.checkpoint().await?;

    let handled = Arc::new(AtomicU64::new(0));
    let mut processors = Vec::with_capacity(number);
    for _ in 0..number {
        let store = Arc::new(client::connect(server, 3).await?);
        let handled = Arc::clone(&handled);
        let router = Router::new(handler()?).fallback_handler(move |_: Context| {
            handled.fetch_add(1, Ordering::Relaxed);
            async { Ok(()) }
        });
        let processor = Processor::builder(Arc::clone(&store))
            .router(router)
            .concurrency(2 * shape.batch as usize)
            .batch(shape.batch)
            .settle_batching(shape.batch as usize, Duration::from_millis(2))
            .build()?;
        processors.push((store, processor));
    }
    let start = Instant::now();
    let running: Vec<_> = processors
        .into_iter()
        .map(|(store, processor)| {
            tokio::spawn(async move {
                let inbox = Arc::<dyn Inbox>::clone(&(Arc::clone(&store) as Arc<dyn Inbox>));
                let summary = processor
                    .run_until_drained(inbox, CancellationToken::new())
                    .await;
                store.close().await;
                summary
            })
        })
        .collect();
    let mut processed = 0;
    for running in running {
        processed += running.await??.processed;
    }
    let time = start.elapsed();
    let expected = messages.next_multiple_of(1000);
    ensure!(processed == expected, "processed {processed} of {expected}");
    ensure!(
        handled.load(Ordering::Relaxed) == expected,
        "a message was handled twice"
    );
    let deadlocks: i64 =
        sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = $1")
            .bind(DATABASE)
            .fetch_one(&mut server.admin)
            .await?;
    store.close().await;
    server.drop(DATABASE).await?;
    Ok((time, deadlocks))
}
