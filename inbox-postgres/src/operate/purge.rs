//! Retention: deleting what has been final for long enough.

use inbox_api::{Key, Listing, PurgeRequest, Result};

use super::records::read_listing;
use crate::{
    arguments::Arguments,
    connection::{Database, On},
    partitions::{ANY, FEW, deletion_age, drop_partitions, keep_partitions},
    rows,
    time::micros,
};

/// One statement of a purge deletes this many messages, so that what it holds and writes at once stays small, and
/// claims wait for little.
const PURGE_SLICE: u32 = 100;

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
    while left > 0 {
        let limit = left.min(PURGE_SLICE);
        let arguments = Arguments::new()
            .with(i16::from(expired.state().code()))
            .with(micros(older_than))
            .with(expired.handler().map(AsRef::<str>::as_ref))
            .with(i32::try_from(limit).unwrap_or(i32::MAX))
            .with(database.options.notifications)
            .finish()?;
        let text = &database.statements.purge;
        let started = std::time::Instant::now();
        let answer = database.run(On::Pool, text, arguments).await;
        let answer = answer.map_err(|error| error.after_changes(changed))?;
        let (found, slice) = (rows::count(&answer, 0)?, rows::count(&answer, 1)?);
        purged += slice;
        changed |= slice > 0;
        left = left.saturating_sub(u32::try_from(slice).unwrap_or(u32::MAX));
        // Those found whose ordering key others are changing are still there, and would
        // be found again.
        if found < u64::from(limit) || slice == 0 {
            break;
        }
        // Rests as long as it worked, so that the server is never busy with it alone; also behind
        // the last, since a caller that reaches the limit asks for more.
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(purged)
}

pub(super) async fn expired(database: &Database, expired: &PurgeRequest) -> Result<Listing> {
    let arguments = Arguments::new()
        .with(i16::from(expired.state().code()))
        .with(micros(expired.older_than()))
        .with(i32::try_from(expired.limit()).unwrap_or(i32::MAX))
        .with(expired.handler().map(AsRef::<str>::as_ref))
        .finish()?;
    let text = &database.statements.expired;
    let answer = database
        .run(On::PoolPlannedEachTime, text, arguments)
        .await?;
    read_listing(&database.options.inbox, &answer)
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
    while left > 0 {
        let limit = left.min(PURGE_SLICE);
        let arguments = Arguments::new()
            .with(i16::from(expired.state().code()))
            .with(micros(expired.older_than()))
            .with(expired.handler().map(AsRef::<str>::as_ref))
            .with(i32::try_from(limit).unwrap_or(i32::MAX))
            .finish()?;
        let text = &database.statements.drop_payloads;
        let started = std::time::Instant::now();
        let answer = database.run(On::Pool, text, arguments).await;
        let answer = answer.map_err(|error| error.after_changes(dropped > 0))?;
        let slice = rows::count(&answer, 0)?;
        dropped += slice;
        left = left.saturating_sub(u32::try_from(slice).unwrap_or(u32::MAX));
        if slice < u64::from(limit) {
            break;
        }
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(dropped)
}
