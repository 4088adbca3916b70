//! What the server waits for an answer to.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// A number that the server gives a delivery, from 1 on each channel.
pub(crate) type Tag = u64;

/// What was handed out over one channel and has no answer, in the order in which it came.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Whether it was dropped.
    all: Mutex<BTreeMap<Tag, bool>>,
    pub(crate) given_up: Notify,
}

/// How a run is acknowledged.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// This and all before it, at once.
    pub(crate) up_to: Option<Tag>,
    /// Each by itself, as something before it has no answer yet.
    pub(crate) single: Vec<Tag>,
}

impl Held {
    pub(crate) fn add(&self, tag: Tag) {
        self.lock().insert(tag, false);
    }

    /// They were answered.
    pub(crate) fn remove(&self, tags: impl IntoIterator<Item = Tag>) {
        let mut all = self.lock();
        for tag in tags {
            all.remove(&tag);
        }
    }

    /// Nobody works on it any more; it is to be given back. One that was answered is not.
    pub(crate) fn give_up(&self, tag: Tag) {
        if let Some(dropped) = self.lock().get_mut(&tag) {
            *dropped = true;
            self.given_up.notify_one();
        }
    }

    /// What is to be given back. It is held until that is done, so that no acknowledgement of others includes it.
    pub(crate) fn dropped(&self) -> Vec<Tag> {
        let all = self.lock();
        let dropped = all.iter().filter(|(_, dropped)| **dropped);
        dropped.map(|(tag, _)| *tag).collect()
    }

    /// How to acknowledge these and nothing else.
    pub(crate) fn plan(&self, run: &[Tag]) -> Plan {
        let all = self.lock();
        let run: BTreeSet<Tag> = run.iter().copied().collect();
        let other = all.keys().find(|tag| !run.contains(tag));
        let end = other.map_or(Bound::Unbounded, |other| Bound::Excluded(*other));
        let first = run.range((Bound::Unbounded, end));
        let up_to = first.last().copied();
        let from = up_to.map_or(Bound::Unbounded, Bound::Excluded);
        Plan {
            up_to,
            single: run.range((from, Bound::Unbounded)).copied().collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tag, bool>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(tags: impl IntoIterator<Item = Tag>) -> Held {
        let held = Held::default();
        for tag in tags {
            held.add(tag);
        }
        held
    }

    #[test]
    fn a_run_is_acknowledged_at_once() {
        let plan = held(1..=9).plan(&[1, 2, 3]);
        assert_eq!(plan.up_to, Some(3));
        assert!(plan.single.is_empty(), "{plan:?}");
    }

    #[test]
    fn nothing_else_is_acknowledged() {
        let plan = held(1..=9).plan(&[5, 1, 2, 6]);
        assert_eq!(plan.up_to, Some(2));
        assert_eq!(plan.single, [5, 6]);
        let plan = held(1..=9).plan(&[2, 3]);
        assert_eq!(plan.up_to, None);
        assert_eq!(plan.single, [2, 3]);
    }

    #[test]
    fn what_was_answered_is_in_nobodys_way() {
        let held = held(1..=4);
        held.remove([2]);
        assert_eq!(held.plan(&[1, 3]).up_to, Some(3));
        held.give_up(2);
        held.give_up(4);
        assert_eq!(held.dropped(), [4]);
        assert_eq!(held.plan(&[1, 3]).up_to, Some(3));
        held.remove([3]);
        assert_eq!(held.plan(&[5]).single, [5]);
    }
}
