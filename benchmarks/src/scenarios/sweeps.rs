//! The same work in batches of 1 to 1,000, and with payloads of 100 B to 100 kB.

use anyhow::Result;

use super::{Bench, Runs, work};
use crate::{maker::Maker, report::At, shape::Shape, target::Slot};

const BATCHES: [u32; 7] = [1, 5, 20, 50, 100, 500, 1000];
const PAYLOADS: [u32; 4] = [100, 1_000, 10_000, 100_000];
/// The most calls of a run: small batches cost a commit each.
const CALLS: u64 = 1000;
/// The most payload of a run, in bytes.
const BYTES: u64 = 100_000_000;

pub(super) async fn batch_sizes(bench: &mut Bench<'_>) -> Result<()> {
    for batch in BATCHES {
        let shape = Shape {
            batch,
            ..bench.shape
        };
        measure(bench, shape, "batch size", u64::from(batch)).await?;
    }
    Ok(())
}

pub(super) async fn payloads(bench: &mut Bench<'_>) -> Result<()> {
    for payload in PAYLOADS {
        let shape = Shape {
            payload: payload as usize,
            ..bench.shape
        };
        measure(bench, shape, "payload bytes", u64::from(payload)).await?;
    }
    Ok(())
}

async fn measure(bench: &mut Bench<'_>, shape: Shape, axis: &str, value: u64) -> Result<()> {
    let tasks = bench.options.tasks;
    let batch = u64::from(shape.batch);
    let most = (CALLS * batch).min(BYTES / shape.payload.max(1) as u64);
    // Whole batches, and at least one.
    let number = bench.options.messages.min(most).max(batch) / batch * batch;
    bench.report.adjust("messages", number);
    bench.report.adjust("batch", batch);
    bench.report.adjust("payload", shape.payload as u64);
    let (mut receive, mut cycle) = (Runs::default(), Runs::default());
    for _ in 0..bench.options.runs {
        let inbox = bench.fresh(Slot::First).await?.inbox();
        let batches = Maker::new(shape.payload)?.batches(number, shape.batch)?;
        let timed = work::receive(&inbox, tasks, batches, number).await?;
        receive.add_with_calls(number, timed.time, &timed.calls)?;
        bench.site.rest().await?;
        let timed = work::claim_and_settle(&inbox, tasks, shape.batch, number).await?;
        cycle.add_with_calls(number, timed.time, &timed.calls)?;
        inbox.close().await;
    }
    for (step, runs) in [("receive", receive), ("claim and settle", cycle)] {
        let axis = axis.to_owned();
        bench.rates(step, Some(At { axis, value }), &runs);
    }
    Ok(())
}
