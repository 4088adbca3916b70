//! What handlers are given and what they answer.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Config, Failure, batch::Answer};
use crate::{
    Attempts, FencingToken, Leased, Message,
    patience::{Patience, STORE_TIMEOUT},
};

/// Works on one message.
///
/// The inbox sees to it that a message is worked on until its handler has completed, by one
/// worker at a time. It cannot make a crash between an effect and its record impossible: a handler
/// whose effects are in another system should be idempotent there (by the message's key or the
/// fencing token), or do its writes in the store's own transaction
/// ([`in_transaction`](crate::in_transaction)).
///
/// Functions and closures `Fn(Context) -> impl Future<Output = Result<C, E>>` are handlers too, where
/// `C` turns into a [`Completion`] (`()`, bytes) and `E` into a [`Failure`], as every error does. A
/// closure whose error cannot be inferred says it at its end: `Ok::<_, Failure>(())`.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Works on the message.
    ///
    /// The future must not block its thread: work that does not await belongs into
    /// [`spawn_blocking`](tokio::task::spawn_blocking). A thread that is blocked runs no other
    /// handler and renews no lease, and neither a time-out nor a cancellation reaches it.
    ///
    /// A panic, and a time-out if the processor has one, count as [`Failure::retry`]. The future
    /// is dropped at the time-out, or after it if the handler of [`in_transaction`](crate::in_transaction) had answered
    /// and its transaction was still to end, and a second after the lease was lost or the drain limit is
    /// over. When [`Context::cancellation`] fires because the lease could not be renewed, it is not
    /// dropped: perhaps nobody else takes the message, and what is finished counts.
    ///
    /// # Errors
    /// [`Failure`]: what is to happen to the message now. Any error turns into one by `?`.
    async fn handle(&self, context: &Context) -> Result<Completion, Failure>;
}

#[async_trait]
impl<F, Fut, C, E> Handler for F
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send + 'static,
    C: Into<Completion>,
    E: Into<Failure>,
{
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        let ended = self(context.clone()).await;
        ended.map(Into::into).map_err(Into::into)
    }
}

#[async_trait]
impl<H: Handler + ?Sized> Handler for Arc<H> {
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        (**self).handle(context).await
    }
}

/// A message under its lease, as a handler sees it. Cloning is cheap (a reference count).
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    leased: Leased,
    /// Made for those who ask for it: few handlers do.
    cancellation: OnceLock<CancellationToken>,
    /// Who else is to know of a cancellation: the batch that it is in.
    batch_told: OnceLock<Arc<Notify>>,
    /// What counts for the message, whatever becomes of its batch.
    answer: OnceLock<Answer>,
    /// Its batch runs, and is known not to have come to it.
    is_untouched: AtomicBool,
    hold: AtomicU8,
    /// Its handler has answered, and the transaction is being committed or rolled back.
    is_ending: AtomicBool,
    /// How many commits that settle it as processed were left of which it is not known whether they have taken place.
    doubts: AtomicU32,
    is_cut_short: AtomicBool,
    patience: Patience,
}

/// What decides whether a handler's work counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Hold {
    /// Its lease: when that has run out, others may be at it.
    Lease,
    /// Its transaction: committing it settles the message, or finds the lease lost.
    Transaction,
    /// The same, and the transaction is open and keeps everybody else from claiming.
    ExclusiveTransaction,
    /// Its commit, under way or without an answer: the lease may have ended with it.
    Commit,
    /// It has been settled by its committed transaction. There is no lease any more.
    Settled,
}

impl Context {
    /// Puts a context together. Processors do this; tests of handlers may.
    #[must_use]
    pub fn new(leased: Leased, cancellation: CancellationToken) -> Self {
        Self::with(leased, cancellation.into(), Patience::new(STORE_TIMEOUT))
    }

    fn with(leased: Leased, cancellation: OnceLock<CancellationToken>, patience: Patience) -> Self {
        Self(Arc::new(Inner {
            leased,
            cancellation,
            batch_told: OnceLock::new(),
            answer: OnceLock::new(),
            is_untouched: AtomicBool::new(false),
            hold: AtomicU8::new(Hold::Lease as u8),
            is_ending: AtomicBool::new(false),
            doubts: AtomicU32::new(0),
            is_cut_short: AtomicBool::new(false),
            patience,
        }))
    }

    /// The context of a message that a processor of these settings has claimed.
    pub(super) fn claimed(leased: Leased, config: &Config) -> Self {
        Self::with(leased, OnceLock::new(), config.store.patience.clone())
    }

    /// How long one call of the store may take.
    pub(super) fn patience(&self) -> &Patience {
        &self.0.patience
    }

    /// Cancels for a reason that is no fault of the message's: the processor has been asked to
    /// stop, or the store did not renew the lease.
    pub(super) fn cut_short(&self) {
        // What has ended before has not done so for that reason.
        if self.0.answer.get().is_none() {
            self.0.is_cut_short.store(true, Ordering::Release);
        }
        self.cancel();
    }

    /// Tells the handler to stop.
    pub(super) fn cancel(&self) {
        self.cancellation().cancel();
        if let Some(told) = self.0.batch_told.get() {
            told.notify_waiters();
        }
    }

    /// From now on the batch of this signal is told of a cancellation; the first one counts.
    pub(super) fn join(&self, told: &Arc<Notify>) {
        let _ = self.0.batch_told.set(told.clone());
    }

