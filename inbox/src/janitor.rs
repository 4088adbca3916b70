//! Retention: deletes final messages that are old enough, and drops payloads before, in bounded
//! slices.

mod abandoned;
mod expired;
mod rests;
mod retention;
mod sweep;
mod window;

use std::{
    collections::{HashMap, HashSet},
    error::Error as StdError,
    fmt,
    future::pending,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use backon::Retryable as _;
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{abandoned::Abandoned, rests::Rests, window::Window};
pub use self::{
    retention::{Retention, RetentionWarning},
    sweep::{Sweep, SweepError},
};
use crate::{
    AfterDead, Effect, Error, ErrorKind, HandlerName, Hooks, Invalid, Operate, Record, RetryPolicy,
    Store,
    backoff::a_few_times,
    patience::{Patience, Patient, STORE_TIMEOUT, check_limit},
    service::PartHealth,
    telemetry,
    vitals::Vitals,
};

/// How often the clock is looked at where there is a time to sweep. It may be set, and timers stand still while a
/// machine sleeps.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(60);

/// What is troubled when a sweep has failed.
const SWEEP: &str = "sweeps";

/// How long what is under way may take at the end that was asked for.
const GRACE: Duration = Duration::from_secs(5);

const NO_ANSWER: &str = "no answer in time, and the sweep was told to end";

/// What ends a sweep behind the slice, or the message, that is under way.
#[derive(Clone, Copy)]
struct End<'a> {
    token: &'a CancellationToken,
    /// Whether that is waited for, so that what is under way has only its [`GRACE`].
    is_awaited: bool,
    /// Of a sweep that has time.
    rests: Option<&'a Rests>,
}

impl End<'_> {
    fn has_come(self) -> bool {
        self.token.is_cancelled()
    }

    /// Whether what fails is to be repeated.
    fn leaves_time(self) -> bool {
        !(self.is_awaited && self.has_come())
    }

    /// Rests behind a slice that began then, if there is time.
    async fn rest(self, began: Instant) {
        let Some(rests) = self.rests else { return };
        let rest = rests.after(began.elapsed());
        tokio::select! {
            biased;
            () = self.token.cancelled() => {}
            () = tokio::time::sleep(rest) => {}
        }
    }

    /// Waits for `work`, but not much longer once the end is awaited.
    async fn unless_given_up<T>(self, work: impl Future<Output = T>) -> Option<T> {
        let given_up = async {
            if !self.is_awaited {
                pending::<()>().await;
            }
            self.token.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = given_up => None,
        }
    }
}

/// Takes messages over before they are deleted.
#[async_trait]
pub trait Archiver: Send + Sync + 'static {
    /// Stores the records durably. Only those of a call that returned `Ok` are deleted.
    ///
    /// The same record can come again: when the deletion failed, when this future was dropped, or
    /// when two janitors sweep at the same time. It then has the same key and times.
    ///
    /// # Errors
    /// Any; the sweep ends with it and nothing of this slice is deleted. So does a panic.
    async fn archive(&self, records: &[Record]) -> Result<(), Box<dyn StdError + Send + Sync>>;
}

/// Deletes final messages when their retention is over. Nothing is deleted of states that no
/// retention was set for, and never a pending or leased message.
///
/// Safe to run in every replica, in live traffic: each works in small slices, and none waits
/// for another. A [run](Janitor::run) rests between slices, two hundred times as long as one took and up to eight
/// seconds, so that less than one call of live traffic in a hundred meets one. Rests become half as long with each
/// [interval](JanitorBuilder::interval) that a sweep goes on, or each five minutes, so that it comes to keep up with what
/// comes: ten million messages are gone within the hour.
///
/// Deleting a message ends its key's protection: a redelivery that comes later is accepted as
/// new. So retention has to be longer than the longest time after which a copy can still arrive.
///
/// ```
/// use std::time::Duration;
/// use inbox::{CancellationToken, Janitor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = inbox::connect("memory://").await?;
/// store.create().await?;
/// let janitor = Janitor::builder(store)
///     .keep_processed(Duration::from_secs(14 * 24 * 60 * 60))
///     .keep_dead(Duration::from_secs(90 * 24 * 60 * 60))
///     .build()?;
/// assert_eq!(janitor.sweep().await?.purged(), 0);
///
/// let shutdown = CancellationToken::new();
/// let task = tokio::spawn({
///     let shutdown = shutdown.clone();
///     async move { janitor.run(shutdown).await }
/// });
/// shutdown.cancel();
/// task.await?;
/// # Ok(())
/// # }
/// ```
pub struct Janitor {
    operate: Arc<dyn Operate>,
    archiver: Option<Arc<dyn Archiver>>,
    retention: Retention,
    /// Of handlers that have one of their own.
    own: HashMap<HandlerName, Retention>,
    slice: u32,
    interval: Duration,
    window: Option<Window>,
    patience: Patience,
    abandoned: Vec<Arc<Abandoned>>,
    /// Messages that are being given up.
    under_way: TaskTracker,
    warnings: Vec<RetentionWarning>,
    vitals: Vitals,
}

