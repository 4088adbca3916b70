//! What operators and callers change.

use inbox::Key;

use super::{Accepted, History, PartId};

impl History {
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
