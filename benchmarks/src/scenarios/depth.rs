//! Claim and settle with a history, or at the head of a backlog: neither may cost more. An inbox
//! without and one with them exist at the same time and take turns.

use std::sync::Arc;

use anyhow::Result;
use inbox::Inbox;

use super::{Bench, Runs, ratios, work};
use crate::{maker::Maker, target::Slot};

/// Of what is retained or pending, in bytes.
const PAYLOAD: usize = 16;
/// What is received, claimed and settled at a time while a history is made.
const PART: u64 = 100_000;
const BATCH: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Retained,
    Pending,
}

pub(super) async fn measure(bench: &mut Bench<'_>, kind: Kind) -> Result<()> {
    let number = bench.options.messages;
    let depth = bench.options.depth;
    let empty = bench.fresh(Slot::First).await?.inbox();
    let deep = bench.fresh(Slot::Second).await?.inbox();
    let before = bench.site.memory().await?;
    fill(&deep, kind, depth).await?;
    let after = bench.site.memory().await?;

    // What is claimed of a backlog is what was there first, so all messages are of its size.
    let payload = match kind {
        Kind::Retained => bench.shape.payload,
        Kind::Pending => PAYLOAD,
    };
    let mut maker = Maker::new(payload)?;
    let mut runs: [Runs; 2] = Default::default();
    for run in 0..bench.options.runs as usize {
        for place in [run % 2, (run + 1) % 2] {
            let inbox = [&empty, &deep][place];
            work::prefill(inbox, &mut maker, number).await?;
            bench.site.rest().await?;
            let timed = work::claim_and_settle(inbox, 1, bench.shape.batch, number).await?;
            runs[place].add_with_calls(number, timed.time, &timed.calls)?;
        }
    }
    let name = match kind {
        Kind::Retained => "retained",
        Kind::Pending => "pending",
    };
    for (number, runs) in [0, depth].iter().zip(&runs) {
        bench.rates(format!("claim and settle, {number} {name}"), None, runs);
    }
    let of_empty = ratios(&runs[1].rates, &runs[0].rates);
    bench.figures(
        format!("{depth} {name}, of the empty inbox"),
        of_empty,
        "ratio",
    );
    if let (Some(before), Some(after)) = (before, after) {
        let each = after.saturating_sub(before) as f64 / depth as f64;
        bench.figures(format!("memory per message {name}"), vec![each], "bytes");
    }
    for inbox in [empty, deep] {
        inbox.close().await;
    }
    Ok(())
}

/// Makes a history or a backlog.
pub(super) async fn fill(inbox: &Arc<dyn Inbox>, kind: Kind, depth: u64) -> Result<()> {
    let mut maker = Maker::new(PAYLOAD)?;
    for from in (0..depth).step_by(PART as usize) {
        let part = PART.min(depth - from);
        work::prefill(inbox, &mut maker, part).await?;
        if kind == Kind::Retained {
            work::claim_and_settle(inbox, 1, BATCH, part).await?;
        }
    }
    Ok(())
}
