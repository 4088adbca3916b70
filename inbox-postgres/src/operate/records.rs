//! Looking at messages: one, a page of them, how many.

use inbox_api::{Cursor, Filter, InboxName, Key, Listing, Page, Record, Result};
use sqlx::{Row as _, postgres::PgRow};

use super::selection::{Selection, start_after};
use crate::{
    arguments::Arguments,
    connection::{Database, On},
    error::failed,
    rows,
};

/// Sorts rows into those that can be read and the others.
pub(super) fn read_listing(inbox: &InboxName, answer: &[PgRow]) -> Result<Listing> {
    let mut listing = Listing::default();
    for row in answer {
        match rows::read_record(row) {
            Ok(record) => listing.records.push(record),
            Err(reason) => {
                let seq = row.try_get(0).map_err(failed)?;
                listing.corrupt.push(rows::corrupt_row(inbox, seq, reason));
            }
        }
    }
    Ok(listing)
}

pub(super) async fn get(database: &Database, key: &Key) -> Result<Option<Record>> {
    let arguments = Arguments::of_key(key).finish()?;
    let answer = database
        .run(On::PoolPlannedEachTime, &database.statements.get, arguments)
        .await?;
    answer
        .first()
        .map(|row| {
            rows::read_record(row).map_err(|reason| {
                let seq = row.try_get(0).unwrap_or_default();
                rows::corrupt(&database.options.inbox, seq, reason)
            })
        })
        .transpose()
}

pub(super) async fn list(database: &Database, filter: &Filter, page: &Page) -> Result<Listing> {
    let statements = &database.statements;
    let (texts, start) = if page.newest_first {
        (&statements.list_newest, i64::MAX)
    } else {
        (&statements.list, 0)
    };
    let beyond = start_after(page.after.as_ref(), start)?;
    let limit = page.limit.min(Page::MAX);
    if limit == 0 {
        return Ok(Listing::default());
    }
    let selection = Selection::of(filter);
    // One more than asked for tells whether there is a next page.
    let arguments = selection
        .arguments(beyond, limit + 1)
        .with(page.with_payload)
        .finish()?;
    let mut answer = database
        .run(On::PoolPlannedEachTime, selection.text(texts), arguments)
        .await?;
    let more = answer.len() > limit as usize;
    answer.truncate(limit as usize);
    let mut listing = read_listing(&database.options.inbox, &answer)?;
    if let (true, Some(last)) = (more, answer.last()) {
        let seq: i64 = last.try_get(0).map_err(failed)?;
        listing.next = Some(Cursor::from(seq));
    }
    Ok(listing)
}

pub(super) async fn count(database: &Database, filter: &Filter) -> Result<u64> {
    let selection = Selection::of(filter);
    let text = selection.text(&database.statements.count);
    let arguments = selection.arguments(0, 1).with(true).finish()?;
    let answer = database
        .run(On::PoolPlannedEachTime, text, arguments)
        .await?;
    rows::count(&answer, 0)
}
