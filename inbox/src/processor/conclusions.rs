//! Settling failed attempts in transactions, with what routers write about them.

use std::collections::HashSet;

use super::{
    Context, FailedAttempt, Failure, driver::Driver, handler::Hold, runs::goes_back, table::Phase,
    task,
};
use crate::{Outcome, Settlement};

/// A failed attempt that is settled in a transaction once what is behind it in its run is handed back. In that
/// transaction it would come before that, and a crash in between leave what is behind leased, and first.
pub(super) struct PutOff {
    index: usize,
    context: Context,
    failure: Failure,
    outcome: Outcome,
}

impl PutOff {
    pub(super) fn is_of(&self, index: usize) -> bool {
        self.index == index
    }
}

impl Driver {
    /// Settles a failed attempt; in a transaction, if the router writes something about it.
    pub(super) fn conclude(&mut self, index: usize, failure: Failure, outcome: Outcome) {
        let config = self.config.clone();
        let lane = self.table.get(index).and_then(|slot| slot.lane);
        let served = lane.and_then(|lane| config.served.get(lane));
        let settle = served.and_then(|served| served.router.settle_failed.clone());
        let is_attempt = matches!(outcome, Outcome::Retry { .. } | Outcome::Dead { .. });
        let (Some(served), Some(settle), true) = (served, settle, is_attempt) else {
            return self.settle(index, outcome);
        };
        let has_others = goes_back(&outcome) && self.has_others_of_its_run(index);
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        if has_others {
            slot.ends_with(&outcome);
            let context = slot.context.clone();
            return self.put_off.push(PutOff {
                index,
                context,
                failure,
                outcome,
            });
        }
        let is_in_doubt = slot.is_in_doubt();
        // Under the newest lease, and with nothing of what the attempt was told.
        slot.context = Context::claimed(slot.leased(), &config);
        slot.renewed = None;
        if is_in_doubt {
            // Unlike the settlement by itself, the one in a transaction tells.
            slot.context.doubt();
        }
        slot.ends_with(&outcome);
        slot.phase = Phase::Running;
        let limit = served.timeout(slot.context.message());
        let attempt = FailedAttempt {
            context: slot.context.clone(),
            failure,
            outcome,
        };
        let task = task::spawn_conclusion(index, attempt, limit, settle, &self.sender);
        slot.task = Some(task);
        self.running += 1;
        if let Some(lane) = slot.lane.and_then(|lane| self.lanes.get_mut(lane)) {
            lane.running += 1;
        }
    }

    /// Takes note that a failed attempt is settled, or that this is left to do.
    pub(super) fn concluded(&mut self, index: usize, outcome: Outcome, is_settled: bool) {
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        if let Some(lane) = slot.lane.and_then(|lane| self.lanes.get_mut(lane)) {
            lane.running = lane.running.saturating_sub(1);
        }
        slot.drop_at = None;
        let was_lost = slot.phase == Phase::Lost;
        slot.phase = Phase::Ended;
        self.lost_running = self.lost_running.saturating_sub(usize::from(was_lost));
        if is_settled || slot.context.is_held_by(Hold::Settled) {
            let lease = slot.context.leased().lease.clone();
            return self.stored(index, &Settlement { lease, outcome });
        }
        slot.context.set_hold(Hold::Lease);
        // As after a handler that has failed under a lease that was lost. Unless it was claimed again, it may have been lost
        // to this very transaction, whose answer was: a renewal that waited for it finds no lease. The settlement tells.
        let outcome = match was_lost && slot.renewed.is_some() {
            true => Outcome::Release,
            false => outcome,
        };
        self.settle(index, outcome);
    }

    /// Settles what has waited for others of its run, and has not been lost.
    pub(super) fn conclude_put_off(&mut self) {
        if self.put_off.is_empty() {
            return;
        }
        let indexes = self.put_off.iter().map(|one| one.index);
        let waits: HashSet<usize> = indexes
            .filter(|index| self.has_others_of_its_run(*index))
            .collect();
        let (waiting, ready): (Vec<_>, Vec<_>) = std::mem::take(&mut self.put_off)
            .into_iter()
            .partition(|one| waits.contains(&one.index));
        self.put_off = waiting;
        for one in ready {
            let slot = self.table.get_mut(one.index);
            if slot.is_some_and(|slot| slot.context.is_same(&one.context)) {
                self.conclude(one.index, one.failure, one.outcome);
            }
        }
    }
}
