//! The operator's side.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    Bytes, Cursor, Error, ErrorKind, Expired, Filter, HandlerName, HandlerStatistics, Intervention,
    Key, Listing, Operate, Page, Progress, Record, Result, Slice, State, Statistics, check_size,
    duration_micros,
};
use redis::Value;

use crate::{
    keys::field,
    receive::Guard,
    reply::{self, Reply, Taker, Unexpected, unexpected},
    rows::{self, Row},
    scripts::{OPERATE, READ},
    store::RedisStore,
};

/// One script looks at most at so many messages.
const SCAN: u32 = 1000;
/// One script purges or changes at most so many, so that live traffic gets in between.
const STEP: usize = 500;
/// One script loads at most so many bodies.
const BODIES: usize = 50;
/// The highest number that scripts can hold.
const LAST: i64 = (1 << 53) - 1;

/// The messages of one shard that match a filter, read as they are needed.
struct Scan<'a> {
    store: &'a RedisStore,
    operation: &'static str,
    filter: &'a Filter,
    states: &'a [State],
    shard: u16,
    /// The part of the numbers that was not looked at yet.
    from: i64,
    to: i64,
    backwards: bool,
}

impl Scan<'_> {
    fn is_over(&self) -> bool {
        self.from > self.to
    }

    /// The next matching rows: those of one look, so perhaps none before the end.
    async fn look(&mut self, rows: u32) -> Result<Vec<Row>> {
        let mapped = unexpected(self.operation);
        let rows = rows.clamp(1, SCAN);
        let only_dead = self.states == [State::Dead];
        let mut call = self.store.inner.caller.call(&READ, self.shard, []);
        call.arg("list")
            .arg(self.from)
            .arg(self.to)
            .arg(rows)
            .arg(u8::from(self.backwards))
            .arg(u8::from(only_dead));
        let mut answer = Taker::of(self.store.run(self.operation, call).await?).map_err(mapped)?;
        let now = answer.number().map_err(mapped)?;
        let more = answer.number().map_err(mapped)? == 1;
        let reached = answer.number().map_err(mapped)?;
        let mut found = Vec::new();
        for entry in answer.list().map_err(mapped)? {
            let mut entry = Taker::of(entry).map_err(mapped)?;
            let seq = entry.unsigned().map_err(mapped)?;
            let value = entry.next().map_err(mapped)?;
            let row = rows::row(self.shard, seq, now, value).map_err(mapped)?;
            if matches(&row, self.filter, self.states, now) {
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
}

impl Scan<'_> {
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
fn matches(row: &Row, filter: &Filter, states: &[State], now: i64) -> bool {
    let key_matches = |handler: &HandlerName| {
        row.field
            .split_once('\0')
            .is_some_and(|(name, _)| name == handler.as_str())
    };
    if !filter.handler.as_ref().is_none_or(key_matches) {
        return false;
    }
    let ago = |age: Duration| now.saturating_sub(duration_micros(age));
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
            && filter.error_contains.is_none();
    };
    (states.is_empty() || states.contains(&record.state))
        && filter.kind.as_ref().is_none_or(|kind| *kind == record.kind)
        && (filter.ordering_key.is_none() || filter.ordering_key == record.ordering_key)
        && filter.error_contains.as_ref().is_none_or(|part| {
            let error = record.last_error.as_ref();
            error.is_some_and(|error| error.contains(part))
        })
}

/// The states of `filter` in which something can be done; dead when it names none.
fn eligible(filter: &Filter, eligible: &[State]) -> Vec<State> {
    if filter.states.is_empty() {
        return vec![State::Dead];
    }
    filter
        .states
        .iter()
        .copied()
        .filter(|state| eligible.contains(state))
        .collect()
}

fn mask(states: &[State]) -> u32 {
    states
        .iter()
        .fold(0, |mask, state| mask | (1 << state.code()))
}

fn after(operation: &'static str, cursor: Option<&Cursor>) -> Result<Option<i64>> {
    cursor
        .map(|cursor| cursor.sequence().map(|seq| seq.clamp(0, LAST)))
        .transpose()
        .map_err(|e| e.in_operation(operation))
}

/// What one message's replay or discard came to.
enum Changed {
    Done(Intervention),
    Elsewhere(Guard),
    Corrupt,
}

fn changed(value: Value) -> Reply<Changed> {
    let mut answer = Taker::of(value)?;
    let what = answer.next()?;
    Ok(match reply::text(&what)?.ok_or(Unexpected)? {
        "done" => Changed::Done(Intervention::Done),
        "absent" => Changed::Done(Intervention::NotFound),
        "dropped" => Changed::Done(Intervention::PayloadDropped),
        "state" => {
            let state = State::from_code(answer.number()?).ok_or(Unexpected)?;
            Changed::Done(Intervention::WrongState(state))
        }
        "guard" => Changed::Elsewhere(Guard {
            shard: answer.small()?,
            number: answer.unsigned()?,
        }),
        "corrupt" => Changed::Corrupt,
        _ => return Err(Unexpected),
    })
}

impl RedisStore {
    fn scans<'a>(
        &'a self,
        operation: &'static str,
        filter: &'a Filter,
        states: &'a [State],
        (from, to): (i64, i64),
        backwards: bool,
    ) -> Vec<Scan<'a>> {
        self.layout()
            .all()
            .map(|shard| Scan {
                store: self,
                operation,
                filter,
                states,
                shard,
                from,
                to,
                backwards,
            })
            .collect()
    }

    /// The first `wanted` matching rows of all shards, in order of acceptance.
    async fn scan(&self, scans: Vec<Scan<'_>>, wanted: usize) -> Result<Vec<Row>> {
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

    fn corrupt(&self, operation: &'static str, shard: u16, field: &str, reason: String) -> Error {
        let row = rows::corrupt_row(self.layout(), shard, field, reason);
        let context = format!("{}: {}", row.place, row.reason);
        Error::new(ErrorKind::Corrupt, operation, context)
    }

    /// Sorts rows into those that can be read and the others, and loads payloads and results.
    async fn listing(
        &self,
        operation: &'static str,
        rows: Vec<Row>,
        with_payload: bool,
    ) -> Result<Listing> {
        let mut listing = Listing::default();
        let mut places: BTreeMap<u16, Vec<(usize, String)>> = BTreeMap::new();
        for row in rows {
            match row.record {
                Ok(record) => {
                    let place = (listing.records.len(), row.field);
                    places.entry(row.shard).or_default().push(place);
                    listing.records.push(record);
                }
                Err(reason) => listing.corrupt.push(rows::corrupt_row(
                    self.layout(),
                    row.shard,
                    &row.field,
                    reason,
                )),
            }
        }
        if with_payload {
            for (shard, places) in places {
                for step in places.chunks(BODIES) {
                    self.load_bodies(operation, shard, step, &mut listing.records)
                        .await?;
                }
            }
        }
        Ok(listing)
    }

    async fn load_bodies(
        &self,
        operation: &'static str,
        shard: u16,
        places: &[(usize, String)],
        records: &mut [Record],
    ) -> Result<()> {
        let mapped = unexpected(operation);
        let mut call = self.inner.caller.call(&READ, shard, []);
        call.arg("bodies");
        for (_, field) in places {
            call.arg(field);
        }
        let answer = reply::list(self.run(operation, call).await?).map_err(mapped)?;
        for ((place, _), pair) in places.iter().zip(answer) {
            let mut pair = Taker::of(pair).map_err(mapped)?;
            let body = pair.bytes().map_err(mapped)?;
            let result = reply::bytes(pair.optional()).map_err(mapped)?;
            if let Some(record) = records.get_mut(*place) {
                // A payload that was just dropped is no longer there to be shown.
                record.payload = body.and_then(|body| rows::payload(&body).ok());
                if record.payload.is_none() {
                    record.payload_bytes = None;
                }
                record.result = result;
            }
        }
        Ok(())
    }

    async fn get_in(&self, shard: u16, key: &Key) -> Result<Found> {
        const OPERATION: &str = "get";
        let mapped = unexpected(OPERATION);
        let mut call = self.inner.caller.call(&READ, shard, []);
        call.arg("get").arg(field(key));
        let mut answer = Taker::of(self.run(OPERATION, call).await?).map_err(mapped)?;
        let now = match answer.optional() {
            Value::Nil => return Ok(Found::Nothing),
            Value::Int(now) => now,
            _ => {
                return Ok(Found::Elsewhere(answer.small().map_err(mapped)?));
            }
        };
        let row = rows::row(shard, 0, now, answer.next().map_err(mapped)?).map_err(mapped)?;
        let body = reply::bytes(answer.optional()).map_err(mapped)?;
        let result = reply::bytes(answer.optional()).map_err(mapped)?;
        let corrupt = |reason| self.corrupt(OPERATION, shard, &row.field, reason);
        let mut record = row.record.map_err(corrupt)?;
        record.payload = body
            .map(|body| rows::payload(&body))
            .transpose()
            .map_err(|reason| self.corrupt(OPERATION, shard, &field(key), reason))?;
        record.result = result;
        Ok(Found::Record(Box::new(record)))
    }

    /// Replays or discards messages of one shard, where their states allow it.
    async fn change(
        &self,
        operation: &'static str,
        shard: u16,
        keys: &[Key],
        states: &[State],
        payload: Option<&Bytes>,
    ) -> Result<Vec<Changed>> {
        let mapped = unexpected(operation);
        let handlers = keys.iter().map(|key| &key.handler);
        let mut call = self.inner.caller.call(&OPERATE, shard, handlers);
        let what = if operation.starts_with("replay") {
            "replay"
        } else {
            "discard"
        };
        call.arg(what)
            .arg(mask(states))
            .arg(u8::from(payload.is_some()))
            .arg(payload.map_or(&[][..], |payload| payload));
        for key in keys {
            call.arg(field(key));
        }
        let answers = reply::list(self.run_confirmed(operation, call).await?).map_err(mapped)?;
        answers
            .into_iter()
            .map(|answer| changed(answer).map_err(mapped))
            .collect()
    }

    async fn change_one(
        &self,
        operation: &'static str,
        key: &Key,
        states: &[State],
        payload: Option<&Bytes>,
    ) -> Result<Intervention> {
        let mut shard = self.layout().home(key);
        loop {
            let keys = std::slice::from_ref(key);
            let answers = self.change(operation, shard, keys, states, payload).await?;
            match answers.into_iter().next() {
                Some(Changed::Done(intervention)) => return Ok(intervention),
                // A guard leads to the message's shard, and from there nowhere else.
                Some(Changed::Elsewhere(guard)) if guard.shard != shard => {
                    shard = guard.shard;
                    self.place_staged_one(operation, key).await?;
                }
                Some(Changed::Elsewhere(_)) => return Ok(Intervention::NotFound),
                Some(Changed::Corrupt) => {
                    let reason = "its state cannot be read".to_owned();
                    return Err(self.corrupt(operation, shard, &field(key), reason));
                }
                None => return Err(unexpected(operation)(Unexpected)),
            }
        }
    }

    async fn change_slice(
        &self,
        operation: &'static str,
        filter: &Filter,
        states: &[State],
        slice: &Slice,
    ) -> Result<Progress> {
        self.place_all(operation).await?;
        let from = after(operation, slice.after.as_ref())?.map_or(0, |seq| seq + 1);
        let limit = slice.limit as usize;
        let mut progress = Progress {
            changed: 0,
            next: None,
        };
        if states.is_empty() || limit == 0 {
            return Ok(progress);
        }
        let (mut from, mut left) = (from, limit);
        while left > 0 {
            let wanted = left.min(STEP);
            let scans = self.scans(operation, filter, states, (from, LAST), false);
            let found = self.scan(scans, wanted).await?;
            let Some(last) = found.last().and_then(|row| i64::try_from(row.seq).ok()) else {
                return Ok(progress);
            };
            let is_last = found.len() < wanted;
            let done = self.change_found(operation, states, found).await?;
            let changed = done.iter().max().copied();
            left = left.saturating_sub(done.len());
            progress.changed += done.len() as u64;
            from = last + 1;
            if left == 0 {
                progress.next =
                    changed.and_then(|seq| Some(Cursor::from(i64::try_from(seq).ok()?)));
            } else if is_last {
                break;
            }
        }
        Ok(progress)
    }

    /// Answers the numbers of those that were changed.
    async fn change_found(
        &self,
        operation: &'static str,
        states: &[State],
        found: Vec<Row>,
    ) -> Result<Vec<u64>> {
        let mut by_shard: BTreeMap<u16, (Vec<u64>, Vec<Key>)> = BTreeMap::new();
        for row in found {
            let Ok(record) = row.record else { continue };
            // A message without a payload is passed over by a replay; the script sees to it.
            let (numbers, keys) = by_shard.entry(row.shard).or_default();
            numbers.push(row.seq);
            keys.push(record.key);
        }
        let mut done = Vec::new();
        for (shard, (numbers, keys)) in by_shard {
            let answers = self.change(operation, shard, &keys, states, None).await?;
            for (seq, answer) in numbers.into_iter().zip(answers) {
                if matches!(answer, Changed::Done(Intervention::Done)) {
                    done.push(seq);
                }
            }
        }
        Ok(done)
    }

    /// What `expired` means, the longest-finished of all shards first.
    async fn find_expired(
        &self,
        operation: &'static str,
        expired: &Expired,
        limit: usize,
    ) -> Result<Vec<Row>> {
        let mapped = unexpected(operation);
        let calls = self.layout().all().map(|shard| {
            let mut call = self.inner.caller.call(&READ, shard, []);
            call.arg("expired")
                .arg(expired.state().code())
                .arg(duration_micros(expired.older_than()))
                .arg(limit);
            call
        });
        let answers = self.run_all(operation, calls.collect()).await?;
        let mut found = Vec::new();
        for (shard, answer) in self.layout().all().zip(answers) {
            let mut answer = Taker::of(answer).map_err(mapped)?;
            let now = answer.number().map_err(mapped)?;
            for entry in answer.list().map_err(mapped)? {
                let mut entry = Taker::of(entry).map_err(mapped)?;
                let at = entry.number().map_err(mapped)?;
                let value = entry.next().map_err(mapped)?;
                let mut row = rows::row(shard, 0, now, value).map_err(mapped)?;
                row.at = at;
                found.push(row);
            }
        }
        found.sort_by_key(|row| row.at);
        found.truncate(limit);
        Ok(found)
    }

    async fn purge_in(
        &self,
        operation: &'static str,
        shard: u16,
        expired: &Expired,
        fields: &[String],
    ) -> Result<u64> {
        let mapped = unexpected(operation);
        let handlers: Vec<HandlerName> = fields
            .iter()
            .filter_map(|field| HandlerName::new(field.split_once('\0')?.0).ok())
            .collect();
        let mut call = self.inner.caller.call(&OPERATE, shard, &handlers);
        call.arg("purge")
            .arg(expired.state().code())
            .arg(duration_micros(expired.older_than()));
        for field in fields {
            call.arg(field);
        }
        let mut answer = Taker::of(self.run(operation, call).await?).map_err(mapped)?;
        let purged = answer.unsigned().map_err(mapped)?;
        let guards = answer.list().map_err(mapped)?;
        self.drop_guards(operation, guards).await;
        Ok(purged)
    }

    /// Where the messages of `keys` are: at home, or where a guard says.
    async fn find_shards(
        &self,
        operation: &'static str,
        keys: &[Key],
    ) -> Result<BTreeMap<u16, Vec<String>>> {
        let mut by_shard: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for key in keys {
            let home = self.layout().home(key);
            by_shard.entry(home).or_default().push(field(key));
        }
        if self.layout().shards() == 1 {
            return Ok(by_shard);
        }
        let mapped = unexpected(operation);
        let mut found: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for (home, fields) in by_shard {
            let mut call = self.inner.caller.call(&READ, home, []);
            call.arg("places");
            for field in &fields {
                call.arg(field);
            }
            let places = reply::list(self.run(operation, call).await?).map_err(mapped)?;
            for (field, place) in fields.into_iter().zip(places) {
                let shard = match place {
                    Value::Nil => home,
                    place => reply::small(&place).map_err(mapped)?,
                };
                found.entry(shard).or_default().push(field);
            }
        }
        Ok(found)
    }

    async fn handlers(&self, operation: &'static str) -> Result<Vec<HandlerName>> {
        let looks = self
            .layout()
            .all()
            .map(|shard| self.handlers_in(operation, shard));
        let mut handlers = futures_util::future::try_join_all(looks).await?.concat();
        handlers.sort();
        handlers.dedup();
        Ok(handlers)
    }

    /// The handlers that have messages in a shard.
    pub(crate) async fn handlers_in(
        &self,
        operation: &'static str,
        shard: u16,
    ) -> Result<Vec<HandlerName>> {
        let mapped = unexpected(operation);
        let mut call = self.inner.caller.call(&READ, shard, []);
        call.arg("handlers");
        let mut handlers = Vec::new();
        for name in reply::list(self.run(operation, call).await?).map_err(mapped)? {
            let Ok(Some(name)) = reply::text(&name) else {
                continue;
            };
            let name = name.split_once('\0').map_or(name, |(name, _)| name);
            // A name that breaks the rules is a corrupt row, which claim and list report.
            if let Ok(handler) = HandlerName::new(name) {
                handlers.push(handler);
            }
        }
        Ok(handlers)
    }
}

