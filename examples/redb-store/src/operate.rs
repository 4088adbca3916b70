//! The operator's side: look, replay, discard, purge.
//!
//! Looking reads one snapshot and makes nobody wait. Every change is a write transaction that reads
//! the state again before it writes, so that two operators, or an operator and a worker, cannot
//! both win.

use std::{collections::BTreeMap, ops::Bound, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    Bytes, Cursor, Filter, HandlerName, HandlerStatistics, Intervention, Key, Listing, Operate,
    Page, Progress, PurgeRequest, Record, Result, Slice, State, Statistics, check_size,
    duration_micros,
};
use redb::{AccessGuard, ReadOnlyTable, ReadTransaction, ReadableTable};

use crate::{
    RedbStore,
    error::Failure,
    rows::{Decoded, Stage, StateRow, decode},
    tables::{
        BLOCKING, COUNT, FINISHED, KEY, LEASE, MESSAGE, PAYLOAD, READY, RESULT, STATE, come,
        finished_by, seq_of,
    },
    work::{Work, corrupt_row},
};

/// The rows of one snapshot, at one moment of the store's clock.
struct Look {
    state: ReadOnlyTable<i64, &'static [u8]>,
    message: ReadOnlyTable<i64, &'static [u8]>,
    payload: ReadOnlyTable<i64, &'static [u8]>,
    result: ReadOnlyTable<i64, &'static [u8]>,
    now: i64,
}

type Found = (i64, Decoded<StateRow>);

impl Look {
    fn open(transaction: &ReadTransaction, now: i64) -> Result<Self, Failure> {
        Ok(Self {
            state: transaction.open_table(STATE)?,
            message: transaction.open_table(MESSAGE)?,
            payload: transaction.open_table(PAYLOAD)?,
            result: transaction.open_table(RESULT)?,
            now,
        })
    }

    fn state(&self, seq: i64) -> Result<Decoded<StateRow>, Failure> {
        Ok(decode("state", self.state.get(seq)?))
    }

    fn record(&self, row: &StateRow, with_payload: bool) -> Result<Decoded<Record>, Failure> {
        let message = decode("message", self.message.get(row.seq)?);
        let (mut payload, mut result) = (None, None);
        if with_payload {
            payload = blob(&self.payload, row.seq)?;
            result = blob(&self.result, row.seq)?;
        }
        Ok(message.map(|message| row.record(message, payload, result, self.now)))
    }

    /// The wanted messages behind `after`, in order of acceptance or in the opposite order. The
    /// sequence number is a place that never changes, so paging by it neither skips nor repeats.
    fn walk(
        &self,
        after: Option<i64>,
        newest_first: bool,
        wanted: impl Fn(&Decoded<StateRow>) -> bool + 'static,
    ) -> Result<Box<dyn Iterator<Item = Result<Found, Failure>>>, Failure> {
        let place = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = if newest_first {
            self.state.range::<i64>((Bound::Unbounded, place))?
        } else {
            self.state.range::<i64>((place, Bound::Unbounded))?
        };
        let found =
            |entry: redb::Result<(AccessGuard<'_, i64>, AccessGuard<'_, &'static [u8]>)>| {
                let (seq, bytes) = entry?;
                Ok((seq.value(), decode("state", Some(bytes))))
            };
        let is_wanted = move |entry: &Result<Found, Failure>| match entry {
            Ok((_, row)) => wanted(row),
            Err(_) => true,
        };
        Ok(if newest_first {
            Box::new(range.rev().map(found).filter(is_wanted))
        } else {
            Box::new(range.map(found).filter(is_wanted))
        })
    }

    /// Adds a message to a listing: as a record, or as a row that does not read.
    fn add(
        &self,
        listing: &mut Listing,
        (seq, row): Found,
        with_payload: bool,
    ) -> Result<(), Failure> {
        let record = match row {
            Ok(row) => self.record(&row, with_payload)?,
            Err(reason) => Err(reason),
        };
        match record {
            Ok(record) => listing.records.push(record),
            Err(reason) => listing.corrupt.push(corrupt_row(seq, reason)),
        }
        Ok(())
    }
}

fn blob(table: &ReadOnlyTable<i64, &'static [u8]>, seq: i64) -> Result<Option<Bytes>, Failure> {
    let bytes = table.get(seq)?;
    Ok(bytes.map(|bytes| Bytes::copy_from_slice(bytes.value())))
}

/// Which messages a listing shows. A row that does not read is shown by every one: nobody can tell
/// whether the filter means it, and an operator must get to see it.
fn listed(filter: Filter, now: i64) -> impl Fn(&Decoded<StateRow>) -> bool {
    move |row| row.as_ref().map_or(true, |row| row.matches(&filter, now))
}

