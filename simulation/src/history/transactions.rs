//! What is written in transactions: there with the settlement that belongs to it, and once.

use inbox::{Key, Lease, Outcome, Settled, Settlement};

use super::{History, PartId, settling::name_of};
use crate::{
    transaction::{Effect, Written},
    world::HANDLERS,
};

impl History {
    /// Whether what this part does for a message is done in transactions.
    pub(super) fn is_transactional(&self, part: &PartId, key: &Key) -> bool {
        match &*part.name {
            "inline" => self.terms.inline_settles,
            _ => self.terms.in_transactions && is_processed_here(part, key),
        }
    }

    /// A transaction commits, before its settlements are written down.
    pub(crate) fn commits(
        &mut self,
        part: &PartId,
        written: &[Written],
        settlements: &[Settlement],
        settled: &[Settled],
    ) {
        let done = settlements.iter().zip(settled);
        let done = done.filter(|(_, settled)| **settled == Settled::Done);
        let done: Vec<_> = done.map(|(settlement, _)| settlement).collect();
        for one in written {
            let key = &one.lease.key;
            self.trace(|| format!("{part} commits {:?} for {key}", one.what));
            let name = match one.what {
                Effect::Work => "processed",
                Effect::Note(name) => name,
            };
            let is_settled = done.iter().any(|settlement| {
                settlement.lease == one.lease && name_of(&settlement.outcome) == name
            });
            self.check("an effect commits with its settlement", is_settled, || {
                format!("{part} wrote {:?} for {key}", one.what)
            });
            let Some(message) = self.current(key) else {
                continue;
            };
            let had_effect = message.has_effect;
            message.has_effect |= one.what == Effect::Work;
            let is_ended = message
                .grant(one.lease.token.get())
                .is_some_and(|grant| grant.outcome.is_some());
            let is_second = is_ended || had_effect && one.what == Effect::Work;
            self.check("an effect commits once", !is_second, || {
                format!("{part} wrote {:?} for {key}", one.what)
            });
        }
        for settlement in done {
            let what = match &settlement.outcome {
                Outcome::Processed { .. } => Effect::Work,
                outcome => Effect::Note(name_of(outcome)),
            };
            let is_written = |one: &Written| one.lease == settlement.lease && one.what == what;
            self.check("no effect is lost", written.iter().any(is_written), || {
                format!("{part} settled {} without it", settlement.lease.key)
            });
        }
    }

    /// Outcomes are stored outside of a transaction, before they are written down.
    pub(crate) fn settled_alone(
        &mut self,
        part: &PartId,
        settlements: &[Settlement],
        settled: &[Settled],
    ) {
        for (settlement, settled) in settlements.iter().zip(settled) {
            let key = &settlement.lease.key;
            if *settled != Settled::Done || !is_processed_here(part, key) {
                continue;
            }
            let has_handler = self.fallback(part, key).is_none();
            let is_transactional = self.is_transactional(part, key) && has_handler;
            let has_notes = self.terms.has_notes;
            let is_stopping = self.stops.contains_key(part) || self.failing.contains(part);
            let Some(message) = self.current(key) else {
                continue;
            };
            // It may have been written under an earlier lease. What a shutdown cuts short is settled without it.
            let mut own = message.grants.iter().filter(|grant| grant.part == *part);
            let lacks_note = is_stopping || own.any(|grant| grant.lacks_note);
            let Some(grant) = message.grant(settlement.lease.token.get()) else {
                continue;
            };
            let is_complete = match &settlement.outcome {
                _ if grant.outcome.is_some() => true,
                Outcome::Processed { .. } => !is_transactional,
                Outcome::Retry { .. } | Outcome::Dead { .. } => !has_notes || lacks_note,
                Outcome::Defer { .. } | Outcome::Release => true,
            };
            let name = name_of(&settlement.outcome);
            self.check("no effect is lost", is_complete, || {
                format!("{part} settled {key} as {name} without it")
            });
        }
    }

    /// A transaction for these leases was not opened, or not told so.
    pub(crate) fn not_opened(&mut self, leases: &[Lease]) {
        for lease in leases {
            if let Some(grant) = self.grant(lease) {
                grant.is_undone = true;
                grant.lacks_note = true;
            }
        }
    }

    /// The same, and waiting does not help.
    pub(crate) fn will_not_open(&mut self, leases: &[Lease]) {
        for lease in leases {
            if let Some(grant) = self.grant(lease) {
                grant.is_unopened = true;
            }
        }
    }

    /// A call in a transaction begins, in which this was written.
    pub(crate) fn call_begins(&mut self, written: &[Written]) {
        self.set_in_call(written, true);
    }

    /// It ends: until then its handler has not ended for the processor.
    pub(crate) fn call_ends(&mut self, part: &PartId, written: &[Written]) {
        self.last_ends.insert(part.clone(), self.now);
        self.set_in_call(written, false);
    }

    /// Outcomes are sent outside of a transaction. What was tried in one before has ended by now.
    pub(crate) fn settles_alone(&mut self, part: &PartId, settlements: &[Settlement]) {
        let now = self.now;
        for settlement in settlements {
            if !self.terms.in_transactions && !self.terms.has_notes {
                continue;
            }
            let grant = self.grant(&settlement.lease);
            if grant.is_some_and(|grant| !std::mem::replace(&mut grant.is_sent, true)) {
                self.last_ends.insert(part.clone(), now);
            }
        }
    }

    fn set_in_call(&mut self, written: &[Written], is_in_call: bool) {
        let now = self.now;
        for one in written.iter().filter(|one| one.what == Effect::Work) {
            if let Some(grant) = self.grant(&one.lease) {
                grant.is_in_call = is_in_call;
                grant.busy_until = Some(now);
            }
        }
    }

    /// It is not known that a transaction in which this was written has committed.
    pub(crate) fn undone(&mut self, written: &[Written]) {
        for one in written {
            let Some(grant) = self.grant(&one.lease) else {
                continue;
            };
            match one.what {
                Effect::Work => grant.is_undone = true,
                Effect::Note(_) => grant.lacks_note = true,
            }
        }
    }
}

fn is_processed_here(part: &PartId, key: &Key) -> bool {
    part.name.starts_with("processor") && HANDLERS.contains(&key.handler.as_str())
}
