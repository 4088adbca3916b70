//! What pages read of the store, each in bounded steps.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use inbox::{
    Filter, HandlerName, Inbox, Listing, OrderingKey, Page, Record, State, Statistics, WorkerName,
};
use tokio::time::timeout;

use crate::{fault::Fault, query::Selection};

/// The most messages that a page looks at for what the store does not keep: groups, blocked ordering keys,
/// workers.
pub(crate) const MOST: u32 = 10_000;

/// How many are read at a time for that.
pub(crate) const STEP: u32 = 1000;

/// How many messages of its ordering key are looked at for the place of one.
const PLACES: u32 = 500;

/// How long one read may take. A filter that almost nothing matches can make a store look at all it has.
const READ_TIME: Duration = Duration::from_secs(10);

/// Waits for the store, but not for ever.
pub(crate) async fn within<T>(reading: impl Future<Output = inbox::Result<T>>) -> Result<T, Fault> {
    match timeout(READ_TIME, reading).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Fault::too_slow()),
    }
}

/// One page of a selection. Of one that goes beyond filters it looks at up to ten times as many, so that a
/// page may be short though there is a next one.
pub(crate) async fn list(
    store: &dyn Inbox,
    selection: &Selection,
    page: &Page,
) -> inbox::Result<Listing> {
    let Some(beyond) = &selection.beyond else {
        return store.list(&selection.filter, page).await;
    };
    let mut found = Listing::default();
    let mut next = page.clone();
    for _ in 0..10 {
        let listing = store.list(&selection.filter, &next).await?;
        found.corrupt.extend(listing.corrupt);
        found.next.clone_from(&listing.next);
        for record in listing.records {
            if !beyond.means(&record) {
                continue;
            }
            let place = record.cursor.clone();
            found.records.push(record);
            if found.records.len() >= page.limit as usize {
                found.next = Some(place);
                return Ok(found);
            }
        }
        if found.next.is_none() {
            break;
        }
        next.after.clone_from(&found.next);
    }
    Ok(found)
}

/// How many messages a selection means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matching {
    pub(crate) number: u64,
    /// Whether these are all; otherwise there are at least so many.
    pub(crate) is_exact: bool,
}

/// How many messages `filter` means, if the statistics tell: when it names handler and states only.
#[must_use]
pub fn total_of(statistics: &Statistics, filter: &Filter) -> Option<u64> {
    let by_handler_and_state = Filter {
        handler: filter.handler.clone(),
        states: filter.states.clone(),
        ..Filter::default()
    };
    if *filter != by_handler_and_state {
        return None;
    }
    let handlers = statistics
        .handlers
        .iter()
        .filter(|counts| filter.handler.as_ref().is_none_or(|h| *h == counts.handler));
    let states: BTreeSet<State> = match filter.states.as_slice() {
        [] => State::ALL.into_iter().collect(),
        states => states.iter().copied().collect(),
    };
    Some(
        handlers
            .flat_map(|counts| states.iter().map(|state| counts.count(*state)))
            .sum(),
    )
}

/// Counts a selection, as far as that is cheap.
pub(crate) async fn count(store: &dyn Inbox, selection: &Selection) -> inbox::Result<Matching> {
    let is_counted = total_of(&Statistics::default(), &selection.filter).is_some();
    if is_counted && selection.beyond.is_none() {
        let statistics = store.statistics().await?;
        if let Some(number) = total_of(&statistics, &selection.filter) {
            let is_exact = true;
            return Ok(Matching { number, is_exact });
        }
    }
    let mut number = 0;
    let read = read_newest(store, &selection.filter, |record| {
        let beyond = selection.beyond.as_ref();
        number += u64::from(beyond.is_none_or(|beyond| beyond.means(&record)));
    });
    let is_exact = read.await?;
    Ok(Matching { number, is_exact })
}

/// Reads the latest accepted of a filter, up to [`MOST`], and says whether these were all.
async fn read_newest(
    store: &dyn Inbox,
    filter: &Filter,
    mut each: impl FnMut(Record),
) -> inbox::Result<bool> {
    let mut page = Page {
        newest_first: true,
        ..Page::first(STEP)
    };
    for _ in 0..MOST / STEP {
        let listing = store.list(filter, &page).await?;
        listing.records.into_iter().for_each(&mut each);
        if listing.next.is_none() {
            return Ok(true);
        }
        page.after = listing.next;
    }
    Ok(false)
}

/// An ordering key that dead messages hold up.
#[derive(Clone, Debug)]
pub(crate) struct BlockedKey {
    pub(crate) handler: HandlerName,
    pub(crate) ordering_key: OrderingKey,
    /// How many dead messages hold it up.
    pub(crate) dead: u64,
    /// Since when, at the longest.
    pub(crate) since: Option<SystemTime>,
    /// The error of the one that was accepted last.
    pub(crate) error: Option<String>,
}

