//! Retention: deleting, or dropping the content of, what finished long enough ago.

use inbox_api::{HandlerName, Key, Listing, PurgeRequest, duration_micros};

use super::records::queues_for;
use crate::{
    entry::Entry,
    index::Moment,
    queues::{Locked, Queues},
};

pub(crate) fn purge(queues: &Queues, request: &PurgeRequest) -> u64 {
    queues.lock(&queues_for(queues, request.handler()), |locked, now| {
        let keys: Vec<Key> = expired_entries(locked, request, now)
            .into_iter()
            .map(|entry| entry.key.clone())
            .collect();
        purge_keys(locked, request, &keys, now)
    })
}

pub(crate) fn expired(queues: &Queues, request: &PurgeRequest) -> Listing {
    queues.lock(&queues_for(queues, request.handler()), |locked, now| {
        Listing {
            records: expired_entries(locked, request, now)
                .into_iter()
                .map(|entry| entry.record(true, now))
                .collect(),
            ..Listing::default()
        }
    })
}

pub(crate) fn purge_archived(queues: &Queues, request: &PurgeRequest, keys: &[Key]) -> u64 {
    let selected = |handler: &&HandlerName| request.handler().is_none_or(|only| only == *handler);
    let needed = queues.of(keys.iter().map(|key| &key.handler).filter(selected));
    queues.lock(&needed, |locked, now| {
        purge_keys(locked, request, keys, now)
    })
}

/// Drops payloads and results of what `request` selects, and counts the entries that had one.
pub(crate) fn drop_payloads(queues: &Queues, request: &PurgeRequest) -> u64 {
    queues.lock(&queues_for(queues, request.handler()), |locked, now| {
        let cutoff = cutoff(request, now);
        let limit = request.limit() as usize;
        let found = locked
            .iter()
            .flat_map(|queue| queue.with_content_by(request.state(), cutoff).take(limit));
        let selected: Vec<(HandlerName, i64)> = longest_finished(found, limit)
            .into_iter()
            .map(|entry| (entry.key.handler.clone(), entry.seq))
            .collect();
        for (handler, seq) in &selected {
            if let Some(queue) = locked.get(handler) {
                queue.drop_content(*seq, now);
            }
        }
        selected.len() as u64
    })
}

/// The entries of all queues that `request` selects, the longest-finished first.
fn expired_entries<'a>(locked: &'a Locked<'_>, request: &PurgeRequest, now: i64) -> Vec<&'a Entry> {
    let cutoff = cutoff(request, now);
    let limit = request.limit() as usize;
    let found = locked
        .iter()
        .flat_map(|queue| queue.finished_by(request.state(), cutoff).take(limit));
    longest_finished(found, limit)
}

fn longest_finished<'a>(
    found: impl Iterator<Item = (Moment, &'a Entry)>,
    limit: usize,
) -> Vec<&'a Entry> {
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|(finished, _)| *finished);
    found.truncate(limit);
    found.into_iter().map(|(_, entry)| entry).collect()
}

/// Purges those of `keys` that are as `request` says, and counts them.
fn purge_keys(locked: &mut Locked<'_>, request: &PurgeRequest, keys: &[Key], now: i64) -> u64 {
    let cutoff = cutoff(request, now);
    keys.iter()
        .filter(|key| {
            locked
                .get(&key.handler)
                .is_some_and(|queue| queue.purge(&key.id, request.state(), cutoff, now))
        })
        .count() as u64
}

/// The latest moment at which a message must have become final to be expired now.
fn cutoff(request: &PurgeRequest, now: i64) -> i64 {
    now.saturating_sub(duration_micros(request.older_than()))
}
