//! What messages add up to – their number, groups, held ordering keys, workers –, read in steps: each request
//! reads one, and a page that shows less than all asks for the next. So no request reads all that is meant. What the
//! store has to look at to find a step is for its page of the guide to say.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use inbox::{HandlerName, Inbox, Key, MessageSummary, OrderingKey, Page, Record, WorkerName};
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard},
    time::Instant,
};

use crate::{fault::Fault, query::Selection, reading::within};

/// How many messages one step looks at.
const STEP: u32 = 1000;

/// The most messages that are looked at for one answer of the API, and for a page, whose visitor waits for it.
pub(crate) const MOST: u64 = 10_000;
const MOST_OF_PAGES: u64 = 100_000;

/// The most groups, ordering keys or workers that are told apart.
const MOST_ROWS: usize = 2000;

/// How long a tally is good for: many who look cost the store no more than one does.
const FRESH: Duration = Duration::from_secs(1);

/// How many selections have a tally.
const KEPT: usize = 16;

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

/// What one worker holds.
#[derive(Clone, Debug)]
pub(crate) struct WorkerLeases {
    pub(crate) worker: Option<WorkerName>,
    pub(crate) handlers: BTreeSet<HandlerName>,
    pub(crate) leases: u64,
    /// When the oldest of the attempts began.
    pub(crate) oldest: Option<SystemTime>,
    /// The message of that attempt.
    pub(crate) oldest_key: Key,
    /// When the next lease runs out unless it is extended.
    pub(crate) until: Option<SystemTime>,
}

/// What the messages of a selection add up to, as far as they were looked at: the latest accepted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) summary: MessageSummary,
    keys: BTreeMap<(HandlerName, OrderingKey), BlockedKey>,
    workers: BTreeMap<Option<WorkerName>, WorkerLeases>,
    /// How many messages were looked at, those that the selection does not mean included.
    pub(crate) looked_at: u64,
    page: Option<Page>,
    read_at: Option<Instant>,
}

impl Tally {
    /// Looks at so many messages, in one answer.
    pub(crate) async fn of(
        store: &dyn Inbox,
        selection: &Selection,
        most: u64,
    ) -> inbox::Result<Self> {
        let mut tally = Self::default();
        while !tally.is_complete() && tally.looked_at < most {
            tally.step(store, selection).await?;
        }
        Ok(tally)
    }

    /// Whether all messages were looked at.
    pub(crate) fn is_complete(&self) -> bool {
        self.summary.is_complete
    }

    /// Whether no further step is made.
    fn is_over(&self) -> bool {
        let rows = self.summary.groups.len().max(self.keys.len());
        self.is_complete()
            || self.looked_at >= MOST_OF_PAGES
            || rows.max(self.workers.len()) >= MOST_ROWS
    }

    /// Whether a page is to ask for more.
    pub(crate) fn is_growing(&self) -> bool {
        !self.is_over()
    }

    async fn step(&mut self, store: &dyn Inbox, selection: &Selection) -> inbox::Result<()> {
        let page = self.page.get_or_insert_with(|| Page {
            newest_first: true,
            ..Page::first(STEP)
        });
        let listing = store.list(&selection.wide(), page).await?;
        self.looked_at += (listing.records.len() + listing.corrupt.len()) as u64;
        self.summary.corrupt += listing.corrupt.len() as u64;
        self.summary.is_complete = listing.next.is_none();
        page.after = listing.next;
        self.read_at = Some(Instant::now());
        for record in listing.records {
            if selection.means_among(&record) {
                self.add(record);
            }
        }
        Ok(())
    }

    fn add(&mut self, record: Record) {
        if record.blocks_ordering_key
            && let Some(ordering_key) = &record.ordering_key
        {
            let of = (record.key.handler.clone(), ordering_key.clone());
            let row = self.keys.entry(of).or_insert_with(|| BlockedKey {
                handler: record.key.handler.clone(),
                ordering_key: ordering_key.clone(),
                dead: 0,
                since: None,
                error: record.last_error.clone(),
            });
            row.dead += 1;
            row.since = [row.since, record.finished_at].into_iter().flatten().min();
        }
        if record.lease_until.is_some() {
            let new = || WorkerLeases {
                worker: record.worker.clone(),
                handlers: BTreeSet::new(),
                leases: 0,
                oldest: record.leased_at,
                oldest_key: record.key.clone(),
                until: None,
            };
            let row = self.workers.entry(record.worker.clone());
            let row = row.or_insert_with(new);
            row.leases += 1;
            row.handlers.insert(record.key.handler.clone());
            row.until = [row.until, record.lease_until].into_iter().flatten().min();
            if record.leased_at < row.oldest {
                row.oldest = record.leased_at;
                row.oldest_key = record.key.clone();
            }
        }
        self.summary.add(record);
    }

    /// The ordering keys that are held up, the longest first.
    pub(crate) fn keys(&self) -> Vec<&BlockedKey> {
        let mut rows: Vec<_> = self.keys.values().collect();
        rows.sort_by_key(|row| row.since);
        rows
    }

    /// The workers that hold leases, those with the oldest attempt first.
    pub(crate) fn workers(&self) -> Vec<&WorkerLeases> {
        let mut rows: Vec<_> = self.workers.values().collect();
        rows.sort_by_key(|row| row.oldest);
        rows
    }
}

/// The tallies of late.
#[derive(Debug, Default)]
pub(crate) struct Tallies(Mutex<VecDeque<(Selection, Arc<AsyncMutex<Tally>>)>>);

impl Tallies {
    /// The tally of a selection: one of a moment ago, or with `more`, one step further than the last request
    /// saw it; otherwise a new one's first step.
    pub(crate) async fn read(
        &self,
        store: &dyn Inbox,
        selection: &Selection,
        more: bool,
    ) -> Result<OwnedMutexGuard<Tally>, Fault> {
        within(async {
            let mut tally = self.find(selection).lock_owned().await;
            let goes_on = more && tally.read_at.is_some() && tally.is_growing();
            let is_fresh = tally.read_at.is_some_and(|at| at.elapsed() < FRESH);
            if !goes_on && !is_fresh {
                *tally = Tally::default();
            }
            if goes_on || !is_fresh {
                tally.step(store, selection).await?;
            }
            Ok(tally)
        })
        .await
    }

    /// Forgets them, as after a change.
    pub(crate) fn forget(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.clear();
    }

    fn find(&self, selection: &Selection) -> Arc<AsyncMutex<Tally>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = all.iter().position(|(own, _)| own == selection);
        let found = place.and_then(|place| all.remove(place));
        let found = found.unwrap_or_else(|| (selection.clone(), Arc::default()));
        let tally = Arc::clone(&found.1);
        all.push_back(found);
        let surplus = all.len().saturating_sub(KEPT);
        all.drain(..surplus);
        tally
    }
}
