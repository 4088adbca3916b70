//! What becomes of deliveries that are no message: they are kept as dead letters, or the receiver ends at them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use inbox_source::{Delivery, Rejection};

use super::{
    Receiver,
    batch::{Taken, Verdict},
    finals::{self, Final},
    report::BatchReport,
};
use crate::{HandlerName, Receipt, Result, Store as _, telemetry::MESSAGE};

/// Leaves out the first delivery that is known to be rejected, and all after it. They are not stored either: when
/// this one comes again it may be a message, which has to come before them.
pub(super) fn leave_from_rejected<D: Delivery>(
    receiver: &Receiver,
    taken: &mut Vec<Taken<D>>,
) -> Option<Rejection> {
    let limit = receiver.store.capabilities().payload_limit;
    let is_kept = |delivery: &D, rejection: &Rejection| {
        let handler = receiver.keep_rejected.as_ref();
        handler.is_some_and(|handler| dead_letter(handler, delivery, rejection, limit).is_some())
    };
    let to_be_rejected = taken.iter().map(|taken| {
        let rejection = match &taken.message {
            Ok(message) => message.check_payload(limit).err()?.into(),
            Err(rejection) => rejection.clone(),
        };
        (!is_kept(&taken.delivery, &rejection)).then_some(rejection)
    });
    let (first, rejection) = to_be_rejected
        .enumerate()
        .find_map(|(at, rejection)| Some((at, rejection?)))?;
    tracing::warn!(target: MESSAGE, reason = %rejection, "delivery is not a valid message");
    taken.truncate(first);
    Some(rejection)
}

/// Leaves out the first delivery that is to be rejected and all after it: the broker delivers them
/// again.
pub(super) fn stop_before_rejected<D>(
    deliveries: &mut Vec<D>,
    verdicts: &mut Vec<Verdict>,
    report: &mut BatchReport,
) -> Option<Rejection> {
    let first = verdicts
        .iter()
        .position(|verdict| matches!(verdict, Verdict::Reject(_)))?;
    deliveries.truncate(first);
    let given_up = verdicts.split_off(first);
    for verdict in &given_up {
        if matches!(
            verdict,
            Verdict::Acknowledge(Receipt::Duplicate { differs: true })
        ) {
            report.differing = report.differing.saturating_sub(1);
        }
        let count = match verdict {
            Verdict::Acknowledge(Receipt::Accepted) => &mut report.accepted,
            Verdict::Acknowledge(_) => &mut report.duplicates,
            Verdict::Keep(_) => &mut report.kept,
            Verdict::Reject(_) => &mut report.rejected,
        };
        *count = count.saturating_sub(1);
    }
    given_up.into_iter().find_map(|verdict| match verdict {
        Verdict::Reject(rejection) => Some(rejection),
        _ => None,
    })
}

/// The dead letters of what would be rejected, as far as it can be kept, each with its place.
pub(super) fn dead_letters<D: Delivery>(
    receiver: &Receiver,
    handler: &HandlerName,
    deliveries: &[D],
    verdicts: &[Verdict],
) -> (Vec<usize>, Vec<Final>) {
    let limit = receiver.store.capabilities().payload_limit;
    let rejected = deliveries.iter().zip(verdicts).enumerate();
    let letters = rejected.filter_map(|(place, (delivery, verdict))| {
        let Verdict::Reject(rejection) = verdict else {
            return None;
        };
        Some((place, dead_letter(handler, delivery, rejection, limit)?))
    });
    letters.unzip()
}

fn dead_letter<D: Delivery>(
    handler: &HandlerName,
    delivery: &D,
    rejection: &Rejection,
    limit: usize,
) -> Option<Final> {
    let raw = catch_unwind(AssertUnwindSafe(|| delivery.raw()));
    let raw = raw.unwrap_or_else(|_| {
        tracing::error!("asking a delivery for its bytes panicked");
        None
    })?;
    let letter = Final::dead_letter(handler, raw, rejection, limit);
    letter
        .inspect_err(|invalid| {
            tracing::warn!(target: MESSAGE, reason = %invalid, "delivery cannot be kept");
        })
        .ok()
}

/// Keeps dead letters in place of rejections.
pub(super) async fn keep(
    receiver: &Receiver,
    places: Vec<usize>,
    letters: Vec<Final>,
    verdicts: &mut [Verdict],
    report: &mut BatchReport,
) -> Result<()> {
    let stored = finals::store(receiver, &letters).await?;
    for (place, receipt) in places.into_iter().zip(stored.receipts) {
        match (verdicts.get_mut(place), receipt) {
            (Some(verdict), Receipt::Accepted | Receipt::Duplicate { .. }) => {
                if let Verdict::Reject(rejection) = verdict {
                    *verdict = Verdict::Keep(rejection.clone());
                }
                report.rejected -= 1;
                report.kept += 1;
            }
            (_, Receipt::Refused(invalid)) => {
                tracing::warn!(target: MESSAGE, reason = %invalid, "delivery cannot be kept");
            }
            (None, _) => {}
        }
    }
    Ok(())
}
