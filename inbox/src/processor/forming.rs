//! Forming batches of what a claim has brought.
//!
//! Nothing waits for its batch to fill: what one claim brings is put into batches at once, and what is not claimed is
//! for any worker. So a batch's messages begin, and count, as single ones do. Only their task is one.
//!
//! One claim may bring more batches than may run at a time: of several handlers or ordering keys, of what is new and
//! what is tried again. Those wait for others to end, and nothing is claimed for their router meanwhile. What has
//! waited for a third of its lease is handed back, as at a shutdown: others may have room for it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use tokio::{
    task::{AbortHandle, Id},
    time::Instant,
};

use super::{
    BatchHandler,
    driver::Driver,
    lane::Lane,
    router::Route,
    table::InBatch,
    task::{self, End},
};
use crate::{Leased, Message, OrderingKey, Outcome};

/// Batches that are being put together.
#[derive(Default)]
pub(super) struct Forming {
    parts: Vec<Part>,
    /// The places of those that take any message of their handler: one for what is new, and one for what is tried
    /// again.
    open: Vec<usize>,
    /// The place of the one that has a router's messages of an ordering key.
    keys: HashMap<(usize, OrderingKey), usize>,
}

/// A batch that has not begun.
pub(super) struct Part {
    lane: usize,
    handler: Arc<dyn BatchHandler>,
    /// Whether its messages are tried again: one that makes its batch fail does so with others that
    /// have failed.
    is_again: bool,
    /// When it has waited for too long.
    late_at: Instant,
    slots: Vec<usize>,
    mark: Arc<InBatch>,
}

impl Part {
    fn is_for(&self, lane: usize, handler: &Arc<dyn BatchHandler>) -> bool {
        self.lane == lane && std::ptr::addr_eq(Arc::as_ptr(&self.handler), Arc::as_ptr(handler))
    }

    /// Whether it may have one more of this handler's.
    fn takes(&self, lane: usize, handler: &Arc<dyn BatchHandler>, most: usize) -> bool {
        self.is_for(lane, handler) && self.slots.len() < most
    }
}

impl Forming {
    /// The place of the part that has messages of this ordering key.
    fn with_key(&self, lane: usize, key: Option<&OrderingKey>) -> Option<usize> {
        self.keys.get(&(lane, key?.clone())).copied()
    }

    /// The place of the part that takes any message of this handler.
    fn open_for(
        &self,
        lane: usize,
        handler: &Arc<dyn BatchHandler>,
        is_again: bool,
        most: usize,
    ) -> Option<usize> {
        let is_open = |part: &Part| part.is_again == is_again && part.takes(lane, handler, most);
        let mut places = self.open.iter().copied();
        places.find(|place| self.parts.get(*place).is_some_and(is_open))
    }

    /// Adds a part, which others than those of its ordering keys may join or not, and answers its place.
    fn begin(&mut self, part: Part, is_open: bool) -> usize {
        let place = self.parts.len();
        if is_open {
            // The one before it is full.
            let is_alike = |other: &Part| {
                other.is_again == part.is_again && other.is_for(part.lane, &part.handler)
            };
            self.open
                .retain(|other| !self.parts.get(*other).is_some_and(is_alike));
            self.open.push(place);
        }
        self.parts.push(part);
        place
    }

    /// Adds the message in a slot to a part, whose mark it answers.
    fn join(
        &mut self,
        place: usize,
        key: Option<&OrderingKey>,
        slot: usize,
    ) -> Option<Arc<InBatch>> {
        let part = self.parts.get_mut(place)?;
        part.slots.push(slot);
        if let Some(key) = key {
            self.keys.insert((part.lane, key.clone()), place);
        }
        Some(part.mark.clone())
    }
}

impl Driver {
    /// Whether the message, which was claimed behind others of its ordering key, can be run behind them: in
    /// their batch.
    pub(super) fn may_follow(&self, message: &Message, lane: Option<usize>) -> bool {
        let served = lane.and_then(|lane| Some((lane, self.config.served.get(lane)?)));
        let room = lane.and_then(|lane| self.lanes.get(lane));
        let (Some((lane, served)), Some(room)) = (served, room) else {
            return false;
        };
        let Route::Batch(handler) = served.router.route(message.kind()) else {
            return false;
        };
        let place = self.forming.with_key(lane, message.ordering_key());
        let part = place.and_then(|place| self.forming.parts.get(place));
        part.is_some_and(|part| part.takes(lane, handler, room.batch_size()))
    }