/// Sets up a [`Janitor`]; from [`Janitor::builder`].
pub struct JanitorBuilder {
    operate: Arc<dyn Operate>,
    archiver: Option<Arc<dyn Archiver>>,
    retention: Retention,
    own: HashMap<HandlerName, Retention>,
    slice: u32,
    interval: Duration,
    window: Option<(u8, u8)>,
    store_timeout: Duration,
    abandoned: Vec<Abandoned>,
    hooks: Option<Arc<dyn Hooks>>,
    retry: Option<RetryPolicy>,
}

impl JanitorBuilder {
    /// Deletes processed messages this long after they were processed.
    #[must_use]
    pub fn keep_processed(mut self, retention: Duration) -> Self {
        self.retention = self.retention.keep_processed(retention);
        self
    }

    /// Deletes dead messages this long after they died.
    #[must_use]
    pub fn keep_dead(mut self, retention: Duration) -> Self {
        self.retention = self.retention.keep_dead(retention);
        self
    }

    /// Deletes discarded messages this long after they were discarded.
    #[must_use]
    pub fn keep_discarded(mut self, retention: Duration) -> Self {
        self.retention = self.retention.keep_discarded(retention);
        self
    }

    /// Drops payload and result of processed messages this long after they were processed, before their
    /// keys go: see [`Retention::keep_payloads`].
    #[must_use]
    pub fn keep_payloads(mut self, retention: Duration) -> Self {
        self.retention = self.retention.keep_payloads(retention);
        self
    }

    /// Keeps messages by this retention, in place of what was set before.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Keeps messages of one handler by a retention of its own, in place of the common one: a state
    /// that is not set in it is kept for ever.
    ///
    /// With such a handler each is swept by itself, those that have messages.
    #[must_use]
    pub fn handler(mut self, handler: HandlerName, retention: Retention) -> Self {
        self.own.insert(handler, retention);
        self
    }

    /// Sweeps only from one full hour of the day to another, in UTC by this process's clock:
    /// `between(22, 4)` is from 22:00 to 04:00. What is under way when the time is over ends with its
    /// slice, however long that takes. The clock is looked at once a minute. Default: at any time. It is
    /// [`run`](Janitor::run) that heeds it; the other methods sweep when they are called.
    #[must_use]
    pub fn between(mut self, from: u8, to: u8) -> Self {
        self.window = Some((from, to));
        self
    }

    /// Sets the most messages to delete in one step. Default: 1,000.
    #[must_use]
    pub fn slice(mut self, messages: u32) -> Self {
        self.slice = messages;
        self
    }

    /// Makes messages of `handlers` dead that have been due for longer than `after` without anybody
    /// working on them. `store` has to be of the same inbox.
    ///
    /// Where an attempt crashed or was handed back, it counts from the first sweep behind the end of its lease, which
    /// the janitor writes into the name of the message's last worker.
    ///
    /// For handler names that only inline consumers (or an [`InboxLayer`](crate::InboxLayer)) work
    /// on: a failed message waits there for its caller to come back, and when none does it would
    /// stay pending, and its handler's lag grow, for ever. Take longer than the longest time after
    /// which a copy may still come. (A processor with the same handler name would retry them
    /// instead.)
    ///
    /// May be called again, for others. Of several calls that name a handler the first counts.
    ///
    /// When an operator [clears](Operate::clear_slice) a handler just when the janitor looks at one of its messages,
    /// that message can be stored again by the look. It is pending then, with no attempt, and not dead before its time
    /// comes once more.
    #[must_use]
    pub fn give_up_after(
        mut self,
        store: Arc<impl Store + ?Sized>,
        handlers: impl IntoIterator<Item = HandlerName>,
        after: Duration,
        after_dead: AfterDead,
    ) -> Self {
        self.abandoned.push(Abandoned {
            store: Patient {
                store: Arc::new(store),
                patience: Patience::new(self.store_timeout),
            },
            handlers: handlers.into_iter().collect(),
            after,
            after_dead,
            hooks: None,
        });
        self
    }

