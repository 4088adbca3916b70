//! What the store refuses, and what the janitor gives up.

use inbox::{Key, Lease, Outcome, Settlement};

use super::{Grant, History, PartId, Refused, settling::name_of};

impl History {
    /// Whether the holder of a lease was told that its outcome is refused.
    pub(crate) fn was_refused(&mut self, lease: &Lease) -> bool {
        self.grant(lease)
            .is_some_and(|grant| grant.refused.is_some())
    }

    /// Whether the handler of a lease was told to stop for want of a renewal.
    pub(crate) fn was_cut(&mut self, lease: &Lease) -> bool {
        self.grant(lease)
            .and_then(|grant| grant.run.as_ref())
            .is_some_and(|run| run.was_cut)
    }

    pub(super) fn told_refused(&mut self, settlement: &Settlement) {
        let name = name_of(&settlement.outcome);
        let Some(grant) = self.grant(&settlement.lease) else {
            return;
        };
        let is_plain = grant.refused.is_some();
        grant.refused = Some(Refused { name, is_plain });
        // Its holder leaves it to run out, and to be run again.
        grant.is_forgotten |= is_plain;
    }

    /// An outcome that was refused is settled once more without its texts, and is nothing else then.
    pub(super) fn stays_what_it_is(&mut self, grant: &Grant, settlement: &Settlement) {
        let Some(refused) = grant.refused else { return };
        let name = name_of(&settlement.outcome);
        // The janitor leaves the message to others then.
        let is_left = &*grant.part.name == "janitor" && name == "released";
        let has_result = matches!(settlement.outcome, Outcome::Processed { result: Some(_) });
        // What an inline consumer could not record it records with the next delivery, as it was.
        let is_by_delivery = &*grant.part.name == "inline";
        let is_once_more = !refused.is_plain && !has_result;
        let is_right = is_left || name == refused.name && (is_by_delivery || is_once_more);
        self.check("what is refused stays what it is", is_right, || {
            let key = &settlement.lease.key;
            format!("{} settled {key} as {name} after {refused:?}", grant.part)
        });
    }

    /// The janitor is about to take a message that it has looked at.
    pub(crate) fn looks(&mut self, part: &PartId, key: &Key) {
        if &*part.name == "janitor" {
            let now = self.now;
            let asked = self.looks.entry((part.clone(), key.clone()));
            asked.or_insert(now);
        }
    }

    /// The janitor has taken it, or could not.
    pub(super) fn looks_are_over(&mut self, part: &PartId, key: &Key) {
        self.looked = self.looks.remove(&(part.clone(), key.clone()));
    }

    /// The janitor gives up what has been due for long enough without anybody's having worked on it.
    pub(super) fn is_given_up_rightly(&mut self, grant: &Grant, settlement: &Settlement) {
        let key = &settlement.lease.key;
        // What is asked for again, as its answer was lost, is done already.
        if matches!(settlement.outcome, Outcome::Release) || grant.outcome.is_some() {
            return;
        }
        let Some(message) = self.current(key) else {
            return;
        };
        // What happens between its look at the message and the end of a slow call it cannot know.
        let asked = grant.asked.unwrap_or(grant.at);
        let is_new = |when: Option<u64>| when.is_some_and(|when| when >= asked);
        let mut grants = message
            .grants
            .iter()
            .filter(|other| other.token < grant.token);
        let is_late = message.changed_at > grant.token
            || is_new(message.changed_when)
            || grants.any(|other| other.at >= asked || is_new(other.settled));
        if is_late {
            return;
        }
        let others = message
            .grants
            .iter()
            // What came before an operator's change counts as that does.
            .filter(|other| (message.changed_at..grant.token).contains(&other.token))
            .filter(|other| other.part.name != grant.part.name);
        let ends = others.map(|other| other.due.unwrap_or(other.until));
        let since = ends.max().unwrap_or(i64::MIN).max(message.due);
        let waited = grant.granted.saturating_sub(since);
        let is_long = waited >= self.terms.give_up_after;
        let is_dead = matches!(settlement.outcome, Outcome::Dead { .. });
        self.check("given up when nobody came", is_long && is_dead, || {
            format!("{key} after {waited} microseconds")
        });
    }
}
