//! Purging: deleting what finished long enough ago, slice by slice.

use inbox_api::{Key, Listing, PurgeRequest, Result, State, duration_micros};
use tokio::time::Instant;

use super::records::read_listing;
use crate::{batch::json, connection::Database, error::failed};

/// A purge holds the write lock for this many rows at a time, so that live traffic gets in
/// between.
const SLICE: u32 = 500;

fn finished_before(database: &Database, request: &PurgeRequest) -> i64 {
    let age = duration_micros(request.older_than());
    database.now().saturating_sub(age)
}

/// A blocking dead letter that is purged lets its ordering key move on.
fn wake_after_purge(database: &Database, request: &PurgeRequest, purged: u64) {
    if purged > 0 && request.state() == State::Dead {
        database.signal.raise();
    }
}

pub(crate) async fn purge(database: &Database, request: &PurgeRequest) -> Result<u64> {
    let mut purged = 0;
    let mut left = request.limit();
    while left > 0 {
        let limit = left.min(SLICE);
        let started = std::time::Instant::now();
        let slice = database
            .run(|until| purge_slice(database, request, limit, until))
            .await?;
        wake_after_purge(database, request, slice);
        purged += slice;
        left -= limit;
        if slice < u64::from(limit) {
            break;
        }
        // Rests as long as it worked, so that other writers get their turn; also after the last,
        // since a caller that reaches the limit asks for more.
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(purged)
}

async fn purge_slice(
    database: &Database,
    request: &PurgeRequest,
    limit: u32,
    until: Instant,
) -> Result<u64> {
    let mut connection = database.writer(until).await?;
    let purged = sqlx::query(database.statements.purge.clone())
        .bind(i64::from(request.state().code()))
        .bind(finished_before(database, request))
        .bind(i64::from(limit))
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    Ok(purged.rows_affected())
}

pub(crate) async fn expired(database: &Database, request: &PurgeRequest) -> Result<Listing> {
    let attempt = |until| async move {
        let mut connection = database.reader(until).await?;
        let returned = sqlx::query(database.statements.purge_select.clone())
            .bind(i64::from(request.state().code()))
            .bind(finished_before(database, request))
            .bind(i64::from(request.limit()))
            .fetch_all(&mut *connection)
            .await
            .map_err(failed)?;
        read_listing(database.options.inbox.as_str(), &returned, database.now())
    };
    database.run(attempt).await
}

pub(crate) async fn purge_archived(
    database: &Database,
    request: &PurgeRequest,
    keys: &[Key],
) -> Result<u64> {
    let mut purged = 0;
    for some in keys.chunks(SLICE as usize) {
        let slice = database
            .run(|until| purge_keys(database, request, some, until))
            .await?;
        wake_after_purge(database, request, slice);
        purged += slice;
    }
    Ok(purged)
}

async fn purge_keys(
    database: &Database,
    request: &PurgeRequest,
    keys: &[Key],
    until: Instant,
) -> Result<u64> {
    let keys: Vec<_> = keys
        .iter()
        .map(|key| (key.handler.as_str(), key.id.as_str()))
        .collect();
    let keys = json(&keys)?;
    let mut connection = database.writer(until).await?;
    let purged = sqlx::query(database.statements.purge_keys.clone())
        .bind(i64::from(request.state().code()))
        .bind(finished_before(database, request))
        .bind(keys)
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    Ok(purged.rows_affected())
}
