//! Fair turns at SQLite's one writer, where callers' transactions hold it for long.
//!
//! Within a process the writer's queue is fair, but many transactions at once would keep a renewal
//! of leases waiting until all before it are over: so one at a time stands in the queue. Between
//! processes there is no queue: each looks again and again. So the writer rests for a moment behind a
//! transaction, or this process would always be first; and one operation at a time looks, or a
//! renewal would find the writer free as seldom as any of those that come and go.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex as Door, MutexGuard},
    time::Instant,
};

#[derive(Debug, Default)]
pub(crate) struct WriterTurns {
    door: Door<()>,
    line: Door<()>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Since when the transaction is open that has the writer.
    since: Option<Instant>,
    /// For how long the writer has yet to rest, behind those that were over too soon for it.
    owed: Duration,
}

/// What a timer can measure.
const SHORTEST_REST: Duration = Duration::from_millis(1);
/// Several times as long as a process that waits pauses between two looks.
const LONGEST_REST: Duration = Duration::from_millis(20);

impl WriterTurns {
    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other transaction stands in the queue.
    pub(crate) async fn wait(&self) -> MutexGuard<'_, ()> {
        self.door.lock().await
    }

    /// Waits until no other operation waits for another process.
    pub(crate) async fn line(&self) -> MutexGuard<'_, ()> {
        self.line.lock().await
    }

    /// A transaction has the writer.
    pub(crate) fn note_opened(&self) {
        self.lock().since = Some(Instant::now());
    }

    /// Whether the writer rests when it comes back to the pool.
    pub(crate) fn is_opened(&self) -> bool {
        self.lock().since.is_some()
    }

    /// Its connection was closed.
    pub(crate) fn forget_opened(&self) {
        self.lock().since = None;
    }

    /// How long the writer rests, which comes back: a tenth of what transactions took, so that a
    /// process that looks for it as often finds it free about as often as it should; behind a long
    /// one every process does. Behind short ones it rests now and then, for all of them: each by
    /// itself would take as long as a timer's step, which is longer than many a transaction.
    pub(crate) fn rest(&self) -> Duration {
        let mut held = self.lock();
        let since = held.since.take();
        held.owed += since.map_or(Duration::ZERO, |since| since.elapsed()) / 10;
        if held.owed < SHORTEST_REST {
            return Duration::ZERO;
        }
        std::mem::take(&mut held.owed).min(LONGEST_REST)
    }
}
