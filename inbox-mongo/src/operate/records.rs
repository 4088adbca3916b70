//! Looking at messages: one, a page of them, how many there are.

use inbox_api::{Cursor, ErrorKind, Key, Listing, Page, Record, Result};
use mongodb::bson::{Document, doc};

use super::filter::Query;
use crate::{
    begin::find,
    connection::Connection,
    rows::{corrupt_row, identifier, number, record},
};

pub(super) fn position(cursor: Option<&Cursor>) -> Result<Option<i64>> {
    Ok(cursor.map(Cursor::sequence).transpose()?)
}

/// Sorts documents into those that can be read and the others.
pub(super) fn read_listing(connection: &Connection<'_>, found: Vec<Document>) -> Listing {
    let mut listing = Listing::default();
    for mut document in found {
        match record(&mut document) {
            Ok(record) => listing.records.push(record),
            Err(reason) => listing.corrupt.push(corrupt_row(
                &connection.database.options.inbox,
                &document,
                reason,
            )),
        }
    }
    listing
}

pub(super) async fn get(connection: &mut Connection<'_>, key: &Key) -> Result<Option<Record>> {
    let Some(mut document) = find(connection, &identifier(key)).await? else {
        return Ok(None);
    };
    record(&mut document).map(Some).map_err(|reason| {
        let place = corrupt_row(&connection.database.options.inbox, &document, String::new()).place;
        connection.error(ErrorKind::Corrupt, format!("{place}: {reason}"))
    })
}

pub(super) async fn list(
    connection: &mut Connection<'_>,
    mut query: Query,
    page: &Page,
) -> Result<Listing> {
    let limit = page.limit.min(Page::MAX);
    let beyond = position(page.after.as_ref())?;
    if limit == 0 {
        return Ok(Listing::default());
    }
    let (order, operator) = if page.newest_first {
        (-1, "$lt")
    } else {
        (1, "$gt")
    };
    if let Some(beyond) = beyond {
        query.filter.insert("seq", doc! { operator: beyond });
    }
    let mut pipeline = query.stages(connection.database, Some(doc! { "seq": order }));
    // One more than asked for tells whether there is a next page.
    pipeline.push(doc! { "$limit": i64::from(limit) + 1 });
    if !page.with_payload {
        pipeline.push(doc! { "$unset": ["payload", "result", "history"] });
    }
    // Which index is best depends on the filter; the server has the numbers for that.
    let mut found = connection.aggregate(None, pipeline).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let last = found.last().and_then(|last| number(last, "seq"));
    let mut listing = read_listing(connection, found);
    listing.next = last.filter(|_| more).map(Cursor::from);
    Ok(listing)
}

pub(super) async fn count(connection: &mut Connection<'_>, query: &Query) -> Result<u64> {
    let mut pipeline = query.stages(connection.database, None);
    pipeline.push(doc! { "$count": "count" });
    let found = connection.aggregate(None, pipeline).await?;
    let count = found.first().and_then(|found| number(found, "count"));
    Ok(count.and_then(|n| u64::try_from(n).ok()).unwrap_or(0))
}
