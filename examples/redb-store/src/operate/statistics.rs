//! Statistics: what stands where, by handler.

use std::{collections::BTreeMap, time::Duration};

use inbox_api::{HandlerName, HandlerStatistics, State, Statistics};
use redb::{ReadTransaction, ReadableTable};

use crate::{
    error::Failure,
    rows::{Decoded, StateRow, decode},
    tables::{BLOCKING, COUNT, LEASE, PAUSED, READY, STATE, come},
};

pub(crate) fn statistics(transaction: &ReadTransaction, now: i64) -> Result<Statistics, Failure> {
    let mut handlers = BTreeMap::new();
    for entry in transaction.open_table(COUNT)?.iter()? {
        let (place, count) = entry?;
        let (name, code) = place.value();
        // Names and codes that do not read have no place in the answer.
        let Ok(name) = HandlerName::new(name) else {
            continue;
        };
        let handler = handlers
            .entry(name.clone())
            .or_insert_with(|| HandlerStatistics::empty(name));
        if let Some(counted) = count_of(handler, code) {
            *counted = count.value();
        }
    }
    let mut handlers: Vec<_> = handlers.into_values().collect();
    let paused = transaction.open_table(PAUSED)?;
    for handler in &mut handlers {
        handler.paused = paused.get(handler.handler.as_str())?.is_some();
        add_delay(transaction, handler, now)?;
    }
    Ok(Statistics { handlers })
}

fn count_of(handler: &mut HandlerStatistics, code: u8) -> Option<&mut u64> {
    if code == BLOCKING {
        return Some(&mut handler.blocking);
    }
    Some(match State::from_code(i64::from(code))? {
        State::Pending => &mut handler.pending,
        State::Leased => &mut handler.leased,
        State::Processed => &mut handler.processed,
        State::Dead => &mut handler.dead,
        State::Discarded => &mut handler.discarded,
    })
}

/// Counts leases that have run out as pending, and adds how far the handler is behind. Looks at
/// the first rows of an index, and at as many leases as workers have lost: not at the backlog.
fn add_delay(
    transaction: &ReadTransaction,
    handler: &mut HandlerStatistics,
    now: i64,
) -> Result<(), Failure> {
    let (ready, lease) = (
        transaction.open_table(READY)?,
        transaction.open_table(LEASE)?,
    );
    let name = handler.handler.as_str();
    let (mut oldest, mut due) = (None, 0);
    for moment in come(&ready, name, now)?.take(HandlerStatistics::DUE_COUNTED as usize) {
        oldest = Some(oldest.unwrap_or(moment?));
        due += 1;
    }
    let mut run_out = 0;
    for moment in come(&lease, name, now)? {
        let moment = moment?;
        oldest = Some(oldest.map_or(moment, |oldest| oldest.min(moment)));
        run_out += 1;
    }
    handler.leased = handler.leased.saturating_sub(run_out);
    handler.pending = handler.pending.saturating_add(run_out);
    handler.due = HandlerStatistics::DUE_COUNTED.min(due + run_out);
    let Some((due_at, seq)) = oldest else {
        return Ok(());
    };
    let since = |at: i64| Duration::from_micros(now.saturating_sub(at).unsigned_abs());
    let row: Decoded<StateRow> = decode("state", transaction.open_table(STATE)?.get(seq)?);
    handler.lag = Some(since(due_at));
    handler.oldest_due_age = row.ok().map(|row| since(row.accepted_at));
    Ok(())
}
