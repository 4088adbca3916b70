//! The ordered indexes of one handler's queue.
//!
//! An entry is taken out before it changes and put back afterwards, so each index follows from
//! the entries alone and no transition has to know about any of them:
//!
//! - `due`: the pending entries whose turn it is, by due time. Entries that wait behind another
//!   of their ordering key are not here, and so cost a claim nothing.
//! - `leases`: the leased entries, by the end of their lease.
//! - `finished`: the final entries of each state, by the time at which they became final.
//! - `with_content`: those of `finished` that have a payload or a result.
//! - `blocking`: how many dead entries hold up their ordering key.
//! - `lines`: for each ordering key with open entries, who is waiting and who is being served.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use inbox_api::{OrderingKey, State};

use crate::entry::{Entry, Standing};

/// A time and the sequence number of the entry for which it counts.
pub(crate) type Moment = (i64, i64);

#[derive(Debug, Default)]
pub(crate) struct Index {
    due: BTreeSet<Moment>,
    leases: BTreeSet<Moment>,
    finished: BTreeMap<State, BTreeSet<Moment>>,
    with_content: BTreeMap<State, BTreeSet<Moment>>,
    blocking: usize,
    lines: HashMap<OrderingKey, Line>,
}

/// The open entries of one ordering key.
#[derive(Debug, Default)]
struct Line {
    /// By sequence number; the due time of those that are pending.
    open: BTreeMap<i64, Option<i64>>,
    /// The one that is leased. It need not be the first: a replay can put an earlier one back in
    /// front of it.
    leased: Option<i64>,
}

impl Line {
    /// The only entry that may be claimed or begun.
    fn head(&self) -> Option<i64> {
        self.leased.or_else(|| self.open.keys().next().copied())
    }

    /// The head, if it is pending.
    fn waiting_head(&self) -> Option<Moment> {
        let seq = self.head()?;
        let due_at = (*self.open.get(&seq)?)?;
        Some((due_at, seq))
    }
}

impl Index {
    /// Takes an entry out as it stands, and with it the head of its line, whose place may be
    /// about to change. Follow with [`put`](Self::put), or with
    /// [`advance`](Self::advance) when the entry does not come back.
    pub(crate) fn take(&mut self, entry: &Entry) {
        if let Standing::Leased { until } = entry.standing {
            self.leases.remove(&(until, entry.seq));
        }
        if let Some((state, at)) = entry.final_state() {
            for index in [&mut self.finished, &mut self.with_content] {
                index.entry(state).or_default().remove(&(at, entry.seq));
            }
        }
        self.blocking -= usize::from(entry.blocks());
        match &entry.ordering_key {
            None => {
                if entry.standing == Standing::Pending {
                    self.due.remove(&(entry.due_at, entry.seq));
                }
            }
            Some(key) => {
                if let Some(line) = self.lines.get_mut(key) {
                    if let Some(head) = line.waiting_head() {
                        self.due.remove(&head);
                    }
                    line.open.remove(&entry.seq);
                    line.leased.take_if(|leased| *leased == entry.seq);
                }
            }
        }
    }

    /// Puts an entry in as it stands now. Returns the due time of the entry that is waiting at
    /// the head of its line.
    pub(crate) fn put(&mut self, entry: &Entry) -> Option<i64> {
        if let Standing::Leased { until } = entry.standing {
            self.leases.insert((until, entry.seq));
        }
        if let Some((state, at)) = entry.final_state() {
            let moment = (at, entry.seq);
            self.finished.entry(state).or_default().insert(moment);
            if entry.has_content() {
                self.with_content.entry(state).or_default().insert(moment);
            }
        }
        self.blocking += usize::from(entry.blocks());
        let due_at = (entry.standing == Standing::Pending).then_some(entry.due_at);
        let Some(key) = &entry.ordering_key else {
            self.due.insert((due_at?, entry.seq));
            return due_at;
        };
        if entry.is_open() {
            let line = self.lines.entry(key.clone()).or_default();
            line.open.insert(entry.seq, due_at);
            if matches!(entry.standing, Standing::Leased { .. }) {
                line.leased = Some(entry.seq);
            }
        }
        self.advance(key)
    }

    /// Lets the head of a line come due, and returns when. Forgets a line without open entries.
    pub(crate) fn advance(&mut self, key: &OrderingKey) -> Option<i64> {
        let line = self.lines.get(key)?;
        if line.open.is_empty() {
            self.lines.remove(key);
            return None;
        }
        let head = line.waiting_head()?;
        self.due.insert(head);
        Some(head.0)
    }

    /// Whether it is the entry's turn among those of its ordering key.
    pub(crate) fn is_head(&self, entry: &Entry) -> bool {
        entry.ordering_key.as_ref().is_none_or(|key| {
            self.lines
                .get(key)
                .is_some_and(|line| line.head() == Some(entry.seq))
        })
    }

    /// The entry that has been claimable for longest: pending and due, or under a lease that has
    /// run out.
    pub(crate) fn first_claimable(&self, now: i64) -> Option<Moment> {
        [self.due.first(), self.leases.first()]
            .into_iter()
            .flatten()
            .min()
            .filter(|(at, _)| *at <= now)
            .copied()
    }

    /// How many entries are leased, those whose lease has run out included.
    pub(crate) fn count_leased(&self) -> usize {
        self.leases.len()
    }

    /// How many leases have run out and were not claimed since. Counts them, which is bounded by
    /// the work in flight, not by the backlog.
    pub(crate) fn count_run_out(&self, now: i64) -> usize {
        self.leases.range(..=(now, i64::MAX)).count()
    }

    /// How many dead entries hold up their ordering key.
    pub(crate) fn count_blocking(&self) -> usize {
        self.blocking
    }

    /// How many entries are in a final state.
    pub(crate) fn count_finished(&self, state: State) -> usize {
        self.finished.get(&state).map_or(0, BTreeSet::len)
    }

    /// The entries that became `state` no later than `cutoff`, the longest-finished first.
    pub(crate) fn finished_by(&self, state: State, cutoff: i64) -> impl Iterator<Item = Moment> {
        until(self.finished.get(&state), cutoff)
    }

    /// Those of them that have a payload or a result.
    pub(crate) fn with_content_by(
        &self,
        state: State,
        cutoff: i64,
    ) -> impl Iterator<Item = Moment> {
        until(self.with_content.get(&state), cutoff)
    }
}

fn until(moments: Option<&BTreeSet<Moment>>, cutoff: i64) -> impl Iterator<Item = Moment> {
    moments
        .into_iter()
        .flat_map(move |moments| moments.range(..=(cutoff, i64::MAX)).copied())
}

#[cfg(test)]
impl Index {
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
            && self.leases.is_empty()
            && self.finished.values().all(BTreeSet::is_empty)
            && self.with_content.values().all(BTreeSet::is_empty)
            && self.blocking == 0
            && self.lines.is_empty()
    }
}