enum Found {
    Nothing,
    Elsewhere(u16),
    Record(Box<Record>),
}

/// A handler's statistics while they are put together from the shards.
struct Sum {
    statistics: HandlerStatistics,
    /// When the longest-due message so far became claimable, and its number.
    first: Option<(i64, i64)>,
}

impl Sum {
    fn add(&mut self, mut row: Taker) -> Reply<()> {
        let statistics = &mut self.statistics;
        let (pending, leased) = (row.unsigned()?, row.unsigned()?);
        statistics.processed += row.unsigned()?;
        statistics.dead += row.unsigned()?;
        statistics.discarded += row.unsigned()?;
        let lost = row.unsigned()?;
        statistics.pending += pending + lost;
        statistics.leased += leased.saturating_sub(lost);
        let (now, at, seq, accepted) = (row.number()?, row.number()?, row.number()?, row.number()?);
        if at >= 0 && self.first.is_none_or(|first| (at, seq) < first) {
            let since =
                |at: i64| Duration::from_micros(u64::try_from(now.saturating_sub(at)).unwrap_or(0));
            self.first = Some((at, seq));
            statistics.lag = Some(since(at));
            statistics.oldest_due_age = (accepted >= 0).then(|| since(accepted));
        }
        Ok(())
    }
}

#[async_trait]
impl Operate for RedisStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let home = self.layout().home(key);
        let mut found = self.get_in(home, key).await?;
        if let Found::Elsewhere(shard) = found {
            found = self.get_in(shard, key).await?;
            if matches!(found, Found::Nothing) && self.place_staged_one("get", key).await? {
                found = self.get_in(shard, key).await?;
            }
        }
        Ok(match found {
            Found::Record(record) => Some(*record),
            Found::Nothing | Found::Elsewhere(_) => None,
        })
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        const OPERATION: &str = "list";
        self.link(OPERATION)?;
        self.place_all(OPERATION).await?;
        let after = after(OPERATION, page.after.as_ref())?;
        let limit = page.limit.min(Page::MAX) as usize;
        if limit == 0 {
            return Ok(Listing::default());
        }
        let range = match after {
            Some(after) if page.newest_first => (0, after - 1),
            Some(after) => (after + 1, LAST),
            None => (0, LAST),
        };
        let scans = self.scans(OPERATION, filter, &filter.states, range, page.newest_first);
        // One more than asked for tells whether there is a next page.
        let mut found = self.scan(scans, limit + 1).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found
            .last()
            .filter(|_| more)
            .and_then(|row| i64::try_from(row.seq).ok())
            .map(Cursor::from);
        let mut listing = self.listing(OPERATION, found, page.with_payload).await?;
        listing.next = next;
        Ok(listing)
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        const OPERATION: &str = "count";
        self.place_all(OPERATION).await?;
        let scans = self.scans(OPERATION, filter, &filter.states, (0, LAST), false);
        let mut count = 0;
        for mut scan in scans {
            while !scan.is_over() {
                count += scan.look(SCAN).await?.len() as u64;
            }
        }
        Ok(count)
    }

    async fn statistics(&self) -> Result<Statistics> {
        const OPERATION: &str = "statistics";
        let mapped = unexpected(OPERATION);
        self.place_all(OPERATION).await?;
        let handlers = self.handlers(OPERATION).await?;
        let calls = self.layout().all().map(|shard| {
            let mut call = self.inner.caller.call(&READ, shard, &handlers);
            call.arg("statistics");
            call
        });
        let mut statistics: BTreeMap<HandlerName, Sum> = BTreeMap::new();
        if !handlers.is_empty() {
            for answer in self.run_all(OPERATION, calls.collect()).await? {
                for row in reply::list(answer).map_err(mapped)? {
                    let mut row = Taker::of(row).map_err(mapped)?;
                    let name = row.next().map_err(mapped)?;
                    let name = reply::text(&name).map_err(mapped)?.unwrap_or_default();
                    let Ok(handler) = HandlerName::new(name) else {
                        continue;
                    };
                    let entry = statistics.entry(handler.clone()).or_insert_with(|| Sum {
                        statistics: HandlerStatistics::empty(handler),
                        first: None,
                    });
                    entry.add(row).map_err(mapped)?;
                }
            }
        }
        Ok(Statistics {
            handlers: statistics.into_values().map(|sum| sum.statistics).collect(),
        })
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        const OPERATION: &str = "replay";
        if let Some(payload) = &payload {
            check_size("payload", payload.len(), self.inner.options.payload_limit)
                .map_err(|invalid| invalid.in_operation(OPERATION))?;
        }
        self.change_one(OPERATION, key, &FINAL, payload.as_ref())
            .await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        const OPERATION: &str = "replay_slice";
        self.link(OPERATION)?;
        let states = eligible(filter, &FINAL);
        self.change_slice(OPERATION, filter, &states, slice).await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.change_one("discard", key, &UNWANTED, None).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        const OPERATION: &str = "discard_slice";
        self.link(OPERATION)?;
        let states = eligible(filter, &UNWANTED);
        self.change_slice(OPERATION, filter, &states, slice).await
    }

    async fn purge(&self, expired: &Expired) -> Result<u64> {
        const OPERATION: &str = "purge";
        let (mut purged, mut left) = (0, expired.limit() as usize);
        self.link(OPERATION)?;
        while left > 0 {
            let wanted = left.min(STEP);
            let found = self.find_expired(OPERATION, expired, wanted).await?;
            let full = found.len() == wanted;
            let mut by_shard: BTreeMap<u16, Vec<String>> = BTreeMap::new();
            for row in found {
                by_shard.entry(row.shard).or_default().push(row.field);
            }
            let mut step = 0;
            for (shard, fields) in by_shard {
                step += self.purge_in(OPERATION, shard, expired, &fields).await?;
            }
            purged += step;
            left = left.saturating_sub(usize::try_from(step).unwrap_or(usize::MAX));
            if !full || step == 0 {
                break;
            }
        }
        Ok(purged)
    }

    async fn expired(&self, expired: &Expired) -> Result<Listing> {
        const OPERATION: &str = "expired";
        self.link(OPERATION)?;
        let limit = expired.limit().min(Page::MAX) as usize;
        if limit == 0 {
            return Ok(Listing::default());
        }
        let found = self.find_expired(OPERATION, expired, limit).await?;
        self.listing(OPERATION, found, true).await
    }

    async fn purge_archived(&self, expired: &Expired, keys: &[Key]) -> Result<u64> {
        const OPERATION: &str = "purge_archived";
        self.link(OPERATION)?;
        let mut purged = 0;
        for (shard, fields) in self.find_shards(OPERATION, keys).await? {
            for step in fields.chunks(STEP) {
                purged += self.purge_in(OPERATION, shard, expired, step).await?;
            }
        }
        Ok(purged)
    }
}

/// What can be replayed.
const FINAL: [State; 3] = [State::Processed, State::Dead, State::Discarded];
/// What can be discarded.
const UNWANTED: [State; 2] = [State::Pending, State::Dead];