    /// Sets whom to tell about messages that [`give_up_after`](Self::give_up_after) makes dead.
    #[must_use]
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Some(Arc::new(hooks));
        self
    }

    /// Sets how long one call of the store may take. Default: 5 minutes, since a
    /// store rests while it purges. A call that exceeds it is given up and made again a few times;
    /// one that has taken a sixth of it, or ten seconds, is warned of, once in an outage.
    #[must_use]
    pub fn store_timeout(mut self, limit: Duration) -> Self {
        self.store_timeout = limit;
        self
    }

    /// Sets the pause between sweeps, of which up to a tenth more or less is drawn at random so
    /// that replicas spread. Default: 5 minutes.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Has messages archived before they are deleted.
    #[must_use]
    pub fn archiver(mut self, archiver: impl Archiver) -> Self {
        self.archiver = Some(Arc::new(archiver));
        self
    }

    /// Checks retention against this policy; see [`Janitor::warnings`].
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Builds the janitor, and logs its [`warnings`](Janitor::warnings). No I/O happens yet.
    ///
    /// # Errors
    /// [`Invalid::OutOfRange`] when the slice is empty, the interval or the store's time-out shorter
    /// than a millisecond, or the time [between](Self::between) hours none or all of the day; and when
    /// payloads are to be dropped although an [archiver](Self::archiver) is to have them.
    pub fn build(self) -> Result<Janitor, Invalid> {
        if self.slice == 0 {
            return Err(Invalid::OutOfRange {
                what: "slice",
                expected: "at least 1",
            });
        }
        check_limit(self.interval, "interval")?;
        check_limit(self.store_timeout, "store timeout")?;
        let window = self.window.map(|(from, to)| Window::new(from, to));
        let retentions = || self.own.values().chain([&self.retention]);
        if self.archiver.is_some() && retentions().any(|one| one.payloads().is_some()) {
            return Err(Invalid::OutOfRange {
                what: "payload retention",
                expected: "none where there is an archiver, which would be given no payloads",
            });
        }
        let window_of_retries = self.retry.map(|policy| policy.longest_window());
        let mut warnings = self.retention.warnings(None, window_of_retries);
        for (handler, retention) in &self.own {
            warnings.extend(retention.warnings(Some(handler), window_of_retries));
        }
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        let patience = Patience::new(self.store_timeout);
        let mut named = HashSet::new();
        let abandoned = self.abandoned.into_iter().map(|mut abandoned| {
            abandoned.store.patience = patience.clone();
            abandoned.hooks = self.hooks.clone();
            let handlers = &mut abandoned.handlers;
            handlers.retain(|handler| named.insert(handler.clone()));
            Arc::new(abandoned)
        });
        let abandoned = abandoned.collect();
        Ok(Janitor {
            operate: self.operate,
            archiver: self.archiver,
            retention: self.retention,
            own: self.own,
            slice: self.slice,
            interval: self.interval,
            window: window.transpose()?,
            patience,
            abandoned,
            under_way: TaskTracker::new(),
            warnings,
            vitals: Vitals::default(),
        })
    }
}

impl Janitor {
    /// A janitor that as yet deletes nothing.
    #[must_use]
    pub fn builder(operate: Arc<impl Operate + ?Sized + 'static>) -> JanitorBuilder {
        JanitorBuilder {
            // An Arc of an operator's side is one itself; the second Arc erases its type.
            operate: Arc::new(operate),
            archiver: None,
            retention: Retention::new(),
            own: HashMap::new(),
            slice: 1000,
            interval: Duration::from_secs(5 * 60),
            window: None,
            store_timeout: STORE_TIMEOUT * 5,
            abandoned: Vec::new(),
            hooks: None,
            retry: None,
        }
    }

