//! What the consumer's thread and the receiver's task both see.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::Thread,
    time::Instant,
};

use inbox_source::SourceError;

use crate::offsets::{Mark, Offsets};

/// What [`Shared::lag`] holds while nothing is known.
const UNKNOWN: u64 = u64::MAX;

/// One for each consumer, that is, each connection. Deliveries hold on to that of the consumer they came
/// from.
pub(crate) struct Shared {
    offsets: Mutex<Offsets>,
    /// Deliveries that exist, wherever they are.
    deliveries: AtomicUsize,
    /// What they hold.
    bytes: AtomicUsize,
    lag: AtomicU64,
    /// A failure that may pass waits for the source to take it.
    failure_waits: AtomicBool,
    stopping: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            offsets: Mutex::default(),
            deliveries: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            lag: AtomicU64::new(UNKNOWN),
            failure_waits: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            thread: Mutex::default(),
        }
    }

    /// Nothing panics while this lock is held, so a poisoned one is still whole.
    pub(crate) fn offsets(&self) -> MutexGuard<'_, Offsets> {
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn deliveries(&self) -> usize {
        self.deliveries.load(Ordering::Acquire)
    }

    /// The bytes that they hold.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    pub(crate) fn lag(&self) -> Option<u64> {
        let lag = self.lag.load(Ordering::Relaxed);
        (lag != UNKNOWN).then_some(lag)
    }

    pub(crate) fn set_lag(&self, lag: Option<u64>) {
        self.lag.store(lag.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// Whether the source is to hear of a failure. Of those that may pass, one at a time waits for a source that takes
    /// nothing for long: it pauses at each, and the others are over by then.
    pub(crate) fn is_to_be_told(&self, failure: &SourceError) -> bool {
        !failure.is_transient() || !self.failure_waits.swap(true, Ordering::AcqRel)
    }

    /// The source has heard of it.
    pub(crate) fn note_told(&self, failure: &SourceError) {
        if failure.is_transient() {
            self.failure_waits.store(false, Ordering::Release);
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Makes `thread` the one that [`wake`](Self::wake) wakes.
    pub(crate) fn set_thread(&self, thread: Thread) {
        let mut place = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(thread);
    }

    /// Lets the consumer's thread look what there is to do.
    pub(crate) fn wake(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*thread {
            thread.unpark();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("deliveries", &self.deliveries())
            .finish_non_exhaustive()
    }
}

/// A delivery's share of [`Shared`]. Dropping one that is not finished gives the delivery up.
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    mark: Mark,
    bytes: usize,
    open: bool,
}

impl Ticket {
    /// Of a delivery that holds so many bytes.
    pub(crate) fn new(shared: &Arc<Shared>, mark: Mark, bytes: usize) -> Self {
        shared.deliveries.fetch_add(1, Ordering::AcqRel);
        shared.bytes.fetch_add(bytes, Ordering::AcqRel);
        Self {
            shared: shared.clone(),
            mark,
            bytes,
            open: true,
        }
    }

    pub(crate) fn mark(&self) -> &Mark {
        &self.mark
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// `false`: its assignment is over.
    pub(crate) fn hand_out(&self) -> bool {
        self.shared.offsets().hand_out(&self.mark)
    }

    /// Whether it can be finished. `false`: it comes again, here or elsewhere.
    pub(crate) fn is_current(&self) -> bool {
        self.shared.offsets().is_current(&self.mark)
    }

    /// Finishes it, under the lock that the caller holds. `false`: its assignment is over.
    pub(crate) fn finish(&mut self, offsets: &mut Offsets) -> bool {
        self.open = false;
        offsets.finish(&self.mark)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open {
            let now = Instant::now();
            self.shared.offsets().give_up(&self.mark, now);
        }
        self.shared.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.shared.deliveries.fetch_sub(1, Ordering::AcqRel);
        if self.open {
            self.shared.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_at_a_time_waits_for_the_source() {
        let shared = Shared::new();
        let (away, wrong) = (
            SourceError::transient("away"),
            SourceError::permanent("wrong"),
        );
        assert!(shared.is_to_be_told(&away));
        assert!(!shared.is_to_be_told(&away));
        assert!(shared.is_to_be_told(&wrong) && shared.is_to_be_told(&wrong));
        shared.note_told(&wrong);
        assert!(!shared.is_to_be_told(&away), "it waits still");
        shared.note_told(&away);
        assert!(shared.is_to_be_told(&away));
    }
}
