//! The inline consumer: runs a handler in the delivery's own task, once per key.
//!
//! [`InlineConsumer::consume`] asks the store whether this message's handler may run now, runs it
//! under a lease that is renewed for as long as it takes, and settles the outcome. A second copy
//! of the message, at the same time or years later, gets an answer instead of a second run.
//!
//! ```
//! use std::time::Duration;
//!
//! use inbox::inline::{Consumed, InlineConsumer, OnDuplicate};
//! use inbox::{Bytes, HandlerName, Kind, LeaseTerms, Message, MessageId, WorkerName};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let inbox = inbox::connect("memory://").await?;
//! inbox.create().await?;
//! let terms = LeaseTerms::new(Duration::from_secs(30), WorkerName::new("web-1")?)?;
//! let consumer = InlineConsumer::new(inbox, terms).on_duplicate(OnDuplicate::ReturnResult);
//!
//! let message = Message::new(
//!     HandlerName::new("payments")?,
//!     MessageId::new("evt-1")?,
//!     Kind::new("order.placed")?,
//!     r#"{"order": 7}"#,
//! );
//! let charge = async |leased: inbox::Leased| {
//!     // Charge the card here; the fencing token can guard writes to other systems.
//!     let _ = leased.lease.token;
//!     Ok::<_, std::io::Error>(Some(Bytes::from_static(b"receipt 99")))
//! };
//! let receipt = Some(Bytes::from_static(b"receipt 99"));
//! let first = consumer.consume(&message, charge).await?;
//! assert_eq!(first, Consumed::Ran { result: receipt.clone() });
//! let second = consumer.consume(&message, charge).await?;
//! assert_eq!(second, Consumed::Duplicate { result: receipt });
//!
//! // Before the process ends.
//! consumer.drain(Duration::from_secs(20)).await;
//! # Ok(())
//! # }
//! ```

mod answer;
mod drain;
mod memory;
mod transaction;

use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBuilder, Retryable as _};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::OptionFuture};
use inbox_api::error_text;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

pub use answer::{Cause, ConsumeError, Consumed, HandlerPanic, OnBusy, OnDuplicate};
pub use transaction::{consume_in_transaction, consume_in_transaction_within};

use drain::UnderWay;
use memory::{Memory, Running, Unrecorded};

use crate::{
    AfterDead, Begun, Effect, Error, Extended, Hooks, Invalid, Lease, LeaseTerms, Leased, Message,
    Outcome, Result, Settled, Store, StoreExt as _,
    backoff::a_few_times,
    hooks::Call,
    patience::{Patience, Patient, SHORTEST, STORE_TIMEOUT},
    refusal::plainer,
    retry::RetryPolicy,
    telemetry::{self, Count, MESSAGE},
};

/// Runs handlers in the delivery's own task, once per key. See the [module](crate::inline).
///
/// Cloning is cheap; clones share the store, and the knowledge of what runs. Use one in a process:
/// when the store was away for longer than a lease, it does not run what it runs already or has
/// finished, which another cannot know.
#[derive(Clone)]
pub struct InlineConsumer {
    store: Patient,
    terms: LeaseTerms,
    retry: RetryPolicy,
    after_dead: AfterDead,
    on_duplicate: OnDuplicate,
    on_busy: OnBusy,
    hooks: Option<Arc<dyn Hooks>>,
    memory: Memory,
    under_way: UnderWay,
}

