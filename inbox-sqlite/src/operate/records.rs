//! Looking at messages: get, list and count.

use inbox_api::{Cursor, Filter, Key, Listing, Page, Record, Result};
use sqlx::{SqliteConnection, sqlite::SqliteRow};
use tokio::time::Instant;

use super::selection::{Selection, start_after};
use crate::{
    connection::{Database, Limited},
    error::failed,
    rows::{self, Stored, read_stored},
};

/// Sorts rows into those that can be read and the others.
pub(crate) fn read_listing(inbox: &str, returned: &[SqliteRow], now: i64) -> Result<Listing> {
    let mut listing = Listing::default();
    for row in returned {
        match read_stored(row, now) {
            Ok(stored) => listing.records.push(stored.record),
            Err(reason) => {
                let seq = rows::seq(row).map_err(failed)?;
                listing.corrupt.push(rows::corrupt_row(inbox, seq, reason));
            }
        }
    }
    Ok(listing)
}

/// The message of that key, if there is one.
pub(crate) async fn find(
    database: &Database,
    connection: &mut SqliteConnection,
    key: &Key,
    now: i64,
) -> Result<Option<Stored>> {
    let found = sqlx::query(database.statements.get.clone())
        .bind(key.handler.as_str())
        .bind(key.id.as_str())
        .fetch_optional(connection)
        .await
        .map_err(failed)?;
    found
        .map(|row| rows::read_one(&row, database.options.inbox.as_str(), now))
        .transpose()
}

pub(crate) async fn get(database: &Database, key: &Key) -> Result<Option<Record>> {
    let attempt = |until| async move {
        let mut connection = database.reader(until).await?;
        let found = find(database, &mut connection, key, database.now()).await?;
        Ok(found.map(|stored| stored.record))
    };
    database.run(attempt).await
}

pub(crate) async fn list(database: &Database, filter: &Filter, page: &Page) -> Result<Listing> {
    let start = if page.newest_first { i64::MAX } else { 0 };
    let beyond = start_after(page.after.as_ref(), start)?;
    if page.limit == 0 {
        return Ok(Listing::default());
    }
    database
        .run(|until| list_page(database, filter, page, beyond, until))
        .await
}

async fn list_page(
    database: &Database,
    filter: &Filter,
    page: &Page,
    beyond: i64,
    until: Instant,
) -> Result<Listing> {
    let statements = &database.statements;
    let texts = if page.newest_first {
        &statements.list_newest
    } else {
        &statements.list
    };
    let limit = page.limit.min(Page::MAX);
    let mut limited = Limited::new(database.reader(until).await?, until).await?;
    let selection = Selection::new(filter, database.now());
    // One more than asked for tells whether there is a next page.
    let connection = &mut limited.connection;
    let mut returned = selection
        .page(connection, texts, beyond, limit + 1, page.with_payload)
        .await?;
    limited.give_back();
    let more = returned.len() > limit as usize;
    returned.truncate(limit as usize);
    let inbox = database.options.inbox.as_str();
    let mut listing = read_listing(inbox, &returned, selection.now)?;
    if let (true, Some(last)) = (more, returned.last()) {
        listing.next = Some(Cursor::from(rows::seq(last).map_err(failed)?));
    }
    Ok(listing)
}

pub(crate) async fn count(database: &Database, filter: &Filter) -> Result<u64> {
    let attempt = |until| async move {
        let mut limited = Limited::new(database.reader(until).await?, until).await?;
        let selection = Selection::new(filter, database.now());
        let row = selection
            .count(&database.statements.count)
            .fetch_one(&mut *limited.connection)
            .await
            .map_err(failed)?;
        limited.give_back();
        Ok(rows::seq(&row).map_err(failed)?.unsigned_abs())
    };
    database.run(attempt).await
}
