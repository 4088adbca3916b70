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
//! # Ok(())
//! # }
//! ```

mod answer;
mod transaction;

use std::{fmt, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBuilder, Retryable as _};
use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::time::Instant;

pub use answer::{ConsumeError, Consumed, HandlerPanic, OnBusy, OnDuplicate};
pub use transaction::consume_in_transaction;

use crate::{
    AfterDead, Begun, Effect, Error, Extended, Lease, LeaseTerms, Leased, Message, Outcome, Result,
    Settled, Store, StoreExt as _,
    backoff::a_few_times,
    patience::{Patient, STORE_TIMEOUT},
    retry::RetryPolicy,
    telemetry,
};

/// Runs handlers in the delivery's own task, once per key. See the [module](crate::inline).
///
/// Cloning is cheap; clones share the store.
#[derive(Clone)]
pub struct InlineConsumer {
    store: Patient,
    terms: LeaseTerms,
    retry: RetryPolicy,
    after_dead: AfterDead,
    on_duplicate: OnDuplicate,
    on_busy: OnBusy,
}

/// How the handler ended, apart from completing.
enum Ended<E> {
    Failed(E),
    Panicked(HandlerPanic),
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
                limit: STORE_TIMEOUT,
            },
            terms,
            retry: RetryPolicy::default(),
            after_dead: AfterDead::default(),
            on_duplicate: OnDuplicate::default(),
            on_busy: OnBusy::Wait(Duration::from_secs(10)),
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

    /// Sets how long one call of the store may take. Default: 60 seconds, twice the
    /// `operation_timeout` of the stores; set both when a store is to take longer. A call that
    /// exceeds it is given up and made again, where that is safe; one that has taken a sixth of it
    /// is warned of.
    #[must_use]
    pub fn store_timeout(mut self, limit: Duration) -> Self {
        self.store.limit = limit;
        self
    }

    /// Runs `handler` with the message, unless it was processed before or cannot run now.
    ///
    /// The handler gets the message as it is stored, which differs from `message` when an
    /// operator has edited it; it returns bytes to keep for later duplicates, or `None`. A result
    /// over the store's limit is returned but not kept, and a warning logged.
    ///
    /// The lease is renewed while the handler awaits; a handler that blocks its thread for longer
    /// than the lease risks being run twice. When somebody else takes the message over
    /// nevertheless, the handler is dropped.
    ///
    /// Dropping the returned future drops the handler wherever it is. The message stays leased
    /// until the lease runs out, and can then be consumed again; the attempt counts as crashed.
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
        let answer = self.begin_and_run(message, handler).await;
        let outcome = answer::name(&answer);
        tracing::debug!(key = %message.key(), outcome, "consumed inline");
        telemetry::consumed(message.handler(), outcome);
        answer
    }

    async fn begin_and_run<F, Fut, E>(
        &self,
        message: &Message,
        handler: F,
    ) -> Result<Consumed, ConsumeError<E>>
    where
        F: FnOnce(Leased) -> Fut,
        Fut: Future<Output = Result<Option<Bytes>, E>>,
        E: fmt::Display,
    {
        let leased = match self.begin(message).await? {
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
        let lease = leased.lease.clone();
        let attempt = leased.attempts.started;
        let running = async move { handler(leased).await };
        let mut running = pin!(AssertUnwindSafe(running).catch_unwind());
        let ended = tokio::select! {
            biased;
            ended = &mut running => ended,
            () = self.keep(&lease) => return Err(ConsumeError::LeaseLost),
        };
        let failure = match ended {
            Ok(Ok(result)) => return self.complete(&lease, result).await,
            Ok(Err(error)) => Ended::Failed(error),
            Err(payload) => Ended::Panicked(HandlerPanic::new(payload)),
        };
        Err(self.fail(&lease, attempt, failure).await)
    }

    /// Asks the store until the answer is final or the patience for busy messages is used up.
    async fn begin<E>(&self, message: &Message) -> Result<Begun, ConsumeError<E>> {
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
        loop {
            // After a lost reply the lease may be ours without our holding its token; asking
            // again would only find the message busy.
            let begun = (|| self.store.begin(message, &self.terms))
                .retry(a_few_times())
                .when(|error| error.is_retryable() && error.effect() == Effect::None)
                .await
                .map_err(ConsumeError::Store)?;
            let left = patience.saturating_sub(began.elapsed());
            if !matches!(begun, Begun::Busy { .. } | Begun::Blocked) || left.is_zero() {
                return Ok(begun);
            }
            tokio::time::sleep(pauses.next().unwrap_or_default().min(left)).await;
        }
    }

    /// Renews the lease until it is lost; never returns otherwise.
    async fn keep(&self, lease: &Lease) {
        let length = self.terms.length();
        let mut pause = length / 3;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.store.extend_one(lease, length).await {
                Ok(Extended::Until(_)) => length / 3,
                Ok(Extended::LeaseLost) => {
                    tracing::warn!(key = %lease.key, "lease lost; the handler is dropped");
                    return;
                }
                Err(error) => {
                    tracing::warn!(key = %lease.key, %error, "lease not renewed; trying again");
                    length / 10
                }
            };
        }
    }

    async fn complete<E>(
        &self,
        lease: &Lease,
        result: Option<Bytes>,
    ) -> Result<Consumed, ConsumeError<E>> {
        let outcome = Outcome::Processed {
            result: result.clone(),
        };
        let mut settled = self.settle(lease, outcome).await;
        if let Ok(Settled::Refused(invalid)) = &settled {
            tracing::warn!(key = %lease.key, reason = %invalid, "result not kept for duplicates");
            settled = self
                .settle(lease, Outcome::Processed { result: None })
                .await;
        }
        match settled {
            Ok(Settled::Done) => Ok(Consumed::Ran { result }),
            Ok(Settled::LeaseLost | Settled::Refused(_)) => Err(ConsumeError::Unrecorded(None)),
            Err(error) => Err(ConsumeError::Unrecorded(Some(error))),
        }
    }

    /// Settles a failed attempt. When even that fails the lease runs out by itself.
    async fn fail<E: fmt::Display>(
        &self,
        lease: &Lease,
        attempt: u32,
        ended: Ended<E>,
    ) -> ConsumeError<E> {
        let text = match &ended {
            // The alternate form lets errors such as anyhow's add their causes.
            Ended::Failed(error) => format!("{error:#}"),
            Ended::Panicked(panic) => panic.to_string(),
        };
        let outcome = if attempt >= self.retry.max_attempts() {
            Outcome::Dead {
                reason: text,
                after: self.after_dead,
            }
        } else {
            Outcome::Retry {
                after: self.retry.delay(attempt),
                error: text,
            }
        };
        match self.settle(lease, outcome).await {
            Ok(Settled::Done) => {}
            Ok(Settled::LeaseLost | Settled::Refused(_)) => {
                tracing::warn!(key = %lease.key, "failed attempt not recorded: lease lost");
            }
            Err(error) => {
                tracing::warn!(key = %lease.key, %error, "failed attempt not recorded");
            }
        }
        match ended {
            Ended::Failed(error) => ConsumeError::Handler(error),
            Ended::Panicked(panic) => ConsumeError::Panicked(panic),
        }
    }

    /// Makes a message dead whose attempts are used up without one of them having ended.
    async fn bury<E>(&self, leased: &Leased) -> Result<Consumed, ConsumeError<E>> {
        let crashed = leased.attempts.crashed(true);
        let reason = format!("gave up: {crashed} attempts began and never ended");
        let outcome = Outcome::Dead {
            reason: reason.clone(),
            after: self.after_dead,
        };
        match self.settle(&leased.lease, outcome).await {
            Ok(Settled::Done) => Ok(Consumed::Dead { reason }),
            Ok(Settled::LeaseLost | Settled::Refused(_)) => Err(ConsumeError::LeaseLost),
            Err(error) => Err(ConsumeError::Store(error)),
        }
    }

    /// Settling is idempotent, so a lost reply is a reason to repeat it.
    async fn settle(&self, lease: &Lease, outcome: Outcome) -> Result<Settled> {
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
