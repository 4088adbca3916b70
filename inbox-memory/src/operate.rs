//! The operator's side of the store.

use async_trait::async_trait;
use inbox_api::{
    Bytes, Cursor, Filter, Intervention, Key, Listing, Operate, Page, Progress, PurgeRequest,
    Record, Result, Slice, State, Statistics, check_size, duration_micros,
};

use crate::{
    MemoryStore,
    entry::Entry,
    queue::Queue,
    store::{Locked, SharedQueue},
};

impl MemoryStore {
    /// The queues in which messages that `filter` means can be.
    fn queues_for(&self, filter: &Filter) -> Vec<SharedQueue> {
        match &filter.handler {
            Some(handler) => self.queues_of(std::iter::once(handler)),
            None => self.all_queues(),
        }
    }

    /// Changes the messages of one slice of `filter`, which has states, one by one.
    fn intervene(
        &self,
        filter: &Filter,
        after: Option<i64>,
        limit: u32,
        change: impl Fn(&mut Queue, &Key, i64) -> Intervention,
        can_change: impl Fn(&Entry) -> bool,
    ) -> Progress {
        let limit = limit as usize;
        self.with_queues(&self.queues_for(filter), |queues, now| {
            let wanted = |entry: &Entry| entry.matches(filter, now) && can_change(entry);
            let chosen: Vec<(i64, Key)> = select(queues, after, false, limit, wanted)
                .into_iter()
                .map(|entry| (entry.seq, entry.key.clone()))
                .collect();
            for (_, key) in &chosen {
                if let Some(queue) = queues.get(&key.handler) {
                    let _done = change(queue, key, now);
                }
            }
            Progress {
                changed: chosen.len() as u64,
                next: chosen
                    .last()
                    .filter(|_| chosen.len() == limit)
                    .map(|(seq, _)| Cursor::from(*seq)),
            }
        })
    }
}

#[async_trait]
impl Operate for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        self.check_open("get")?;
        let queues = self.queues_of(std::iter::once(&key.handler));
        Ok(self.with_queues(&queues, |queues, now| {
            let entry = queues.get(&key.handler)?.get(&key.id)?;
            Some(entry.record(true, now))
        }))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        self.check_open("list")?;
        let after = sequence(page.after.as_ref(), "list")?;
        let limit = page.limit.min(Page::MAX) as usize;
        if limit == 0 {
            return Ok(Listing::default());
        }
        Ok(self.with_queues(&self.queues_for(filter), |queues, now| {
            let wanted = |entry: &Entry| entry.matches(filter, now);
            // One more than the page holds tells whether there is a next one.
            let found = select(queues, after, page.newest_first, limit + 1, wanted);
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
        }))
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        self.check_open("count")?;
        Ok(self.with_queues(&self.queues_for(filter), |queues, now| {
            queues
                .iter()
                .flat_map(|queue| queue.walk(None, false))
                .filter(|entry| entry.matches(filter, now))
                .count() as u64
        }))
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.check_open("statistics")?;
        Ok(
            self.with_queues(&self.all_queues(), |queues, now| Statistics {
                handlers: queues
                    .iter()
                    .filter_map(|queue| queue.statistics(now))
                    .collect(),
            }),
        )
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        self.check_open("replay")?;
        if let Some(payload) = &payload {
            check_size("payload", payload.len(), self.options().payload_limit)
                .map_err(|invalid| invalid.in_operation("replay"))?;
        }
        let queues = self.queues_of(std::iter::once(&key.handler));
        Ok(self.with_queues(&queues, |queues, now| {
            queues
                .get(&key.handler)
                .map_or(Intervention::NotFound, |queue| {
                    queue.replay(&key.id, payload, now)
                })
        }))
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.check_open("replay_slice")?;
        let after = sequence(slice.after.as_ref(), "replay_slice")?;
        let replayable = [State::Processed, State::Dead, State::Discarded];
        let Some(filter) = narrowed(filter, &replayable) else {
            return Ok(NOTHING);
        };
        Ok(self.intervene(
            &filter,
            after,
            slice.limit,
            |queue, key, now| queue.replay(&key.id, None, now),
            |entry| entry.payload.is_some(),
        ))
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.check_open("discard")?;
        let queues = self.queues_of(std::iter::once(&key.handler));
        Ok(self.with_queues(&queues, |queues, now| {
            queues
                .get(&key.handler)
                .map_or(Intervention::NotFound, |queue| queue.discard(&key.id, now))
        }))
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        self.check_open("discard_slice")?;
        let after = sequence(slice.after.as_ref(), "discard_slice")?;
        let Some(filter) = narrowed(filter, &[State::Pending, State::Dead]) else {
            return Ok(NOTHING);
        };
        Ok(self.intervene(
            &filter,
            after,
            slice.limit,
            |queue, key, now| queue.discard(&key.id, now),
            |_| true,
        ))
    }

    async fn purge(&self, expired: &PurgeRequest) -> Result<u64> {
        self.check_open("purge")?;
        Ok(self.with_queues(&self.all_queues(), |queues, now| {
            let keys: Vec<Key> = expired_entries(queues, expired, now)
                .into_iter()
                .map(|entry| entry.key.clone())
                .collect();
            purge_keys(queues, expired, &keys, now)
        }))
    }

    async fn expired(&self, expired: &PurgeRequest) -> Result<Listing> {
        self.check_open("expired")?;
        Ok(self.with_queues(&self.all_queues(), |queues, now| Listing {
            records: expired_entries(queues, expired, now)
                .into_iter()
                .map(|entry| entry.record(true, now))
                .collect(),
            ..Listing::default()
        }))
    }

    async fn purge_archived(&self, expired: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        self.check_open("purge_archived")?;
        let queues = self.queues_of(keys.iter().map(|key| &key.handler));
        Ok(self.with_queues(&queues, |queues, now| {
            purge_keys(queues, expired, keys, now)
        }))
    }
}

