//! The ordered indexes of one handler's queue.
//!
//! An entry is taken out before it changes and put back afterwards, so each index follows from
//! the entries alone and no transition has to know about any of them:
//!
//! - `claimable`: the entries whose turn it is, by the time from which they may be claimed: the due
//!   time of a pending one, the end of a lease. Entries that wait behind another of their ordering key
//!   are not here, and so cost a claim nothing.
//! - `leases`: the leased entries, by the end of their lease.
//! - `finished`: the final entries of each state, by the time at which they became final.
//! - `with_content`: those of `finished` that have a payload or a result.
//! - `blocking`: how many dead entries hold up their ordering key.
//! - `lines`: for each ordering key with open entries, which are waiting and which are being served.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use inbox_api::{OrderingKey, State};

use crate::entry::{Entry, Standing};

/// A time and the sequence number of the entry for which it counts.
pub(crate) type Moment = (i64, i64);

#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    claimable: BTreeSet<Moment>,
    leases: BTreeSet<Moment>,
    finished: BTreeMap<State, BTreeSet<Moment>>,
    with_content: BTreeMap<State, BTreeSet<Moment>>,
    blocking: usize,
    lines: HashMap<OrderingKey, Line>,
}

/// The open entries of one ordering key.
#[derive(Clone, Debug, Default)]
struct Line {
    /// By sequence number; from when on it may be claimed when its turn comes, unless it blocks the line.
    open: BTreeMap<i64, Option<i64>>,
    /// Those that are leased, and whose lease is not lost. They need not be the first: a replay can put an
    /// earlier one back in front.
    leased: BTreeSet<i64>,
}

/// The entry of a line whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) seq: i64,
    /// From when on it may be claimed.
    pub(crate) at: i64,
    pub(crate) is_leased: bool,
}

impl Line {
    /// The only entry that may be begun, and with which a claim begins, unless it blocks the line.
    fn head(&self) -> Option<i64> {
        let first = || self.open.keys().next();
        self.leased.first().or_else(first).copied()
    }

    fn claimable_head(&self) -> Option<Head> {
        let seq = self.head()?;
        Some(Head {
            seq,
            at: (*self.open.get(&seq)?)?,
            is_leased: self.leased.contains(&seq),
        })
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
                if let Some(at) = entry.claimable_at() {
                    self.claimable.remove(&(at, entry.seq));
                }
            }
            Some(key) => {
                if let Some(line) = self.lines.get_mut(key) {
                    if let Some(head) = line.claimable_head() {
                        self.claimable.remove(&(head.at, head.seq));
                    }
                    line.open.remove(&entry.seq);
                    line.leased.remove(&entry.seq);
                }
            }
        }
    }

    /// Puts an entry in as it stands now. Returns the head of its line, which is itself without an
    /// ordering key, if that can be claimed one day.
    pub(crate) fn put(&mut self, entry: &Entry) -> Option<Head> {
        let is_leased = match entry.standing {
            Standing::Leased { until } => self.leases.insert((until, entry.seq)),
            _ => false,
        };
        if let Some((state, at)) = entry.final_state() {
            let moment = (at, entry.seq);
            self.finished.entry(state).or_default().insert(moment);
            if entry.has_content() {
                self.with_content.entry(state).or_default().insert(moment);
            }
        }
        self.blocking += usize::from(entry.blocks());
        let (seq, at) = (entry.seq, entry.claimable_at());
        let Some(key) = &entry.ordering_key else {
            let at = at?;
            self.claimable.insert((at, seq));
            return Some(Head { seq, at, is_leased });
        };
        if entry.is_open() {
            let line = self.lines.entry(key.clone()).or_default();
            line.open.insert(seq, at);
            if entry.is_held() {
                line.leased.insert(seq);
            }
        }
        self.advance(key)
    }

    /// Lets the head of a line come, and returns it. Forgets a line without open entries.
    pub(crate) fn advance(&mut self, key: &OrderingKey) -> Option<Head> {
        let line = self.lines.get(key)?;
        if line.open.is_empty() {
            self.lines.remove(key);
            return None;
        }
        let head = line.claimable_head()?;
        self.claimable.insert((head.at, head.seq));
        Some(head)
    }

    /// The open entry behind this one in the line of an ordering key.
    pub(crate) fn behind(&self, key: &OrderingKey, seq: i64) -> Option<i64> {
        let open = &self.lines.get(key)?.open;
        let mut behind = open.range((Bound::Excluded(seq), Bound::Unbounded));
        behind.next().map(|(seq, _)| *seq)
    }

    /// The leased entries behind this one in the line of an ordering key.
    pub(crate) fn leased_behind(&self, key: &OrderingKey, seq: i64) -> Vec<i64> {
        let Some(line) = self.lines.get(key) else {
            return Vec::new();
        };
        let behind = (Bound::Excluded(seq), Bound::Unbounded);
        line.leased.range(behind).copied().collect()
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
        let first = self.claimable.first();
        first.filter(|(at, _)| *at <= now).copied()
    }

    /// How many entries are leased, those whose lease has run out included.
    pub(crate) fn count_leased(&self) -> usize {
        self.leases.len()
    }

    /// How many entries a claim could take now, up to `most`.
    pub(crate) fn count_claimable(&self, now: i64, most: u64) -> u64 {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.claimable.range(..=(now, i64::MAX)).take(most).count() as u64
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
        self.claimable.is_empty()
            && self.leases.is_empty()
            && self.finished.values().all(BTreeSet::is_empty)
            && self.with_content.values().all(BTreeSet::is_empty)
            && self.blocking == 0
            && self.lines.is_empty()
    }
}