    pub(super) fn batch_told(&self) -> Option<Arc<Notify>> {
        self.0.batch_told.get().cloned()
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Says how the message ended while its batch goes on; the first answer counts.
    pub(super) fn answer(&self, answer: Answer) {
        let _ = self.0.answer.set(answer);
    }

    /// Says whether its handler has still to begin: its batch has not come to it, or its transaction is not open.
    pub(super) fn set_untouched(&self, is_untouched: bool) {
        self.0.is_untouched.store(is_untouched, Ordering::Release);
    }

    pub(super) fn is_untouched(&self) -> bool {
        self.0.is_untouched.load(Ordering::Acquire)
    }

    pub(super) fn answered(&self) -> Option<Answer> {
        self.0.answer.get().cloned()
    }

    pub(super) fn is_cut_short(&self) -> bool {
        self.0.is_cut_short.load(Ordering::Acquire)
    }

    /// Ignored once the message is settled.
    pub(super) fn set_hold(&self, hold: Hold) {
        let change = |held| (held != Hold::Settled as u8).then_some(hold as u8);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.0.hold.fetch_update(order.0, order.1, change);
    }

    pub(super) fn is_held_by(&self, hold: Hold) -> bool {
        self.0.hold.load(Ordering::Acquire) == hold as u8
    }

    pub(super) fn set_ending(&self, is_ending: bool) {
        self.0.is_ending.store(is_ending, Ordering::Release);
    }

    pub(super) fn is_ending(&self) -> bool {
        self.0.is_ending.load(Ordering::Acquire)
    }

    /// Says that a transaction may have settled the message as processed, and that nothing here knows.
    pub(super) fn doubt(&self) {
        self.0.doubts.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn doubts(&self) -> u32 {
        self.0.doubts.load(Ordering::Acquire)
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubts() > 0 && !self.is_held_by(Hold::Settled)
    }

    /// Says that the handler's own transaction, in which the message was
    /// [settled](crate::Transactional::settle_in) as processed, has committed. For handlers that go
    /// on after that and do not use [`in_transaction`](crate::in_transaction), which says so itself.
    ///
    /// From now on there is no lease: it is neither renewed nor lost, so the handler is not told to
    /// stop for its sake, and the message counts as processed however the handler ends.
    pub fn mark_settled(&self) {
        self.set_hold(Hold::Settled);
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.0.leased.message
    }

    /// The message with its lease.
    #[must_use]
    pub fn leased(&self) -> &Leased {
        &self.0.leased
    }

    /// Attempts so far, this one included.
    #[must_use]
    pub fn attempts(&self) -> Attempts {
        self.0.leased.attempts
    }

    /// A number that is greater than in every earlier run of this message: systems that remember
    /// the greatest they have seen can refuse a worker that has been overtaken.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.0.leased.lease.token
    }

    /// Fires when the handler should stop: its lease is lost or has run out without having been
    /// renewed, or the processor's drain limit is over. A handler whose lease is lost, or that
    /// outlives the drain limit, is dropped a second later. After the drain limit, and when the store
    /// did not renew the lease, the message is not to pay: a [`Failure::retry`], a panic, a time-out
    /// and being dropped cost it no attempt then. (A lease that ran out because handlers blocked
    /// their threads is no such reason.)
    ///
    /// In [`in_transaction`](crate::in_transaction) it does not fire for a lease that has run out:
    /// there the commit finds out whether another worker has taken the message.
    #[must_use]
    pub fn cancellation(&self) -> &CancellationToken {
        self.0.cancellation.get_or_init(CancellationToken::new)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        let token = self.0.cancellation.get();
        token.is_some_and(CancellationToken::is_cancelled)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("leased", &self.0.leased)
            .field("cancelled", &self.is_cancelled())
            .finish()
    }
}

/// A handler's success.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Completion(Completed);

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Completed {
    /// To be settled by the processor.
    Here { result: Option<Bytes> },
    /// Settled in a transaction that has committed.
    Already,
}

impl Default for Completed {
    fn default() -> Self {
        Self::Here { result: None }
    }
}

impl Completion {
    /// Completed, with bytes that the store keeps for those who begin the key again. A result
    /// over the store's payload limit is left out, with a warning: the work is done all the same.
    #[must_use]
    pub fn with_result(result: impl Into<Bytes>) -> Self {
        Self(Completed::Here {
            result: Some(result.into()),
        })
    }

    /// Completed, and the lease has been settled durably in the handler's own transaction
    /// ([`Transactional::settle_in`](crate::Transactional::settle_in), then commit); the processor
    /// is not to settle it again. [`in_transaction`](crate::in_transaction) does all this. A handler
    /// that goes on after the commit should [say so](Context::mark_settled) at once: its lease has
    /// ended, so that it is told to stop otherwise.
    #[must_use]
    pub fn already_settled() -> Self {
        Self(Completed::Already)
    }

    pub(crate) fn into_result(self) -> Option<Bytes> {
        match self.0 {
            Completed::Here { result } => result,
            Completed::Already => None,
        }
    }

    pub(super) fn into_inner(self) -> Completed {
        self.0
    }
}

impl From<()> for Completion {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<Bytes> for Completion {
    fn from(result: Bytes) -> Self {
        Self::with_result(result)
    }
}

impl From<Vec<u8>> for Completion {
    fn from(result: Vec<u8>) -> Self {
        Self::with_result(result)
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Completed::Here { result } => f
                .debug_struct("Completion")
                .field("result_bytes", &result.as_ref().map(Bytes::len))
                .finish(),
            Completed::Already => f.write_str("Completion(already settled)"),
        }
    }
}