/// What a slice does that cannot mean any message.
const NOTHING: Progress = Progress {
    changed: 0,
    next: None,
};

fn sequence(cursor: Option<&Cursor>, operation: &'static str) -> Result<Option<i64>> {
    cursor
        .map(Cursor::sequence)
        .transpose()
        .map_err(|invalid| invalid.in_operation(operation))
}

/// `filter` with only those of its states that are `eligible`: dead if it names none. `None`
/// when none of those that it names is.
fn narrowed(filter: &Filter, eligible: &[State]) -> Option<Filter> {
    let mut filter = filter.clone();
    if filter.states.is_empty() {
        filter.states.push(State::Dead);
    }
    filter.states.retain(|state| eligible.contains(state));
    (!filter.states.is_empty()).then_some(filter)
}

/// The first `limit` wanted entries of all queues, in order of acceptance or in the opposite
/// order.
fn select<'a>(
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

/// The entries of all queues that `expired` means, the longest-finished first.
fn expired_entries<'a>(queues: &'a Locked<'_>, expired: &PurgeRequest, now: i64) -> Vec<&'a Entry> {
    let cutoff = cutoff(expired, now);
    let limit = expired.limit() as usize;
    let mut found: Vec<_> = queues
        .iter()
        .flat_map(|queue| queue.finished_by(expired.state(), cutoff).take(limit))
        .collect();
    found.sort_by_key(|(finished, _)| *finished);
    found.truncate(limit);
    found.into_iter().map(|(_, entry)| entry).collect()
}

/// Purges those of `keys` that are as `expired` says, and counts them.
fn purge_keys(queues: &mut Locked<'_>, expired: &PurgeRequest, keys: &[Key], now: i64) -> u64 {
    let cutoff = cutoff(expired, now);
    keys.iter()
        .filter(|key| {
            queues
                .get(&key.handler)
                .is_some_and(|queue| queue.purge(&key.id, expired.state(), cutoff, now))
        })
        .count() as u64
}

/// The latest moment at which a message must have become final to be expired now.
fn cutoff(expired: &PurgeRequest, now: i64) -> i64 {
    now.saturating_sub(duration_micros(expired.older_than()))
}
