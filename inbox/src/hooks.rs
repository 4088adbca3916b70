//! What an application is told about.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
};

use crate::{CorruptRow, HandlerName, HandlerStatistics, Leased};

/// Calls to the application from processors, inline consumers and janitors, for alerts and the
/// like. Every method does nothing unless it is implemented.
///
/// Each event has a counter ([`telemetry`](crate::telemetry)), and the age of the backlog a gauge.
/// A processor calls them one after the other in its own task, so they may wait; when a
/// thousand calls are outstanding it claims nothing more. Only [`backlog_age`](Self::backlog_age)
/// comes in between, from the monitor, which waits for it before it looks again. An inline consumer
/// makes each call in its own task, in no order and without a bound to their number; a janitor
/// waits for each. A call that takes longer than 30 seconds is dropped, a panic goes no further, and
/// both are logged. Calls that a processor has outstanding two seconds after the end of a shutdown
/// are left out.
///
/// ```
/// use inbox::{Hooks, Leased};
///
/// struct Pager;
///
/// #[async_trait::async_trait]
/// impl Hooks for Pager {
///     async fn dead_lettered(&self, message: &Leased, reason: &str) {
///         println!("page: {} is dead: {reason}", message.lease.key); // or await a request
///     }
/// }
/// ```
#[async_trait]
pub trait Hooks: Send + Sync + 'static {
    /// An attempt has failed with this error, and the message will be tried again, no sooner than
    /// `after` from then. The last attempt's failure is told as
    /// [`dead_lettered`](Self::dead_lettered). Counted as `inbox_retried_total`.
    async fn attempt_failed(&self, message: &Leased, error: &str, after: Duration) {
        let _ = (message, error, after);
    }

    /// A message is durably dead, for this reason. Counted as `inbox_dead_total`.
    async fn dead_lettered(&self, message: &Leased, reason: &str) {
        let _ = (message, reason);
    }

    /// Another worker has taken the message over, or it is gone: it is or was run elsewhere too.
    /// What its handler did here is not recorded, unless the other worker vanished and the message
    /// came back. Told when the handler has ended here. Counted as `inbox_lease_lost_total`.
    async fn lease_lost(&self, message: &Leased) {
        let _ = message;
    }

    /// The store has refused to keep a message's outcome, for this reason, also without its result or
    /// text. What its handler did is not recorded; the message is run again when its lease has run
    /// out, and if this is so every time, is dead when its attempts are used up. Counted as
    /// `inbox_refused_total`.
    async fn outcome_refused(&self, message: &Leased, reason: &str) {
        let _ = (message, reason);
    }

    /// A stored row could not be read; a claim has set it aside as dead. Counted as
    /// `inbox_corrupt_total`.
    async fn corrupt_row(&self, row: &CorruptRow) {
        let _ = row;
    }

    /// A processor starts no messages of this handler for a while, because of this error: its
    /// [circuit](crate::CircuitBreaker) has opened, or the handler has asked for a
    /// [pause](crate::Failure::pause). Told once until it goes on, however often the pause begins again.
    async fn paused(&self, handler: &HandlerName, error: &str, length: Duration) {
        let _ = (handler, error, length);
    }

    /// A pause is over: the circuit has closed, or the time has passed.
    async fn resumed(&self, handler: &HandlerName) {
        let _ = handler;
    }

    /// A handler's longest-due message has been due for longer than `limit`. Repeated at every
    /// look for as long as that is so. Needs
    /// [`ProcessorBuilder::backlog_monitor`](crate::ProcessorBuilder::backlog_monitor).
    async fn backlog_age(&self, handler: &HandlerStatistics, limit: Duration) {
        let _ = (handler, limit);
    }
}

/// One call of a hook.
pub(crate) enum Call {
    AttemptFailed(Box<Leased>, String, Duration),
    DeadLettered(Box<Leased>, String),
    LeaseLost(Box<Leased>),
    OutcomeRefused(Box<Leased>, String),
    CorruptRow(CorruptRow),
    Paused(HandlerName, String, Duration),
    Resumed(HandlerName),
    BacklogAge(HandlerStatistics, Duration),
}

/// The longest that one hook may take.
const LONGEST: Duration = Duration::from_secs(30);

