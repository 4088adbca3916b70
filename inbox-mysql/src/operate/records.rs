//! Single records, pages of them, and their number.

use inbox_api::{Cursor, Filter, Key, Listing, Page, Record, Result};
use sqlx::{Row as _, mysql::MySqlRow};

use super::selection::{Lead, after, push_filter};
use crate::{
    connection::Connection,
    context::Context,
    error::failed,
    lookup::{key_values, read_one},
    multi_statement::Access,
    rows,
    statement::Statement,
};

pub(super) async fn get(connection: Connection<'_>, key: &Key) -> Result<Option<Record>> {
    let context = connection.context;
    let mut script = connection.script(Access::Read);
    let at = script.fill(&context.sql.get, &key_values(key));
    let answers = connection.run(Access::Read, script).await?;
    let found = read_one(context, &answers, at)?;
    Ok(found.map(|found| found.record))
}

pub(super) async fn list(
    connection: Connection<'_>,
    filter: &Filter,
    page: &Page,
) -> Result<Listing> {
    let context = connection.context;
    let start = if page.newest_first { i64::MAX } else { 0 };
    let beyond = after(page.after.as_ref(), start)?;
    let limit = page.limit.min(Page::MAX);
    if limit == 0 {
        return Ok(Listing::default());
    }
    let lead = Lead::of(filter.possible_states());
    let content = if page.with_payload {
        "m.payload, f.result, COALESCE(w.history, d.history, f.history)"
    } else {
        "NULL, NULL, NULL"
    };
    let (beyond_is, direction) = if page.newest_first {
        (" < ", "DESC")
    } else {
        (" > ", "ASC")
    };
    let mut conditions = lead.seq();
    conditions.push(beyond_is).number(beyond);
    push_filter(&mut conditions, lead, filter, filter.possible_states());
    let values = [
        ("content", Statement::new(content)),
        ("lead", lead.tables(context)),
        ("conditions", conditions),
        ("seq", lead.seq()),
        ("direction", Statement::new(direction)),
        // One more than asked for tells whether there is a next page.
        ("limit", Statement::of_number(i64::from(limit) + 1)),
    ];
    let mut script = connection.script(Access::Read);
    let at = script.fill(&context.sql.list, &values);
    let answers = connection.run(Access::Read, script).await?;
    let returned = answers.rows(at);
    let shown = returned.get(..limit as usize).unwrap_or(returned);
    let now = answers.now().map_err(failed)?;
    let mut listing = read_listing(context, shown, now).map_err(failed)?;
    if let (true, Some(last)) = (returned.len() > shown.len(), shown.last()) {
        listing.next = Some(Cursor::from(sequence(last).map_err(failed)?));
    }
    Ok(listing)
}

pub(super) async fn count(connection: Connection<'_>, filter: &Filter) -> Result<u64> {
    let context = connection.context;
    let lead = Lead::of(filter.possible_states());
    let mut conditions = Statement::new("TRUE");
    push_filter(&mut conditions, lead, filter, filter.possible_states());
    let values = [("lead", lead.tables(context)), ("conditions", conditions)];
    let mut script = connection.script(Access::Read);
    let at = script.fill(&context.sql.count, &values);
    let answers = connection.run(Access::Read, script).await?;
    Ok(answers.number(at).map_err(failed)?.unsigned_abs())
}

/// Sorts rows into those that can be read and the others.
pub(super) fn read_listing(
    context: &Context,
    returned: &[MySqlRow],
    now: i64,
) -> sqlx::Result<Listing> {
    let mut listing = Listing::default();
    for row in returned {
        match rows::read_stored(row, now) {
            Ok(stored) => listing.records.push(stored.record),
            Err(reason) => {
                let inbox = context.options.inbox.as_str();
                let corrupt = rows::corrupt_row(inbox, sequence(row)?, reason);
                listing.corrupt.push(corrupt);
            }
        }
    }
    Ok(listing)
}

fn sequence(row: &MySqlRow) -> sqlx::Result<i64> {
    row.try_get_unchecked(0)
}
