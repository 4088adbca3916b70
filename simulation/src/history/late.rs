//! Claims that are answered behind the end of their processor.

use inbox::{Leased, Outcome, Settlement};

use super::{History, PartId};

impl History {
    /// A processor has ended, and was not killed.
    pub(crate) fn has_ended(&mut self, part: &PartId) {
        self.ended.insert(part.clone());
    }

    pub(crate) fn is_ended(&self, part: &PartId) -> bool {
        self.ended.contains(part)
    }

    pub(super) fn told_late(&mut self, part: &PartId, leased: &[Leased]) {
        if self.is_ended(part) {
            let keys = leased
                .iter()
                .map(|one| (one.lease.key.clone(), one.lease.token.get()));
            let late = keys.map(|key| (key, part.clone()));
            self.late.extend(late);
        }
    }

    pub(super) fn settles_late(&mut self, settlement: &Settlement) {
        let lease = &settlement.lease;
        let late = self.late.remove(&(lease.key.clone(), lease.token.get()));
        let is_back = matches!(settlement.outcome, Outcome::Release);
        self.check(
            "a late claim is handed back",
            late.is_none() || is_back,
            || lease.key.to_string(),
        );
    }

    /// A claim was dropped before its time limit.
    pub(super) fn claim_is_dropped(&mut self, part: &PartId) {
        let is_killed = self.killed.contains(part);
        self.check("a claim is waited for", is_killed, || part.to_string());
    }

    /// At the end of a run: who was told of a claim has handed it back in the same moment.
    pub(crate) fn all_late_is_back(&mut self) {
        let late: Vec<_> = self.late.iter().collect();
        let what = late
            .first()
            .map(|((key, _), part)| format!("{part} kept {key}"));
        self.check("a late claim is handed back", what.is_none(), || {
            what.unwrap_or_default()
        });
    }
}
