//! Ordering keys: none, many, a few, and a single one, which lets one message run at a time, or with runs one
//! batch.

use std::convert::Infallible;

use anyhow::Result;
use inbox::{Batch, Batches, OrderingKey, Router};

use super::{Bench, Runs, drain, work};
use crate::{
    maker::Maker,
    target::{Slot, handler},
};

/// Messages that share a key where there are many keys.
const EACH: u64 = 10;
const FEW: u64 = 16;
/// Messages that are handed out one behind the other take a round trip or more each, so there are
/// that many times fewer of them.
const FEWER: u64 = 50;
const RUN: usize = 64;

/// Handlers that do nothing, for batches with runs.
fn in_runs(batch: u32, run: usize) -> Result<Router> {
    let idle = |_: Batch| async { Ok::<_, Infallible>(()) };
    Ok(Router::new(handler()?)
        .fallback_batch_handler(idle)
        .batches(Batches::up_to(batch as usize).runs(run)))
}

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let all = bench.options.messages;
    let few = (all / FEWER * 10).clamp(FEW, all);
    let one = (all / FEWER).max(1);
    for (step, number, keys, run) in [
        ("no ordering keys".to_owned(), all, None, 1),
        (
            format!("{EACH} messages a key"),
            all,
            Some(all.div_ceil(EACH)),
            1,
        ),
        (format!("{FEW} keys"), few, Some(FEW), 1),
        (format!("{FEW} keys, runs of {RUN}"), all, Some(FEW), RUN),
        ("one key".to_owned(), one, Some(1), 1),
        (format!("one key, runs of {RUN}"), few, Some(1), RUN),
    ] {
        bench.report.adjust("messages", number);
        let mut runs = Runs::default();
        for _ in 0..bench.options.runs {
            let inbox = bench.fresh(Slot::First).await?.inbox();
            let mut messages = Maker::new(bench.shape.payload)?.messages(number)?;
            if let Some(keys) = keys {
                // Messages of a key are as far apart as can be.
                messages = messages
                    .into_iter()
                    .zip((0..keys).cycle())
                    .map(|(message, key)| {
                        let key = OrderingKey::new(format!("account-{key}"))?;
                        Ok(message.with_ordering_key(key))
                    })
                    .collect::<Result<_>>()?;
            }
            work::prefill_with(&inbox, &messages).await?;
            bench.site.rest().await?;
            let router = match run {
                1 => drain::idle()?,
                _ => in_runs(bench.shape.batch, run)?,
            };
            let time = drain::drain(&inbox, bench.shape.batch, router, number).await?;
            runs.add(number, time);
            inbox.close().await;
        }
        bench.rates(format!("drain, {step}"), None, &runs);
    }
    Ok(())
}
