//! What the processor costs beyond the store's claims and settlements: the same messages by one
//! task that claims and settles, and by a processor whose handlers do nothing.

use std::time::Duration;

use anyhow::Result;

use super::{Bench, drain, work};
use crate::{machine::processor_time, maker::Maker, target::Slot};

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let number = bench.options.messages;
    let batch = bench.shape.batch;
    // Of each run, by hand and by the processor: the time that passed, and the processor's time.
    let mut figures: [Vec<f64>; 4] = Default::default();
    for run in 0..bench.options.runs {
        // Neither is always first.
        for place in 0..2 {
            let inbox = bench.fresh(Slot::First).await?.inbox();
            work::prefill(&inbox, &mut Maker::new(bench.shape.payload)?, number).await?;
            bench.site.rest().await?;
            let before = processor_time()?;
            let (first, time) = if (run + place) % 2 == 0 {
                let timed = work::claim_and_settle(&inbox, 1, batch, number).await?;
                (0, timed.time)
            } else {
                (
                    2,
                    drain::drain(&inbox, batch, drain::idle()?, number).await?,
                )
            };
            let used = processor_time()?.saturating_sub(before);
            figures[first].push(each(time, number));
            figures[first + 1].push(each(used, number));
            inbox.close().await;
        }
    }
    let more = |by: usize| {
        let both = figures[by + 2].iter().zip(&figures[by]);
        both.map(|(processor, hand)| processor - hand).collect()
    };
    let (own_time, own_used) = (more(0), more(1));
    let [hand_time, hand_used, time, used] = figures;
    for (step, figures) in [
        ("claim and settle by hand, time", hand_time),
        ("the processor, time", time),
        ("the processor beyond that, time", own_time),
        ("claim and settle by hand, processor time", hand_used),
        ("the processor, processor time", used),
        ("the processor beyond that, processor time", own_used),
    ] {
        bench.figures(step, figures, "µs/msg");
    }
    Ok(())
}

/// Microseconds a message.
#[expect(clippy::cast_precision_loss, reason = "microseconds")]
fn each(time: Duration, number: u64) -> f64 {
    time.as_secs_f64() * 1e6 / number as f64
}