/// What was found among the messages that were looked at.
#[derive(Clone, Debug)]
pub(crate) struct Found<T> {
    pub(crate) rows: Vec<T>,
    pub(crate) looked_at_all: bool,
}

/// The ordering keys that are held up, the longest first.
pub(crate) async fn blocked_keys(
    store: &dyn Inbox,
    handler: Option<HandlerName>,
) -> inbox::Result<Found<BlockedKey>> {
    let statistics = store.statistics().await?;
    let is_meant = |name: &HandlerName| handler.as_ref().is_none_or(|own| own == name);
    let meant = statistics.handlers.iter().filter(|h| is_meant(&h.handler));
    let expected: u64 = meant.map(|counts| counts.blocking).sum();
    let mut keys = BTreeMap::new();
    let mut seen = 0;
    let mut looked_at_all = true;
    if expected > 0 {
        let filter = Filter {
            states: vec![State::Dead],
            handler,
            ..Filter::default()
        };
        looked_at_all = read_newest(store, &filter, |record| {
            let Some(ordering_key) = record.ordering_key.filter(|_| record.blocks_ordering_key)
            else {
                return;
            };
            seen += 1;
            let of = (record.key.handler.clone(), ordering_key.clone());
            let row = keys.entry(of).or_insert_with(|| BlockedKey {
                handler: record.key.handler,
                ordering_key,
                dead: 0,
                since: None,
                error: record.last_error,
            });
            row.dead += 1;
            row.since = [row.since, record.finished_at].into_iter().flatten().min();
        })
        .await?;
    }
    let mut rows: Vec<_> = keys.into_values().collect();
    rows.sort_by_key(|row| row.since);
    let looked_at_all = looked_at_all || seen >= expected;
    Ok(Found {
        rows,
        looked_at_all,
    })
}

/// What one worker holds.
#[derive(Clone, Debug)]
pub(crate) struct WorkerLeases {
    pub(crate) worker: Option<WorkerName>,
    pub(crate) handlers: BTreeSet<HandlerName>,
    pub(crate) leases: u64,
    /// When the oldest of the attempts began.
    pub(crate) oldest: Option<SystemTime>,
    /// The message of that attempt.
    pub(crate) oldest_key: inbox::Key,
    /// When the next lease runs out unless it is extended.
    pub(crate) until: Option<SystemTime>,
}

/// The workers that hold leases, those with the oldest attempt first.
pub(crate) async fn workers(store: &dyn Inbox) -> inbox::Result<Found<WorkerLeases>> {
    let filter = Filter {
        states: vec![State::Leased],
        ..Filter::default()
    };
    let mut workers: BTreeMap<Option<WorkerName>, WorkerLeases> = BTreeMap::new();
    let looked_at_all = read_newest(store, &filter, |record| {
        let row = workers
            .entry(record.worker.clone())
            .or_insert_with(|| WorkerLeases {
                worker: record.worker,
                handlers: BTreeSet::new(),
                leases: 0,
                oldest: record.leased_at,
                oldest_key: record.key.clone(),
                until: record.lease_until,
            });
        row.leases += 1;
        row.handlers.insert(record.key.handler.clone());
        row.until = [row.until, record.lease_until].into_iter().flatten().min();
        if record.leased_at < row.oldest {
            row.oldest = record.leased_at;
            row.oldest_key = record.key;
        }
    })
    .await?;
    let mut rows: Vec<_> = workers.into_values().collect();
    rows.sort_by_key(|row| row.oldest);
    Ok(Found {
        rows,
        looked_at_all,
    })
}

/// Where a message that is not final stands among those of its ordering key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It has the turn.
    First,
    /// So many are before it, this one first.
    Behind(u64, Box<inbox::Key>),
    /// Further back than was looked.
    FarBehind(u64),
}

/// The place of a record in its ordering key, if it has one and waits there.
pub(crate) async fn place(store: &dyn Inbox, record: &Record) -> inbox::Result<Option<Place>> {
    let Some(ordering_key) = &record.ordering_key else {
        return Ok(None);
    };
    if record.state.is_final() {
        return Ok(None);
    }
    let filter = Filter {
        states: vec![State::Pending, State::Leased, State::Dead],
        handler: Some(record.key.handler.clone()),
        ordering_key: Some(ordering_key.clone()),
        ..Filter::default()
    };
    let listing = store.list(&filter, &Page::first(PLACES)).await?;
    let mut before = 0;
    let mut first = None;
    for other in listing.records {
        if other.key == record.key {
            let place = first.map_or(Place::First, |key| Place::Behind(before, Box::new(key)));
            return Ok(Some(place));
        }
        if other.state != State::Dead || other.blocks_ordering_key {
            before += 1;
            first.get_or_insert(other.key);
        }
    }
    Ok(listing.next.map(|_| Place::FarBehind(before)))
}
