//! Looking at messages: get, list and count, each in one snapshot.

use std::ops::Bound;

use inbox_api::{Bytes, Cursor, Filter, Key, Listing, Page, Record};
use redb::{AccessGuard, ReadOnlyTable, ReadTransaction};

use crate::{
    error::Failure,
    rows::{Decoded, StateRow, decode},
    tables::{KEY, MESSAGE, PAYLOAD, RESULT, STATE, seq_of},
    transaction::corrupt_row,
};

/// The rows of one snapshot, at one moment of the store's clock.
pub(crate) struct Snapshot {
    state: ReadOnlyTable<i64, &'static [u8]>,
    message: ReadOnlyTable<i64, &'static [u8]>,
    payload: ReadOnlyTable<i64, &'static [u8]>,
    result: ReadOnlyTable<i64, &'static [u8]>,
    now: i64,
}

pub(crate) type Found = (i64, Decoded<StateRow>);

impl Snapshot {
    pub(crate) fn open(transaction: &ReadTransaction, now: i64) -> Result<Self, Failure> {
        Ok(Self {
            state: transaction.open_table(STATE)?,
            message: transaction.open_table(MESSAGE)?,
            payload: transaction.open_table(PAYLOAD)?,
            result: transaction.open_table(RESULT)?,
            now,
        })
    }

    pub(crate) fn state(&self, seq: i64) -> Result<Decoded<StateRow>, Failure> {
        Ok(decode("state", self.state.get(seq)?))
    }

    pub(crate) fn record(
        &self,
        row: &StateRow,
        with_payload: bool,
    ) -> Result<Decoded<Record>, Failure> {
        let message = decode("message", self.message.get(row.seq)?);
        let (mut payload, mut result) = (None, None);
        if with_payload {
            payload = blob(&self.payload, row.seq)?;
            result = blob(&self.result, row.seq)?;
        }
        Ok(message.map(|message| row.record(message, payload, result, with_payload, self.now)))
    }

    /// The wanted messages behind `after`, in order of acceptance or in the opposite order. The
    /// sequence number is a place that never changes, so paging by it neither skips nor repeats.
    pub(crate) fn walk(
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
    pub(crate) fn add(
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

/// Which messages a listing has. A row that does not read is in every one: nobody can tell
/// whether the filter selects it, and an operator must get to see it.
fn is_listed(filter: Filter, now: i64) -> impl Fn(&Decoded<StateRow>) -> bool {
    move |row| row.as_ref().map_or(true, |row| row.matches(&filter, now))
}

pub(crate) fn get(
    transaction: &ReadTransaction,
    key: &Key,
    now: i64,
) -> Result<Option<Record>, Failure> {
    let Some(seq) = seq_of(&transaction.open_table(KEY)?, key)? else {
        return Ok(None);
    };
    let snapshot = Snapshot::open(transaction, now)?;
    let corrupt = |reason: String| Failure::corrupt(seq, &reason);
    let row = snapshot.state(seq)?.map_err(corrupt)?;
    snapshot.record(&row, true)?.map(Some).map_err(corrupt)
}

pub(crate) fn list(
    transaction: &ReadTransaction,
    filter: Filter,
    page: &Page,
    after: Option<i64>,
    now: i64,
) -> Result<Listing, Failure> {
    let limit = page.limit.min(Page::MAX) as usize;
    let snapshot = Snapshot::open(transaction, now)?;
    let mut listing = Listing::default();
    let mut last = None;
    let walk = snapshot.walk(after, page.newest_first, is_listed(filter, now))?;
    for (position, found) in walk.enumerate() {
        // One more than the page holds tells that there is a next one.
        if position == limit {
            listing.next = last.map(Cursor::from);
            break;
        }
        let found = found?;
        last = Some(found.0);
        snapshot.add(&mut listing, found, page.with_payload)?;
    }
    Ok(listing)
}

pub(crate) fn count(
    transaction: &ReadTransaction,
    filter: Filter,
    now: i64,
) -> Result<u64, Failure> {
    let matches =
        move |row: &Decoded<StateRow>| row.as_ref().is_ok_and(|row| row.matches(&filter, now));
    let mut count = 0;
    for found in Snapshot::open(transaction, now)?.walk(None, false, matches)? {
        let _found = found?;
        count += 1;
    }
    Ok(count)
}
