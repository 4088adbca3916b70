//! What the source has and has not answered.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
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
    ids: HashSet<String>,
    /// Whether an entry was dropped: it is to be read again.
    dropped: bool,
}

impl Held {
    /// Whether it was not held before.
    pub(crate) fn add(&self, id: &str) -> bool {
        self.lock().ids.insert(id.to_owned())
    }

    /// They were answered.
    pub(crate) fn remove<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        let mut inner = self.lock();
        for id in ids {
            inner.ids.remove(id);
        }
        self.freed.notify_one();
    }

    /// Nobody works on it any more. One that was answered is not given up.
    pub(crate) fn give_up(&self, id: &str) {
        let mut inner = self.lock();
        if inner.ids.remove(id) {
            inner.dropped = true;
            self.freed.notify_one();
        }
    }

    /// Whether an entry was dropped since this was asked.
    pub(crate) fn take_dropped(&self) -> bool {
        std::mem::take(&mut self.lock().dropped)
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().ids.len()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.lock().ids.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
