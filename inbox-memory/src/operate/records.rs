//! Looking at messages: get, list and count.

use inbox_api::{Cursor, Filter, HandlerName, Key, Listing, Page, Record, Result};

use crate::{
    entry::Entry,
    queues::{Locked, Queues, SharedQueue},
};

/// The queues in which messages of `handler`, or of any, can be.
pub(crate) fn queues_for(queues: &Queues, handler: Option<&HandlerName>) -> Vec<SharedQueue> {
    match handler {
        Some(handler) => queues.of(std::iter::once(handler)),
        None => queues.all(),
    }
}

/// Where a page or slice goes on.
pub(crate) fn sequence(cursor: Option<&Cursor>) -> Result<Option<i64>> {
    Ok(cursor.map(Cursor::sequence).transpose()?)
}

/// The first `limit` wanted entries of all queues, in order of acceptance or in the opposite
/// order.
pub(crate) fn select<'a>(
    queues: &'a Locked<'_>,
    after: Option<i64>,
    newest_first: bool,
    limit: usize,
    wanted: impl Fn(&Entry) -> bool,
) -> Vec<&'a Entry> {
    let mut found: Vec<&Entry> = queues
        .iter()
        .flat_map(|queue| {
            queue
                .walk(after, newest_first)
                .filter(|entry| wanted(entry))
                .take(limit)
        })
        .collect();
    found.sort_by_key(|entry| entry.seq);
    if newest_first {
        found.reverse();
    }
    found.truncate(limit);
    found
}

pub(crate) fn get(queues: &Queues, key: &Key) -> Option<Record> {
    queues.lock(&queues.of(std::iter::once(&key.handler)), |locked, now| {
        let entry = locked.get(&key.handler)?.get(&key.id)?;
        Some(entry.record(true, now))
    })
}

pub(crate) fn list(queues: &Queues, filter: &Filter, page: &Page) -> Result<Listing> {
    let after = sequence(page.after.as_ref())?;
    let limit = page.limit.min(Page::MAX) as usize;
    if limit == 0 {
        return Ok(Listing::default());
    }
    Ok(queues.lock(
        &queues_for(queues, filter.handler.as_ref()),
        |locked, now| {
            let wanted = |entry: &Entry| entry.matches(filter, now);
            // One more than the page holds tells whether there is a next one.
            let found = select(locked, after, page.newest_first, limit + 1, wanted);
            let records: Vec<Record> = found
                .iter()
                .take(limit)
                .map(|entry| entry.record(page.with_payload, now))
                .collect();
            let last = records.last().map(|record| record.cursor.clone());
            Listing {
                next: last.filter(|_| found.len() > limit),
                records,
                corrupt: Vec::new(),
            }
        },
    ))
}

pub(crate) fn count(queues: &Queues, filter: &Filter) -> u64 {
    queues.lock(
        &queues_for(queues, filter.handler.as_ref()),
        |locked, now| {
            locked
                .iter()
                .flat_map(|queue| queue.walk(None, false))
                .filter(|entry| entry.matches(filter, now))
                .count() as u64
        },
    )
}
