//! Settling a lease.

use inbox_api::{
    AfterDead, AttemptEnd, Outcome, PastAttempt, Settled, Settlement, check_size, duration_micros,
    error_text, from_micros,
};

use crate::{
    error::Failure,
    options::RedbOptions,
    rows::{Stage, StateRow},
    transaction::Transaction,
};

pub(crate) fn settle(
    transaction: &mut Transaction<'_>,
    settlement: &Settlement,
    options: &RedbOptions,
) -> Result<Settled, Failure> {
    let Settlement { lease, outcome } = settlement;
    if let Outcome::Processed {
        result: Some(result),
    } = outcome
        && let Err(invalid) = check_size("result", result.len(), options.payload_limit)
    {
        return Ok(Settled::Refused(invalid));
    }
    let Some(before) = transaction.leased_row(lease)? else {
        return Ok(Settled::LeaseLost);
    };
    if !matches!(before.stage, Stage::Leased { .. }) {
        // The newest token, but no lease: this has been settled before, and the reply was lost.
        return Ok(Settled::Done);
    }
    let (seq, at) = (before.seq, transaction.now);
    let mut after = StateRow {
        finished: before.finished.saturating_add(1),
        ..before.clone()
    };
    if let Some((end, error)) = AttemptEnd::of(outcome)
        && let (Some(worker), Some(leased_at)) = (&before.worker, before.leased_at)
    {
        after.history.add_attempt(PastAttempt {
            attempt: before.started,
            replays: before.replays,
            worker: worker.clone(),
            leased_at: from_micros(leased_at),
            ended_at: from_micros(at),
            end,
            error: PastAttempt::error_text(error).into_owned(),
        });
    }
    match outcome {
        Outcome::Processed { result } => {
            after.stage = Stage::Processed { at };
            if let Some(result) = result {
                transaction.tables.result.insert(seq, result.as_ref())?;
                after.has_result = true;
            }
            if options.drop_processed_payloads {
                transaction.tables.payload.remove(seq)?;
                after.payload_bytes = None;
            }
        }
        Outcome::Retry { after: wait, error } => {
            after.stage = Stage::Pending;
            after.due_at = at.saturating_add(duration_micros(*wait));
            after.last_error = Some(error_text(error).into_owned());
        }
        Outcome::Dead {
            reason,
            after: then,
        } => {
            let blocks = *then == AfterDead::Block && before.ordering_key.is_some();
            after.stage = Stage::Dead { at, blocks };
            after.last_error = Some(error_text(reason).into_owned());
        }
        Outcome::Release => {
            // As if it had never been claimed: the due time stays, and with it the place.
            after.stage = Stage::Pending;
            after.started = before.started.saturating_sub(1);
            after.finished = before.finished;
        }
        Outcome::Defer { after: wait, error } => {
            after.stage = Stage::Pending;
            after.due_at = at.saturating_add(duration_micros(*wait));
            after.started = before.started.saturating_sub(1);
            after.finished = before.finished;
            if let Some(error) = error {
                after.last_error = Some(error_text(error).into_owned());
            }
        }
    }
    transaction.replace(&before, &after)?;
    Ok(Settled::Done)
}
