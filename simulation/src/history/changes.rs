//! What operators and callers change.

use inbox::{
    Failure, Key,
    inline::{ConsumeError, Consumed},
};

use super::{Accepted, History, PartId};

impl History {
    /// What a caller that came at `since` is told of its message: what is final has to be so in the store.
    pub(crate) fn told_caller(
        &mut self,
        part: &PartId,
        key: &Key,
        since: u64,
        told: &Result<Consumed, ConsumeError<Failure>>,
    ) {
        self.trace(|| format!("{part} consumed {key}: {told:?}"));
        let lives = self.messages.get(key).into_iter().flatten();
        let grants = lives.flat_map(|life| &life.grants);
        let here = grants.clone().filter(|grant| {
            grant.part == *part && grant.settled.is_some_and(|settled| settled >= since)
        });
        let is_or_was = |outcome| grants.clone().any(|grant| grant.outcome == Some(outcome));
        let became = |outcome| here.clone().any(|grant| grant.outcome == Some(outcome));
        let is_true = match told {
            Ok(Consumed::Ran { .. }) => became("processed"),
            Ok(Consumed::Duplicate { .. }) | Err(ConsumeError::Duplicate) => is_or_was("processed"),
            Ok(Consumed::Dead { .. }) => is_or_was("dead"),
            Err(ConsumeError::Dead(_)) => became("dead"),
            // One that settles by itself may have without knowing it. Another delivery may have been done since this
            // one came, and the message replayed.
            Err(ConsumeError::Handler(_)) => {
                let last = here.clone().next_back().and_then(|grant| grant.outcome);
                self.terms.inline_settles || last != Some("processed")
            }
            _ => true,
        };
        self.check("callers are told the truth", is_true, || {
            format!("{part} told {told:?} of {key}")
        });
    }

    /// Who consumed it inline left before the end, and took what was known of it along.
    pub(crate) fn caller_left(&mut self, part: &PartId, key: &Key) {
        self.trace(|| format!("{part}: the caller of {key} leaves"));
        if let Some(message) = self.current(key) {
            for grant in &mut message.grants {
                if grant.part == *part {
                    grant.is_forgotten = true;
                }
            }
        }
    }

    pub(crate) fn replayed(&mut self, key: &Key) {
        self.trace(|| format!("{key} is replayed"));
        let is_final = self.change(key, |message| {
            message.was_replayed = true;
            message.has_effect = false;
            message.replayed_after = message.grants.len();
            message.finished.take().is_some()
        });
        self.check("what is replayed was final", is_final, || key.to_string());
    }

    pub(crate) fn discarded(&mut self, key: &Key) {
        self.trace(|| format!("{key} is discarded"));
        let now = self.store_now;
        self.change(key, |message| {
            message.finished = Some(now);
            true
        });
    }

    pub(crate) fn rescheduled(&mut self, key: &Key, due: i64) {
        self.trace(|| format!("{key} is rescheduled"));
        let is_open = self.change(key, |message| {
            message.due = due;
            message.finished.is_none()
        });
        self.check("final is final", is_open, || format!("{key} is pending"));
    }

    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Accepted) -> bool) -> bool {
        let (newest, now, store_now) = (self.newest, self.now, self.store_now);
        self.current(key).is_some_and(|message| {
            message.due = store_now;
            message.changed_when = Some(now);
            message.changed_after = message.grants.len();
            message.changed_at = newest.saturating_add(1);
            message.blocks = false;
            change(message)
        })
    }
}
