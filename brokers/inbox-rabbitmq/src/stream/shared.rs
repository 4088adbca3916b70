//! What a connection's task, the source and its deliveries all see.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio::sync::Notify;

use super::ledger::{Ledger, Mark};

const UNKNOWN: u64 = u64::MAX;

/// One for each connection. Deliveries hold on to that of the connection they came over.
#[derive(Debug)]
pub(crate) struct Shared {
    ledger: Mutex<Ledger>,
    /// Deliveries that exist.
    deliveries: AtomicUsize,
    fewer: Notify,
    /// Something was finished or given up.
    pub(crate) changed: Notify,
    lag: AtomicU64,
}

impl Shared {
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self {
            ledger: Mutex::new(ledger),
            deliveries: AtomicUsize::new(0),
            fewer: Notify::new(),
            changed: Notify::new(),
            lag: AtomicU64::new(UNKNOWN),
        }
    }

    /// Nothing panics while this lock is held, so a poisoned one is still whole.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until fewer deliveries than `most` exist. For one at a time to wait.
    pub(crate) async fn room(&self, most: usize) {
        while self.deliveries.load(Ordering::Acquire) >= most {
            self.fewer.notified().await;
        }
    }

    pub(crate) fn lag(&self) -> Option<u64> {
        let lag = self.lag.load(Ordering::Relaxed);
        (lag != UNKNOWN).then_some(lag)
    }

    pub(crate) fn set_lag(&self, lag: Option<u64>) {
        self.lag.store(lag.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }
}

/// A delivery's share. Dropping one that is open gives the delivery up.
#[derive(Debug)]
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    mark: Mark,
    is_open: bool,
}

impl Ticket {
    pub(crate) fn new(shared: &Arc<Shared>, mark: Mark) -> Self {
        shared.deliveries.fetch_add(1, Ordering::AcqRel);
        Self {
            shared: Arc::clone(shared),
            mark,
            is_open: true,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether it can be finished. `false`: it comes again.
    pub(crate) fn is_current(&self) -> bool {
        self.shared.ledger().is_current(self.mark)
    }

    /// Finishes it, under the lock that the caller holds. `false`: it comes again.
    pub(crate) fn finish(&mut self, ledger: &mut Ledger) -> bool {
        self.is_open = false;
        ledger.finish(self.mark)
    }

    /// Leaves it unfinished, and what is behind it to be finished or not.
    pub(crate) fn leave(&mut self) {
        self.is_open = false;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_open {
            self.shared.ledger().give_up(self.mark, Instant::now());
            self.shared.changed.notify_one();
        }
        self.shared.deliveries.fetch_sub(1, Ordering::AcqRel);
        self.shared.fewer.notify_one();
    }
}
