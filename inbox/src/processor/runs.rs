//! Runs of ordering keys: what is not reached of one goes back first, the last one before the others.
//!
//! The first leased message of a key is the next to come. Where an earlier one has gone back to pending and the process
//! dies before those behind it have, they would come before it. So they go back in the call that settles it, or before.

use std::collections::HashSet;

use super::driver::Driver;
use crate::{OrderingKey, Outcome, Settlement};

/// A router's place and an ordering key.
type RunKey = (usize, OrderingKey);

/// An outcome, with its slot.
pub(super) type OfSlot = (usize, Settlement);

/// Whether a message is open behind this outcome.
pub(super) fn goes_back(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Retry { .. } | Outcome::Defer { .. } | Outcome::Release => true,
        Outcome::Processed { .. } | Outcome::Dead { .. } => false,
    }
}

impl Driver {
    /// The run to which the message in a slot may belong.
    fn run_of(&self, index: usize) -> Option<RunKey> {
        let slot = self.table.get(index)?;
        let lane = slot.lane?;
        let served = self.config.served.get(lane)?;
        let key = slot.context.message().ordering_key()?;
        (served.run_limit() > 1).then(|| (lane, key.clone()))
    }

    /// Whether others of its ordering key are held, apart from those that wait for others themselves.
    pub(super) fn has_others_of_its_run(&self, index: usize) -> bool {
        let Some(run) = self.run_of(index) else {
            return false;
        };
        let is_put_off = |other: usize| self.put_off.iter().any(|one| one.is_of(other));
        let mut others = self.table.indexes().filter(|other| *other != index);
        others.any(|other| self.run_of(other).as_ref() == Some(&run) && !is_put_off(other))
    }

    /// The runs of which a handler has still to end.
    fn runs_at_work(&self) -> HashSet<RunKey> {
        let at_work = self.table.indexes().filter(|index| {
            let slot = self.table.get(*index);
            slot.is_some_and(|slot| slot.runs() && slot.ends_counted.is_none())
        });
        at_work.filter_map(|index| self.run_of(index)).collect()
    }

    /// Puts these outcomes in the order in which they are sent, and answers those that have to wait until the handler
    /// of what is behind them has ended.
    pub(super) fn in_order_of_runs(&self, outcomes: Vec<OfSlot>) -> (Vec<OfSlot>, Vec<OfSlot>) {
        let run_of = |(index, settlement): &OfSlot| {
            let goes_back = goes_back(&settlement.outcome);
            goes_back.then(|| self.run_of(*index)).flatten()
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
            |one: &OfSlot| has_run(one.0) && run_of(one).is_some_and(|run| at_work.contains(&run));
        let (waiting, others): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(is_waiting);
        let is_release = |one: &OfSlot| one.1.outcome == Outcome::Release;
        let (mut sent, mut rest): (Vec<_>, Vec<_>) = others.into_iter().partition(is_release);
        sent.reverse();
        sent.append(&mut rest);
        (sent, waiting)
    }
}
