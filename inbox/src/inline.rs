//! The inline consumer: runs a handler in the delivery's own task, once per key.
//!
//! [`InlineConsumer::consume`] asks the store whether this message's handler may run now, runs it
//! under a lease that is renewed for as long as it takes, and settles the outcome. A second copy
//! of the message, at the same time or years later, gets an answer instead of a second run. Of one
//! message, one copy at a time asks the store. The other copies at this consumer wait for the answer: for five
//! seconds, or for as long as they wait for a busy message if that is longer. Then the store counts as unavailable.
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
//!
//! # The same key with other content
//! A duplicate is known by its key alone: other content under a processed key is answered as any copy is.
//! Where a sender may use a key twice, compare fingerprints; the first copy's stays with the key, also when
//! its payload is dropped or edited. That costs a read for each duplicate, and none for what runs.
//!
//! ```
//! use inbox::inline::{Consumed, InlineConsumer};
//! use inbox::{Bytes, HandlerName, Kind, LeaseTerms, Message, MessageId, WorkerName};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let inbox = inbox::connect("memory://").await?;
//! # inbox.create().await?;
//! # let terms = LeaseTerms::new(std::time::Duration::from_secs(30), WorkerName::new("web-1")?)?;
//! # let consumer = InlineConsumer::new(inbox.clone(), terms);
//! let message = |payload: &'static str| -> Result<Message, inbox::Invalid> {
//!     let kind = Kind::new("order.placed")?;
//!     Ok(Message::new(HandlerName::new("payments")?, MessageId::new("evt-1")?, kind, payload))
//! };
//! let charge = async |_| Ok::<_, std::io::Error>(None::<Bytes>);
//! let mut differing = Vec::new();
//! for message in [message("7 euros")?, message("7 euros")?, message("9 euros")?] {
//!     if let Consumed::Duplicate { .. } = consumer.consume(&message, charge).await? {
//!         let first = inbox.get(&message.key()).await?;
//!         differing.push(first.is_some_and(|first| first.fingerprint != message.fingerprint()));
//!     }
//! }
//! assert_eq!(differing, [false, true]);
//! # Ok(())
//! # }
//! ```

mod answer;
mod begin;
mod drain;
mod failing;
mod memory;
mod outage;
mod transaction;

