//! What an operator changes: replay, reschedule, discard and clear, of one message or a slice.

use inbox_api::{
    Cursor, Due, Edit, Filter, Intervention, InterventionKind, Key, OperatorName, PastIntervention,
    Progress, Result, Slice, State, from_micros, headers::CORRELATION_ID,
};
use redb::ReadTransaction;

use super::records::Snapshot;
use crate::{
    error::Failure,
    rows::{Decoded, Stage, StateRow},
    store::RedbStore,
    transaction::Transaction,
};

/// A slice of a filter that selects no message.
const NOTHING: Progress = Progress {
    changed: 0,
    next: None,
};

/// Changes one message, if there is one of that key.
pub(crate) fn change_one(
    transaction: &mut Transaction<'_>,
    key: &Key,
    change: impl FnOnce(&mut Transaction<'_>, &StateRow) -> Result<Intervention, Failure>,
) -> Result<Intervention, Failure> {
    let Some(seq) = transaction.seq_of(key)? else {
        return Ok(Intervention::NotFound);
    };
    let row = transaction
        .state(seq)?
        .map_err(|reason| Failure::corrupt(seq, &reason))?;
    change(transaction, &row)
}

/// Adds to the history who did what.
fn sign(after: &mut StateRow, kind: InterventionKind, by: Option<&OperatorName>, now: i64) {
    if let Some(by) = by {
        after.history.add_intervention(PastIntervention {
            kind,
            at: from_micros(now),
            by: by.clone(),
        });
    }
}

/// Makes a final message pending again, as if it had just been accepted, in its old place in its
/// ordering key. The token stays: it only ever grows.
pub(crate) fn replay(
    transaction: &mut Transaction<'_>,
    before: &StateRow,
    edit: &Edit,
    by: Option<&OperatorName>,
) -> Result<Intervention, Failure> {
    if before.stage.finished_at().is_none() {
        return Ok(Intervention::WrongState(
            before.visible_state(transaction.now),
        ));
    }
    let mut after = StateRow {
        stage: Stage::Pending,
        due_at: transaction.now,
        started: 0,
        finished: 0,
        replays: before.replays.saturating_add(1),
        last_error: None,
        has_result: false,
        ..before.clone()
    };
    if edit.payload.is_none() && before.payload_bytes.is_none() {
        return Ok(Intervention::PayloadDropped);
    }
    if let Some(payload) = &edit.payload {
        transaction
            .tables
            .payload
            .insert(before.seq, payload.as_ref())?;
        after.payload_bytes = Some(payload.len() as u64);
    }
    if let Some(headers) = &edit.headers {
        transaction
            .replace_headers(before.seq, headers.clone())?
            .map_err(|reason| Failure::corrupt(before.seq, &reason))?;
        after.correlation_id = headers.get(CORRELATION_ID).map(Into::into);
    }
    transaction.tables.result.remove(before.seq)?;
    sign(
        &mut after,
        InterventionKind::of_replay(edit),
        by,
        transaction.now,
    );
    transaction.replace(before, &after)?;
    Ok(Intervention::Done)
}

/// Gives a pending or dead message up. Its key goes on refusing duplicates.
pub(crate) fn discard(
    transaction: &mut Transaction<'_>,
    before: &StateRow,
    by: Option<&OperatorName>,
) -> Result<Intervention, Failure> {
    let shown = before.visible_state(transaction.now);
    if !matches!(shown, State::Pending | State::Dead) {
        return Ok(Intervention::WrongState(shown));
    }
    let mut after = StateRow {
        stage: Stage::Discarded {
            at: transaction.now,
        },
        ..before.clone()
    };
    if matches!(before.stage, Stage::Leased { .. }) {
        // Its lease has run out, but its worker may still be at it: it shall find the lease lost.
        after.token = transaction.draw_token()?;
    }
    sign(&mut after, InterventionKind::Discarded, by, transaction.now);
    transaction.replace(before, &after)?;
    Ok(Intervention::Done)
}

/// Makes a pending message due at another time, in its old place in its ordering key.
pub(crate) fn reschedule(
    transaction: &mut Transaction<'_>,
    before: &StateRow,
    due: Due,
    by: Option<&OperatorName>,
) -> Result<Intervention, Failure> {
    let shown = before.visible_state(transaction.now);
    if shown != State::Pending {
        return Ok(Intervention::WrongState(shown));
    }
    let mut after = StateRow {
        stage: Stage::Pending,
        due_at: due.resolve(transaction.now),
        ..before.clone()
    };
    if matches!(before.stage, Stage::Leased { .. }) {
        after.token = transaction.draw_token()?;
    }
    sign(
        &mut after,
        InterventionKind::Rescheduled,
        by,
        transaction.now,
    );
    transaction.replace(before, &after)?;
    Ok(Intervention::Done)
}

/// Deletes a message that nobody holds, whatever has become of it.
pub(crate) fn clear(
    transaction: &mut Transaction<'_>,
    row: &StateRow,
) -> Result<Intervention, Failure> {
    let shown = row.visible_state(transaction.now);
    if shown == State::Leased {
        return Ok(Intervention::WrongState(shown));
    }
    transaction.remove(row)?;
    Ok(Intervention::Done)
}

/// Which messages a slice of an intervention may change.
pub(crate) struct Eligible {
    pub(crate) states: Vec<State>,
    /// What a filter without states means.
    pub(crate) usual: State,
    /// Whether messages without a payload are passed over.
    pub(crate) needs_payload: bool,
}

impl RedbStore {
    /// Changes up to a slice's limit of messages. The search, which may have to pass over many,
    /// reads a snapshot; the write transaction is for those found, each judged again.
    pub(crate) async fn change_slice(
        &self,
        filter: &Filter,
        slice: &Slice,
        eligible: Eligible,
        change: impl Fn(&mut Transaction<'_>, &StateRow) -> Result<Intervention, Failure>
        + Send
        + 'static,
    ) -> Result<Progress> {
        self.inner().check_open()?;
        let after = slice.after.as_ref().map(Cursor::sequence).transpose()?;
        let limit = slice.limit as usize;
        let mut filter = filter.clone();
        if filter.states.is_empty() {
            filter.states.push(eligible.usual);
        }
        filter
            .states
            .retain(|state| eligible.states.contains(state));
        if filter.states.is_empty() || limit == 0 {
            return Ok(NOTHING);
        }
        let can_change = move |row: &StateRow, now| {
            (row.payload_bytes.is_some() || !eligible.needs_payload) && row.matches(&filter, now)
        };
        let wanted = can_change.clone();
        let search = move |transaction: &ReadTransaction, now| {
            let snapshot = Snapshot::open(transaction, now)?;
            let wanted =
                move |row: &Decoded<StateRow>| row.as_ref().is_ok_and(|row| wanted(row, now));
            let found = snapshot.walk(after, false, wanted)?.take(limit);
            found
                .map(|found| Ok(found?.0))
                .collect::<Result<Vec<i64>, _>>()
        };
        let found = self.inner().read(search).await?;
        let last = found.last().filter(|_| found.len() == limit);
        let next = last.map(|seq| Cursor::from(*seq));
        let change_found = move |transaction: &mut Transaction<'_>| {
            let mut changed = 0;
            for seq in found {
                if let Ok(row) = transaction.state(seq)?
                    && can_change(&row, transaction.now)
                    && change(transaction, &row)? == Intervention::Done
                {
                    changed += 1;
                }
            }
            Ok(changed)
        };
        let changed = self.inner().write(change_found).await?;
        Ok(Progress { changed, next })
    }
}
