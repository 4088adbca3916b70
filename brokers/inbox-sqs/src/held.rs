//! What the source has and has not answered.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

/// The messages that the source has handed out, or is about to, in the order in which they came. A receipt handle is
/// good over any connection.
#[derive(Debug, Default)]
pub(crate) struct Held {
    inner: Mutex<Inner>,
    /// Something was answered or given back.
    pub(crate) freed: Notify,
    pub(crate) was_dropped: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    all: BTreeMap<u64, Entry>,
    /// By message id.
    numbers: HashMap<String, u64>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    message: String,
    receipt: String,
    bytes: usize,
    /// How long it is to stay away, when nobody works on it any more.
    dropped: Option<Duration>,
}

impl Inner {
    fn remove(&mut self, number: u64) {
        let Some(entry) = self.all.remove(&number) else {
            return;
        };
        self.bytes -= entry.bytes;
        if self.numbers.get(&entry.message) == Some(&number) {
            self.numbers.remove(&entry.message);
        }
    }
}

impl Held {
    /// The number under which it is held from now on. `None` for a message that is held already: one that was
    /// visible for a moment, as it was extended too late. The newest receipt handle counts.
    pub(crate) fn add(&self, message: &str, receipt: &str, bytes: usize) -> Option<u64> {
        let mut inner = self.lock();
        if let Some(number) = inner.numbers.get(message).copied() {
            match inner.all.get_mut(&number) {
                Some(entry) if entry.dropped.is_none() => {
                    receipt.clone_into(&mut entry.receipt);
                    return None;
                }
                _ => inner.remove(number),
            }
        }
        inner.last += 1;
        let number = inner.last;
        inner.numbers.insert(message.to_owned(), number);
        let entry = Entry {
            message: message.to_owned(),
            receipt: receipt.to_owned(),
            bytes,
            dropped: None,
        };
        inner.bytes += bytes;
        inner.all.insert(number, entry);
        Some(number)
    }

    /// Its newest receipt handle. `None` when it is held no longer.
    pub(crate) fn receipt(&self, number: u64) -> Option<String> {
        let inner = self.lock();
        inner.all.get(&number).map(|entry| entry.receipt.clone())
    }

    /// It was answered.
    pub(crate) fn remove(&self, number: u64) {
        self.lock().remove(number);
        self.freed.notify_one();
    }

    /// Nobody works on it any more; it is to be given back, and to come again after `pause`. One that was answered is
    /// not.
    pub(crate) fn give_up(&self, number: u64, pause: Duration) {
        if let Some(entry) = self.lock().all.get_mut(&number) {
            entry.dropped = Some(pause);
            self.was_dropped.notify_one();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().all.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// What is to be extended.
    pub(crate) fn at_work(&self) -> Vec<String> {
        let inner = self.lock();
        let at_work = inner.all.values().filter(|entry| entry.dropped.is_none());
        at_work.map(|entry| entry.receipt.clone()).collect()
    }

    /// What is to be given back, and how long each is to stay away. It is held until that is done.
    pub(crate) fn dropped(&self) -> (Vec<u64>, Vec<(String, Duration)>) {
        let inner = self.lock();
        let dropped = inner.all.iter().filter_map(|(number, entry)| {
            let pause = entry.dropped?;
            Some((*number, (entry.receipt.clone(), pause)))
        });
        dropped.unzip()
    }

    pub(crate) fn take_all(&self) -> Vec<String> {
        let mut inner = self.lock();
        inner.numbers.clear();
        inner.bytes = 0;
        let all = std::mem::take(&mut inner.all);
        all.into_values().map(|entry| entry.receipt).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_held_once_by_its_newest_receipt() {
        let held = Held::default();
        let first = held.add("m", "r-1", 10).unwrap();
        assert_eq!(held.add("m", "r-2", 10), None);
        assert_eq!(held.receipt(first).as_deref(), Some("r-2"));
        let pause = Duration::from_secs(5);
        held.give_up(first, pause);
        assert_eq!(held.dropped(), (vec![first], vec![("r-2".into(), pause)]));
        // It came again before it was given back.
        let second = held.add("m", "r-3", 10).unwrap();
        held.remove(first);
        assert_eq!(held.at_work(), ["r-3"]);
        held.remove(second);
        assert_eq!(held.bytes(), 0);
        assert!(held.add("m", "r-4", 10).is_some());
        assert_eq!((held.count(), held.bytes()), (1, 10));
    }
}