#[async_trait]
impl Operate for RedbStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let key = key.clone();
        let get = move |transaction: &ReadTransaction, now| {
            let Some(seq) = seq_of(&transaction.open_table(KEY)?, &key)? else {
                return Ok(None);
            };
            let look = Look::open(transaction, now)?;
            let corrupt = |reason: String| Failure::corrupt(seq, &reason);
            let row = look.state(seq)?.map_err(corrupt)?;
            look.record(&row, true)?.map(Some).map_err(corrupt)
        };
        self.inner().read("get", get).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        let after = sequence(page.after.as_ref(), "list")?;
        let limit = page.limit.min(Page::MAX) as usize;
        let (filter, page) = (filter.clone(), page.clone());
        let list = move |transaction: &ReadTransaction, now| {
            let look = Look::open(transaction, now)?;
            let mut listing = Listing::default();
            let mut last = None;
            let walk = look.walk(after, page.newest_first, listed(filter, now))?;
            for (position, found) in walk.enumerate() {
                // One more than the page holds tells that there is a next one.
                if position == limit {
                    listing.next = last.map(Cursor::from);
                    break;
                }
                let found = found?;
                last = Some(found.0);
                look.add(&mut listing, found, page.with_payload)?;
            }
            Ok(listing)
        };
        self.inner().read("list", list).await
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        let filter = filter.clone();
        let count = move |transaction: &ReadTransaction, now| {
            let matches = move |row: &Decoded<StateRow>| {
                row.as_ref().is_ok_and(|row| row.matches(&filter, now))
            };
            let look = Look::open(transaction, now)?;
            let mut count = 0;
            for found in look.walk(None, false, matches)? {
                let _found = found?;
                count += 1;
            }
            Ok(count)
        };
        self.inner().read("count", count).await
    }

    async fn statistics(&self) -> Result<Statistics> {
        let statistics = |transaction: &ReadTransaction, now| {
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
            for handler in &mut handlers {
                add_delay(transaction, handler, now)?;
            }
            Ok(Statistics { handlers })
        };
        self.inner().read("statistics", statistics).await
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        if let Some(payload) = &payload {
            check_size("payload", payload.len(), self.options().payload_limit)
                .map_err(|invalid| invalid.in_operation("replay"))?;
        }
        let key = key.clone();
        let replay = move |work: &mut Work<'_>| match known(work, &key)? {
            Some(row) => replay(work, &row, payload),
            None => Ok(Intervention::NotFound),
        };
        self.inner().write("replay", replay).await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let eligible = [State::Processed, State::Dead, State::Discarded];
        let change = |work: &mut Work<'_>, row: &StateRow| replay(work, row, None);
        self.change_slice("replay_slice", filter, slice, &eligible, change)
            .await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        let key = key.clone();
        let discard = move |work: &mut Work<'_>| match known(work, &key)? {
            Some(row) => discard(work, &row),
            None => Ok(Intervention::NotFound),
        };
        self.inner().write("discard", discard).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let eligible = [State::Pending, State::Dead];
        self.change_slice("discard_slice", filter, slice, &eligible, discard)
            .await
    }

    async fn purge(&self, expired: &PurgeRequest) -> Result<u64> {
        let expired = expired.clone();
        let purge = move |work: &mut Work<'_>| {
            let cutoff = cutoff(&expired, work.now);
            let mut rows = Vec::new();
            for seq in finished_by(&work.tables.finished, expired.state(), cutoff)? {
                if rows.len() == expired.limit() as usize {
                    break;
                }
                // A row that does not read cannot tell its key, so it stays until it is mended.
                rows.extend(work.state(seq?)?);
            }
            for row in &rows {
                work.remove(row)?;
            }
            Ok(rows.len() as u64)
        };
        self.inner().write("purge", purge).await
    }

    async fn expired(&self, expired: &PurgeRequest) -> Result<Listing> {
        let expired = expired.clone();
        let list = move |transaction: &ReadTransaction, now| {
            let look = Look::open(transaction, now)?;
            let finished = transaction.open_table(FINISHED)?;
            let found = finished_by(&finished, expired.state(), cutoff(&expired, now))?;
            let mut listing = Listing::default();
            for seq in found.take(expired.limit() as usize) {
                let seq = seq?;
                look.add(&mut listing, (seq, look.state(seq)?), true)?;
            }
            Ok(listing)
        };
        self.inner().read("expired", list).await
    }

    async fn purge_archived(&self, expired: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        let (expired, keys) = (expired.clone(), keys.to_vec());
        let purge = move |work: &mut Work<'_>| {
            let cutoff = cutoff(&expired, work.now);
            let mut purged = 0;
            for key in &keys {
                // Judged again: since it was archived, an operator may have replayed it.
                let Some(Ok(row)) = work.seq_of(key)?.map(|seq| work.state(seq)).transpose()?
                else {
                    continue;
                };
                let is_expired = row.stage.state() == expired.state()
                    && row.stage.finished_at().is_some_and(|at| at <= cutoff);
                if is_expired {
                    work.remove(&row)?;
                    purged += 1;
                }
            }
            Ok(purged)
        };
        self.inner().write("purge_archived", purge).await
    }
}

