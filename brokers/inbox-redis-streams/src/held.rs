//! What the source has and has not answered.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// The entries that the source has handed out, or is about to. They outlive a connection: an acknowledgement
/// over the next one is as good.
#[derive(Debug, Default)]
pub(crate) struct Held {
    inner: Mutex<Inner>,
    /// Something was answered or dropped.
    pub(crate) freed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// With the bytes that they hold.
    ids: HashMap<String, usize>,
    bytes: usize,
    /// From when on an entry that was dropped is to be read again.
    dropped: Option<Instant>,
}

impl Inner {
    fn remove(&mut self, id: &str) -> bool {
        let removed = self.ids.remove(id);
        self.bytes -= removed.unwrap_or_default();
        removed.is_some()
    }
}

impl Held {
    /// Holds an entry of so many bytes. Whether it was not held before.
    pub(crate) fn add(&self, id: &str, bytes: usize) -> bool {
        let mut inner = self.lock();
        if inner.ids.contains_key(id) {
            return false;
        }
        inner.ids.insert(id.to_owned(), bytes);
        inner.bytes += bytes;
        true
    }

    /// They were answered.
    pub(crate) fn remove<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        let mut inner = self.lock();
        for id in ids {
            inner.remove(id);
        }
        self.freed.notify_one();
    }

    /// Nobody works on it any more, and it may come again after `pause`. One that was answered is not given up.
    pub(crate) fn give_up(&self, id: &str, pause: Duration) {
        let mut inner = self.lock();
        if inner.remove(id) {
            let at = Instant::now() + pause;
            inner.dropped = Some(inner.dropped.map_or(at, |earlier| earlier.min(at)));
            self.freed.notify_one();
        }
    }

    /// Whether an entry that was dropped is to be read again now. That is said once.
    pub(crate) fn take_dropped(&self) -> bool {
        let now = Instant::now();
        self.lock().dropped.take_if(|at| *at <= now).is_some()
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().ids.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.lock().ids.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_pause_is_not_read_again_at_once() {
        let held = Held::default();
        assert!(held.add("1-1", 10) && held.add("1-2", 20) && !held.add("1-2", 20));
        assert_eq!(held.bytes(), 30);
        held.give_up("1-1", Duration::from_secs(600));
        assert!(!held.take_dropped());
        // With one that may come at once.
        held.give_up("1-2", Duration::ZERO);
        assert!(held.take_dropped() && !held.take_dropped());
        held.give_up("1-2", Duration::ZERO);
        assert!(!held.take_dropped(), "it was given up before");
        assert_eq!((held.count(), held.bytes()), (0, 0));
    }
}
