//! Runs of ordering keys: what is not reached of one goes back first, the last one before the others.
//!
//! The first leased message of a key is the next to come. Where an earlier one has gone back to pending and the process
//! dies before those behind it have, they would come before it. So they go back in the call that settles it, or before.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use super::{
    driver::Driver,
    table::{Phase, RunKey, Slot},
};
use crate::{AfterDead, Outcome, Settlement};

/// An outcome, with its slot.
pub(super) type OfSlot = (usize, Settlement);

/// Whether the messages behind one that is settled so have to wait for it.
pub(super) fn keeps_others_waiting(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Retry { .. } | Outcome::Defer { .. } | Outcome::Release => true,
        Outcome::Dead { after, .. } => *after == AfterDead::Block,
        Outcome::Processed { .. } => false,
    }
}

impl Driver {
    /// The run to which the message in a slot may belong.
    pub(super) fn run_of(&self, index: usize) -> Option<&RunKey> {
        self.table.get(index)?.run.as_ref()
    }

    /// Whether a message of the same run stays leased until its lease runs out, and keeps its turn until then. What goes
    /// back would come behind it.
    pub(super) fn is_stranded(&self, index: usize, outcome: &Outcome) -> bool {
        let is_one = |run| self.stranded.contains(run);
        keeps_others_waiting(outcome) && self.run_of(index).is_some_and(is_one)
    }

    /// The outcomes to send. What is stranded keeps its lease.
    pub(super) fn not_stranded(&mut self, outcomes: Vec<OfSlot>) -> Vec<OfSlot> {
        if self.stranded.is_empty() {
            return outcomes;
        }
        let is_stranded = |one: &OfSlot| self.is_stranded(one.0, &one.1.outcome);
        let (stranded, others): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(is_stranded);
        for (index, _) in stranded {
            self.abandon(index);
        }
        others
    }

    /// Gives up what is held behind messages of runs that were taken again, and was not claimed with them: their leases are
    /// lost with that. Its handlers would go on in front of those that come again.
    pub(super) fn lose_behind(&mut self, taken_again: &[usize], claimed: &HashSet<usize>) {
        let place = |slot: &Slot| (slot.context.leased().accepted_at, slot.order);
        let mut firsts = HashMap::new();
        for slot in taken_again
            .iter()
            .filter_map(|index| self.table.get(*index))
        {
            if let Some(run) = &slot.run {
                let first = firsts.entry(run.clone()).or_insert_with(|| place(slot));
                *first = place(slot).min(*first);
            }
        }
        if firsts.is_empty() {
            return;
        }
        let is_behind = |slot: &Slot| {
            let first = slot.run.as_ref().and_then(|run| firsts.get(run));
            let has_ended = matches!(slot.phase, Phase::Ended | Phase::Lost);
            !has_ended && first.is_some_and(|first| place(slot) > *first)
        };
        let behind = self.table.indexes().filter(|index| {
            !claimed.contains(index) && self.table.get(*index).is_some_and(is_behind)
        });
        for index in behind.collect::<Vec<_>>() {
            self.forget_waiting(index);
            self.lost(index);
        }
    }

    /// The runs of which a handler has still to end.
    fn runs_at_work(&self) -> HashSet<RunKey> {
        let at_work = self.table.indexes().filter(|index| {
            let slot = self.table.get(*index);
            slot.is_some_and(|slot| slot.runs() && slot.ends_counted.is_none())
        });
        let runs = at_work.filter_map(|index| self.run_of(index));
        runs.cloned().collect()
    }

    /// Puts these outcomes in the order in which they are sent, and answers those that have to wait until the handler
    /// of what is behind them has ended.
    pub(super) fn in_order_of_runs(&self, outcomes: Vec<OfSlot>) -> (Vec<OfSlot>, Vec<OfSlot>) {
        let run_of = |(index, settlement): &OfSlot| {
            let keeps_others = keeps_others_waiting(&settlement.outcome);
            self.run_of(*index).filter(|_| keeps_others)
        };
        if !outcomes.iter().any(|one| run_of(one).is_some()) {
            return (outcomes, Vec::new());
        }
        let at_work = self.runs_at_work();
        // What is handed back without its batch having run is behind all that runs.
        let has_run = |index: usize| {
            let slot = self.table.get(index);
            slot.is_some_and(|slot| slot.task.is_some())
        };
        let is_waiting =
            |one: &OfSlot| has_run(one.0) && run_of(one).is_some_and(|run| at_work.contains(run));
        let (waiting, others): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(is_waiting);
        // Before their turn comes with a settlement in front of them, which would count an attempt.
        let is_release = |one: &OfSlot| one.1.outcome == Outcome::Release;
        let (mut sent, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_release);
        let (last, mut others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|one| run_of(one).is_some());
        // And with them what is behind one of them and put off, as an earlier outcome of it is to be found out.
        let order_of = |one: &OfSlot| self.table.get(one.0).map(|slot| slot.order);
        let mut firsts = HashMap::new();
        for one in &sent {
            if let Some(run) = run_of(one) {
                let first = firsts.entry(run.clone()).or_insert_with(|| order_of(one));
                *first = order_of(one).min(*first);
            }
        }
        let is_behind = |one: &OfSlot| {
            let first = run_of(one).and_then(|run| firsts.get(run));
            first.is_some_and(|first| order_of(one) > *first)
        };
        let (mut behind, mut last): (Vec<_>, Vec<_>) = last.into_iter().partition(is_behind);
        sent.append(&mut behind);
        // What does not fit into this call is put in order again for the next one.
        let backwards = |one: &OfSlot| Reverse(order_of(one));
        sent.sort_by_key(backwards);
        last.sort_by_key(backwards);
        sent.append(&mut others);
        sent.append(&mut last);
        (sent, waiting)
    }
}
