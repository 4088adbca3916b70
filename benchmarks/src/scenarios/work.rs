//! What the scenarios do with a store, by several tasks at a time; and claim and settle, each by
//! itself.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{
    ClaimRequest, HandlerName, Inbox, LeaseTerms, Message, Outcome, Receipt, Settled, Settlement,
    WorkerName,
};

use super::{Bench, Runs};
use crate::{
    maker::Maker,
    report::{Latencies, latencies, record},
    target::{Slot, handler},
};

/// How many messages at a time are received when that is not measured.
const PREFILL: u32 = 1000;

/// The time that all of it took, and each call.
pub(super) struct Timed {
    pub(super) time: Duration,
    pub(super) calls: Latencies,
}

pub(super) async fn measure(bench: &mut Bench<'_>) -> Result<()> {
    let number = bench.options.messages;
    let (mut claims, mut settlements) = (Runs::default(), Runs::default());
    for _ in 0..bench.options.runs {
        let inbox = bench.fresh(Slot::First).await?.inbox();
        prefill(&inbox, &mut Maker::new(bench.shape.payload)?, number).await?;
        bench.site.rest().await?;
        let request = request(bench.shape.batch)?;

        let mut calls = latencies()?;
        let mut claimed = Vec::new();
        let start = Instant::now();
        loop {
            let call = Instant::now();
            let batch = claim(&inbox, &request).await?;
            if batch.is_empty() {
                break;
            }
            record(&mut calls, call.elapsed());
            claimed.push(batch);
        }
        claims.add_with_calls(number, start.elapsed(), &calls)?;
        ensure!(claimed.iter().map(Vec::len).sum::<usize>() as u64 == number);

        bench.site.rest().await?;
        let mut calls = latencies()?;
        let start = Instant::now();
        for batch in claimed {
            let call = Instant::now();
            settle(&inbox, &batch).await?;
            record(&mut calls, call.elapsed());
        }
        settlements.add_with_calls(number, start.elapsed(), &calls)?;
        inbox.close().await;
    }
    bench.rates("claim", None, &claims);
    bench.rates("settle", None, &settlements);
    Ok(())
}

/// Uses a store a little, under another handler's name: a new connection has to be opened, and
/// its statements and functions to be planned, which takes PostgreSQL a tenth of a second.
pub(crate) async fn warm_up(inbox: &Arc<dyn Inbox>) -> Result<()> {
    const ROUNDS: usize = 10;
    let other = HandlerName::new("warm-up")?;
    let mut maker = Maker::new(16)?;
    let request = ClaimRequest {
        handlers: vec![other.clone()],
        ..request(1)?
    };
    for _ in 0..ROUNDS {
        let message = maker.message()?.for_handler(other.clone());
        prefill_with(inbox, &[message]).await?;
        let claimed = claim(inbox, &request).await?;
        settle(inbox, &claimed).await?;
    }
    Ok(())
}

/// Receives new messages.
pub(super) async fn prefill(inbox: &Arc<dyn Inbox>, maker: &mut Maker, number: u64) -> Result<()> {
    for from in (0..number).step_by(PREFILL as usize) {
        let messages = maker.messages(u64::from(PREFILL).min(number - from))?;
        prefill_with(inbox, &messages).await?;
    }
    Ok(())
}

/// Receives these new messages.
pub(super) async fn prefill_with(inbox: &Arc<dyn Inbox>, messages: &[Message]) -> Result<()> {
    for messages in messages.chunks(PREFILL as usize) {
        let receipts = inbox.receive(messages).await?;
        ensure!(receipts.iter().all(|receipt| *receipt == Receipt::Accepted));
    }
    Ok(())
}

/// Receives the batches, of which `fresh` messages are new.
pub(super) async fn receive(
    inbox: &Arc<dyn Inbox>,
    tasks: u32,
    batches: Vec<Vec<Message>>,
    fresh: u64,
) -> Result<Timed> {
    let queue = Arc::new(Mutex::new(VecDeque::from(batches)));
    let accepted = Arc::new(AtomicU64::new(0));
    let timed = at_once(tasks, || {
        let (inbox, queue, accepted) = (inbox.clone(), queue.clone(), accepted.clone());
        async move {
            let mut calls = latencies()?;
            loop {
                let batch = queue
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .pop_front();
                let Some(batch) = batch else {
                    return Ok(calls);
                };
                let call = Instant::now();
                let receipts = inbox.receive(&batch).await?;
                record(&mut calls, call.elapsed());
                let new = receipts.iter().filter(|one| **one == Receipt::Accepted);
                accepted.fetch_add(new.count() as u64, Ordering::Relaxed);
            }
        }
    })
    .await?;
    let accepted = accepted.load(Ordering::Relaxed);
    ensure!(accepted == fresh, "accepted {accepted} of {fresh}");
    Ok(timed)
}

/// Claims and settles `number` messages, which are all that are due; a call is a claim with its
/// settlement.
pub(super) async fn claim_and_settle(
    inbox: &Arc<dyn Inbox>,
    tasks: u32,
    batch: u32,
    number: u64,
) -> Result<Timed> {
    let left = Arc::new(AtomicU64::new(number));
    let request = request(batch)?;
    at_once(tasks, || {
        let (inbox, left, request) = (inbox.clone(), left.clone(), request.clone());
        async move {
            let mut calls = latencies()?;
            while left.load(Ordering::Relaxed) > 0 {
                let call = Instant::now();
                let claimed = claim(&inbox, &request).await?;
                if claimed.is_empty() {
                    // Others hold what is left.
                    tokio::time::sleep(Duration::from_micros(100)).await;
                    continue;
                }
                settle(&inbox, &claimed).await?;
                record(&mut calls, call.elapsed());
                left.fetch_sub(claimed.len() as u64, Ordering::Relaxed);
            }
            Ok(calls)
        }
    })
    .await
}

pub(super) fn request(limit: u32) -> Result<ClaimRequest> {
    Ok(ClaimRequest {
        handlers: vec![handler()?],
        limit,
        terms: LeaseTerms::new(Duration::from_secs(3600), WorkerName::new("worker-1")?)?,
        run_limit: 1,
    })
}

pub(super) async fn claim(
    inbox: &Arc<dyn Inbox>,
    request: &ClaimRequest,
) -> Result<Vec<Settlement>> {
    let claims = inbox.claim(request).await?;
    ensure!(claims.corrupt.is_empty());
    Ok(claims
        .leased
        .into_iter()
        .map(|leased| Settlement {
            lease: leased.lease,
            outcome: Outcome::Processed { result: None },
        })
        .collect())
}

pub(super) async fn settle(inbox: &Arc<dyn Inbox>, settlements: &[Settlement]) -> Result<()> {
    let settled = inbox.settle(settlements).await?;
    ensure!(settled.iter().all(|one| *one == Settled::Done));
    Ok(())
}

/// Runs that many tasks of one kind at the same time.
async fn at_once<F>(tasks: u32, task: impl Fn() -> F) -> Result<Timed>
where
    F: Future<Output = Result<Latencies>> + Send + 'static,
{
    let start = Instant::now();
    let running: Vec<_> = (0..tasks).map(|_| tokio::spawn(task())).collect();
    let mut calls = latencies()?;
    for task in running {
        calls.add(task.await??)?;
    }
    Ok(Timed {
        time: start.elapsed(),
        calls,
    })
}