impl Call {
    fn name(&self) -> &'static str {
        match self {
            Self::AttemptFailed(..) => "attempt_failed",
            Self::DeadLettered(..) => "dead_lettered",
            Self::LeaseLost(_) => "lease_lost",
            Self::OutcomeRefused(..) => "outcome_refused",
            Self::CorruptRow(_) => "corrupt_row",
            Self::Paused(..) => "paused",
            Self::Resumed(_) => "resumed",
            Self::BacklogAge(..) => "backlog_age",
        }
    }

    /// Calls the hook so that neither its panic nor its slowness goes further.
    pub(crate) async fn tell(self, hooks: &dyn Hooks) {
        let hook = self.name();
        let call = async {
            match self {
                Self::AttemptFailed(message, error, after) => {
                    hooks.attempt_failed(&message, &error, after).await;
                }
                Self::DeadLettered(message, reason) => {
                    hooks.dead_lettered(&message, &reason).await;
                }
                Self::LeaseLost(message) => hooks.lease_lost(&message).await,
                Self::OutcomeRefused(message, reason) => {
                    hooks.outcome_refused(&message, &reason).await;
                }
                Self::CorruptRow(row) => hooks.corrupt_row(&row).await,
                Self::Paused(handler, error, length) => {
                    hooks.paused(&handler, &error, length).await;
                }
                Self::Resumed(handler) => hooks.resumed(&handler).await,
                Self::BacklogAge(handler, limit) => hooks.backlog_age(&handler, limit).await,
            }
        };
        // The time limit is inside: a hook may also panic where it is dropped.
        let call = AssertUnwindSafe(async { tokio::time::timeout(LONGEST, call).await });
        match call.catch_unwind().await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                tracing::error!(hook, "a hook took longer than {LONGEST:?} and was dropped");
            }
            Err(_) => tracing::error!(hook, "a hook panicked"),
        }
    }
}

/// The calls of one run, made in order by their own task.
pub(crate) struct Teller {
    calls: mpsc::UnboundedSender<Call>,
    outstanding: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// So many calls may be outstanding before nothing more is claimed.
const MANY: usize = 1000;

impl Teller {
    /// Begins; `woken` is told whenever there is room for more calls.
    pub(crate) fn start(hooks: Arc<dyn Hooks>, woken: Arc<Notify>) -> Self {
        let (calls, mut to_make) = mpsc::unbounded_channel::<Call>();
        let outstanding = Arc::new(AtomicUsize::new(0));
        let count = outstanding.clone();
        let task = tokio::spawn(async move {
            while let Some(call) = to_make.recv().await {
                call.tell(&*hooks).await;
                if count.fetch_sub(1, Ordering::Relaxed) == MANY {
                    woken.notify_one();
                }
            }
        });
        Self {
            calls,
            outstanding,
            task,
        }
    }

    pub(crate) fn tell(&self, call: Call) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        // The task goes on until this sender is dropped.
        let _ = self.calls.send(call);
    }

    /// Whether the hooks cannot keep up.
    pub(crate) fn is_behind(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed) >= MANY
    }

    /// Waits until all calls are made, or `limit` is over.
    pub(crate) async fn finish(self, limit: impl Future<Output = ()>) {
        let Self {
            calls, mut task, ..
        } = self;
        drop(calls);
        tokio::select! {
            biased;
            _ = &mut task => {}
            () = limit => {
                tracing::warn!("hooks are still outstanding at the end and are left out");
                task.abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    struct Late;

    struct Guard;

    impl Drop for Guard {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[async_trait]
    impl Hooks for Late {
        async fn resumed(&self, _: &HandlerName) {
            let _guard = Guard;
            pending::<()>().await;
        }
    }

    /// Defect: it ended what makes the calls, so that a processor claimed nothing more after a thousand.
    #[tokio::test(start_paused = true)]
    async fn a_hook_that_panics_where_it_is_dropped_goes_no_further() {
        let teller = Teller::start(Arc::new(Late), Arc::default());
        for _ in 0..3 {
            let handler = HandlerName::new("h").unwrap();
            teller.tell(Call::Resumed(handler));
        }
        tokio::time::sleep(4 * LONGEST).await;
        assert_eq!(teller.outstanding.load(Ordering::Relaxed), 0);
    }
}
