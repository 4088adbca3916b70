//! Which messages a filter selects: its parameters in a statement, and where a page or slice begins.

use std::time::Duration;

use inbox_api::{Cursor, ErrorType, Filter, Result, State, duration_micros};
use sqlx::{SqlStr, Sqlite, query::Query, sqlite::SqliteArguments};

use crate::statements::ByStates;

/// A filter with its times resolved and its states as the statements take them.
pub(crate) struct Selection<'a> {
    filter: &'a Filter,
    states: Vec<State>,
    pub(crate) now: i64,
}

impl<'a> Selection<'a> {
    /// Of any state unless the filter says otherwise.
    pub(crate) fn new(filter: &'a Filter, now: i64) -> Self {
        Self {
            filter,
            states: filter.possible_states().to_vec(),
            now,
        }
    }

    /// Of those states of the filter that are `eligible`; the `usual` one when it has none.
    pub(crate) fn eligible(
        filter: &'a Filter,
        eligible: &[State],
        usual: State,
        now: i64,
    ) -> Option<Self> {
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
        (!states.is_empty()).then_some(Self {
            filter,
            states,
            now,
        })
    }

    pub(crate) fn text(&self, by_states: &ByStates) -> SqlStr {
        match self.states.as_slice() {
            [State::Dead] => by_states.dead.clone(),
            _ => by_states.any.clone(),
        }
    }

    /// `?1` to `?20` of `list.sql`.
    pub(crate) fn bind(
        &self,
        text: SqlStr,
        beyond: i64,
        limit: i64,
    ) -> Query<'a, Sqlite, SqliteArguments> {
        let codes: Vec<_> = self.states.iter().map(|state| state.code()).collect();
        let states = (!codes.is_empty()).then(|| format!("{codes:?}"));
        let ago = |age: Duration| self.now.saturating_sub(duration_micros(age));
        let ahead = |wait: Duration| self.now.saturating_add(duration_micros(wait));
        let filter = self.filter;
        let ids: Vec<&str> = filter.ids.iter().map(AsRef::as_ref).collect();
        let ids = (!ids.is_empty()).then(|| serde_json::json!(ids).to_string());
        sqlx::query(text)
            .bind(beyond)
            .bind(limit)
            .bind(self.now)
            .bind(states)
            .bind(filter.handler.as_ref().map(AsRef::<str>::as_ref))
            .bind(filter.kind.as_ref().map(AsRef::<str>::as_ref))
            .bind(filter.ordering_key.as_ref().map(AsRef::<str>::as_ref))
            .bind(filter.older_than.map(ago))
            .bind(filter.newer_than.map(ago))
            .bind(filter.error_contains.as_deref())
            .bind(ids)
            .bind(filter.correlation_id.as_deref())
            .bind(filter.finished_longer_ago.map(ago))
            .bind(filter.finished_within.map(ago))
            .bind(filter.due_later_than.map(ahead))
            .bind(filter.due_within.map(ahead))
            .bind(filter.min_started)
            .bind(filter.error_type.as_ref().map(ErrorType::prefix))
            .bind(filter.max_started)
            .bind(filter.blocking)
    }
}

/// The sequence number behind which to go on: `start` without a cursor.
pub(crate) fn start_after(cursor: Option<&Cursor>, start: i64) -> Result<i64> {
    Ok(cursor.map_or(Ok(start), Cursor::sequence)?)
}
