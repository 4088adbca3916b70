//! Receive: fresh messages, half duplicates, and nothing but duplicates.

use anyhow::Result;

use super::{Bench, Runs, work};
use crate::{maker::Maker, target::Slot};

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let (batch, tasks) = (bench.shape.batch, bench.options.tasks);
    let number = bench.options.messages;
    let mut steps: [Runs; 3] = Default::default();
    for _ in 0..bench.options.runs {
        let inbox = bench.fresh(Slot::First).await?.inbox();
        let mut maker = Maker::new(bench.shape.payload)?;
        let first = maker.batches(number, batch)?;
        // Every second message of each batch is known by then.
        let mut mixed = first.clone();
        let mut fresh = 0;
        for message in mixed
            .iter_mut()
            .flat_map(|batch| batch.iter_mut().skip(1).step_by(2))
        {
            *message = maker.message()?;
            fresh += 1;
        }
        for (step, batches, fresh) in [(0, first.clone(), number), (1, mixed, fresh), (2, first, 0)]
        {
            let timed = work::receive(&inbox, tasks, batches, fresh).await?;
            steps[step].add_with_calls(number, timed.time, &timed.calls)?;
            bench.site.rest().await?;
        }
        inbox.close().await;
    }
    for (name, runs) in ["fresh", "half duplicates", "all duplicates"]
        .iter()
        .zip(&steps)
    {
        bench.rates(format!("receive, {name}"), None, runs);
    }
    let of_fresh = super::ratios(&steps[2].rates, &steps[0].rates);
    bench.figures("all duplicates, of fresh", of_fresh, "ratio");
    Ok(())
}
