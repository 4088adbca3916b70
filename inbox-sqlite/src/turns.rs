//! Fair turns at SQLite's one writer, where callers' transactions hold it for long.
//!
//! Within a process the writer's queue is fair, but many transactions at once would keep a renewal
//! of leases waiting until all before it are over: so one at a time stands in the queue. Other
//! processes cannot queue, they look again and again: so the writer rests for a moment behind a
//! transaction, or this process would always be first.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex as Door, MutexGuard},
    time::Instant,
};

use crate::operation::LONGEST_PAUSE;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    door: Door<()>,
    /// Since when the transaction is open that has the writer.
    opened: Mutex<Option<Instant>>,
}

impl Turns {
    fn since(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other transaction stands in the queue.
    pub(crate) async fn wait(&self) -> MutexGuard<'_, ()> {
        self.door.lock().await
    }

    /// A transaction has the writer.
    pub(crate) fn opened(&self) {
        *self.since() = Some(Instant::now());
    }

    /// How long the writer rests, which comes back: a tenth of what a transaction took, so that a
    /// process that looks for it as often finds it free about as often as it should; behind a long
    /// one every process does.
    pub(crate) fn rest(&self) -> Duration {
        let opened = self.since().take();
        let held = opened.map_or(Duration::ZERO, |opened| opened.elapsed());
        (held / 10).min(LONGEST_PAUSE)
    }
}
