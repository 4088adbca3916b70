//! The messages that match a filter, read in steps.

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use inbox_api::{
    Cursor, Filter, HandlerName, Key, MessageId, Result, State, duration_micros, from_micros,
    headers,
};
use redis::Value;

use super::statistics;
use crate::{
    connection::Connection,
    keys::field,
    reply::{self, Reply, Taker},
    rows::{self, Row},
    scripts::{Call, LIST, LIST_KEYS, LIST_UNFINISHED},
};

/// One script purges or changes at most so many, so that live traffic gets in between.
pub(super) const STEP: usize = 500;

/// One script looks at most at so many messages.
const SCAN: u32 = 1000;
/// So many ids are looked up one by one. More are found by looking at all messages, once.
const NAMED: usize = 1000;
/// One script looks up so many: for each there may be an entry of the log to be taken apart.
const FIELDS: usize = 100;
/// The highest number that scripts can hold.
pub(super) const LAST: i64 = (1 << 53) - 1;

/// Where messages are looked for.
enum Way {
    /// Under these fields: the filter's ids of its handler.
    Named(Vec<String>),
    /// Where those of these handlers wait that are not final, and among dead ones.
    Unfinished(Vec<HandlerName>),
    /// Among all that is logged, or among dead ones.
    All,
}

impl Way {
    async fn of(connection: &Connection, filter: &Filter, states: &[State]) -> Result<Self> {
        if let Some(handler) = &filter.handler
            && (1..=NAMED).contains(&filter.ids.len())
        {
            let ids: BTreeSet<&MessageId> = filter.ids.iter().collect();
            let key = |id: &MessageId| Key::new(handler.clone(), id.clone());
            return Ok(Self::Named(
                ids.into_iter().map(|id| field(&key(id))).collect(),
            ));
        }
        let is_indexed =
            |state: &State| matches!(state, State::Pending | State::Leased | State::Dead);
        if !states.iter().all(is_indexed) || states.iter().all(|state| *state == State::Dead) {
            return Ok(Self::All);
        }
        Ok(Self::Unfinished(match &filter.handler {
            Some(handler) => vec![handler.clone()],
            None => statistics::handlers(connection).await?,
        }))
    }
}

/// What is looked for among the messages of all shards.
pub(super) struct Search<'a> {
    connection: &'a Connection,
    filter: &'a Filter,
    /// Those of the filter.
    ids: HashSet<&'a str>,
    states: &'a [State],
    way: Way,
    /// The first and the last number that are meant.
    range: (i64, i64),
    backwards: bool,
}

impl<'a> Search<'a> {
    /// Of the messages that match `filter` and are in one of `states`, those in a range of numbers.
    pub(super) async fn new(
        connection: &'a Connection,
        filter: &'a Filter,
        states: &'a [State],
        range: (i64, i64),
        backwards: bool,
    ) -> Result<Self> {
        Ok(Self {
            connection,
            filter,
            ids: filter.ids.iter().map(AsRef::as_ref).collect(),
            states,
            way: Way::of(connection, filter, states).await?,
            range,
            backwards,
        })
    }

    /// The first `wanted` matching rows of all shards, in order of acceptance, or in the opposite order.
    pub(super) async fn find(&self, wanted: usize) -> Result<Vec<Row>> {
        let shards = self.connection.layout().all();
        let looks = shards.map(|shard| self.find_in(shard, wanted));
        let found = futures_util::future::try_join_all(looks).await?;
        let mut found: Vec<Row> = found.into_iter().flatten().collect();
        found.sort_by_key(|row| row.seq);
        if self.backwards {
            found.reverse();
        }
        found.truncate(wanted);
        Ok(found)
    }

    /// How many rows match.
    pub(super) async fn count(&self) -> Result<u64> {
        let mut count = 0;
        for shard in self.connection.layout().all() {
            if let Way::Named(fields) = &self.way {
                count += self.find_named(shard, fields).await?.len() as u64;
                continue;
            }
            let mut scan = Scan::new(self, shard);
            while !scan.is_over() {
                count += scan.look(SCAN).await?.len() as u64;
            }
        }
        Ok(count)
    }

    /// Of one shard, `wanted` rows or a few more.
    async fn find_in(&self, shard: u16, wanted: usize) -> Result<Vec<Row>> {
        if let Way::Named(fields) = &self.way {
            return self.find_named(shard, fields).await;
        }
        let mut scan = Scan::new(self, shard);
        let mut found = Vec::new();
        // A sparse filter looks at more at a time than it wants.
        let mut rows = u32::try_from(wanted).unwrap_or(SCAN);
        while found.len() < wanted && !scan.is_over() {
            found.extend(scan.look(rows).await?);
            rows = SCAN;
        }
        Ok(found)
    }

