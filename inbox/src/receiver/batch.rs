//! One batch: stored in one call, then acknowledged in the order of delivery.

use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use super::{
    Receiver,
    outage::Outage,
    report::{BatchReport, Summary},
    source::{Delivery, Rejection, SourceError},
};
use crate::{Error, ErrorKind, Message, Receipt, Result, Store as _, telemetry};

/// What is to be done with one delivery.
enum Verdict {
    Acknowledge,
    Reject(Rejection),
}

/// Where a delivery's copies are in the store call, or why it has none.
type Place = std::result::Result<Range<usize>, Rejection>;

/// Stores the batch, however long the store is away, and only then acknowledges it.
///
/// Fails without having acknowledged anything when the store fails for good. May be dropped at
/// any time: what was not acknowledged by then is delivered again.
pub(super) async fn process<D: Delivery>(
    receiver: &Receiver,
    deliveries: Vec<D>,
    summary: &Mutex<Summary>,
) -> Result<()> {
    let began = Instant::now();
    let (messages, places) = unpack(receiver, &deliveries);
    let receipts = store(receiver, &messages).await?;
    let mut report = BatchReport {
        deliveries: deliveries.len(),
        ..BatchReport::default()
    };
    let verdicts: Vec<Verdict> = places
        .into_iter()
        .map(|place| judge(place, &receipts, &mut report))
        .collect();
    lock(summary).add_stored(&report);
    report.failed_acknowledgements = finish(deliveries, verdicts).await;
    lock(summary).failed_acknowledgements += report.failed_acknowledgements as u64;
    report.elapsed = began.elapsed();
    tracing::debug!(
        accepted = report.accepted,
        duplicates = report.duplicates,
        rejected = report.rejected,
        "batch received"
    );
    telemetry::received(&report);
    if let Some(on_batch) = &receiver.on_batch {
        on_batch(&report);
    }
    Ok(())
}

/// The messages of all deliveries, the copies of one next to each other.
fn unpack<D: Delivery>(receiver: &Receiver, deliveries: &[D]) -> (Vec<Message>, Vec<Place>) {
    let mut messages = Vec::with_capacity(deliveries.len() * receiver.fan_out.len().max(1));
    let places = deliveries
        .iter()
        .map(|delivery| {
            let message = delivery.message()?;
            let start = messages.len();
            if receiver.fan_out.is_empty() {
                messages.push(message);
            } else {
                let copies = receiver.fan_out.iter().cloned();
                messages.extend(copies.map(|handler| message.for_handler(handler)));
            }
            Ok(start..messages.len())
        })
        .collect();
    (messages, places)
}

async fn store(receiver: &Receiver, messages: &[Message]) -> Result<Vec<Receipt>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let mut outage = Outage::none("store");
    loop {
        match receiver.store.receive(messages).await {
            Ok(receipts) if receipts.len() == messages.len() => {
                outage.over();
                return Ok(receipts);
            }
            Ok(_) => {
                return Err(Error::new(
                    ErrorKind::Other,
                    "receive",
                    "the store did not answer for every message",
                ));
            }
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(outage.failed(&error)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn judge(place: Place, receipts: &[Receipt], report: &mut BatchReport) -> Verdict {
    let copies = match place {
        Ok(range) => receipts.get(range).unwrap_or_default(),
        Err(rejection) => {
            tracing::warn!(reason = %rejection, "delivery rejected: not a valid message");
            report.rejected += 1;
            return Verdict::Reject(rejection);
        }
    };
    let refusal = copies.iter().find_map(|receipt| match receipt {
        Receipt::Refused(invalid) => Some(invalid.clone()),
        Receipt::Accepted | Receipt::Duplicate => None,
    });
    if let Some(invalid) = refusal {
        tracing::warn!(reason = %invalid, "delivery rejected: refused by the store");
        report.rejected += 1;
        return Verdict::Reject(invalid.into());
    }
    if copies.contains(&Receipt::Accepted) {
        report.accepted += 1;
    } else {
        report.duplicates += 1;
    }
    Verdict::Acknowledge
}

/// Acknowledges and rejects in the order of delivery; returns how often the broker did not take
/// it.
async fn finish<D: Delivery>(deliveries: Vec<D>, verdicts: Vec<Verdict>) -> usize {
    let mut failures = 0;
    let mut run = Vec::with_capacity(deliveries.len());
    for (delivery, verdict) in deliveries.into_iter().zip(verdicts) {
        match verdict {
            Verdict::Acknowledge => run.push(delivery),
            Verdict::Reject(rejection) => {
                failures += acknowledge(std::mem::take(&mut run)).await;
                if let Err(error) = delivery.reject(rejection).await {
                    failures += note_failures(&[error]);
                }
            }
        }
    }
    failures + acknowledge(run).await
}

async fn acknowledge<D: Delivery>(run: Vec<D>) -> usize {
    if run.is_empty() {
        return 0;
    }
    note_failures(&D::acknowledge_all(run).await)
}

fn note_failures(failures: &[SourceError]) -> usize {
    if let Some(error) = failures.first() {
        tracing::warn!(
            %error,
            count = failures.len(),
            "acknowledgement failed; the broker will deliver again and the copies be refused"
        );
    }
    failures.len()
}

/// Nothing panics while this lock is held, so a poisoned one is still whole.
pub(super) fn lock(summary: &Mutex<Summary>) -> std::sync::MutexGuard<'_, Summary> {
    summary.lock().unwrap_or_else(PoisonError::into_inner)
}
