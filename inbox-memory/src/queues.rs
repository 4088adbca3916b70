//! All queues of an inbox, and how one operation gets those that it needs: locked, and at one moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use inbox_api::{Error, ErrorKind, HandlerName, Result};

use crate::{options::MemoryOptions, queue::Queue, wakeups::Wakeups};

pub(crate) type SharedQueue = Arc<Mutex<Queue>>;

pub(crate) struct Queues {
    pub(crate) options: MemoryOptions,
    pub(crate) wakeups: Wakeups,
    is_closed: AtomicBool,
    /// The sequence number of the message accepted last, of all handlers.
    last_seq: AtomicI64,
    /// In order of name, which is the order in which locks are taken. Only grows.
    queues: RwLock<BTreeMap<HandlerName, SharedQueue>>,
}

impl Queues {
    pub(crate) fn new(options: MemoryOptions) -> Self {
        Self {
            options,
            wakeups: Wakeups::default(),
            is_closed: AtomicBool::new(false),
            last_seq: AtomicI64::new(0),
            queues: RwLock::default(),
        }
    }

    /// Queues with a copy of all that is in these, as of one moment.
    pub(crate) fn copied(&self) -> Self {
        let queues = self.lock(&self.all(), |locked, _| {
            let copy = |queue: &Queue| {
                let handler = queue.handler().clone();
                (handler, Arc::new(Mutex::new(queue.clone())))
            };
            locked.iter().map(copy).collect()
        });
        Self {
            last_seq: AtomicI64::new(self.last_seq.load(Ordering::Relaxed)),
            queues: RwLock::new(queues),
            ..Self::new(self.options.clone())
        }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is closed"));
        }
        Ok(())
    }

    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.wakeups.wake_all();
    }

    /// Empties all queues and ends their pauses.
    pub(crate) fn reset(&self) {
        self.lock(&self.all(), |locked, _| {
            let queues = locked.as_mut_slice().iter_mut();
            queues.for_each(|queue| queue.reset());
        });
    }

    /// The queues of those of `handlers` that have one, in order of name.
    pub(crate) fn of<'a>(
        &self,
        handlers: impl Iterator<Item = &'a HandlerName>,
    ) -> Vec<SharedQueue> {
        let handlers: BTreeSet<&HandlerName> = handlers.collect();
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        handlers
            .into_iter()
            .filter_map(|handler| queues.get(handler).cloned())
            .collect()
    }

    /// All queues, in order of name.
    pub(crate) fn all(&self) -> Vec<SharedQueue> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.values().cloned().collect()
    }

    /// The queues of `handlers`, in order of name, made where there are none yet.
    pub(crate) fn make_for<'a>(
        &self,
        handlers: impl Iterator<Item = &'a HandlerName>,
    ) -> Vec<SharedQueue> {
        let handlers: BTreeSet<&HandlerName> = handlers.collect();
        let found = self.of(handlers.iter().copied());
        if found.len() == handlers.len() {
            return found;
        }
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        let make = |handler: &HandlerName| Arc::new(Mutex::new(Queue::new(handler.clone())));
        handlers
            .into_iter()
            .map(|handler| {
                let queue = queues.entry(handler.clone());
                Arc::clone(queue.or_insert_with(|| make(handler)))
            })
            .collect()
    }

    /// Locks `queues`, which are in order of name, and does `work` at one moment of the store's
    /// clock. Then wakes those who wait for what has become claimable by it.
    pub(crate) fn lock<R>(
        &self,
        queues: &[SharedQueue],
        work: impl FnOnce(&mut Locked<'_>, i64) -> R,
    ) -> R {
        let mut locked = Locked(queues.iter().map(lock_one).collect());
        let now = self.options.clock.now_micros();
        let answer = work(&mut locked, now);
        let with_news: Vec<HandlerName> = locked
            .0
            .iter_mut()
            .filter_map(|queue| queue.take_news().then(|| queue.handler().clone()))
            .collect();
        drop(locked);
        self.wakeups.wake(&with_news);
        answer
    }

    pub(crate) fn next_seq(&self) -> i64 {
        self.last_seq.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn lock_one(queue: &SharedQueue) -> MutexGuard<'_, Queue> {
    // A queue is left whole between two transitions, and nothing that runs within one panics.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The locked queues of one operation, in order of name.
pub(crate) struct Locked<'a>(Vec<MutexGuard<'a, Queue>>);

impl<'a> Locked<'a> {
    /// The queue of `handler`, if it is among them.
    pub(crate) fn get(&mut self, handler: &HandlerName) -> Option<&mut Queue> {
        let found = self
            .0
            .binary_search_by(|queue| queue.handler().cmp(handler));
        found.ok().map(|position| &mut *self.0[position])
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [MutexGuard<'a, Queue>] {
        &mut self.0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.0.iter().map(|queue| &**queue)
    }
}

/// Queues are made before they are locked and never removed, so nobody gets to see this.
pub(crate) fn no_queue() -> Error {
    Error::new(ErrorKind::Other, "the handler has no queue")
}
