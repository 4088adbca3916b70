//! Looking at messages: one, a page of them, how many there are.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use inbox_api::{CorruptRow, Cursor, Filter, Key, Listing, Page, Record, Result};
use redis::Value;

use super::scan::{LAST, Search, position};
use crate::{
    connection::Connection,
    keys::field,
    reply::{self, Taker},
    rows::{self, Row},
    scripts::{GET, LIST_BODIES},
};

/// One script loads at most so many bodies, and about so many bytes of payloads.
const BODIES: usize = 50;
const BODY_BYTES: u64 = 16 * 1024 * 1024;

/// Looks for the message in its home first, then in all other shards.
pub(crate) async fn get(connection: &Connection, key: &Key) -> Result<Option<Record>> {
    let home = connection.layout().home(key);
    if let Some(found) = get_in(connection, home, key).await? {
        return Ok(Some(found));
    }
    let others = connection.layout().others(home);
    let looks = others.map(|shard| get_in(connection, shard, key));
    let found = try_join_all(looks).await?;
    Ok(found.into_iter().flatten().next())
}

pub(super) async fn list(connection: &Connection, filter: &Filter, page: &Page) -> Result<Listing> {
    connection.check_open()?;
    let after = position(page.after.as_ref())?;
    let limit = page.limit.min(Page::MAX) as usize;
    if limit == 0 {
        return Ok(Listing::default());
    }
    let range = match after {
        Some(after) if page.newest_first => (0, after - 1),
        Some(after) => (after + 1, LAST),
        None => (0, LAST),
    };
    let states = filter.possible_states();
    let search = Search::new(connection, filter, states, range, page.newest_first).await?;
    // One more than asked for tells whether there is a next page.
    let mut found = search.find(limit + 1).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found
        .last()
        .filter(|_| more)
        .and_then(|row| i64::try_from(row.seq).ok())
        .map(Cursor::from);
    let mut listing = load(connection, found, page.with_payload).await?;
    listing.next = next;
    Ok(listing)
}

pub(super) async fn count(connection: &Connection, filter: &Filter) -> Result<u64> {
    let states = filter.possible_states();
    let search = Search::new(connection, filter, states, (0, LAST), false).await?;
    search.count().await
}

/// Sorts rows into those that can be read and the others, and loads payloads and results.
pub(super) async fn load(
    connection: &Connection,
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
                connection.layout(),
                row.shard,
                &row.field,
                reason,
            )),
        }
    }
    if with_payload {
        let mut left_out = Vec::new();
        for (shard, places) in places {
            let mut places = &*places;
            while !places.is_empty() {
                let records = &mut listing.records;
                let (step, rest) = places.split_at(step_length(places, records));
                left_out.extend(load_bodies(connection, shard, step, records).await?);
                places = rest;
            }
        }
        left_out.sort_unstable_by_key(|(place, _)| *place);
        for (place, corrupt) in left_out.into_iter().rev() {
            listing.records.remove(place);
            listing.corrupt.extend(corrupt);
        }
    }
    Ok(listing)
}

/// How many of these one script loads: at least one.
fn step_length(places: &[(usize, String)], records: &[Record]) -> usize {
    let mut bytes = 0;
    let fitting = places.iter().take(BODIES).take_while(|(place, _)| {
        let fits = bytes < BODY_BYTES;
        let record = records.get(*place);
        let payload = record.and_then(|record| record.payload_bytes);
        bytes = payload.unwrap_or(0).saturating_add(bytes);
        fits
    });
    fitting.count()
}

/// Answers which are to be left out: those that are gone, and those that cannot be read.
async fn load_bodies(
    connection: &Connection,
    shard: u16,
    places: &[(usize, String)],
    records: &mut [Record],
) -> Result<Vec<(usize, Option<CorruptRow>)>> {
    let mut left_out = Vec::new();
    let mut call = connection.call(&LIST_BODIES, shard, []);
    for (_, field) in places {
        call.arg(field);
    }
    let answer = reply::list(connection.run(call).await?)?;
    for ((place, field), pair) in places.iter().zip(answer) {
        let pair = reply::list(pair)?;
        if pair.is_empty() {
            left_out.push((*place, None));
            continue;
        }
        let mut pair = Taker::of(Value::Array(pair))?;
        let body = pair.bytes()?;
        let result = reply::bytes(pair.optional())?;
        let history = reply::bytes(pair.optional())?;
        if let Some(record) = records.get_mut(*place) {
            match rows::history(history) {
                Ok(history) => rows::add_history(record, history),
                Err(reason) => {
                    let row = rows::corrupt_row(connection.layout(), shard, field, reason);
                    left_out.push((*place, Some(row)));
                }
            }
            // A payload that was just dropped is no longer there to be shown.
            record.payload = body.and_then(|body| rows::payload(&body).ok());
            if record.payload.is_none() {
                record.payload_bytes = None;
            }
            record.result = result;
        }
    }
    Ok(left_out)
}

/// What a shard has under a key.
async fn get_in(connection: &Connection, shard: u16, key: &Key) -> Result<Option<Record>> {
    let mut call = connection.call(&GET, shard, []);
    call.arg(field(key));
    let mut answer = Taker::of(connection.run(call).await?)?;
    let now = match answer.optional() {
        Value::Nil => return Ok(None),
        now => reply::number(&now)?,
    };
    let row = rows::row(shard, 0, now, answer.next()?)?;
    let body = reply::bytes(answer.optional())?;
    let result = reply::bytes(answer.optional())?;
    let corrupt = |reason| rows::corrupt_error(connection.layout(), shard, &row.field, reason);
    let mut record = row.record.map_err(corrupt)?;
    record.payload = body
        .map(|body| rows::payload(&body))
        .transpose()
        .map_err(corrupt)?;
    record.result = result;
    let history = rows::history(reply::bytes(answer.optional())?).map_err(corrupt)?;
    rows::add_history(&mut record, history);
    Ok(Some(record))
}