    /// All of one shard that are under one of these fields, in no order.
    async fn find_named(&self, shard: u16, fields: &[String]) -> Result<Vec<Row>> {
        let mut found = Vec::new();
        for step in fields.chunks(FIELDS) {
            let mut call = self.connection.call(&LIST_KEYS, shard, []);
            for field in step {
                call.arg(field);
            }
            let mut answer = Taker::of(self.connection.run(call).await?)?;
            let now = answer.number()?;
            found.extend(self.read(shard, now, answer.list()?)?);
        }
        let (first, last) = self.range;
        found.retain(|row| i64::try_from(row.seq).is_ok_and(|seq| (first..=last).contains(&seq)));
        Ok(found)
    }

    /// The rows of a script's answer that match.
    fn read(&self, shard: u16, now: i64, entries: Vec<Value>) -> Reply<Vec<Row>> {
        let mut found = Vec::new();
        for entry in entries {
            let mut entry = Taker::of(entry)?;
            let seq = entry.unsigned()?;
            let row = rows::row(shard, seq, now, entry.next()?)?;
            if matches(&row, self.filter, &self.ids, self.states, now) {
                found.push(row);
            }
        }
        Ok(found)
    }
}

/// What a search finds in one shard, read as it is needed.
struct Scan<'a> {
    search: &'a Search<'a>,
    shard: u16,
    /// The part of the numbers that was not looked at yet.
    from: i64,
    to: i64,
    /// Whether more wait here than one script puts in order.
    has_too_many: bool,
}

impl<'a> Scan<'a> {
    fn new(search: &'a Search<'a>, shard: u16) -> Self {
        let (from, to) = search.range;
        Self {
            search,
            shard,
            from,
            to,
            has_too_many: false,
        }
    }

    fn is_over(&self) -> bool {
        self.from > self.to
    }

    /// The next matching rows: those of one look, so perhaps none before the end.
    async fn look(&mut self, rows: u32) -> Result<Vec<Row>> {
        let mut answer = self.ask(rows.clamp(1, SCAN)).await?;
        let now = answer.number()?;
        let more = answer.number()? == 1;
        let reached = answer.number()?;
        let found = self.search.read(self.shard, now, answer.list()?)?;
        if !more {
            self.from = self.to + 1;
        } else if self.search.backwards {
            self.to = reached - 1;
        } else {
            self.from = reached + 1;
        }
        Ok(found)
    }

    /// Looks where the messages wait, and in the log where these are too many.
    async fn ask(&mut self, rows: u32) -> Result<Taker> {
        let connection = self.search.connection;
        if let (Way::Unfinished(handlers), false) = (&self.search.way, self.has_too_many) {
            let call = self.unfinished_call(handlers, rows);
            let answer = reply::list(connection.run(call).await?)?;
            if !answer.is_empty() {
                return Ok(Taker::of(Value::Array(answer))?);
            }
            self.has_too_many = true;
        }
        let mut call = connection.call(&LIST, self.shard, []);
        self.add_range(&mut call, rows);
        call.arg(u8::from(self.search.states == [State::Dead]));
        Ok(Taker::of(connection.run(call).await?)?)
    }

    fn unfinished_call(&self, handlers: &[HandlerName], rows: u32) -> Call {
        let Search {
            connection,
            filter,
            states,
            ..
        } = self.search;
        let mut call = connection.call(&LIST_UNFINISHED, self.shard, handlers);
        self.add_range(&mut call, rows);
        call.arg(u8::from(states.contains(&State::Pending)))
            .arg(u8::from(states.contains(&State::Dead)))
            .arg(filter.ordering_key.as_ref().map_or("", AsRef::as_ref));
        call
    }

    fn add_range(&self, call: &mut Call, rows: u32) {
        call.arg(self.from)
            .arg(self.to)
            .arg(rows)
            .arg(u8::from(self.search.backwards));
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

/// The number behind which a cursor says to go on.
pub(super) fn position(cursor: Option<&Cursor>) -> Result<Option<i64>> {
    let number = cursor.map(|cursor| cursor.sequence().map(|seq| seq.clamp(0, LAST)));
    Ok(number.transpose()?)
}
