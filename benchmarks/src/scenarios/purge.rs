//! Retention in live traffic: the latency of claims while nothing is purged, while a janitor's run is at a history, and
//! while all of it is purged at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{CancellationToken, Inbox, Janitor, PurgeRequest, State};
use tokio::task::JoinHandle;

use super::{Bench, Runs, depth, ratios, work};
use crate::{
    maker::Maker,
    report::{Latencies, latencies, quantile, record},
    target::Slot,
};

/// A batch of this many messages is received, claimed and settled...
const BATCH: u32 = 50;
/// ...and then a pause.
const PAUSE: Duration = Duration::from_millis(15);

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let history = bench.options.depth;
    let (mut alone, mut swept, mut during) = (vec![], vec![], vec![]);
    let (mut sweeps, mut purges) = (Runs::default(), Runs::default());
    for run in 0..bench.options.runs {
        eprintln!("purge: run {}", run + 1);
        let inbox = bench.fresh(Slot::First).await?.inbox();
        depth::fill(&inbox, depth::Kind::Retained, history).await?;
        bench.site.rest().await?;

        let traffic = Traffic::start(&inbox, bench.shape.payload)?;
        tokio::time::sleep(Duration::from_secs(bench.options.seconds)).await;
        alone.push(traffic.stop().await?);

        let janitor = Janitor::builder(inbox.clone()).keep_processed(Duration::ZERO);
        let (janitor, shutdown) = (janitor.build()?, CancellationToken::new());
        let traffic = Traffic::start(&inbox, bench.shape.payload)?;
        let start = Instant::now();
        let stop = async {
            tokio::time::sleep(Duration::from_secs(bench.options.seconds)).await;
            shutdown.cancel();
        };
        let (sweep, ()) = tokio::join!(janitor.run(shutdown.clone()), stop);
        sweeps.add(sweep.purged(), start.elapsed());
        swept.push(traffic.stop().await?);

        let traffic = Traffic::start(&inbox, bench.shape.payload)?;
        let expired = PurgeRequest::new(State::Processed, Duration::ZERO, u32::MAX)?;
        let start = Instant::now();
        let purged = inbox.purge(&expired).await?;
        purges.add(purged, start.elapsed());
        during.push(traffic.stop().await?);
        let all = purged + sweep.purged();
        ensure!(all >= history, "purged only {all}");
        inbox.close().await;
    }
    let at = |runs: &[Latencies], share: f64| -> Vec<f64> {
        runs.iter().map(|calls| quantile(calls, share)).collect()
    };
    let (tail_alone, tail_during) = (at(&alone, 0.99), at(&during, 0.99));
    let tail_swept = at(&swept, 0.99);
    let times = ratios(&tail_during, &tail_alone);
    let times_swept = ratios(&tail_swept, &tail_alone);
    bench.figures("claim, median, no purge", at(&alone, 0.5), "ms");
    bench.figures("claim, median, with a janitor", at(&swept, 0.5), "ms");
    bench.figures("claim, median, during a purge", at(&during, 0.5), "ms");
    bench.figures("claim, 99th percentile, no purge", tail_alone, "ms");
    bench.figures("claim, 99th percentile, with a janitor", tail_swept, "ms");
    bench.figures("claim, 99th percentile, during a purge", tail_during, "ms");
    let step = "claim, 99th percentile, of without: with a janitor";
    bench.figures(step, times_swept, "ratio");
    let step = "claim, 99th percentile, of without: during a purge";
    bench.figures(step, times, "ratio");
    bench.rates("janitor, in traffic", None, &sweeps);
    bench.rates("purge, in traffic", None, &purges);
    Ok(())
}

/// Steady traffic until it is told to stop.
struct Traffic {
    stop: CancellationToken,
    task: JoinHandle<Result<Latencies>>,
}

impl Traffic {
    fn start(inbox: &Arc<dyn Inbox>, payload: usize) -> Result<Self> {
        let (inbox, stop) = (Arc::clone(inbox), CancellationToken::new());
        let (mut maker, request) = (Maker::new(payload)?, work::request(BATCH)?);
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut claims = latencies()?;
            while !stopped.is_cancelled() {
                work::prefill_with(&inbox, &maker.messages(u64::from(BATCH))?).await?;
                let start = Instant::now();
                let claimed = work::claim(&inbox, &request).await?;
                record(&mut claims, start.elapsed());
                work::settle(&inbox, &claimed).await?;
                tokio::time::sleep(PAUSE).await;
            }
            Ok(claims)
        });
        Ok(Self { stop, task })
    }

    /// The latencies of its claims.
    async fn stop(self) -> Result<Latencies> {
        self.stop.cancel();
        self.task.await?
    }
}
