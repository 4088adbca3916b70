//! Receive, claim and settle, each by itself: all messages are received, then all claimed, then
//! all settled, in batches, by one task.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use inbox::{
    ClaimRequest, LeaseTerms, Outcome, Receipt, Settled, Settlement, Store as _, WorkerName,
};

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
    runs: u32,
) -> Result<()> {
    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..runs {
        for (times, time) in times.iter_mut().zip(run(target, cli, number).await?) {
            times.push(time);
        }
    }
    for (step, times) in [
        "receive",
        "receive again (all duplicates)",
        "claim",
        "settle",
    ]
    .into_iter()
    .zip(&times)
    {
        report.rates(target.name(), step, number, times);
    }
    Ok(())
}

async fn run(target: Target, cli: &Cli, number: u64) -> Result<[Duration; 4]> {
    let fresh = target.fresh().await?;
    let store = &fresh.store;
    let all = messages(0, number, cli.payload)?;
    let batch = cli.batch as usize;

    let start = Instant::now();
    for batch in all.chunks(batch) {
        let receipts = store.receive(batch).await?;
        ensure!(receipts.iter().all(|r| *r == Receipt::Accepted));
    }
    let receive = start.elapsed();

    let start = Instant::now();
    for batch in all.chunks(batch) {
        let receipts = store.receive(batch).await?;
        ensure!(receipts.iter().all(|r| *r == Receipt::Duplicate));
    }
    let duplicates = start.elapsed();

    let request = ClaimRequest {
        handlers: vec![handler()?],
        limit: cli.batch,
        terms: LeaseTerms::new(Duration::from_secs(600), WorkerName::new("bench")?)?,
    };
    let mut claimed = Vec::new();
    let start = Instant::now();
    loop {
        let claims = store.claim(&request).await?;
        if claims.leased.is_empty() {
            break;
        }
        claimed.push(claims.leased);
    }
    let claim = start.elapsed();
    ensure!(claimed.iter().map(Vec::len).sum::<usize>() == all.len());

    let start = Instant::now();
    for batch in claimed {
        let settlements: Vec<Settlement> = batch
            .into_iter()
            .map(|leased| Settlement {
                lease: leased.lease,
                outcome: Outcome::Processed { result: None },
            })
            .collect();
        let settled = store.settle(&settlements).await?;
        ensure!(settled.iter().all(|s| *s == Settled::Done));
    }
    let settle = start.elapsed();
    store.close().await;
    Ok([receive, duplicates, claim, settle])
}
