//! The messages that match a filter, read in steps.

use std::{collections::HashSet, time::Duration};

use inbox_api::{
    Cursor, Filter, HandlerName, Result, State, duration_micros, from_micros, headers,
};

use crate::{
    connection::Connection,
    reply::Taker,
    rows::{self, Row},
    scripts::LIST,
};

/// One script purges or changes at most so many, so that live traffic gets in between.
pub(super) const STEP: usize = 500;

/// One script looks at most at so many messages.
pub(super) const SCAN: u32 = 1000;
/// The highest number that scripts can hold.
pub(super) const LAST: i64 = (1 << 53) - 1;

/// The messages of one shard that match a filter, read as they are needed.
pub(super) struct Scan<'a> {
    connection: &'a Connection,
    filter: &'a Filter,
    /// Those of the filter.
    ids: HashSet<&'a str>,
    states: &'a [State],
    shard: u16,
    /// The part of the numbers that was not looked at yet.
    from: i64,
    to: i64,
    backwards: bool,
}

impl Scan<'_> {
    pub(super) fn is_over(&self) -> bool {
        self.from > self.to
    }

    /// The next matching rows: those of one look, so perhaps none before the end.
    pub(super) async fn look(&mut self, rows: u32) -> Result<Vec<Row>> {
        let rows = rows.clamp(1, SCAN);
        let only_dead = self.states == [State::Dead];
        let mut call = self.connection.call(&LIST, self.shard, []);
        call.arg(self.from)
            .arg(self.to)
            .arg(rows)
            .arg(u8::from(self.backwards))
            .arg(u8::from(only_dead));
        let mut answer = Taker::of(self.connection.run(call).await?)?;
        let now = answer.number()?;
        let more = answer.number()? == 1;
        let reached = answer.number()?;
        let mut found = Vec::new();
        for entry in answer.list()? {
            let mut entry = Taker::of(entry)?;
            let seq = entry.unsigned()?;
            let value = entry.next()?;
            let row = rows::row(self.shard, seq, now, value)?;
            if matches(&row, self.filter, &self.ids, self.states, now) {
                found.push(row);
            }
        }
        if !more {
            self.from = self.to + 1;
        } else if self.backwards {
            self.to = reached - 1;
        } else {
            self.from = reached + 1;
        }
        Ok(found)
    }

    /// The first `wanted` matching rows, or a few more.
    async fn first(mut self, wanted: usize) -> Result<Vec<Row>> {
        let mut found = Vec::new();
        // A sparse filter looks at more at a time than it wants.
        let mut rows = u32::try_from(wanted).unwrap_or(SCAN);
        while found.len() < wanted && !self.is_over() {
            found.extend(self.look(rows).await?);
            rows = SCAN;
        }
        Ok(found)
    }
}

/// A row that cannot be read matches as far as can be told.
fn matches(row: &Row, filter: &Filter, ids: &HashSet<&str>, states: &[State], now: i64) -> bool {
    let key_matches = |handler: &HandlerName| {
        row.field
            .split_once('\0')
            .is_some_and(|(name, _)| name == handler.as_str())
    };
    if !filter.handler.as_ref().is_none_or(key_matches) {
        return false;
    }
    let id = row.field.split_once('\0').map_or("", |(_, id)| id);
    if !ids.is_empty() && !ids.contains(id) {
        return false;
    }
    let ago = |age: Duration| now.saturating_sub(duration_micros(age));
    let finished = State::from_code(row.state).is_some_and(State::is_final);
    if filter
        .finished_longer_ago
        .is_some_and(|age| !finished || row.at > ago(age))
        || filter
            .finished_within
            .is_some_and(|age| !finished || row.at <= ago(age))
    {
        return false;
    }
    if filter.older_than.is_some_and(|age| row.accepted > ago(age))
        || filter
            .newer_than
            .is_some_and(|age| row.accepted <= ago(age))
    {
        return false;
    }
    let Ok(record) = &row.record else {
        let stored = State::from_code(row.state);
        return (states.is_empty() || stored.is_some_and(|state| states.contains(&state)))
            && filter.kind.is_none()
            && filter.ordering_key.is_none()
            && filter.correlation_id.is_none()
            && filter.due_later_than.is_none()
            && filter.due_within.is_none()
            && filter.min_started.is_none()
            && filter.max_started.is_none()
            && !filter.blocking
            && filter.error_contains.is_none()
            && filter.error_type.is_none();
    };
    let due_by = |length: Duration| from_micros(now.saturating_add(duration_micros(length)));
    let error = record.last_error.as_deref();
    (states.is_empty() || states.contains(&record.state))
        && filter.kind.as_ref().is_none_or(|kind| *kind == record.kind)
        && (filter.ordering_key.is_none() || filter.ordering_key == record.ordering_key)
        && filter
            .correlation_id
            .as_deref()
            .is_none_or(|id| record.headers.get(headers::CORRELATION_ID) == Some(id))
        && filter
            .due_later_than
            .is_none_or(|length| record.due_at > due_by(length))
        && filter
            .due_within
            .is_none_or(|length| record.due_at <= due_by(length))
        && filter
            .min_started
            .is_none_or(|least| record.attempts.started >= least)
        && filter
            .max_started
            .is_none_or(|most| record.attempts.started <= most)
        && (!filter.blocking || record.blocks_ordering_key)
        && filter
            .error_contains
            .as_ref()
            .is_none_or(|part| error.is_some_and(|error| error.contains(part)))
        && filter.error_type.as_ref().is_none_or(|error_type| {
            error.is_some_and(|error| error.starts_with(&error_type.prefix()))
        })
}

/// A scan of each shard.
pub(super) fn begin<'a>(
    connection: &'a Connection,
    filter: &'a Filter,
    states: &'a [State],
    (from, to): (i64, i64),
    backwards: bool,
) -> Vec<Scan<'a>> {
    connection
        .layout()
        .all()
        .map(|shard| Scan {
            connection,
            filter,
            ids: filter.ids.iter().map(AsRef::as_ref).collect(),
            states,
            shard,
            from,
            to,
            backwards,
        })
        .collect()
}

/// The first `wanted` matching rows of all shards, in order of acceptance.
pub(super) async fn find(scans: Vec<Scan<'_>>, wanted: usize) -> Result<Vec<Row>> {
    let backwards = scans.first().is_some_and(|scan| scan.backwards);
    let looks = scans.into_iter().map(|scan| scan.first(wanted));
    let found = futures_util::future::try_join_all(looks).await?;
    let mut found: Vec<Row> = found.into_iter().flatten().collect();
    found.sort_by_key(|row| row.seq);
    if backwards {
        found.reverse();
    }
    found.truncate(wanted);
    Ok(found)
}

/// The number behind which a cursor says to go on.
pub(super) fn position(cursor: Option<&Cursor>) -> Result<Option<i64>> {
    let number = cursor.map(|cursor| cursor.sequence().map(|seq| seq.clamp(0, LAST)));
    Ok(number.transpose()?)
}
