//! Settling failed attempts in transactions, with what routers write about them.

use std::collections::HashMap;

use super::{
    Context, FailedAttempt, Failure,
    driver::Driver,
    handler::Hold,
    runs::keeps_others_waiting,
    table::{Phase, RunKey},
    task,
};
use crate::{Outcome, Settlement};

/// A failed attempt that is to be settled in a transaction.
pub(super) struct Failed {
    index: usize,
    context: Context,
    failure: Failure,
    outcome: Outcome,
}

/// Those that wait until nothing else of their run is held. In a transaction one would come before what is behind it, and a
/// crash in between leave that leased, and first.
#[derive(Default)]
pub(super) struct PutOff {
    of_runs: HashMap<RunKey, Vec<Failed>>,
    /// The runs of which one was put off since the last look.
    added: Vec<RunKey>,
}

impl PutOff {
    fn add(&mut self, run: RunKey, failed: Failed) {
        self.added.push(run.clone());
        self.of_runs.entry(run).or_default().push(failed);
    }
}

impl Driver {
    /// Settles a failed attempt; in a transaction, if the router writes something about it.
    pub(super) fn conclude(&mut self, index: usize, failure: Failure, outcome: Outcome) {
        let lane = self.table.get(index).and_then(|slot| slot.lane);
        let served = lane.and_then(|lane| self.config.served.get(lane));
        let writes = served.is_some_and(|served| served.router.settle_failed.is_some());
        let is_attempt = matches!(outcome, Outcome::Retry { .. } | Outcome::Dead { .. });
        let slot = self.table.get_mut(index);
        let (Some(slot), true, true) = (slot, writes, is_attempt) else {
            return self.settle(index, outcome);
        };
        slot.ends_with(&outcome);
        let run = slot.run.clone();
        let run = run.filter(|_| keeps_others_waiting(&outcome));
        let failed = Failed {
            index,
            context: slot.context.clone(),
            failure,
            outcome,
        };
        match run {
            // What came with it may not be here yet.
            Some(run) => self.put_off.add(run, failed),
            None => self.queue_to_conclude(failed),
        }
    }

    /// Puts it behind those of its router that wait for room.
    fn queue_to_conclude(&mut self, failed: Failed) {
        let lane = self.table.get(failed.index).and_then(|slot| slot.lane);
        if let Some(lane) = lane.and_then(|lane| self.lanes.get_mut(lane)) {
            lane.failed.push_back(failed);
        }
    }

    /// Whether it is still there: its lease may have been lost.
    fn is_held(&self, failed: &Failed) -> bool {
        let slot = self.table.get(failed.index);
        slot.is_some_and(|slot| slot.context.is_same(&failed.context))
    }

    /// Begins to settle failed attempts, as many as there is room for.
    pub(super) fn conclude_failed(&mut self) {
        let mut runs = self.table.take_thinned();
        runs.append(&mut self.put_off.added);
        for run in runs {
            let Some(failed) = self.put_off.of_runs.remove(&run) else {
                continue;
            };
            let failed = failed.into_iter().filter(|one| self.is_held(one));
            let failed: Vec<_> = failed.collect();
            if self.table.held_of_run(&run) > failed.len() {
                self.put_off.of_runs.insert(run, failed);
            } else {
                for one in failed {
                    self.queue_to_conclude(one);
                }
            }
        }
        for lane in 0..self.lanes.len() {
            while let Some(failed) = self.next_to_conclude(lane) {
                self.begin_to_conclude(lane, failed);
            }
        }
    }

    fn next_to_conclude(&mut self, lane: usize) -> Option<Failed> {
        let lane = self.lanes.get_mut(lane)?;
        let has_room = lane.has_room_to_conclude();
        has_room.then(|| lane.failed.pop_front()).flatten()
    }

    fn begin_to_conclude(&mut self, lane: usize, failed: Failed) {
        let config = self.config.clone();
        let served = config.served.get(lane);
        let settle = served.and_then(|served| served.router.settle_failed.clone());
        let (Some(served), Some(settle), true) = (served, settle, self.is_held(&failed)) else {
            return;
        };
        let Failed {
            index,
            failure,
            outcome,
            ..
        } = failed;
        if self.is_stranded(index, &outcome) {
            return self.abandon(index);
        }
        if self.stop.as_ref().is_some_and(|stop| stop.is_cancelled) {
            return self.settle(index, outcome);
        }
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        let is_in_doubt = slot.is_in_doubt();
        // Under the newest lease, and with nothing of what the attempt was told.
        slot.context = Context::claimed(slot.leased(), &config);
        slot.renewed = None;
        if is_in_doubt {
            // Unlike the settlement by itself, the one in a transaction tells.
            slot.context.doubt();
        }
        slot.phase = Phase::Running;
        let attempt = FailedAttempt {
            context: slot.context.clone(),
            failure,
            outcome,
        };
        let limit = served.timeout(slot.context.message());
        let task = task::spawn_conclusion(index, attempt, limit, settle, &self.sender);
        slot.task = Some(task);
        self.running += 1;
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.running += 1;
            lane.concluding += 1;
        }
    }

    /// Takes note that a failed attempt is settled, or that this is left to do.
    pub(super) fn concluded(&mut self, index: usize, outcome: Outcome, is_settled: bool) {
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        if let Some(lane) = slot.lane.and_then(|lane| self.lanes.get_mut(lane)) {
            lane.running = lane.running.saturating_sub(1);
            lane.concluding = lane.concluding.saturating_sub(1);
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
}
