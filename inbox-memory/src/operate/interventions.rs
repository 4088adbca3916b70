//! What an operator changes: replay, reschedule, discard and clear, of one message or a slice.

use inbox_api::{
    Cursor, Due, Edit, Filter, HandlerName, Intervention, Key, Progress, Result, Slice, State,
};

use super::records::{queues_for, select, sequence};
use crate::{
    entry::{Entry, Signature},
    queue::Queue,
    queues::Queues,
};

/// A slice of a filter that selects no message.
const NOTHING: Progress = Progress {
    changed: 0,
    next: None,
};

/// `filter` with only those of its states that are `eligible`, or with the `usual` one if it names
/// none. `None` when none of those that it names is eligible.
fn narrow(filter: &Filter, eligible: &[State], usual: State) -> Option<Filter> {
    let mut filter = filter.clone();
    if filter.states.is_empty() {
        filter.states.push(usual);
    }
    filter.states.retain(|state| eligible.contains(state));
    (!filter.states.is_empty()).then_some(filter)
}

/// Changes the messages of one slice of `filter`, which has states, one by one.
fn change_slice(
    queues: &Queues,
    filter: &Filter,
    (after, limit): (Option<i64>, u32),
    change: impl Fn(&mut Queue, &Key, i64) -> Intervention,
    can_change: impl Fn(&Entry) -> bool,
) -> Progress {
    let limit = limit as usize;
    queues.lock(
        &queues_for(queues, filter.handler.as_ref()),
        |locked, now| {
            let wanted = |entry: &Entry| entry.matches(filter, now) && can_change(entry);
            let selected: Vec<(i64, Key)> = select(locked, after, false, limit, wanted)
                .into_iter()
                .map(|entry| (entry.seq, entry.key.clone()))
                .collect();
            for (_, key) in &selected {
                if let Some(queue) = locked.get(&key.handler) {
                    let _done = change(queue, key, now);
                }
            }
            Progress {
                changed: selected.len() as u64,
                next: selected
                    .last()
                    .filter(|_| selected.len() == limit)
                    .map(|(seq, _)| Cursor::from(*seq)),
            }
        },
    )
}

pub(crate) fn replay(
    queues: &Queues,
    key: &Key,
    edit: &Edit,
    by: Signature<'_>,
) -> Result<Intervention> {
    edit.check_payload(queues.options.payload_limit)?;
    let needed = queues.of(std::iter::once(&key.handler));
    Ok(queues.lock(&needed, |locked, now| {
        locked
            .get(&key.handler)
            .map_or(Intervention::NotFound, |queue| {
                queue.replay(&key.id, edit, by, now)
            })
    }))
}

pub(crate) fn replay_slice(
    queues: &Queues,
    filter: &Filter,
    slice: &Slice,
    by: Signature<'_>,
) -> Result<Progress> {
    let after = sequence(slice.after.as_ref())?;
    let replayable = [State::Processed, State::Dead, State::Discarded];
    let Some(filter) = narrow(filter, &replayable, State::Dead) else {
        return Ok(NOTHING);
    };
    Ok(change_slice(
        queues,
        &filter,
        (after, slice.limit),
        |queue, key, now| queue.replay(&key.id, &Edit::default(), by, now),
        |entry| entry.payload.is_some(),
    ))
}

pub(crate) fn reschedule(queues: &Queues, key: &Key, due: Due, by: Signature<'_>) -> Intervention {
    let needed = queues.of(std::iter::once(&key.handler));
    queues.lock(&needed, |locked, now| {
        locked
            .get(&key.handler)
            .map_or(Intervention::NotFound, |queue| {
                queue.reschedule(&key.id, due, by, now)
            })
    })
}

pub(crate) fn reschedule_slice(
    queues: &Queues,
    filter: &Filter,
    slice: &Slice,
    due: Due,
    by: Signature<'_>,
) -> Result<Progress> {
    let after = sequence(slice.after.as_ref())?;
    let Some(filter) = narrow(filter, &[State::Pending], State::Pending) else {
        return Ok(NOTHING);
    };
    Ok(change_slice(
        queues,
        &filter,
        (after, slice.limit),
        |queue, key, now| queue.reschedule(&key.id, due, by, now),
        |_| true,
    ))
}

pub(crate) fn discard(queues: &Queues, key: &Key, by: Signature<'_>) -> Intervention {
    let needed = queues.of(std::iter::once(&key.handler));
    queues.lock(&needed, |locked, now| {
        locked
            .get(&key.handler)
            .map_or(Intervention::NotFound, |queue| {
                queue.discard(&key.id, by, now)
            })
    })
}

pub(crate) fn discard_slice(
    queues: &Queues,
    filter: &Filter,
    slice: &Slice,
    by: Signature<'_>,
) -> Result<Progress> {
    let after = sequence(slice.after.as_ref())?;
    let Some(filter) = narrow(filter, &[State::Pending, State::Dead], State::Dead) else {
        return Ok(NOTHING);
    };
    Ok(change_slice(
        queues,
        &filter,
        (after, slice.limit),
        |queue, key, now| queue.discard(&key.id, by, now),
        |_| true,
    ))
}

pub(crate) fn clear_slice(
    queues: &Queues,
    handler: &HandlerName,
    slice: &Slice,
) -> Result<Progress> {
    let after = sequence(slice.after.as_ref())?;
    let filter = Filter {
        handler: Some(handler.clone()),
        states: State::ALL
            .into_iter()
            .filter(|state| *state != State::Leased)
            .collect(),
        ..Filter::default()
    };
    Ok(change_slice(
        queues,
        &filter,
        (after, slice.limit),
        |queue, key, now| queue.clear(&key.id, now),
        |_| true,
    ))
}