    /// Retentions that are too short for the retry policy that was given.
    #[must_use]
    pub fn warnings(&self) -> &[RetentionWarning] {
        &self.warnings
    }

    /// Sweeps once per interval, [between](JanitorBuilder::between) the hours that were set, until
    /// `shutdown` is cancelled. A sweep that fails is logged, and
    /// tried again at the next interval. A message that is being given up at shutdown is waited for,
    /// at most five seconds. Answers what all sweeps did.
    pub async fn run(&self, shutdown: CancellationToken) -> Sweep {
        self.vitals.watch(self.run_unwatched(shutdown)).await
    }

    /// How it does at this moment, for a probe of a program without a [`Service`](crate::Service), which also
    /// asks the store: whether its loop turns, whether its last sweep failed, and when one last ended well. Asks nobody.
    #[must_use]
    pub fn health(&self) -> PartHealth {
        PartHealth::alone("janitor", &self.vitals, None)
    }

    async fn run_unwatched(&self, shutdown: CancellationToken) -> Sweep {
        let mut total = Sweep::default();
        let sweeps = async {
            loop {
                self.wait_for_window().await;
                match self.sweep_in_window(&mut total).await {
                    Ok(()) => {
                        self.vitals.over(SWEEP);
                        self.vitals.success();
                        telemetry::swept();
                        tracing::debug!(?total, "swept");
                    }
                    Err(error) => {
                        let cause = error.source().map(ToString::to_string);
                        tracing::warn!(%error, cause, "sweep failed");
                        self.vitals.trouble(SWEEP, error.to_string());
                    }
                }
                let tenths = 0.9 + 0.2 * fastrand::f64();
                let pause = self.interval.as_secs_f64() * tenths;
                // Longer than a clock can count means never.
                tokio::time::sleep(Duration::try_from_secs_f64(pause).unwrap_or(Duration::MAX))
                    .await;
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            () = sweeps => {}
        }
        self.finish().await;
        total
    }

    /// Waits for the messages that are being given up, for a while.
    async fn finish(&self) {
        self.under_way.close();
        if timeout(GRACE, self.under_way.wait()).await.is_err() {
            tracing::warn!("a message is still in the janitor's hands; its lease runs out");
        }
        self.under_way.reopen();
    }

    async fn wait_for_window(&self) {
        let Some(window) = &self.window else { return };
        loop {
            let closed = window.opens_in(SystemTime::now());
            if closed.is_zero() {
                return;
            }
            // That it waits for its time is no reason to be alarmed.
            telemetry::swept();
            tokio::time::sleep(closed.min(LOOK_AT_CLOCK)).await;
        }
    }

    async fn sweep_in_window(&self, total: &mut Sweep) -> Result<(), SweepError> {
        let closed = async {
            match &self.window {
                Some(window) => window.closed(SystemTime::now).await,
                None => pending().await,
            }
        };
        self.sweep_while_open(total, closed).await
    }

    /// A sweep that ends with its slice when the time for it is over.
    async fn sweep_while_open(
        &self,
        total: &mut Sweep,
        closed: impl Future<Output = ()>,
    ) -> Result<(), SweepError> {
        let over = CancellationToken::new();
        let rests = Rests::new(self.interval);
        let end = End {
            token: &over,
            is_awaited: false,
            rests: Some(&rests),
        };
        let mut sweep = pin!(self.sweep_before(end, total));
        tokio::select! {
            biased;
            swept = &mut sweep => return swept,
            () = closed => {}
        }
        over.cancel();
        sweep.await
    }

    /// How a run does.
    pub(crate) fn vitals(&self) -> Vitals {
        self.vitals.clone()
    }

    /// Deletes all that is old enough now, slice by slice, and returns when nothing is left.
    ///
    /// The future may be dropped at any time; what was deleted stays deleted. A message that is being
    /// given up then is left to its own task.
    ///
    /// # Errors
    /// [`SweepError`] of the store, after a few repetitions if it may pass, or of the archiver. One
    /// about deleting keeps nothing from being given up, nor the other way round.
    pub async fn sweep(&self) -> Result<Sweep, SweepError> {
        self.sweep_until(&CancellationToken::new()).await
    }

    /// The same, but returns behind the slice or the message under way when `shutdown` is cancelled,
    /// with what was done until then.
    ///
    /// # Errors
    /// As [`sweep`](Self::sweep). Once `shutdown` is cancelled no call is repeated, and a call of the
    /// store or of the archiver that has no answer five seconds later is given up: what it was about
    /// may be deleted or not, and is not counted.
    pub async fn sweep_until(&self, shutdown: &CancellationToken) -> Result<Sweep, SweepError> {
        let mut sweep = Sweep::default();
        self.sweep_into(&mut sweep, shutdown).await?;
        Ok(sweep)
    }

    /// The same, and adds what it does to `sweep` as it goes: what was done before an error, or
    /// before the future was dropped, is there.
    ///
    /// # Errors
    /// As [`sweep`](Self::sweep).
    pub async fn sweep_into(
        &self,
        sweep: &mut Sweep,
        shutdown: &CancellationToken,
    ) -> Result<(), SweepError> {
        let end = End {
            token: shutdown,
            is_awaited: true,
            rests: None,
        };
        self.sweep_before(end, sweep).await
    }

    async fn sweep_before(&self, end: End<'_>, sweep: &mut Sweep) -> Result<(), SweepError> {
        // None is a reason to leave the others out.
        let mut swept = self.sweep_expired(sweep, end).await;
        for abandoned in &self.abandoned {
            let given_up = self.sweep_abandoned(abandoned, sweep, end).await;
            swept = swept.and(given_up.map_err(SweepError::from));
        }
        swept
    }

    /// Asks the store, a few times if it may pass and the end leaves time for it.
    async fn ask<T, F>(
        &self,
        end: End<'_>,
        operation: &'static str,
        call: impl Fn() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let asking = (|| self.patience.within(operation, call()))
            .retry(a_few_times())
            .when(|error| error.is_retryable() && end.leaves_time());
        let answer = end.unless_given_up(asking).await;
        answer.unwrap_or_else(|| Err(no_answer(operation)))
    }
}

fn no_answer(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, NO_ANSWER)
        .in_operation(operation)
        .with_effect(Effect::Unknown)
}

