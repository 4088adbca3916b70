//! One to sixteen processors drain one inbox, each with its own connections.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use inbox::CancellationToken;

use super::{Bench, Runs, drain, work};
use crate::{maker::Maker, report::At, target::Slot};

const WORKERS: [u32; 5] = [1, 2, 4, 8, 16];
/// Smaller than others' by default, so that sixteen workers do not hold the whole backlog.
const BATCH: u32 = 100;

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let batch = bench.shape.batch.min(BATCH);
    bench.report.adjust("batch", u64::from(batch));
    let mut all: [Runs; WORKERS.len()] = Default::default();
    for run in 0..bench.options.runs as usize {
        for place in 0..WORKERS.len() {
            // Each run begins with another number of workers.
            let place = (place + run) % WORKERS.len();
            let time = one(bench, WORKERS[place], batch).await?;
            all[place].add(bench.options.messages, time);
        }
    }
    for (workers, runs) in WORKERS.iter().zip(&all) {
        let at = At {
            axis: "workers".to_owned(),
            value: u64::from(*workers),
        };
        bench.rates("drain", Some(at), runs);
    }
    Ok(())
}

async fn one(bench: &mut Bench<'_>, workers: u32, batch: u32) -> Result<Duration> {
    let number = bench.options.messages;
    let store = bench.fresh(Slot::First).await?;
    let mut inboxes = Vec::new();
    for _ in 0..workers {
        let inbox = bench.site.again(&store, Slot::First).await?.inbox();
        work::warm_up(&inbox).await?;
        inboxes.push(inbox);
    }
    let inbox = store.inbox();
    work::prefill(&inbox, &mut Maker::new(bench.shape.payload)?, number).await?;
    bench.site.rest().await?;

    let processors = inboxes
        .iter()
        .map(|inbox| drain::processor(inbox, batch, drain::idle()?))
        .collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let running: Vec<_> = processors
        .into_iter()
        .zip(inboxes.iter().cloned())
        .map(|(processor, inbox)| {
            tokio::spawn(async move {
                processor
                    .run_until_drained(inbox, CancellationToken::new())
                    .await
            })
        })
        .collect();
    let mut processed = 0;
    for running in running {
        processed += running.await??.processed;
    }
    let time = start.elapsed();
    ensure!(processed == number, "processed {processed} of {number}");
    for inbox in inboxes {
        inbox.close().await;
    }
    inbox.close().await;
    Ok(time)
}
