//! Retention: deletes final messages that are old enough, in bounded slices.

mod abandoned;

use std::{error::Error as StdError, fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use async_trait::async_trait;
use backon::Retryable as _;
use futures_util::FutureExt as _;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::abandoned::Abandoned;
use crate::{
    AfterDead, Effect, Error, ErrorKind, HandlerName, Hooks, Invalid, Key, Operate, PurgeRequest,
    Record, RetryPolicy, State, Store,
    backoff::a_few_times,
    patience::{Patience, Patient, STORE_TIMEOUT, check_limit},
    telemetry,
};

/// The most corrupt rows that a sweep with an archiver looks past.
const CORRUPT_LIMIT: u32 = 10_000;

/// How long what is under way may take at the end that was asked for.
const GRACE: Duration = Duration::from_secs(5);

const NO_ANSWER: &str = "no answer in time, and the sweep was told to end";

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
/// for another.
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
    retention: Vec<(State, Duration)>,
    slice: u32,
    interval: Duration,
    patience: Patience,
    abandoned: Option<Arc<Abandoned>>,
    warnings: Vec<RetentionWarning>,
}

/// Sets up a [`Janitor`]; from [`Janitor::builder`].
pub struct JanitorBuilder {
    operate: Arc<dyn Operate>,
    archiver: Option<Arc<dyn Archiver>>,
    processed: Option<Duration>,
    dead: Option<Duration>,
    discarded: Option<Duration>,
    slice: u32,
    interval: Duration,
    store_timeout: Duration,
    abandoned: Option<Abandoned>,
    hooks: Option<Arc<dyn Hooks>>,
    retry: Option<RetryPolicy>,
}

/// A retention that is shorter than the longest retry window: if the producer retries for as long
/// as the consumer does, copies can arrive after their key was deleted, and are handled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionWarning {
    /// Whose retention it is.
    pub state: State,
    /// The retention.
    pub retention: Duration,
    /// The longest retry window.
    pub window: Duration,
}

impl fmt::Display for RetentionWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            state,
            retention,
            window,
        } = self;
        write!(
            f,
            "{state} messages are kept for {retention:?}, less than the longest retry window \
             of {window:?}: a late copy would be handled again"
        )
    }
}

/// What one sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sweep {
    /// Processed messages deleted.
    pub processed: u64,
    /// Dead messages deleted.
    pub dead: u64,
    /// Discarded messages deleted.
    pub discarded: u64,
    /// Messages made dead because no caller came back for them.
    pub abandoned: u64,
    /// Old rows that could not be read, and so were not archived or given up, and messages that the
    /// store refuses to give up; they stay.
    pub corrupt: u64,
}

impl Sweep {
    /// All messages deleted.
    #[must_use]
    pub fn purged(&self) -> u64 {
        self.processed + self.dead + self.discarded
    }

    /// Takes note of a slice that is deleted.
    fn add(&mut self, state: State, purged: u64) {
        telemetry::purged(state, purged);
        match state {
            State::Processed => self.processed += purged,
            State::Dead => self.dead += purged,
            _ => self.discarded += purged,
        }
    }
}

/// Why a sweep ended early. What it deleted before stays deleted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// The archiver failed; what it was given is still in the inbox.
    #[error("the archiver failed")]
    Archiver(#[source] Box<dyn StdError + Send + Sync>),
}

impl JanitorBuilder {
    /// Deletes processed messages this long after they were processed.
    #[must_use]
    pub fn keep_processed(mut self, retention: Duration) -> Self {
        self.processed = Some(retention);
        self
    }

    /// Deletes dead messages this long after they died.
    #[must_use]
    pub fn keep_dead(mut self, retention: Duration) -> Self {
        self.dead = Some(retention);
        self
    }

