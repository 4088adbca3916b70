//! What a filter means in SQL.

use inbox_api::{Cursor, Filter, Result, State, duration_micros, headers::CORRELATION_ID};

use crate::{context::Context, statement::Statement};

/// Which table leads a query, so that it reads neither the history nor the backlog in vain. Its
/// alias is that of `columns.sql`.
#[derive(Clone, Copy)]
pub(super) enum Lead {
    Message,
    Work,
    Dead,
    Done,
}

impl Lead {
    pub(super) fn of(states: &[State]) -> Self {
        let within = |some: &[State]| states.iter().all(|state| some.contains(state));
        if states.is_empty() {
            Self::Message
        } else if within(&[State::Dead]) {
            Self::Dead
        } else if within(&[State::Pending, State::Leased]) {
            Self::Work
        } else if within(&[State::Processed, State::Discarded]) {
            Self::Done
        } else {
            Self::Message
        }
    }

    /// Where the handler stands: in the table itself, so that messages of other handlers are not joined.
    fn handler(self) -> String {
        format!("{}.handler", self.alias())
    }

    fn alias(self) -> &'static str {
        match self {
            Self::Message => "m",
            Self::Work => "w",
            Self::Dead => "d",
            Self::Done => "f",
        }
    }

    /// The number of a message.
    pub(super) fn seq(self) -> Statement {
        Statement::new(format!("{}.seq", self.alias()))
    }

    /// The tables of a query, this one first.
    pub(super) fn tables(self, context: &Context) -> Statement {
        let tables = [
            ("m", "{message}"),
            ("w", "{work}"),
            ("d", "{dead}"),
            ("f", "{done}"),
        ];
        let lead = self.alias();
        let leading = tables.iter().find(|(alias, _)| *alias == lead);
        let mut text = format!("{} AS {lead}", leading.map_or("", |(_, table)| *table));
        if lead != "m" {
            text += &format!(
                " STRAIGHT_JOIN {{message}} AS m FORCE INDEX (PRIMARY) ON m.seq = {lead}.seq"
            );
        }
        for (alias, table) in tables {
            if alias != lead && alias != "m" {
                text += &format!(" LEFT JOIN {table} AS {alias} ON {alias}.seq = {lead}.seq");
            }
        }
        Statement::new(context.sql.expand(&text))
    }
}

/// Whether a row of `columns.sql` is shown in one of these states.
pub(super) fn in_states(states: &[State]) -> String {
    let conditions: Vec<_> = states
        .iter()
        .map(|state| match state {
            State::Pending => {
                "(w.seq IS NOT NULL AND (w.queue NOT IN (1, 3) OR w.visible_at <= @inbox_now))"
            }
            State::Leased => "(w.queue IN (1, 3) AND w.visible_at > @inbox_now)",
            State::Processed => "f.state = 2",
            State::Dead => "d.seq IS NOT NULL",
            State::Discarded => "f.state = 4",
        })
        .collect();
    conditions.join(" OR ")
}

const DUE_AT: &str = "COALESCE(w.due_at, d.due_at, f.due_at)";
const FINISHED_AT: &str = "COALESCE(d.finished_at, f.finished_at)";
const LAST_ERROR: &str = "COALESCE(w.last_error, d.last_error, f.last_error)";

/// A header as it stands in the stored text, which is written in one way only. Behind a brace or a comma
/// it stands nowhere else: within names and values, quotes have backslashes.
fn member(name: &str, value: &str) -> String {
    let quote = |text| serde_json::Value::from(text).to_string();
    format!("{}:{}", quote(name), quote(value))
}

/// Adds what `filter` means, with these states (none: any), to a condition on the tables of `lead` that has begun.
pub(super) fn push_filter(
    statement: &mut Statement,
    lead: Lead,
    filter: &Filter,
    states: &[State],
) {
    if !states.is_empty() {
        statement.push(" AND (").push(&in_states(states)).push(")");
    }
    let handler = lead.handler();
    for (column, wanted) in [
        (
            handler.as_str(),
            filter.handler.as_ref().map(AsRef::<str>::as_ref),
        ),
        ("m.kind", filter.kind.as_ref().map(AsRef::<str>::as_ref)),
        (
            "m.ordering_key",
            filter.ordering_key.as_ref().map(AsRef::<str>::as_ref),
        ),
    ] {
        if let Some(wanted) = wanted {
            statement
                .push(" AND ")
                .push(column)
                .push(" = ")
                .bytes(wanted.as_bytes());
        }
    }
    if let Some(age) = filter.older_than {
        statement
            .push(" AND m.accepted_at <= @inbox_now - ")
            .number(duration_micros(age));
    }
    if let Some(age) = filter.newer_than {
        statement
            .push(" AND m.accepted_at > @inbox_now - ")
            .number(duration_micros(age));
    }
    for (column, comparison, age) in [
        (FINISHED_AT, " <= @inbox_now - ", filter.finished_longer_ago),
        (FINISHED_AT, " > @inbox_now - ", filter.finished_within),
        (DUE_AT, " > @inbox_now + ", filter.due_later_than),
        (DUE_AT, " <= @inbox_now + ", filter.due_within),
    ] {
        if let Some(age) = age {
            statement.push(" AND ").push(column).push(comparison);
            statement.number(duration_micros(age));
        }
    }
    if let Some(least) = filter.min_started {
        statement.push(" AND COALESCE(w.started, d.started, f.started) >= ");
        statement.number(i64::from(least));
    }
    if let Some(most) = filter.max_started {
        statement.push(" AND COALESCE(w.started, d.started, f.started) <= ");
        statement.number(i64::from(most));
    }
    if filter.blocking {
        statement.push(" AND d.blocks = 1");
    }
    if !filter.ids.is_empty() {
        statement.push(" AND m.id IN (");
        for (n, id) in filter.ids.iter().enumerate() {
            let id = id.as_str().as_bytes();
            statement.push(if n == 0 { "" } else { ", " }).bytes(id);
        }
        statement.push(")");
    }
    if let Some(id) = &filter.correlation_id {
        let member = member(CORRELATION_ID, id);
        statement.push(" AND (LEFT(m.headers, ");
        statement.number(member.len() as i64 + 1).push(") = ");
        statement.bytes(format!("{{{member}").as_bytes());
        statement
            .push(" OR LOCATE(")
            .bytes(format!(",{member}").as_bytes());
        statement.push(", m.headers) > 0)");
    }
    if let Some(text) = &filter.error_contains {
        statement.push(" AND LOCATE(").bytes(text.as_bytes());
        statement.push(", ").push(LAST_ERROR).push(") > 0");
    }
    if let Some(error_type) = &filter.error_type {
        let prefix = error_type.prefix();
        statement.push(" AND LEFT(").push(LAST_ERROR).push(", ");
        statement.number(prefix.len() as i64).push(") = ");
        statement.bytes(prefix.as_bytes());
    }
}

/// The number behind which a page or a slice begins.
pub(super) fn after(cursor: Option<&Cursor>, start: i64) -> Result<i64> {
    cursor.map_or(Ok(start), |cursor| Ok(cursor.sequence()?))
}
