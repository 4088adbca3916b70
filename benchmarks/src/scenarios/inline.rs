//! One message at a time, begun before the work and finished after it, compared with a bare
//! insert and update where the store is SQL.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{
    InlineConsumer, LeaseTerms, Message, WorkerName,
    inline::{Consumed, OnBusy},
};

use super::{Bench, Runs, pair, pair::Bare, ratios};
use crate::{
    maker::Maker,
    report::{Latencies, latencies, record},
    target::Slot,
};

/// At the same time.
const CALLERS: [u32; 2] = [1, 8];
/// What is not counted: connections are opened, and their statements planned.
const WARM_UP: Duration = Duration::from_secs(1);

enum Caller {
    Bare(Bare),
    Consumer(Box<InlineConsumer>),
}

impl Caller {
    async fn call(&mut self, message: &Message) -> Result<()> {
        match self {
            Self::Bare(bare) => bare.insert_and_update(message).await,
            Self::Consumer(consumer) => {
                let consumed = consumer
                    .consume(message, async |_| Ok::<_, Infallible>(None))
                    .await?;
                ensure!(consumed == Consumed::Ran { result: None });
                Ok(())
            }
        }
    }
}

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    for callers in CALLERS {
        let (mut pairs, mut consumed) = (Runs::default(), Runs::default());
        for run in 0..bench.options.runs {
            // Neither is always first.
            for place in 0..2 {
                if (run + place) % 2 == 0 {
                    one_store(bench, callers, &mut consumed).await?;
                } else {
                    one_bare(bench, callers, &mut pairs).await?;
                }
            }
        }
        let with = match callers {
            1 => "1 caller".to_owned(),
            callers => format!("{callers} callers"),
        };
        bench.rates(format!("begin and finish, {with}"), None, &consumed);
        if !pairs.rates.is_empty() {
            bench.rates(format!("bare insert and update, {with}"), None, &pairs);
            let of_pairs = ratios(&consumed.rates, &pairs.rates);
            bench.figures(format!("of the bare pair, {with}"), of_pairs, "ratio");
        }
    }
    Ok(())
}

async fn one_store(bench: &mut Bench<'_>, callers: u32, runs: &mut Runs) -> Result<()> {
    let inbox = bench.fresh(Slot::First).await?.inbox();
    let terms = LeaseTerms::new(Duration::from_secs(30), WorkerName::new("worker-1")?)?;
    let consumer = InlineConsumer::new(inbox.clone(), terms).on_busy(OnBusy::Error);
    let callers = (0..callers).map(|_| Caller::Consumer(Box::new(consumer.clone())));
    stretch(bench, callers.collect(), runs).await?;
    inbox.close().await;
    Ok(())
}

async fn one_bare(bench: &mut Bench<'_>, callers: u32, runs: &mut Runs) -> Result<()> {
    let inbox = bench.site.fresh(Slot::Second).await?.inbox();
    inbox.close().await;
    if let Some(callers) = pair::callers(&bench.site, Slot::Second, callers).await? {
        let callers = callers.into_iter().map(Caller::Bare).collect();
        stretch(bench, callers, runs).await?;
    }
    Ok(())
}

/// All callers, one message each after the other, for a stretch of time.
async fn stretch(bench: &Bench<'_>, callers: Vec<Caller>, runs: &mut Runs) -> Result<()> {
    let start = Instant::now() + WARM_UP;
    let end = start + Duration::from_secs(bench.options.seconds);
    let mut running = Vec::new();
    for mut caller in callers {
        let mut maker = Maker::new(bench.shape.payload)?;
        running.push(tokio::spawn(async move {
            let mut calls = latencies()?;
            while Instant::now() < end {
                let message = maker.message()?;
                let call = Instant::now();
                caller.call(&message).await?;
                if call >= start {
                    record(&mut calls, call.elapsed());
                }
            }
            Ok::<Latencies, anyhow::Error>(calls)
        }));
    }
    let mut calls = latencies()?;
    for running in running {
        calls.add(running.await??)?;
    }
    runs.add_with_calls(calls.len(), start.elapsed(), &calls)
}
