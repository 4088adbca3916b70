//! Forming batches of what a claim has brought.
//!
//! Nothing waits for its batch to fill: what one claim brings runs at once, and what is not claimed is
//! for any worker. So a batch's messages begin, and count, as single ones do. Only their task is one.

use std::{collections::HashSet, sync::Arc};

use tokio::{
    task::{AbortHandle, Id},
    time::Instant,
};

use super::{BatchHandler, driver::Driver, router::Route, table::InBatch, task};
use crate::{Leased, Message, OrderingKey};

/// Batches whose messages are started, and whose handlers are about to be.
#[derive(Default)]
pub(super) struct Forming(Vec<Part>);

struct Part {
    lane: usize,
    handler: Arc<dyn BatchHandler>,
    /// Whether its messages are tried again: one that makes its batch fail does so with others that
    /// have failed.
    is_again: bool,
    /// Its message has crashed a worker before.
    is_alone: bool,
    /// Whether all have the ordering key of the first, or none.
    is_by_key: bool,
    /// Those of its messages.
    keys: HashSet<Option<OrderingKey>>,
    slots: Vec<usize>,
    mark: Arc<InBatch>,
}

impl Part {
    /// Whether it may have one more of this handler's.
    fn takes(&self, lane: usize, handler: &Arc<dyn BatchHandler>, most: usize) -> bool {
        self.lane == lane
            && std::ptr::addr_eq(Arc::as_ptr(&self.handler), Arc::as_ptr(handler))
            && self.slots.len() < most
    }

    fn has_run(&self, lane: usize, key: Option<&OrderingKey>) -> bool {
        self.lane == lane && key.is_some() && self.keys.contains(&key.cloned())
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
        let mut parts = self.forming.0.iter();
        let part = parts.find(|part| part.has_run(lane, message.ordering_key()));
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
        let is_again = attempts.started > 1;
        let is_alone = attempts.crashed(true) > 0;
        let key = message.ordering_key();
        let forming = &mut self.forming.0;
        let part = match forming.iter_mut().position(|part| part.has_run(lane, key)) {
            // Behind others of a run.
            Some(place) => forming.get_mut(place),
            None => forming.iter_mut().find(|part| {
                part.takes(lane, handler, room.batch_size())
                    && part.is_again == is_again
                    && !(part.is_alone || is_alone)
                    && (!part.is_by_key || part.keys.contains(&key.cloned()))
            }),
        };
        if let Some(part) = part {
            slot.batch = Some(part.mark.clone());
            part.keys.insert(key.cloned());
            part.slots.push(index);
            return true;
        }
        room.batches_running += 1;
        let mark = Arc::new(InBatch);
        slot.batch = Some(mark.clone());
        self.forming.0.push(Part {
            lane,
            handler: handler.clone(),
            is_again,
            is_alone,
            is_by_key: room.is_by_key(),
            keys: HashSet::from([key.cloned()]),
            slots: vec![index],
            mark,
        });
        true
    }

    /// Runs the batches that are formed.
    pub(super) fn start_batches(&mut self) {
        for part in std::mem::take(&mut self.forming.0) {
            // From here on the slots have the only references.
            drop(part.mark);
            let member = |index: &usize| {
                let slot = self.table.get_mut(*index)?;
                Some((*index, slot.context.clone(), slot.expires))
            };
            let members: Vec<_> = part.slots.iter().filter_map(member).collect();
            let task =
                task::spawn_batch(&self.config, part.lane, part.handler, members, &self.sender);
            for index in part.slots {
                if let Some(slot) = self.table.get_mut(index) {
                    slot.task = Some(task.clone());
                }
            }
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