impl fmt::Debug for Janitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Janitor")
            .field("retention", &self.retention)
            .field("own", &self.own)
            .field("slice", &self.slice)
            .field("interval", &self.interval)
            .field("between", &self.window)
            .field("archives", &self.archiver.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for JanitorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JanitorBuilder")
            .field("retention", &self.retention)
            .field("own", &self.own)
            .field("slice", &self.slice)
            .field("interval", &self.interval)
            .field("between", &self.window)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use inbox_memory::{MemoryOptions, MemoryStore};

    use super::*;
    use crate::{Clock, Kind, Message, MessageId, StoreExt as _};

    /// Takes longer than what is under way has at a shutdown. The store's clock goes on meanwhile.
    struct Slow(Clock);

    #[async_trait]
    impl Archiver for Slow {
        async fn archive(&self, _: &[Record]) -> Result<(), Box<dyn StdError + Send + Sync>> {
            tokio::time::sleep(4 * GRACE).await;
            self.0.advance(5 * GRACE);
            Ok(())
        }
    }

    /// Defect: a slice that went on for more than five seconds behind the hour was dropped, as a failed sweep.
    #[tokio::test(start_paused = true)]
    async fn a_sweep_ends_with_its_slice_when_its_time_is_over() {
        let clock = Clock::system();
        let options = MemoryOptions::new().clock(clock.clone());
        let inbox = Arc::new(MemoryStore::with(options));
        for n in 0..15 {
            let (handler, id) = (HandlerName::new("h"), MessageId::new(n.to_string()));
            let kind = Kind::new("k").unwrap();
            let message = Message::new(handler.unwrap(), id.unwrap(), kind, "");
            let _ = inbox.receive_one(&message).await.unwrap();
            let _ = inbox.discard(message.key()).await.unwrap();
        }
        let janitor = Janitor::builder(inbox)
            .keep_discarded(Duration::ZERO)
            .slice(10)
            .archiver(Slow(clock))
            .build()
            .unwrap();
        let mut sweep = Sweep::default();
        let closed = tokio::time::sleep(Duration::from_secs(1));
        let swept = janitor.sweep_while_open(&mut sweep, closed).await;
        assert!(swept.is_ok(), "{swept:?}");
        assert_eq!(sweep.discarded, 10);
    }
}
