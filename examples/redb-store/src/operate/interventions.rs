//! What an operator changes: replay and discard, of one message or a slice.

use inbox_api::{Bytes, Cursor, Filter, Intervention, Key, Progress, Result, Slice, State};
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

/// Makes a final message pending again, as if it had just been accepted, in its old place in its
/// ordering key. The token stays: it only ever grows.
pub(crate) fn replay(
    transaction: &mut Transaction<'_>,
    before: &StateRow,
    payload: Option<Bytes>,
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
        ..before.clone()
    };
    if let Some(payload) = payload {
        transaction
            .tables
            .payload
            .insert(before.seq, payload.as_ref())?;
        after.payload_bytes = Some(payload.len() as u64);
    }
    if after.payload_bytes.is_none() {
        return Ok(Intervention::PayloadDropped);
    }
    transaction.tables.result.remove(before.seq)?;
    transaction.replace(before, &after)?;
    Ok(Intervention::Done)
}

/// Gives a pending or dead message up. Its key goes on refusing duplicates.
pub(crate) fn discard(
    transaction: &mut Transaction<'_>,
    before: &StateRow,
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
    transaction.replace(before, &after)?;
    Ok(Intervention::Done)
}

impl RedbStore {
    /// Changes up to a slice's limit of messages. The search, which may have to pass over many,
    /// reads a snapshot; the write transaction is for those found, each judged again.
    pub(crate) async fn change_slice(
        &self,
        filter: &Filter,
        slice: &Slice,
        eligible: &[State],
        change: impl Fn(&mut Transaction<'_>, &StateRow) -> Result<Intervention, Failure>
        + Send
        + 'static,
    ) -> Result<Progress> {
        self.inner().check_open()?;
        let after = slice.after.as_ref().map(Cursor::sequence).transpose()?;
        let limit = slice.limit as usize;
        let mut filter = filter.clone();
        if filter.states.is_empty() {
            filter.states.push(State::Dead);
        }
        filter.states.retain(|state| eligible.contains(state));
        if filter.states.is_empty() || limit == 0 {
            return Ok(NOTHING);
        }
        // Only a processed message can lack its payload, so this passes over nothing else.
        let can_change =
            move |row: &StateRow, now| row.payload_bytes.is_some() && row.matches(&filter, now);
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