use std::{fmt, future::pending, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use backon::Retryable as _;
use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

pub use answer::{Cause, ConsumeError, Consumed, HandlerPanic, OnBusy, OnDuplicate};
pub use transaction::{consume_in_transaction, consume_in_transaction_within};

use drain::UnderWay;
use memory::{Memory, Running};
use outage::Outage;

use crate::{
    AfterDead, Begun, Extended, Failure, Hooks, Lease, LeaseTerms, Leased, Message, Outcome,
    Remedy, Result, Settled, Store, StoreExt as _,
    backoff::a_few_times,
    expiry::expiry_reason,
    hooks::Call,
    patience::{Patience, Patient, SHORTEST, STORE_TIMEOUT},
    processor::{Rule, Ruling},
    refusal::plainer,
    retry::RetryPolicy,
};

/// For how long a call of the store is repeated. A call may itself wait for a store that is away, and who called
/// waits for all of them.
const REPEATED_FOR: Duration = Duration::from_secs(5);

/// How many messages are begun at a time. More than a store's connections are busy with; but what is to be settled must
/// not wait behind thousands that are to be begun, until it cannot be recorded and their leases have run out.
const BEGINS: usize = 128;

/// Who settles a message that was handled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settler {
    Consumer,
    Handler,
}

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
    gone: Option<CancellationToken>,
    rules: Vec<Arc<Rule>>,
    hooks: Option<Arc<dyn Hooks>>,
    memory: Memory,
    begins: Arc<Semaphore>,
    under_way: UnderWay,
    outage: Outage,
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
            gone: None,
            rules: Vec::new(),
            hooks: None,
            memory: Memory::default(),
            begins: Arc::new(Semaphore::new(BEGINS)),
            under_way: UnderWay::default(),
            outage: Outage::default(),
        }
    }

    /// Sets how often and when a failed message is tried again. When its attempts are used up it
    /// is dead; attempts that crashed their worker count.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Decides what happens to messages whose handler has failed with an error of type `E`, by itself
    /// or as the [source](std::error::Error::source) of another, at any depth. Without any such rule
    /// they are tried again.
    ///
    /// The rule added first goes first. What a handler [decides](Failure) by itself stands. There is
    /// no router to [pause](crate::Remedy::Pause): the message alone is put off.
    ///
    /// ```
    /// use inbox::{Failure, InlineConsumer, LeaseTerms, Remedy, inline::ConsumeError};
    /// # use inbox::{Bytes, HandlerName, Kind, Message, MessageId, WorkerName};
    ///
    /// #[derive(Debug, thiserror::Error)]
    /// #[error("the card was declined")]
    /// struct Declined;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let inbox = inbox::connect("memory://").await?;
    /// # let terms = LeaseTerms::new(std::time::Duration::from_secs(30), WorkerName::new("w")?)?;
    /// # let message = Message::new(
    /// #     HandlerName::new("payments")?, MessageId::new("evt-1")?, Kind::new("order.placed")?, "",
    /// # );
    /// let consumer = InlineConsumer::new(inbox, terms).classify(|_: &Declined| Remedy::Dead);
    /// let charge = async |_| Err::<Option<Bytes>, _>(Declined);
    /// let answer = consumer.consume(&message, charge).await;
    /// assert!(matches!(answer, Err(ConsumeError::Dead(_))));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn classify<E: std::error::Error + 'static>(
        mut self,
        decide: impl Fn(&E) -> Remedy + Send + Sync + 'static,
    ) -> Self {
        self.rules.push(Arc::new(Ruling::classify(decide)));
        self
    }

    /// Tries messages again by this policy whose handler has failed with an error of type `E`: a
    /// [rule](Self::classify) like others. The policy counts all of a message's attempts, and allows no more of them
    /// than the [consumer's](Self::retry).
    #[must_use]
    pub fn retry_on<E: std::error::Error + 'static>(mut self, policy: RetryPolicy) -> Self {
        self.rules.push(Arc::new(Ruling::retry::<E>(policy)));
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

    /// Sets what is cancelled when the caller has gone: then a busy message is not waited for any longer,
    /// and counts as busy. A handler that has begun goes on.
    ///
    /// For callers who may leave, each with a token and a clone of the consumer.
    /// [`InboxLayer`](crate::InboxLayer) sets its own.
    #[must_use]
    pub fn caller_gone(mut self, gone: CancellationToken) -> Self {
        self.gone = Some(gone);
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
    /// exceeds it is given up. One that failed for the moment is made again, where that is safe, a few times until
    /// five seconds have passed since the first, and a settlement once in any case. One that has taken a sixth of it,
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
    /// Its error may be of any type, as that of a processor's [`Handler`](crate::Handler): the type's
    /// name and all sources are kept with the message, and [`classify`](Self::classify) or a
    /// [`Failure`] that it returns says what happens now.
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
    /// last attempt, unless its [`Failure`] or [`classify`](Self::classify) says otherwise), a busy
    /// message, or a failing store.
    pub async fn consume<F, Fut, E>(
        &self,
        message: &Message,
        handler: F,
    ) -> Result<Consumed, ConsumeError>
    where
        F: FnOnce(Leased) -> Fut,
        Fut: Future<Output = Result<Option<Bytes>, E>>,
        E: Into<Failure> + 'static,
    {
        let handler = |leased| async { handler(leased).await.map_err(Into::into) };
        self.consume_with(message, handler, Failure::clone).await
    }

    /// [`consume`](Self::consume) for errors that the caller needs back as they are, of any type:
    /// `describe` says what to keep of one with the message, and what is to happen.
    ///
    /// # Errors
    /// As [`consume`](Self::consume).
    pub async fn consume_with<F, Fut, E>(
        &self,
        message: &Message,
        handler: F,
        describe: impl FnOnce(&E) -> Failure,
    ) -> Result<Consumed, ConsumeError<E>>
    where
        F: FnOnce(Leased) -> Fut,
        Fut: Future<Output = Result<Option<Bytes>, E>>,
    {
        let settler = Settler::Consumer;
        self.consume_for(message, settler, handler, describe).await
    }

    /// [`consume_with`](Self::consume_with) for a handler that settles its message by itself, as with
    /// [`settle_in`](crate::Transactional::settle_in) in its own transaction: when it returns `Ok`, it has,
    /// as [processed](Outcome::Processed), and the store is not asked once more.
    ///
    /// A handler that returns `Ok` and has not settled leaves the message leased until its lease runs out;
    /// then it runs again.
    ///
    /// It is never dropped because of its lease, which its own settlement ends, too. When another worker takes the
    /// message over, the lease is not renewed any more, and the settlement of this one is refused: it has to return an
    /// error then, and the answer is [`ConsumeError::LeaseLost`].
    ///
    /// A handler may fail and have settled without knowing it, as when the answer to its commit is lost. The store is
    /// asked once more then, and the message is told neither as dead nor as failed: it is answered as a
    /// [duplicate](Self::on_duplicate). So it is at the last attempt, if the failure is [for good](Remedy::Dead), after
    /// a panic, and where the failure is an [`Error`](crate::Error) with [`Effect::Unknown`](crate::Effect::Unknown), or
    /// has one among its [sources](std::error::Error::source): let `describe` keep the error of
    /// [`commit`](crate::Transactional::commit). Any other failure counts as one of a handler that has not settled. If
    /// it has, the failure is told all the same, and the next delivery is answered as a duplicate.
    ///
    /// # Errors
    /// As [`consume`](Self::consume), but for [`ConsumeError::Unrecorded`].
    pub async fn consume_settling<F, Fut, E>(
        &self,
        message: &Message,
        handler: F,
        describe: impl FnOnce(&E) -> Failure,
    ) -> Result<Consumed, ConsumeError<E>>
    where
        F: FnOnce(Leased) -> Fut,
        Fut: Future<Output = Result<Option<Bytes>, E>>,
    {
        let settler = Settler::Handler;
        self.consume_for(message, settler, handler, describe).await
    }

    async fn consume_for<F, Fut, E>(
        &self,
        message: &Message,
        settler: Settler,
        handler: F,
        describe: impl FnOnce(&E) -> Failure,
    ) -> Result<Consumed, ConsumeError<E>>
    where
        F: FnOnce(Leased) -> Fut,
        Fut: Future<Output = Result<Option<Bytes>, E>>,
    {
        let answer = self.begin_and_run(message, settler, handler, describe);
        let answer = answer.await;
        answer::tell(message, &answer);
        answer
    }

    async fn begin_and_run<F, Fut, E>(
        &self,
        message: &Message,
        settler: Settler,
        handler: F,
        describe: impl FnOnce(&E) -> Failure,
    ) -> Result<Consumed, ConsumeError<E>>
    where
        F: FnOnce(Leased) -> Fut,
        Fut: Future<Output = Result<Option<Bytes>, E>>,
    {
        let _under_way = self.under_way.begin();
        let begun = self.begin(message).await;
        if let Err(ConsumeError::Store(error)) = &begun {
            self.outage.met(error);
        }
        let (begun, renewed, turn) = begun?;
        let leased = match begun {
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
            let reason = self.retry.used_up(leased.attempts);
            return self.bury(&leased, reason, self.after_dead).await;
        }
        if let Some(reason) = expiry_reason(&leased, self.terms.length()) {
            // Nobody is to wait for what is worth nothing.
            return self.bury(&leased, reason, AfterDead::Continue).await;
        }
        let held = leased.clone();
        let here = self.memory.run(&held.lease);
        drop(turn);
        let running = async move { handler(leased).await };
        let running = AssertUnwindSafe(running).catch_unwind();
        let keeping = async {
            self.keep(&held.lease, renewed, &here).await;
            if settler == Settler::Handler {
                // By its own settlement perhaps, behind which it goes on. If not, that is refused.
                pending::<()>().await;
            }
        };
        // The handler is gone when this has answered, also if it did not come to its end.
        let ended = tokio::select! {
            biased;
            ended = running => Some(ended),
            () = keeping => {
                self.lost(&held);
                return Err(ConsumeError::LeaseLost);
            }
            () = self.under_way.stop().cancelled() => None,
        };
        match ended {
            Some(Ok(Ok(result))) => match settler {
                Settler::Consumer => self.complete(&held, result).await,
                Settler::Handler => Ok(Consumed::Ran { result }),
            },
            Some(Ok(Err(error))) => {
                let failure = describe(&error);
                self.fail(&held, settler, error, failure).await
            }
            Some(Err(payload)) => {
                let panic = HandlerPanic::new(payload);
                self.panicked(&held, settler, panic).await
            }
            None => Err(self.hand_back(&held).await),
        }
    }

    /// Renews the lease until it is lost; never returns otherwise. It was granted or renewed after `renewed`.
    async fn keep(&self, lease: &Lease, renewed: Instant, here: &Running) {
        let length = self.terms.length();
        let mut next = renewed + length / 3;
        loop {
            sleep_until(next).await;
            let asked = Instant::now();
            next = match self.store.extend_one(lease, length).await {
                Ok(Extended::Until(until)) => {
                    self.outage.over();
                    here.renewed(until);
                    asked + length / 3
                }
                Ok(Extended::LeaseLost) => return,
                Err(error) => {
                    let what = "lease not renewed; trying again";
                    self.outage.not_done(&lease.key, &error, what);
                    Instant::now() + length / 10
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
                self.outage.met(&error);
                self.memory.keep(lease, result);
                Err(ConsumeError::Unrecorded(Some(error)))
            }
        }
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

    /// Settles, if need be without what the store objects to.
    async fn settle(&self, lease: &Lease, outcome: Outcome) -> Result<Settled> {
        let settled = self.settle_as_is(lease, &outcome).await;
        if let Ok(Settled::Refused(invalid)) = &settled
            && let Some(outcome) = plainer(outcome)
        {
            tracing::warn!(key = %lease.key, reason = %invalid, "result or error text not kept");
            return self.settle_as_is(lease, &outcome).await;
        }
        if settled.is_ok() {
            self.outage.over();
        }
        settled
    }

    /// Settling is idempotent, so a lost reply is a reason to repeat it.
    async fn settle_as_is(&self, lease: &Lease, outcome: &Outcome) -> Result<Settled> {
        let called = Instant::now();
        // Once in any case: what met a connection that has gone silent may have another one then.
        let mut is_repeated = false;
        (|| self.store.settle_one(lease, outcome.clone()))
            .retry(a_few_times())
            .when(|error| {
                let is_first = !std::mem::replace(&mut is_repeated, true);
                error.is_retryable() && (is_first || called.elapsed() < REPEATED_FOR)
            })
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