    /// Puts the started message in a slot into a batch, if its handler takes batches.
    pub(super) fn joins_batch(&mut self, index: usize) -> bool {
        let Some(slot) = self.table.get_mut(index) else {
            return false;
        };
        let (message, attempts) = (slot.context.message(), slot.context.attempts());
        let place = slot
            .lane
            .and_then(|lane| Some((lane, self.config.served.get(lane)?)));
        let Some((lane, served)) = place else {
            return false;
        };
        let Route::Batch(handler) = served.router.route(message.kind()) else {
            return false;
        };
        let Some(room) = self.lanes.get_mut(lane) else {
            return false;
        };
        let (key, forming) = (message.ordering_key(), &mut self.forming);
        let is_again = attempts.started > 1;
        // One that has crashed a worker before is alone.
        let is_open = attempts.crashed(true) == 0 && (key.is_none() || !room.is_by_key());
        let open = || forming.open_for(lane, handler, is_again, room.batch_size());
        // Behind others of a run, or with any.
        let part = forming.with_key(lane, key);
        let part = part.or_else(|| is_open.then(open).flatten());
        let part = part.unwrap_or_else(|| {
            room.batches_held += 1;
            let part = Part {
                lane,
                handler: handler.clone(),
                is_again,
                late_at: slot.began + slot.lease_length / 3,
                slots: Vec::new(),
                mark: Arc::new(InBatch),
            };
            forming.begin(part, is_open)
        });
        slot.batch = forming.join(part, key, index);
        true
    }

    /// Puts what is formed behind what waits for its turn.
    fn queue_batches(&mut self) {
        if self.forming.parts.is_empty() {
            return;
        }
        let Forming { parts, .. } = std::mem::take(&mut self.forming);
        for part in parts {
            if let Some(lane) = self.lanes.get_mut(part.lane) {
                lane.formed.push_back(part);
            }
        }
    }

    /// Runs the batches that are formed, as far as there is room.
    pub(super) fn start_batches(&mut self) {
        self.queue_batches();
        for index in 0..self.lanes.len() {
            while let Some(part) = self.lanes.get_mut(index).and_then(Lane::begin_batch) {
                self.start_batch(part);
            }
        }
    }

    fn start_batch(&mut self, part: Part) {
        // From here on the slots have the only references.
        drop(part.mark);
        let member = |index: &usize| {
            let slot = self.table.get_mut(*index)?;
            Some((*index, slot.context.clone(), slot.expires))
        };
        let members: Vec<_> = part.slots.iter().filter_map(member).collect();
        let task = task::spawn_batch(&self.config, part.lane, part.handler, members, &self.sender);
        for index in part.slots {
            if let Some(slot) = self.table.get_mut(index) {
                slot.task = Some(task.clone());
            }
        }
    }

    /// Hands back the batches of a router that wait for their turn.
    pub(super) fn hand_back_batches(&mut self, index: usize) {
        self.queue_batches();
        let waiting = self.lanes.get_mut(index);
        let waiting = waiting.map(|lane| std::mem::take(&mut lane.formed));
        for part in waiting.into_iter().flatten() {
            self.hand_back_batch(part);
        }
    }

    /// Hands back the batches that have waited for too long.
    pub(super) fn hand_back_late_batches(&mut self, now: Instant) {
        let mut late = Vec::new();
        for lane in &mut self.lanes {
            // The first of them was formed first.
            let is_late = |part: &&Part| part.late_at <= now;
            let count = lane.formed.iter().take_while(is_late).count();
            late.extend(lane.formed.drain(..count));
            if let Some(part) = lane.formed.front() {
                self.renewal.look_at(part.late_at);
            }
        }
        for part in late {
            self.hand_back_batch(part);
        }
    }

    fn hand_back_batch(&mut self, part: Part) {
        drop(part.mark);
        for slot in part.slots {
            self.ended(slot, End::Outcome(Outcome::Release));
        }
    }

    /// Whether a claimed message may run in a batch as far as crashes before go: such ones run alone, no
    /// more at a time than batches. Says so to later claims.
    pub(super) fn may_join_batch(&mut self, leased: &Leased, lane: Option<usize>) -> bool {
        let served = lane.and_then(|lane| self.config.served.get(lane));
        let route = served.map(|served| served.router.route(leased.message.kind()));
        let Some(Route::Batch(_)) = route else {
            return true;
        };
        let Some(lane) = lane.and_then(|lane| self.lanes.get_mut(lane)) else {
            return true;
        };
        lane.is_wary = leased.attempts.crashed(true) > 0;
        !lane.is_wary || lane.has_room_for_batch()
    }

    /// The running batches of which a message was not told to stop, or may go on for a while: they are
    /// not to be dropped for the sake of the others.
    pub(super) fn wanted_batches(&mut self, now: Instant) -> HashSet<Id> {
        let wanted = self.table.iter_mut().filter_map(|(_, slot)| {
            let runs = slot.runs();
            let is_wanted = slot.drop_at.is_none_or(|at| at > now);
            slot.batch.as_ref().filter(|_| runs && is_wanted)?;
            slot.task.as_ref().map(AbortHandle::id)
        });
        wanted.collect()
    }
}