    /// Deletes discarded messages this long after they were discarded.
    #[must_use]
    pub fn keep_discarded(mut self, retention: Duration) -> Self {
        self.discarded = Some(retention);
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
    /// Where an attempt crashed, it counts from the first sweep behind the end of its lease, which the
    /// janitor writes into the name of the message's last worker.
    ///
    /// For handler names that only inline consumers (or an [`InboxLayer`](crate::InboxLayer)) work
    /// on: a failed message waits there for its caller to come back, and when none does it would
    /// stay pending, and its handler's lag grow, for ever. Take longer than the longest time after
    /// which a copy may still come. (A processor with the same handler name would retry them
    /// instead.)
    #[must_use]
    pub fn give_up_after(
        mut self,
        store: Arc<impl Store + ?Sized>,
        handlers: impl IntoIterator<Item = HandlerName>,
        after: Duration,
        after_dead: AfterDead,
    ) -> Self {
        self.abandoned = Some(Abandoned {
            store: Patient {
                store: Arc::new(store),
                patience: Patience::new(self.store_timeout),
            },
            handlers: handlers.into_iter().collect(),
            after,
            after_dead,
            hooks: None,
            under_way: TaskTracker::new(),
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
    /// [`Invalid::OutOfRange`] when the slice is empty, or the interval or the store's time-out shorter
    /// than a millisecond.
    pub fn build(self) -> Result<Janitor, Invalid> {
        if self.slice == 0 {
            return Err(Invalid::OutOfRange {
                what: "slice",
                expected: "at least 1",
            });
        }
        check_limit(self.interval, "interval")?;
        check_limit(self.store_timeout, "store timeout")?;
        let states = [
            (State::Processed, self.processed),
            (State::Dead, self.dead),
            (State::Discarded, self.discarded),
        ];
        let retention: Vec<_> = states
            .into_iter()
            .filter_map(|(state, retention)| Some((state, retention?)))
            .collect();
        let window = self
            .retry
            .map(|policy| policy.longest_window())
            .unwrap_or_default();
        let warnings: Vec<_> = retention
            .iter()
            .filter(|(_, retention)| *retention < window)
            .map(|&(state, retention)| RetentionWarning {
                state,
                retention,
                window,
            })
            .collect();
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        let patience = Patience::new(self.store_timeout);
        Ok(Janitor {
            operate: self.operate,
            archiver: self.archiver,
            retention,
            slice: self.slice,
            interval: self.interval,
            patience: patience.clone(),
            abandoned: self.abandoned.map(|mut abandoned| {
                abandoned.store.patience = patience;
                abandoned.hooks = self.hooks;
                Arc::new(abandoned)
            }),
            warnings,
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
            processed: None,
            dead: None,
            discarded: None,
            slice: 1000,
            interval: Duration::from_secs(5 * 60),
            store_timeout: STORE_TIMEOUT * 5,
            abandoned: None,
            hooks: None,
            retry: None,
        }
    }

    /// Retentions that are too short for the retry policy that was given.
    #[must_use]
    pub fn warnings(&self) -> &[RetentionWarning] {
        &self.warnings
    }

    /// Sweeps once per interval until `shutdown` is cancelled. A sweep that fails is logged, and
    /// tried again at the next interval. A message that is being given up at shutdown is waited for,
    /// at most five seconds.
    pub async fn run(&self, shutdown: CancellationToken) {
        let sweeps = async {
            loop {
                match self.sweep().await {
                    Ok(sweep) => tracing::debug!(?sweep, "swept"),
                    Err(error) => {
                        let cause = error.source().map(ToString::to_string);
                        tracing::warn!(%error, cause, "sweep failed");
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
            () = shutdown.cancelled() => {}
            () = sweeps => {}
        }
        if let Some(abandoned) = &self.abandoned {
            abandoned.finish().await;
        }
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
        // Neither is a reason to leave the other out.
        let retained = self.sweep_expired(sweep, shutdown).await;
        let given_up = match &self.abandoned {
            None => Ok(()),
            Some(abandoned) => self.sweep_abandoned(abandoned, sweep, shutdown).await,
        };
        retained?;
        Ok(given_up?)
    }

    /// Asks the store, a few times if it may pass and nobody wants the sweep to end.
    async fn ask<T, F>(
        &self,
        shutdown: &CancellationToken,
        operation: &'static str,
        call: impl Fn() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let asking = (|| self.patience.within(operation, call()))
            .retry(a_few_times())
            .when(|error| error.is_retryable() && !shutdown.is_cancelled());
        let answer = unless_given_up(shutdown, asking).await;
        answer.unwrap_or_else(|| Err(no_answer(operation)))
    }

    async fn sweep_expired(
        &self,
        sweep: &mut Sweep,
        shutdown: &CancellationToken,
    ) -> Result<(), SweepError> {
        for &(state, retention) in &self.retention {
            match &self.archiver {
                None => self.purge(sweep, state, retention, shutdown).await?,
                Some(archiver) => {
                    let archived = self.archive(&**archiver, sweep, state, retention, shutdown);
                    sweep.corrupt += archived.await?;
                }
            }
        }
        Ok(())
    }

    async fn purge(
        &self,
        sweep: &mut Sweep,
        state: State,
        retention: Duration,
        shutdown: &CancellationToken,
    ) -> Result<(), SweepError> {
        let expired = expired(state, retention, self.slice)?;
        loop {
            if shutdown.is_cancelled() {
                return Ok(());
            }
            let purging = || self.operate.purge(&expired);
            let step = self.ask(shutdown, "purge", purging).await?;
            sweep.add(state, step);
            if step < u64::from(self.slice) {
                return Ok(());
            }
        }
    }

    /// Returns how many rows are corrupt.
    async fn archive(
        &self,
        archiver: &dyn Archiver,
        sweep: &mut Sweep,
        state: State,
        retention: Duration,
        shutdown: &CancellationToken,
    ) -> Result<u64, SweepError> {
        let mut corrupt = 0;
        loop {
            if shutdown.is_cancelled() {
                return Ok(corrupt.into());
            }
            // Corrupt rows stay, at the front of every slice: look past them.
            let limit = self.slice.saturating_add(corrupt);
            let expired = expired(state, retention, limit)?;
            let listing = || self.operate.expired(&expired);
            let listing = self.ask(shutdown, "expired", listing).await?;
            let seen = u32::try_from(listing.corrupt.len()).unwrap_or(u32::MAX);
            for row in listing.corrupt.iter().skip(corrupt as usize) {
                tracing::error!(
                    place = row.place,
                    reason = row.reason,
                    "corrupt row cannot be archived and stays"
                );
            }
            let has_more_corrupt = seen > corrupt && seen <= CORRUPT_LIMIT;
            corrupt = seen;
            let keys: Vec<Key> = listing.records.iter().map(|r| r.key.clone()).collect();
            let mut step = 0;
            if !keys.is_empty() {
                let archiving = AssertUnwindSafe(archiver.archive(&listing.records));
                match unless_given_up(shutdown, archiving.catch_unwind()).await {
                    Some(Ok(archived)) => archived,
                    Some(Err(_)) => Err("the archiver panicked".into()),
                    None => Err(NO_ANSWER.into()),
                }
                .map_err(SweepError::Archiver)?;
                let purging = || self.operate.purge_archived(&expired, &keys);
                step = self.ask(shutdown, "purge_archived", purging).await?;
                sweep.add(state, step);
            }
            let found = listing.records.len() + listing.corrupt.len();
            let is_last = found < limit as usize;
            // Without progress another janitor is at the same slice, and goes on with the rest.
            if is_last || step == 0 && !has_more_corrupt {
                return Ok(corrupt.into());
            }
        }
    }
}

fn no_answer(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, NO_ANSWER)
        .in_operation(operation)
        .with_effect(Effect::Unknown)
}

/// Waits for `work`, but not much longer once `shutdown` is cancelled.
async fn unless_given_up<T>(
    shutdown: &CancellationToken,
    work: impl Future<Output = T>,
) -> Option<T> {
    let given_up = async {
        shutdown.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = given_up => None,
    }
}

fn expired(state: State, retention: Duration, limit: u32) -> Result<PurgeRequest, Error> {
    PurgeRequest::new(state, retention, limit).map_err(|invalid| invalid.in_operation("purge"))
}

impl fmt::Debug for Janitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Janitor")
            .field("retention", &self.retention)
            .field("slice", &self.slice)
            .field("interval", &self.interval)
            .field("archives", &self.archiver.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for JanitorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JanitorBuilder")
            .field("processed", &self.processed)
            .field("dead", &self.dead)
            .field("discarded", &self.discarded)
            .field("slice", &self.slice)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}
