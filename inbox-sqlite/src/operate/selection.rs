//! Which messages a filter selects: its parameters in a statement, and where a page or slice begins.

use std::time::Duration;

use inbox_api::{Cursor, ErrorType, Filter, Result, State, duration_micros};
use sqlx::{
    SqlStr, Sqlite, SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

use crate::{
    error::failed,
    statements::{ByStates, Paging},
};

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

    /// Whether it selects no processed messages, which most are.
    fn is_unprocessed(&self) -> bool {
        !self.states.is_empty() && !self.states.contains(&State::Processed)
    }

    fn text(&self, by_states: &ByStates) -> SqlStr {
        match self.states.as_slice() {
            [State::Dead] => by_states.dead.clone(),
            [State::Leased] => by_states.leased.clone(),
            _ if self.is_unprocessed() => by_states.unprocessed.clone(),
            _ => by_states.any.clone(),
        }
    }

    /// Each to be asked unless the one before it has filled the page.
    fn texts(&self, paging: &Paging) -> Vec<SqlStr> {
        let all = self.text(&paging.all);
        match self.states.as_slice() {
            // These cost no more than what they find.
            [State::Dead | State::Leased] => vec![all],
            _ if self.is_unprocessed() => vec![paging.near.clone(), all],
            _ => vec![all],
        }
    }

    /// Counts what is selected.
    pub(crate) fn count(&self, texts: &ByStates) -> Query<'a, Sqlite, SqliteArguments> {
        self.bind(self.text(texts), 0, 0)
    }

    /// The first `limit` of those selected that are behind `beyond`. `with_payload` is `?21` of the statements.
    pub(crate) async fn page(
        &self,
        connection: &mut SqliteConnection,
        texts: &Paging,
        beyond: i64,
        limit: u32,
        with_payload: bool,
    ) -> Result<Vec<SqliteRow>> {
        let mut found = Vec::new();
        for text in self.texts(texts) {
            found = self
                .bind(text, beyond, i64::from(limit))
                .bind(with_payload)
                .fetch_all(&mut *connection)
                .await
                .map_err(failed)?;
            if found.len() >= limit as usize {
                break;
            }
        }
        Ok(found)
    }

    /// `?1` to `?20` of `list.sql`.
    fn bind(&self, text: SqlStr, beyond: i64, limit: i64) -> Query<'a, Sqlite, SqliteArguments> {
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

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use inbox_api::InboxName;
    use sqlx::{AssertSqlSafe, ConnectOptions as _, SqlSafeStr as _, sqlite::SqliteConnectOptions};

    use super::*;
    use crate::statements::{Statements, expand};

    /// An inbox with 40 messages that are pending, but for ten leased ones, and so many before them that are
    /// processed.
    async fn inbox_with(history: u32, inbox: &InboxName) -> SqliteConnection {
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut connection = options.connect().await.unwrap();
        let fill = format!(
            "WITH RECURSIVE numbers (n) AS (
                SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {history} + 40
            )
            INSERT INTO inbox_message
                (handler, id, kind, headers, ordering_key, fingerprint, accepted_at, first_due_at)
            SELECT 'h', CAST(n AS TEXT), 'k', '{{}}', iif(n % 2, 'key ' || (n % 3), NULL), 1, 1, 1 FROM numbers;
            UPDATE inbox_state SET state = 2, claimable = 0, finished_at = 5 WHERE seq <= {history};
            UPDATE inbox_state SET state = 1, lease_until = 200, visible_at = 200
            WHERE seq > {history} AND seq % 4 = 0;"
        );
        for part in [
            expand(include_str!("../sql/schema_1.sql"), inbox),
            expand(include_str!("../sql/schema_triggers.sql"), inbox),
            AssertSqlSafe(fill).into_sql_str(),
        ] {
            sqlx::raw_sql(part).execute(&mut connection).await.unwrap();
        }
        connection
    }

    /// How many steps SQLite's machine takes to count what is in one of the states, and to find pages of it.
    async fn steps(states: &[State], history: u32) -> u64 {
        let inbox = InboxName::default();
        let mut connection = inbox_with(history, &inbox).await;
        let statements = Statements::new(&inbox);
        let filter = Filter {
            states: states.to_vec(),
            ..Filter::default()
        };
        let selection = Selection::new(&filter, 100);
        let taken = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&taken);
        let mut handle = connection.lock_handle().await.unwrap();
        handle.set_progress_handler(1, move || {
            counter.fetch_add(1, Ordering::Relaxed);
            true
        });
        drop(handle);
        for (texts, beyond) in [
            (&statements.list, 0),
            (&statements.list_newest, i64::MAX),
            (&statements.slice_select, 0),
        ] {
            let found = selection.page(&mut connection, texts, beyond, 6, false);
            assert_eq!(found.await.unwrap().len(), 6, "{states:?}");
        }
        let count = selection.count(&statements.count);
        count.fetch_one(&mut connection).await.unwrap();
        taken.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn looks_at_what_is_unprocessed_do_not_grow_with_the_history() {
        for states in [
            &[State::Pending][..],
            &[State::Leased],
            &[State::Pending, State::Leased],
            &[State::Pending, State::Leased, State::Dead],
            &[State::Pending, State::Dead, State::Discarded],
        ] {
            let of_a_short_one = steps(states, 100).await;
            assert!(of_a_short_one > 0);
            assert_eq!(steps(states, 2000).await, of_a_short_one, "{states:?}");
        }
    }
}
