//! Leases are renewed while handlers run, also in an outage as soon as it lets them.

use inbox::{Key, Lease};

use super::{Grant, History, PartId};

/// The longest pause of the runtime in an outage, which may be up to twice as long at random.
const LONGEST_PAUSE: u64 = 10_000_000;

/// How much later than it says a call may come.
const SLACK: u64 = 200_000;

impl History {
    /// After how long a renewal is made again that has failed: a sixth of the lease, or sooner.
    fn pause(&self) -> u64 {
        (self.terms.lease / 6).min(LONGEST_PAUSE) + SLACK
    }

    /// A lease was lost: a worker that is alive has renewed it when a third was over, or as soon as nothing went
    /// wrong any more.
    pub(super) fn was_not_renewed(&mut self, key: &Key, last: &Grant, lost_before: i64) {
        let Some(run) = last.run.as_ref().filter(|run| run.end.is_none()) else {
            return;
        };
        let is_changed = self
            .current(key)
            .is_some_and(|message| message.changed_at > last.token);
        let is_lost_otherwise = self.terms.drifts
            || self.terms.has_turns
            || self.killed.contains(&last.part)
            || last.token < lost_before
            || last.told_lost.is_some()
            || is_changed;
        let from = (last.renewed + self.terms.lease / 3).max(run.began);
        let quiet = self.longest_quiet(from);
        let is_excused = is_lost_otherwise || quiet < self.pause();
        self.check("leases are renewed", is_excused, || {
            format!(
                "{} lost {key} though all went well for {quiet} microseconds",
                last.part
            )
        });
    }

    /// For how long at most nothing has gone wrong since then.
    fn longest_quiet(&self, from: u64) -> u64 {
        let now = if self.under_trouble > 0 {
            self.trouble_began
        } else {
            self.now
        };
        let (mut since, mut longest) = (from, 0);
        for (began, ended) in &self.troubles {
            longest = longest.max(began.saturating_sub(since));
            since = since.max(*ended);
        }
        longest.max(now.saturating_sub(since))
    }

    pub(crate) fn has_not_renewed(&self, part: &PartId) -> bool {
        self.not_renewed.contains_key(part)
    }

    pub(crate) fn was_disturbed(&self) -> bool {
        !self.troubles.is_empty()
    }

    pub(crate) fn renewal_begins(&mut self, part: &PartId) {
        self.renewals_are_repeated(part);
        self.not_renewed.remove(part);
    }

    /// A renewal has failed, or was not answered.
    pub(crate) fn renewal_failed(&mut self, part: &PartId, leases: &[Lease]) {
        if part.name.starts_with("processor") {
            let failed = (self.now, leases.to_vec());
            self.not_renewed.insert(part.clone(), failed);
        }
    }

    /// What could not be renewed is tried again in time, as long as its handler runs.
    pub(super) fn renewals_are_repeated(&mut self, part: &PartId) {
        let Some((failed, leases)) = self.not_renewed.get(part).cloned() else {
            return;
        };
        let late = self.now.saturating_sub(failed);
        if late <= self.pause() || self.killed.contains(part) || self.terms.has_turns {
            return;
        }
        let blocked = self.blocked;
        let mut held = leases.iter().filter(|lease| {
            let lost_before = self.run_lost_before(&lease.key);
            let message = self.current(&lease.key);
            let newest = message.and_then(|message| message.grants.last());
            newest.is_some_and(|grant| {
                let runs = grant.run.as_ref().is_some_and(|run| run.end.is_none());
                let is_newest = grant.token == lease.token.get() && grant.token >= lost_before;
                let is_held = is_newest && grant.told_lost.is_none();
                runs && is_held && grant.blocked == blocked
            })
        });
        if let Some(lease) = held.next() {
            let what = format!("{part} tried {} again after {late} microseconds", lease.key);
            self.violated("failed renewals are repeated", what);
        }
    }
}
