//! The store compared with the same work without it: receive, receive again, claim and settle. All
//! contenders take turns, on the same server.

use anyhow::{Result, ensure};

use super::{Bench, Runs, ratios, work};
use crate::{
    bare::{Bare, Contender},
    maker::Maker,
    target::Slot,
};

/// Of the store.
#[derive(Default)]
struct Steps {
    receive: Runs,
    duplicates: Runs,
    work: Runs,
    /// Microseconds of the server's processor time a message, where the server tells them: receive, and
    /// claim and settle.
    processor: [Vec<f64>; 2],
}

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let contenders = Contender::of(bench.site.target);
    let mut bare: Vec<[Runs; 2]> = contenders.iter().map(|_| Default::default()).collect();
    let mut store = Steps::default();
    for run in 0..bench.options.runs as usize {
        // Each run begins with another contender, so that none is always first.
        for place in 0..=contenders.len() {
            match (place + run) % (contenders.len() + 1) {
                n if n == contenders.len() => run_store(bench, &mut store).await?,
                n => run_bare(bench, contenders[n], &mut bare[n]).await?,
            }
        }
    }
    for (contender, [receive, work]) in contenders.iter().zip(&bare) {
        let name = contender.name();
        bench.rates(format!("receive, {name}"), None, receive);
        bench.rates(format!("claim and settle, {name}"), None, work);
    }
    bench.rates("receive", None, &store.receive);
    bench.rates("receive, all duplicates", None, &store.duplicates);
    bench.rates("claim and settle", None, &store.work);
    for (contender, [receive, work]) in contenders.iter().zip(&bare) {
        let name = contender.name();
        let of = ratios(&store.receive.rates, &receive.rates);
        bench.figures(format!("receive, of {name}"), of, "ratio");
        let of = ratios(&store.work.rates, &work.rates);
        bench.figures(format!("claim and settle, of {name}"), of, "ratio");
    }
    for (step, figures) in ["receive", "claim and settle"].iter().zip(store.processor) {
        if !figures.is_empty() {
            let step = format!("{step}, server's processor time");
            bench.figures(step, figures, "µs/msg");
        }
    }
    Ok(())
}

async fn run_bare(bench: &mut Bench<'_>, contender: Contender, runs: &mut [Runs; 2]) -> Result<()> {
    let number = bench.options.messages;
    let tasks = bench.options.tasks;
    let mut bare = Bare::set_up(&mut bench.site, contender, tasks, bench.shape).await?;
    let batches = Maker::new(bench.shape.payload)?.batches(number, bench.shape.batch)?;
    bench.site.rest().await?;
    runs[0].add(number, bare.receive(batches).await?);
    bench.site.rest().await?;
    let (drained, time) = bare.drain().await?;
    ensure!(drained == number, "drained {drained} of {number}");
    runs[1].add(number, time);
    Ok(())
}

async fn run_store(bench: &mut Bench<'_>, steps: &mut Steps) -> Result<()> {
    let number = bench.options.messages;
    let (tasks, batch) = (bench.options.tasks, bench.shape.batch);
    let inbox = bench.fresh(Slot::First).await?.inbox();
    let batches = Maker::new(bench.shape.payload)?.batches(number, batch)?;
    let before = bench.site.processor_time().await?;
    let timed = work::receive(&inbox, tasks, batches.clone(), number).await?;
    steps.receive.add(number, timed.time);
    let received = bench.site.processor_time().await?;
    let timed = work::receive(&inbox, tasks, batches, 0).await?;
    steps.duplicates.add(number, timed.time);
    bench.site.rest().await?;
    let duplicates = bench.site.processor_time().await?;
    let timed = work::claim_and_settle(&inbox, tasks, batch, number).await?;
    steps.work.add(number, timed.time);
    let worked = bench.site.processor_time().await?;
    for (figures, (from, to)) in
        (steps.processor.iter_mut()).zip([(before, received), (duplicates, worked)])
    {
        if let (Some(from), Some(to)) = (from, to) {
            let taken = to.saturating_sub(from).as_secs_f64();
            figures.push(taken * 1e6 / number as f64);
        }
    }
    inbox.close().await;
    Ok(())
}
