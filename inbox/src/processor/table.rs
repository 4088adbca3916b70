//! The messages that a processor holds: one slot each, a fixed number of slots.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{task::AbortHandle, time::Instant};

use super::{Context, breaker::Trial, handler::Hold};
use crate::{Attempts, Key, Lease, Leased, OrderingKey, Outcome, telemetry::InFlight};

/// A router's place and an ordering key: of these the router may get several messages at a time.
pub(super) type RunKey = (usize, OrderingKey);

/// A claimed message.
pub(super) struct Slot {
    pub context: Context,
    /// The place of its router; `None` when it has none here.
    pub lane: Option<usize>,
    /// For how long its leases are taken.
    pub lease_length: Duration,
    /// Set when its handler was started to see whether a circuit may be closed.
    pub trial: Option<Trial>,
    /// When its lease runs out, by this worker's monotonic clock, counted from before the call
    /// that took or renewed it.
    pub expires: Instant,
    pub phase: Phase,
    /// Present once the handler was started; also when it has ended. Those of one batch have one. Absent while a
    /// batch waits for its turn, though its messages count as running.
    pub task: Option<AbortHandle>,
    /// Shared with those that are in the same batch and have not ended.
    pub batch: Option<Arc<InBatch>>,
    /// When the handler was started, or the message put here.
    pub began: Instant,
    /// When the handler is to be dropped, if it was told to stop.
    pub drop_at: Option<Instant>,
    /// The lease under which this processor has claimed the message a second time, after the
    /// first ran out. The handler's outcome is settled under this one.
    pub renewed: Option<Box<Renewed>>,
    /// Present while an outcome is on its way to the store: whether it counts as an attempt.
    pub ends_counted: Option<bool>,
    /// The claim that was waited for because it might have been why the lease was lost.
    pub waited: Option<u64>,
    /// Its handler is not told to stop when the lease has run out, before its renewal is answered: a
    /// transaction kept that waiting, and everybody who would claim; or a claim of this worker has
    /// just taken the lease, at an unknown time.
    pub is_spared: bool,
    /// It was to be renewed while a renewal was under way that does not renew it.
    pub is_passed_over: bool,
    /// The run that it may belong to.
    pub run: Option<RunKey>,
    /// How many messages were claimed before it.
    pub order: u64,
    /// Counts it as held; `None` where no router has it.
    pub _in_flight: Option<InFlight>,
}

/// Marks the messages of one batch: the last of them to end has the last reference.
pub(super) struct InBatch;

/// A second lease on a message that is held.
pub(super) struct Renewed {
    pub lease: Lease,
    pub attempts: Attempts,
}

impl Slot {
    /// The newest lease on the message.
    pub(super) fn lease(&self) -> &Lease {
        match &self.renewed {
            None => &self.context.leased().lease,
            Some(renewed) => &renewed.lease,
        }
    }

    /// The attempts of the newest lease.
    fn attempts(&self) -> Attempts {
        let first = self.context.attempts();
        self.renewed
            .as_ref()
            .map_or(first, |renewed| renewed.attempts)
    }

    /// The message under its newest lease.
    pub(super) fn leased(&self) -> Leased {
        Leased {
            lease: self.lease().clone(),
            attempts: self.attempts(),
            ..self.context.leased().clone()
        }
    }

    /// Whether its handler runs, under its lease or not, or what is written about its failure.
    pub(super) fn runs(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Lost)
    }

    /// Whether there is a lease to be renewed, as far as this worker knows.
    pub(super) fn is_leased(&self) -> bool {
        self.phase != Phase::Lost && !self.context.is_held_by(Hold::Settled)
    }

    /// Whether a transaction may have settled it as processed although its handler has ended otherwise.
    pub(super) fn is_in_doubt(&self) -> bool {
        // What was claimed again after that was not.
        self.renewed.is_none() && self.context.is_in_doubt()
    }

    /// Whether a claim that gets this has found the outcome that is on its way to be stored, what others have done
    /// since, or what an operator has replayed since it was claimed here.
    pub(super) fn is_back_with(&self, leased: &Leased) -> bool {
        let (own, found) = (self.attempts(), leased.attempts);
        let is_replayed = leased.replays != self.context.leased().replays;
        let is_settled = self.ends_counted.is_some_and(|is_counted| {
            let is_handed_back = !is_counted && found.started == own.started;
            is_handed_back || found.finished > own.finished
        });
        is_replayed || is_settled
    }

    /// Takes note of the outcome that is on its way to the store.
    pub(super) fn ends_with(&mut self, outcome: &Outcome) {
        self.phase = Phase::Ended;
        let is_uncounted = matches!(outcome, Outcome::Defer { .. } | Outcome::Release);
        self.ends_counted = Some(!is_uncounted);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits until everything else of its handler is settled.
    Held,
    /// Waits until fewer handlers run.
    Waiting,
    /// Its handler runs.
    Running,
    /// Its outcome is decided and on its way to the store.
    Ended,
    /// Its handler runs, and its lease has ended: another worker has taken it, or the handler has
    /// settled the message by itself, which its end tells.
    Lost,
}

pub(super) struct Table {
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// How many messages of each router are held.
    held: Vec<usize>,
    /// How many of each run.
    of_runs: HashMap<RunKey, usize>,
    /// The runs of which fewer are held than at the last look.
    thinned: Vec<RunKey>,
    claimed: u64,
}

