//! Which messages a filter selects, and changing a slice of them.

use inbox_api::{
    Cursor, Due, Error, ErrorKind, ErrorType, Filter, MessageId, OperatorName, Progress, Result,
    Slice, State,
};
use sqlx::{Row as _, SqlStr, postgres::PgRow};

use crate::{
    arguments::{Arguments, due_parts},
    connection::{Database, On},
    error::failed,
    statements::ByStates,
    time::micros,
};

/// How often an intervention is tried when the message changes meanwhile.
pub(super) const TRIES: u32 = 10;

/// What is told behind that.
pub(super) fn keeps_changing() -> Error {
    let context = "the message changed its state again and again";
    Error::new(ErrorKind::Conflict, context)
}

/// A filter with its states as the statements take them.
pub(super) struct Selection<'a> {
    filter: &'a Filter,
    states: Vec<State>,
}

impl<'a> Selection<'a> {
    /// Of any state unless the filter says otherwise.
    pub(super) fn of(filter: &'a Filter) -> Self {
        Self {
            filter,
            states: filter.possible_states().to_vec(),
        }
    }

    /// Of those states of the filter that are `eligible`; the `usual` one when it has none.
    pub(super) fn eligible(filter: &'a Filter, eligible: &[State], usual: State) -> Option<Self> {
        let states: Vec<State> = if filter.states.is_empty() {
            vec![usual]
        } else {
            filter
                .states
                .iter()
                .copied()
                .filter(|state| eligible.contains(state))
                .collect()
        };
        (!states.is_empty()).then_some(Self { filter, states })
    }

    pub(super) fn text<'s>(&self, by_states: &'s ByStates) -> &'s SqlStr {
        let set_aside = |state: &State| matches!(state, State::Dead | State::Discarded);
        if !self.filter.ids.is_empty() {
            &by_states.named
        } else if !self.states.is_empty() && self.states.iter().all(set_aside) {
            &by_states.set_aside
        } else if self.states == [State::Leased] {
            &by_states.leased
        } else {
            &by_states.any
        }
    }

    fn wants(&self, states: &[State]) -> bool {
        // NUL cannot be in a header, nor be sent as text.
        let correlation_id = self.filter.correlation_id.as_deref();
        if correlation_id.is_some_and(|id| id.contains('\0')) {
            return false;
        }
        self.states.is_empty() || self.states.iter().any(|state| states.contains(state))
    }

    /// `$1` to `$21` of `list.sql`.
    pub(super) fn arguments(&self, beyond: i64, limit: u32) -> Arguments {
        let codes = || self.states.iter().map(|state| i16::from(state.code()));
        let filter = self.filter;
        Arguments::new()
            .with(beyond)
            .with(i64::from(limit))
            .with((!self.states.is_empty()).then(|| codes().collect::<Vec<_>>()))
            .with(filter.handler.as_ref().map(AsRef::<str>::as_ref))
            .with(filter.kind.as_ref().map(AsRef::<str>::as_ref))
            .with(filter.ordering_key.as_ref().map(AsRef::<str>::as_ref))
            .with(filter.older_than.map(micros))
            .with(filter.newer_than.map(micros))
            // NUL cannot be in a stored error, nor be sent as text.
            .with(
                filter
                    .error_contains
                    .as_ref()
                    .map(|text| text.replace('\0', "\u{1}")),
            )
            .with(self.wants(&[State::Pending, State::Leased, State::Dead]))
            .with(!filter.blocking && self.wants(&[State::Processed, State::Discarded]))
            .with(
                (!filter.ids.is_empty())
                    .then(|| filter.ids.iter().map(MessageId::as_str).collect::<Vec<_>>()),
            )
            .with(
                filter
                    .correlation_id
                    .as_deref()
                    .filter(|id| !id.contains('\0')),
            )
            .with(filter.finished_longer_ago.map(micros))
            .with(filter.finished_within.map(micros))
            .with(filter.due_later_than.map(micros))
            .with(filter.due_within.map(micros))
            .with(filter.min_started.map(i64::from))
            .with(filter.error_type.as_ref().map(ErrorType::prefix))
            .with(filter.max_started.map(i64::from))
            .with(filter.blocking)
    }
}

pub(super) fn start_after(cursor: Option<&Cursor>, start: i64) -> Result<i64> {
    Ok(cursor.map(Cursor::sequence).transpose()?.unwrap_or(start))
}

/// The numbers of the messages that a function has changed.
pub(super) fn read_numbers(answer: &[PgRow]) -> Result<Vec<i64>> {
    let first = answer.first().map(|row| row.try_get::<Vec<i64>, _>(0));
    Ok(first.transpose().map_err(failed)?.unwrap_or_default())
}

/// Who signs, as the functions take it. NUL, which no text has there, cannot be in a name.
pub(super) fn signature(by: Option<&OperatorName>) -> Option<&str> {
    by.map(OperatorName::as_str)
}

/// What a change of a slice needs of the messages, or takes in addition.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Any,
    WithPayload,
    Due(Due),
}

/// Changes one slice of what `selection` selects.
pub(super) async fn change_slice(
    database: &Database,
    texts: &ByStates,
    selection: Option<Selection<'_>>,
    slice: &Slice,
    change: Change,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    let beyond = start_after(slice.after.as_ref(), 0)?;
    let (Some(selection), 1..) = (selection, slice.limit) else {
        return Ok(Progress {
            changed: 0,
            next: None,
        });
    };
    let mut arguments = selection
        .arguments(beyond, slice.limit)
        .with(matches!(change, Change::WithPayload))
        .with(database.options.notifications)
        .with(signature(by));
    if let Change::Due(due) = change {
        let (at, after) = due_parts(due);
        arguments = arguments.with(at).with(after);
    }
    let arguments = arguments.finish()?;
    let text = selection.text(texts);
    let answer = database
        .run(On::PoolPlannedEachTime, text, arguments)
        .await?;
    let (mut selected, mut last): (i32, Option<i64>) = (0, None);
    if let Some(row) = answer.first() {
        selected = row.try_get(1).map_err(failed)?;
        last = row.try_get(2).map_err(failed)?;
    }
    // Whether the end is reached shows in how many were found. Of those, others may have
    // changed some at the same time, which are not to be changed any more.
    let full = u32::try_from(selected).is_ok_and(|selected| selected >= slice.limit);
    Ok(Progress {
        changed: read_numbers(&answer)?.len() as u64,
        next: last.filter(|_| full).map(Cursor::from),
    })
}