/// What a slice does that cannot mean any message.
const NOTHING: Progress = Progress {
    changed: 0,
    next: None,
};

impl RedbStore {
    /// Changes up to a slice's limit of messages. The search, which may have to pass over many,
    /// reads a snapshot; the write transaction is for those found, each judged again.
    async fn change_slice(
        &self,
        operation: &'static str,
        filter: &Filter,
        slice: &Slice,
        eligible: &[State],
        change: impl Fn(&mut Work<'_>, &StateRow) -> Result<Intervention, Failure> + Send + 'static,
    ) -> Result<Progress> {
        self.inner().check_open(operation)?;
        let after = sequence(slice.after.as_ref(), operation)?;
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
            let look = Look::open(transaction, now)?;
            let wanted =
                move |row: &Decoded<StateRow>| row.as_ref().is_ok_and(|row| wanted(row, now));
            let found = look.walk(after, false, wanted)?.take(limit);
            found
                .map(|found| Ok(found?.0))
                .collect::<Result<Vec<i64>, _>>()
        };
        let found = self.inner().read(operation, search).await?;
        let last = found.last().filter(|_| found.len() == limit);
        let next = last.map(|seq| Cursor::from(*seq));
        let change_found = move |work: &mut Work<'_>| {
            let mut changed = 0;
            for seq in found {
                if let Ok(row) = work.state(seq)?
                    && can_change(&row, work.now)
                    && change(work, &row)? == Intervention::Done
                {
                    changed += 1;
                }
            }
            Ok(changed)
        };
        let changed = self.inner().write(operation, change_found).await?;
        Ok(Progress { changed, next })
    }
}

fn sequence(cursor: Option<&Cursor>, operation: &'static str) -> Result<Option<i64>> {
    let sequence = cursor.map(Cursor::sequence).transpose();
    sequence.map_err(|invalid| invalid.in_operation(operation))
}

/// The latest moment at which a message must have become final to be expired now.
fn cutoff(expired: &PurgeRequest, now: i64) -> i64 {
    now.saturating_sub(duration_micros(expired.older_than()))
}

fn known(work: &Work<'_>, key: &Key) -> Result<Option<StateRow>, Failure> {
    let Some(seq) = work.seq_of(key)? else {
        return Ok(None);
    };
    let row = work.state(seq)?;
    row.map(Some)
        .map_err(|reason| Failure::corrupt(seq, &reason))
}

/// Makes a final message pending again, as if it had just been accepted, in its old place in its
/// ordering key. The token stays: it only ever grows.
fn replay(
    work: &mut Work<'_>,
    before: &StateRow,
    payload: Option<Bytes>,
) -> Result<Intervention, Failure> {
    if before.stage.finished_at().is_none() {
        return Ok(Intervention::WrongState(before.shown(work.now)));
    }
    let mut after = StateRow {
        stage: Stage::Pending,
        due_at: work.now,
        started: 0,
        finished: 0,
        replays: before.replays.saturating_add(1),
        last_error: None,
        ..before.clone()
    };
    if let Some(payload) = payload {
        work.tables.payload.insert(before.seq, payload.as_ref())?;
        after.payload_bytes = Some(payload.len() as u64);
    }
    if after.payload_bytes.is_none() {
        return Ok(Intervention::PayloadDropped);
    }
    work.tables.result.remove(before.seq)?;
    work.replace(before, &after)?;
    Ok(Intervention::Done)
}

/// Gives a pending or dead message up. Its key goes on refusing duplicates.
fn discard(work: &mut Work<'_>, before: &StateRow) -> Result<Intervention, Failure> {
    let shown = before.shown(work.now);
    if !matches!(shown, State::Pending | State::Dead) {
        return Ok(Intervention::WrongState(shown));
    }
    let mut after = StateRow {
        stage: Stage::Discarded { at: work.now },
        ..before.clone()
    };
    if matches!(before.stage, Stage::Leased { .. }) {
        // Its lease has run out, but its worker may still be at it: it shall find the lease lost.
        after.token = work.draw_token()?;
    }
    work.replace(before, &after)?;
    Ok(Intervention::Done)
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
/// the first row of an index, and at as many leases as workers have lost: not at the backlog.
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
    let mut oldest = come(&ready, name, now)?.next().transpose()?;
    let mut run_out = 0;
    for moment in come(&lease, name, now)? {
        let moment = moment?;
        oldest = Some(oldest.map_or(moment, |oldest| oldest.min(moment)));
        run_out += 1;
    }
    handler.leased = handler.leased.saturating_sub(run_out);
    handler.pending = handler.pending.saturating_add(run_out);
    let Some((due_at, seq)) = oldest else {
        return Ok(());
    };
    let since = |at: i64| Duration::from_micros(now.saturating_sub(at).unsigned_abs());
    let row: Decoded<StateRow> = decode("state", transaction.open_table(STATE)?.get(seq)?);
    handler.lag = Some(since(due_at));
    handler.oldest_due_age = row.ok().map(|row| since(row.accepted_at));
    Ok(())
}