impl InlineConsumer {
    /// A consumer that takes its leases on `terms`, skips duplicates and waits up to ten seconds
    /// for busy messages.
    ///
    /// The lease is renewed every third of its length while a handler runs, so its length is not
    /// a limit on the work but the time after which a crashed worker's message is run again.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, terms: LeaseTerms) -> Self {
        Self {
            store: Patient {
                store,
                patience: Patience::new(STORE_TIMEOUT),
            },
            terms,
            retry: RetryPolicy::default(),
            after_dead: AfterDead::default(),
            on_duplicate: OnDuplicate::default(),
            on_busy: OnBusy::Wait(Duration::from_secs(10)),
            hooks: None,
            memory: Memory::default(),
            under_way: UnderWay::default(),
        }
    }

    /// Sets how often and when a failed message is tried again. When its attempts are used up it
    /// is dead; attempts that crashed their worker count.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Sets whether later messages of the same ordering key may pass a dead one.
    #[must_use]
    pub fn after_dead(mut self, after: AfterDead) -> Self {
        self.after_dead = after;
        self
    }

    /// Sets what to do with a message that was processed before.
    #[must_use]
    pub fn on_duplicate(mut self, policy: OnDuplicate) -> Self {
        self.on_duplicate = policy;
        self
    }

    /// Sets what to do with a message that cannot run now.
    #[must_use]
    pub fn on_busy(mut self, policy: OnBusy) -> Self {
        self.on_busy = policy;
        self
    }

    /// Sets whom to tell about failed attempts, dead letters and lost leases. Each call runs in a
    /// task, so that the consumer's caller does not wait for it; [`drain`](Self::drain) does.
    #[must_use]
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Some(Arc::new(hooks));
        self
    }

    /// Sets how long one call of the store may take. Default: 60 seconds, twice the
    /// `operation_timeout` of the stores; set both when a store is to take longer. A call that
    /// exceeds it is given up and made again, where that is safe; one that has taken a sixth of it,
    /// or ten seconds, is warned of, once in an outage. Less than a millisecond is taken as one. A renewal is given up sooner, after
    /// half a lease (or five seconds, if that is longer), so that there is time for another.
    #[must_use]
    pub fn store_timeout(mut self, limit: Duration) -> Self {
        self.store.patience.limit = limit.max(SHORTEST);
        self
    }

    /// Runs `handler` with the message, unless it was processed before or cannot run now.
    ///
    /// The handler gets the message as it is stored, which differs from `message` when an
    /// operator has edited it; it returns bytes to keep for later duplicates, or `None`. A result
    /// over the store's limit is returned but not kept, and a warning logged.
    ///
    /// The lease is renewed while the handler awaits; a handler that blocks its thread for longer
    /// than the lease risks being run twice. Unlike a processor, this does not warn of one. When another worker takes the message over
    /// nevertheless, the handler is dropped.
    ///
    /// Dropping the returned future drops the handler wherever it is (where callers may leave,
    /// spawn it, as [`InboxLayer`](crate::InboxLayer) does). The message stays leased
    /// until the lease runs out, and can then be consumed again; the attempt counts as crashed. So it
    /// is when the process ends meanwhile: [`drain`](Self::drain) waits, and hands back what takes
    /// too long.
    ///
    /// A message that failed waits for another delivery. When none may ever come, let a
    /// [`Janitor`](crate::Janitor) give it up in the end
    /// ([`give_up_after`](crate::JanitorBuilder::give_up_after)).
    ///
    /// # Errors
    /// [`ConsumeError`]: the handler's own error or panic (settled as a retry, or as dead at the
    /// last attempt), a busy message, or a failing store.
    pub async fn consume<F, Fut, E>(
        &self,
        message: &Message,
        handler: F,
    ) -> Result<Consumed, ConsumeError<E>>
    where
        F: FnOnce(Leased) -> Fut,
        Fut: Future<Output = Result<Option<Bytes>, E>>,
        E: fmt::Display,
    {
        self.consume_for(message, None, handler).await
    }

    /// The same for a caller who may go: when `gone` is cancelled, a busy message is not waited
    /// for any longer.
    pub(crate) async fn consume_for<F, Fut, E>(
        &self,
        message: &Message,
        gone: Option<&CancellationToken>,
        handler: F,
    ) -> Result<Consumed, ConsumeError<E>>
    where
        F: FnOnce(Leased) -> Fut,
        Fut: Future<Output = Result<Option<Bytes>, E>>,
        E: fmt::Display,
    {
        let answer = self.begin_and_run(message, gone, handler).await;
        answer::tell(message, &answer);
        answer
    }

    async fn begin_and_run<F, Fut, E>(
        &self,
        message: &Message,
        gone: Option<&CancellationToken>,
        handler: F,
    ) -> Result<Consumed, ConsumeError<E>>
    where
        F: FnOnce(Leased) -> Fut,
        Fut: Future<Output = Result<Option<Bytes>, E>>,
        E: fmt::Display,
    {
        let _under_way = self.under_way.begin();
        let leased = match self.begin(message, gone).await? {
            Begun::Run(leased) => *leased,
            Begun::Processed { result } => return self.on_duplicate.decide(message, result),
            Begun::Busy { until } if self.on_busy == OnBusy::Skip => {
                return Ok(Consumed::Busy { until });
            }
            Begun::Busy { until } => return Err(ConsumeError::Busy { until }),
            Begun::Blocked if self.on_busy == OnBusy::Skip => return Ok(Consumed::Blocked),
            Begun::Blocked => return Err(ConsumeError::Blocked),
            Begun::Dead { reason } => return Ok(Consumed::Dead { reason }),
            Begun::Discarded => return Ok(Consumed::Discarded),
        };
        if leased.attempts.started > self.retry.max_attempts() {
            return self.bury(&leased).await;
        }
        let held = leased.clone();
        let here = self.memory.run(&held.lease);
        let running = async move { handler(leased).await };
        let running = AssertUnwindSafe(running).catch_unwind();
        // The handler is gone when this has answered, also if it did not come to its end.
        let ended = tokio::select! {
            biased;
            ended = running => Some(ended),
            () = self.keep(&held.lease, &here) => {
                self.lost(&held);
                return Err(ConsumeError::LeaseLost);
            }
            () = self.under_way.stop().cancelled() => None,
        };
        let failure = match ended {
            Some(Ok(Ok(result))) => return self.complete(&held, result).await,
            Some(Ok(Err(error))) => Cause::Failed(error),
            Some(Err(payload)) => Cause::Panicked(HandlerPanic::new(payload)),
            None => {
                self.hand_back(&held).await;
                return Err(ConsumeError::Stopped);
            }
        };
        Err(self.fail(&held, failure).await)
    }

    /// Asks the store until the answer is final or the patience for busy messages is used up.
    async fn begin<E>(
        &self,
        message: &Message,
        gone: Option<&CancellationToken>,
    ) -> Result<Begun, ConsumeError<E>> {
        let patience = match self.on_busy {
            OnBusy::Wait(limit) => limit,
            OnBusy::Error | OnBusy::Skip => Duration::ZERO,
        };
        let began = Instant::now();
        let mut pauses = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(10))
            .with_max_delay(Duration::from_secs(1))
            .with_jitter()
            .without_max_times()
            .build();
        let stop = self.under_way.stop();
        loop {
            if stop.is_cancelled() {
                return Err(ConsumeError::Stopped);
            }
            let begun = self.begin_now(message).await.map_err(ConsumeError::Store)?;
            let left = patience.saturating_sub(began.elapsed());
            if !matches!(begun, Begun::Busy { .. } | Begun::Blocked) || left.is_zero() {
                return Ok(begun);
            }
            let pause = tokio::time::sleep(pauses.next().unwrap_or_default().min(left));
            let leaves = OptionFuture::from(gone.map(CancellationToken::cancelled));
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(ConsumeError::Stopped),
                Some(()) = leaves => return Ok(begun),
                () = pause => {}
            }
        }
    }

    async fn begin_now(&self, message: &Message) -> Result<Begun> {
        if let Some(until) = self.memory.running(message.key()) {
            return Ok(Begun::Busy { until });
        }
        // Also what a copy that was waited for has finished meanwhile.
        self.record_first(message).await?;
        // After a lost reply the lease may be ours without our holding its token; asking again
        // would only find the message busy.
        (|| self.store.begin(message, &self.terms))
            .retry(a_few_times())
            .when(|error| error.is_retryable() && error.effect() == Effect::None)
            .await
    }

    /// Renews the lease until it is lost; never returns otherwise.
    async fn keep(&self, lease: &Lease, here: &Running) {
        let length = self.terms.length();
        let mut pause = length / 3;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.store.extend_one(lease, length).await {
                Ok(Extended::Until(until)) => {
                    here.renewed(until);
                    length / 3
                }
                Ok(Extended::LeaseLost) => return,
                Err(error) => {
                    tracing::warn!(key = %lease.key, %error, "lease not renewed; trying again");
                    length / 10
                }
            };
        }
    }

    async fn complete<E>(
        &self,
        leased: &Leased,
        result: Option<Bytes>,
    ) -> Result<Consumed, ConsumeError<E>> {
        let lease = &leased.lease;
        let outcome = Outcome::Processed {
            result: result.clone(),
        };
        let settled = self.settle(lease, outcome).await;
        match settled {
            Ok(Settled::Done) => Ok(Consumed::Ran { result }),
            Ok(Settled::LeaseLost) => {
                self.lost(leased);
                Err(ConsumeError::Unrecorded(None))
            }
            Ok(Settled::Refused(invalid)) => {
                self.refused(leased, &invalid);
                let refused = invalid.in_operation("settle");
                Err(ConsumeError::Unrecorded(Some(refused)))
            }
            Err(error) => {
                self.memory.keep(lease, result);
                Err(ConsumeError::Unrecorded(Some(error)))
            }
        }
    }

    /// What was finished here and could not be recorded is, before the store is asked whether it
    /// may run: its lease has run out perhaps, which matters only once another worker has claimed it.
    async fn record_first(&self, message: &Message) -> Result<()> {
        let Some(Unrecorded { lease, result }) = self.memory.unrecorded(message.key()) else {
            return Ok(());
        };
        let settled = self.settle(&lease, Outcome::Processed { result }).await?;
        self.memory.forget(&lease);
        tracing::info!(key = %lease.key, ?settled, "completion recorded late");
        Ok(())
    }

    /// Settles a failed attempt. When even that fails the lease runs out by itself.
    async fn fail<E: fmt::Display>(&self, leased: &Leased, cause: Cause<E>) -> ConsumeError<E> {
        let attempt = leased.attempts.started;
        let error = error_text(&format!("{cause:#}")).into_owned();
        let is_last = attempt >= self.retry.max_attempts();
        let is_recorded = if is_last {
            matches!(self.give_up(leased, error).await, Ok(Settled::Done))
        } else {
            self.put_off(leased, self.retry.delay(attempt), error).await;
            false
        };
        match cause {
            cause if is_recorded => ConsumeError::Dead(cause),
            Cause::Failed(error) => ConsumeError::Handler(error),
            Cause::Panicked(panic) => ConsumeError::Panicked(panic),
        }
    }

    /// Settles a failed attempt as to be made again.
    async fn put_off(&self, leased: &Leased, after: Duration, error: String) {
        let key = &leased.lease.key;
        let outcome = Outcome::Retry {
            after,
            error: error.clone(),
        };
        match self.settle(&leased.lease, outcome).await {
            Ok(Settled::Done) => {
                tracing::info!(target: MESSAGE, %key, %error, ?after, "attempt failed");
                telemetry::count(&key.handler, Count::Retried);
                self.tell(|| Call::AttemptFailed(Box::new(leased.clone()), error, after));
            }
            other => self.not_recorded(leased, &other),
        }
    }

    /// Makes a message dead, and tells of it.
    async fn give_up(&self, leased: &Leased, reason: String) -> Result<Settled> {
        let key = &leased.lease.key;
        let outcome = Outcome::Dead {
            reason: reason.clone(),
            after: self.after_dead,
        };
        let settled = self.settle(&leased.lease, outcome).await;
        if let Ok(Settled::Done) = settled {
            tracing::warn!(target: MESSAGE, %key, %reason, "attempt failed; giving up");
            telemetry::count(&key.handler, Count::Dead);
            self.tell(|| Call::DeadLettered(Box::new(leased.clone()), reason));
        } else {
            self.not_recorded(leased, &settled);
        }
        settled
    }

    /// Takes note of an outcome that the store does not have; the lease runs out by itself.
    fn not_recorded(&self, leased: &Leased, settled: &Result<Settled>) {
        let key = &leased.lease.key;
        match settled {
            Ok(Settled::Done) => {}
            Ok(Settled::LeaseLost) => self.lost(leased),
            Ok(Settled::Refused(invalid)) => self.refused(leased, invalid),
            Err(error) => tracing::warn!(%key, %error, "failed attempt not recorded"),
        }
    }

    /// Takes note of an outcome that the store will not have; the lease runs out by itself.
    fn refused(&self, leased: &Leased, invalid: &Invalid) {
        let key = &leased.lease.key;
        tracing::error!(%key, reason = %invalid, "outcome refused; its lease runs out");
        telemetry::count(&key.handler, Count::Refused);
        self.tell(|| Call::OutcomeRefused(Box::new(leased.clone()), invalid.to_string()));
    }

    fn lost(&self, leased: &Leased) {
        tracing::warn!(key = %leased.lease.key, "lease lost");
        telemetry::count(&leased.lease.key.handler, Count::LeaseLost);
        self.tell(|| Call::LeaseLost(Box::new(leased.clone())));
    }

    /// Calls a hook, if there are any, without keeping the caller waiting.
    fn tell(&self, call: impl FnOnce() -> Call) {
        if let Some(hooks) = self.hooks.clone() {
            let call = call();
            self.spawn(async move { call.tell(&*hooks).await });
        }
    }

    /// A task that [`drain`](Self::drain) waits for.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.under_way.spawn(task)
    }

    /// Takes a message's attempt back: it is not to pay for a shutdown.
    async fn hand_back(&self, leased: &Leased) {
        let key = &leased.lease.key;
        match self.settle(&leased.lease, Outcome::Release).await {
            Ok(_) => {
                tracing::info!(target: MESSAGE, %key, "attempt cut short by the shutdown");
            }
            Err(error) => tracing::warn!(%key, %error, "message not handed back"),
        }
    }

    /// Makes a message dead whose attempts were used up before this one.
    async fn bury<E>(&self, leased: &Leased) -> Result<Consumed, ConsumeError<E>> {
        let reason = self.retry.used_up(leased.attempts);
        match self.give_up(leased, reason.clone()).await {
            Ok(Settled::Done) => Ok(Consumed::Dead { reason }),
            Ok(Settled::LeaseLost) => Err(ConsumeError::LeaseLost),
            Ok(Settled::Refused(invalid)) => {
                Err(ConsumeError::Store(invalid.in_operation("settle")))
            }
            Err(error) => Err(ConsumeError::Store(error)),
        }
    }

    /// Settles, if need be without what the store objects to.
    async fn settle(&self, lease: &Lease, outcome: Outcome) -> Result<Settled> {
        let settled = self.settle_as_is(lease, &outcome).await;
        if let Ok(Settled::Refused(invalid)) = &settled
            && let Some(outcome) = plainer(outcome)
        {
            tracing::warn!(key = %lease.key, reason = %invalid, "result or error text not kept");
            return self.settle_as_is(lease, &outcome).await;
        }
        settled
    }

    /// Settling is idempotent, so a lost reply is a reason to repeat it.
    async fn settle_as_is(&self, lease: &Lease, outcome: &Outcome) -> Result<Settled> {
        (|| self.store.settle_one(lease, outcome.clone()))
            .retry(a_few_times())
            .when(Error::is_retryable)
            .await
    }
}

impl fmt::Debug for InlineConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InlineConsumer")
            .field("terms", &self.terms)
            .field("retry", &self.retry)
            .field("after_dead", &self.after_dead)
            .field("on_duplicate", &self.on_duplicate)
            .field("on_busy", &self.on_busy)
            .finish_non_exhaustive()
    }
}