impl Table {
    /// For so many messages of so many routers.
    pub(super) fn new(capacity: usize, lanes: usize) -> Self {
        Self {
            slots: std::iter::repeat_with(|| None).take(capacity).collect(),
            free: (0..capacity).rev().collect(),
            held: vec![0; lanes],
            of_runs: HashMap::new(),
            thinned: Vec::new(),
            claimed: 0,
        }
    }

    /// The first of so many places in the order of what was claimed.
    pub(super) fn orders(&mut self, count: usize) -> u64 {
        let first = self.claimed;
        self.claimed += count as u64;
        first
    }

    /// Takes a slot. A store may answer a claim with more messages than were asked for, so the
    /// table grows rather than lose one.
    pub(super) fn insert(&mut self, slot: Slot) -> usize {
        if let Some(held) = self.held_of(slot.lane) {
            *held += 1;
        }
        if let Some(run) = &slot.run {
            *self.of_runs.entry(run.clone()).or_default() += 1;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        if let Some(place) = self.slots.get_mut(index) {
            *place = Some(slot);
        }
        index
    }

    pub(super) fn get(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Slot> {
        self.slots.get_mut(index)?.as_mut()
    }

    /// The slot, if it is still under this lease: it may hold another message by now.
    pub(super) fn holder(&mut self, index: usize, lease: &Lease) -> Option<&mut Slot> {
        self.get_mut(index).filter(|slot| {
            let held = slot.lease();
            held.token == lease.token && held.key == lease.key
        })
    }

    /// Those of these messages that are held, with the slot of the newest lease on each.
    pub(super) fn holders<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> HashMap<Key, usize> {
        let keys: HashSet<&Key> = keys.collect();
        let mut holders = HashMap::new();
        if keys.is_empty() {
            return holders;
        }
        for (index, slot) in self.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let key = slot.context.message().key();
            if !keys.contains(key) {
                continue;
            }
            let other = holders.get(key).and_then(|other| self.get(*other));
            if other.is_none_or(|other| other.lease().token < slot.lease().token) {
                holders.insert(key.clone(), index);
            }
        }
        holders
    }

    /// Whether the message in a slot is held in another one too, because its outcome was stored
    /// and it was claimed again.
    pub(super) fn is_back(&self, index: usize) -> bool {
        let Some(slot) = self.get(index) else {
            return false;
        };
        let key = slot.context.message().key();
        let mut others = self.slots.iter().flatten();
        others.any(|other| {
            other.context.message().key() == key
                && slot.is_back_with(other.context.leased())
                && other.lease().token > slot.lease().token
        })
    }

    /// Whether a handler of this message runs, under the newest lease on it or an older one.
    pub(super) fn runs(&self, key: &Key) -> bool {
        let mut slots = self.slots.iter().flatten();
        slots.any(|slot| {
            // The handler has ended of one whose outcome is on its way.
            let has_ended = slot.ends_counted.is_some();
            slot.runs() && !has_ended && slot.context.message().key() == key
        })
    }

    /// Those whose lease is lost unless a claim that was under way has taken it.
    pub(super) fn waiting_for_claim(&self) -> Vec<usize> {
        let slots = self.slots.iter().enumerate();
        let waits = |slot: &Slot| {
            slot.waited.is_some() && matches!(slot.phase, Phase::Running | Phase::Held)
        };
        slots
            .filter(|(_, slot)| slot.as_ref().is_some_and(waits))
            .map(|(index, _)| index)
            .collect()
    }

    /// How many messages of a router are held.
    pub(super) fn held_for(&self, lane: usize) -> usize {
        self.held.get(lane).copied().unwrap_or_default()
    }

    fn held_of(&mut self, lane: Option<usize>) -> Option<&mut usize> {
        self.held.get_mut(lane?)
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Slot> {
        let slot = self.slots.get_mut(index)?.take()?;
        self.free.push(index);
        if let Some(held) = self.held_of(slot.lane) {
            *held -= 1;
        }
        if let Some(run) = &slot.run {
            if let Some(held) = self.of_runs.get_mut(run) {
                *held -= 1;
            }
            if self.held_of_run(run) == 0 {
                self.of_runs.remove(run);
            }
            self.thinned.push(run.clone());
        }
        Some(slot)
    }

    pub(super) fn held_of_run(&self, run: &RunKey) -> usize {
        self.of_runs.get(run).copied().unwrap_or_default()
    }

    /// The runs of which fewer are held than at the last look.
    pub(super) fn take_thinned(&mut self) -> Vec<RunKey> {
        std::mem::take(&mut self.thinned)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Slot)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(index, slot)| Some((index, slot.as_mut()?)))
    }

    /// The slots that have a message.
    pub(super) fn indexes(&self) -> impl Iterator<Item = usize> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(index, slot)| slot.as_ref().map(|_| index))
    }

    pub(super) fn contexts(&self) -> impl Iterator<Item = &Context> {
        self.slots.iter().flatten().map(|slot| &slot.context)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Table {
    /// When the processor's future is dropped, its handlers do not go on unseen.
    fn drop(&mut self) {
        for (_, slot) in self.iter_mut() {
            if let Some(task) = &slot.task {
                task.abort();
            }
        }
    }
}
