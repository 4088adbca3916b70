//! Retention: deleting what has been final for long enough.

use std::time::{Duration, Instant};

use inbox_api::{Key, Listing, PurgeRequest, Result};
use sqlx::Row as _;

use super::records::read_listing;
use crate::{
    arguments::Arguments,
    connection::{Database, On},
    error::failed,
    partitions::{ANY, FEW, deletion_age, drop_partitions, keep_partitions},
    rows,
    time::micros,
};

/// One statement of a purge deletes this many messages, so that what it holds and writes at once stays small, and
/// claims wait for little.
const PURGE_SLICE: u32 = 100;

/// Of so many handlers at a time, the longest finished messages come first. A statement reads as many of each handler
/// as it may take of all, so the more there are the longer it takes.
const HANDLERS: usize = 20;

/// Messages with payload or result, and those without.
const ALL: [bool; 2] = [true, false];
const WITH_CONTENT: [bool; 1] = [true];

/// The handlers that have something to take, the one with the longest finished first.
async fn handlers(
    database: &Database,
    expired: &PurgeRequest,
    older_than: Duration,
    contents: &[bool],
) -> Result<Vec<String>> {
    if let Some(handler) = expired.handler() {
        return Ok(vec![handler.as_str().to_owned()]);
    }
    let arguments = Arguments::new()
        .with(i16::from(expired.state().code()))
        .with(micros(older_than))
        .with(contents.to_vec())
        .finish()?;
    let text = &database.statements.expired_handlers;
    let answer = database.run(On::Pool, text, arguments).await?;
    let names = answer.iter().map(|row| row.try_get(0));
    names.collect::<sqlx::Result<_>>().map_err(failed)
}

/// Those of one statement, and the others.
fn split(handlers: &[String]) -> (Vec<&str>, &[String]) {
    let (some, later) = handlers.split_at(handlers.len().min(HANDLERS));
    (some.iter().map(String::as_str).collect(), later)
}

pub(super) async fn purge(database: &Database, expired: &PurgeRequest) -> Result<u64> {
    let partitions = database.options.partitions.as_ref();
    let mut left = expired.limit();
    if left == 0 {
        return Ok(0);
    }
    let (mut purged, mut changed) = (0, false);
    if let Some(partitions) = partitions {
        keep_partitions(database, partitions).await?;
        (purged, changed) = drop_partitions(database, expired, FEW, left).await?;
        left = left.saturating_sub(u32::try_from(purged).unwrap_or(u32::MAX));
    }
    let older_than = deletion_age(partitions, expired);
    let handlers = handlers(database, expired, older_than, &ALL).await;
    let handlers = handlers.map_err(|error| error.after_changes(changed))?;
    let mut rest = handlers.as_slice();
    // Once also without any handler: the last statement sums up the counters.
    while left > 0 {
        let limit = left.min(PURGE_SLICE);
        let (some, later) = split(rest);
        let arguments = Arguments::new()
            .with(i16::from(expired.state().code()))
            .with(micros(older_than))
            .with(some)
            .with(i32::try_from(limit).unwrap_or(i32::MAX))
            .with(database.options.notifications)
            .with(later.is_empty())
            .finish()?;
        let text = &database.statements.purge;
        let started = Instant::now();
        let answer = database.run(On::Pool, text, arguments).await;
        let answer = answer.map_err(|error| error.after_changes(changed))?;
        let (found, slice) = (rows::count(&answer, 0)?, rows::count(&answer, 1)?);
        purged += slice;
        changed |= slice > 0;
        left = left.saturating_sub(u32::try_from(slice).unwrap_or(u32::MAX));
        // Those found whose ordering key others are changing are still there, and would
        // be found again.
        if found < u64::from(limit) || slice == 0 {
            if later.is_empty() {
                break;
            }
            rest = later;
        }
        // Rests as long as it worked, so that the server is never busy with it alone; also behind
        // the last, since a caller that reaches the limit asks for more.
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(purged)
}

pub(super) async fn expired(database: &Database, expired: &PurgeRequest) -> Result<Listing> {
    let started = Instant::now();
    let mut listing = Listing::default();
    let mut left = expired.limit();
    let handlers = handlers(database, expired, expired.older_than(), &ALL).await?;
    let mut rest = handlers.as_slice();
    while left > 0 && !rest.is_empty() {
        let (some, later) = split(rest);
        let arguments = Arguments::new()
            .with(i16::from(expired.state().code()))
            .with(micros(expired.older_than()))
            .with(i32::try_from(left).unwrap_or(i32::MAX))
            .with(some)
            .finish()?;
        let time = database.limit().saturating_sub(started.elapsed());
        let text = &database.statements.expired;
        let answer = database.run_within(time, On::PoolPlannedEachTime, text, arguments);
        let answer = answer.await?;
        left = left.saturating_sub(u32::try_from(answer.len()).unwrap_or(u32::MAX));
        let found = read_listing(&database.options.inbox, &answer)?;
        listing.records.extend(found.records);
        listing.corrupt.extend(found.corrupt);
        rest = later;
    }
    Ok(listing)
}

pub(super) async fn purge_archived(
    database: &Database,
    expired: &PurgeRequest,
    keys: &[Key],
) -> Result<u64> {
    let mut purged = 0;
    let selected = |key: &&Key| expired.handler().is_none_or(|only| *only == key.handler);
    let selected: Vec<&Key> = keys.iter().filter(selected).collect();
    for some in selected.chunks(PURGE_SLICE as usize) {
        let arguments = Arguments::new()
            .with(i16::from(expired.state().code()))
            .with(micros(expired.older_than()))
            .with(some.iter().map(|k| k.handler.as_str()).collect::<Vec<_>>())
            .with(some.iter().map(|k| k.id.as_str()).collect::<Vec<_>>())
            .with(database.options.notifications)
            .finish()?;
        let text = &database.statements.purge_keys;
        let answer = database.run(On::Pool, text, arguments).await;
        let answer = answer.map_err(|error| error.after_changes(purged > 0))?;
        purged += rows::count(&answer, 0)?;
    }
    if let (Some(partitions), false) = (&database.options.partitions, keys.is_empty()) {
        let dropped = async {
            keep_partitions(database, partitions).await?;
            drop_partitions(database, expired, ANY, PURGE_SLICE).await
        };
        let dropped = dropped.await;
        dropped.map_err(|error| error.after_changes(purged > 0))?;
    }
    Ok(purged)
}

/// In slices with rests, like [`purge`].
pub(super) async fn drop_payloads(database: &Database, expired: &PurgeRequest) -> Result<u64> {
    let mut left = expired.limit();
    let mut dropped = 0;
    let handlers = handlers(database, expired, expired.older_than(), &WITH_CONTENT).await?;
    let mut rest = handlers.as_slice();
    while left > 0 && !rest.is_empty() {
        let limit = left.min(PURGE_SLICE);
        let (some, later) = split(rest);
        let arguments = Arguments::new()
            .with(i16::from(expired.state().code()))
            .with(micros(expired.older_than()))
            .with(some)
            .with(i32::try_from(limit).unwrap_or(i32::MAX))
            .finish()?;
        let text = &database.statements.drop_payloads;
        let started = Instant::now();
        let answer = database.run(On::Pool, text, arguments).await;
        let answer = answer.map_err(|error| error.after_changes(dropped > 0))?;
        let slice = rows::count(&answer, 0)?;
        dropped += slice;
        left = left.saturating_sub(u32::try_from(slice).unwrap_or(u32::MAX));
        if slice < u64::from(limit) {
            rest = later;
        }
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(dropped)
}
