//! Purging: deleting what finished long enough ago.

use inbox_api::{Key, Listing, PurgeRequest, duration_micros};

use crate::{
    entry::Entry,
    queues::{Locked, Queues},
};

pub(crate) fn purge(queues: &Queues, request: &PurgeRequest) -> u64 {
    queues.lock(&queues.all(), |locked, now| {
        let keys: Vec<Key> = expired_entries(locked, request, now)
            .into_iter()
            .map(|entry| entry.key.clone())
            .collect();
        purge_keys(locked, request, &keys, now)
    })
}

pub(crate) fn expired(queues: &Queues, request: &PurgeRequest) -> Listing {
    queues.lock(&queues.all(), |locked, now| Listing {
        records: expired_entries(locked, request, now)
            .into_iter()
            .map(|entry| entry.record(true, now))
            .collect(),
        ..Listing::default()
    })
}

pub(crate) fn purge_archived(queues: &Queues, request: &PurgeRequest, keys: &[Key]) -> u64 {
    let needed = queues.of(keys.iter().map(|key| &key.handler));
    queues.lock(&needed, |locked, now| {
        purge_keys(locked, request, keys, now)
    })
}

/// The entries of all queues that `request` selects, the longest-finished first.
fn expired_entries<'a>(locked: &'a Locked<'_>, request: &PurgeRequest, now: i64) -> Vec<&'a Entry> {
    let cutoff = cutoff(request, now);
    let limit = request.limit() as usize;
    let mut found: Vec<_> = locked
        .iter()
        .flat_map(|queue| queue.finished_by(request.state(), cutoff).take(limit))
        .collect();
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
