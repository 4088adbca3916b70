//! Retention: deleting, or dropping the content of, what finished long enough ago, slice by slice.

use inbox_api::{HandlerName, Key, Listing, PurgeRequest, Result, State, duration_micros};
use sqlx::{
    SqlStr, Sqlite,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};
use tokio::time::Instant;

use super::records::read_listing;
use crate::{batch::json, connection::Database, error::failed, rows};

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

/// Does slices of work until the request's limit or the end is reached, and counts what they changed.
async fn in_slices<F>(request: &PurgeRequest, mut work: impl FnMut(u32) -> F) -> Result<u64>
where
    F: Future<Output = Result<u64>>,
{
    let mut changed = 0;
    let mut left = request.limit();
    while left > 0 {
        let limit = left.min(SLICE);
        let started = std::time::Instant::now();
        let slice = work(limit).await;
        let slice = slice.map_err(|error| error.after_changes(changed > 0))?;
        changed += slice;
        left -= limit;
        if slice < u64::from(limit) {
            break;
        }
        // Rests as long as it worked, so that other writers get their turn; also after the last,
        // since a caller that reaches the limit asks for more.
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(changed)
}

/// A statement of `purge.sql`'s parameters. Messages with neither payload nor result are passed over
/// if only the `content` of others is of interest.
fn expired_query<'q>(
    text: &SqlStr,
    database: &Database,
    request: &'q PurgeRequest,
    limit: u32,
    content: bool,
) -> Query<'q, Sqlite, SqliteArguments> {
    sqlx::query(text.clone())
        .bind(i64::from(request.state().code()))
        .bind(finished_before(database, request))
        .bind(i64::from(limit))
        .bind(request.handler().map(HandlerName::as_str))
        .bind(content)
}

pub(crate) async fn purge(database: &Database, request: &PurgeRequest) -> Result<u64> {
    in_slices(request, |limit| async move {
        let purged = database
            .run(|until| purge_slice(database, request, limit, until))
            .await?;
        wake_after_purge(database, request, purged);
        Ok(purged)
    })
    .await
}

pub(crate) async fn drop_payloads(database: &Database, request: &PurgeRequest) -> Result<u64> {
    in_slices(request, |limit| {
        database.run(move |until| drop_slice(database, request, limit, until))
    })
    .await
}

async fn drop_slice(
    database: &Database,
    request: &PurgeRequest,
    limit: u32,
    until: Instant,
) -> Result<u64> {
    let statements = &database.statements;
    let mut transaction = database.begin(until).await?;
    let found = expired_query(&statements.drop_select, database, request, limit, true)
        .fetch_all(&mut *transaction)
        .await
        .map_err(failed)?;
    let sequences = sequences(&found)?;
    let rows = json(&sequences)?;
    for text in [&statements.drop_results, &statements.drop_payloads] {
        sqlx::query(text.clone())
            .bind(rows.as_str())
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
    }
    transaction.commit().await.map_err(failed)?;
    Ok(sequences.len() as u64)
}

async fn purge_slice(
    database: &Database,
    request: &PurgeRequest,
    limit: u32,
    until: Instant,
) -> Result<u64> {
    let statements = &database.statements;
    let mut transaction = database.begin(until).await?;
    let purged = expired_query(&statements.purge, database, request, limit, false)
        .fetch_all(&mut *transaction)
        .await
        .map_err(failed)?;
    let sequences = sequences(&purged)?;
    sqlx::query(statements.purge_messages.clone())
        .bind(json(&sequences)?)
        .execute(&mut *transaction)
        .await
        .map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(sequences.len() as u64)
}

fn sequences(rows: &[SqliteRow]) -> Result<Vec<i64>> {
    let sequences = rows.iter().map(rows::seq);
    sequences.collect::<sqlx::Result<_>>().map_err(failed)
}

pub(crate) async fn expired(database: &Database, request: &PurgeRequest) -> Result<Listing> {
    let attempt = |until| async move {
        let mut connection = database.reader(until).await?;
        let text = &database.statements.purge_select;
        let returned = expired_query(text, database, request, request.limit(), false)
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
            .await
            .map_err(|error| error.after_changes(purged > 0))?;
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
        .bind(request.handler().map(HandlerName::as_str))
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    Ok(purged.rows_affected())
}
