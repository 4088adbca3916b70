//! The working side of a store: receive, claim, settle, extend, begin.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    Capabilities, HandlerName, Invalid, Lease, LeaseTerms, Leased, Message, Result, WorkerName,
};

/// The longest error text that stores keep, in bytes.
pub const MAX_ERROR_BYTES: usize = 4096;

/// An error text as stores keep it: without NUL, cut to [`MAX_ERROR_BYTES`] at a character
/// boundary.
#[must_use]
pub fn error_text(text: &str) -> Cow<'_, str> {
    cut_text(text, MAX_ERROR_BYTES)
}

/// Without NUL, which PostgreSQL takes in no text, and of at most `limit` bytes.
pub(crate) fn cut_text(text: &str, limit: usize) -> Cow<'_, str> {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let cut = text.get(..end).unwrap_or_default();
    if cut.contains('\0') {
        cut.replace('\0', " ").into()
    } else {
        cut.into()
    }
}

/// The result of receiving one message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Receipt {
    /// This call stored it, the first copy of its key.
    Accepted,
    /// Its key is already known, from an earlier call or from earlier in the batch. Nothing was
    /// changed; the first copy stands.
    Duplicate {
        /// Whether its [fingerprint](Message::fingerprint) is another than the one with which the key was
        /// accepted: the sender has used the key for something else. Edits, replays and dropped payloads
        /// do not count, as the fingerprint stays with the key.
        differs: bool,
    },
    /// It breaks a rule of this store and was not stored, whether its key is known or not. The rest of
    /// its batch went through.
    Refused(Invalid),
}

/// Asks [`Store::claim`] for due messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// For which handlers. None means no messages.
    pub handlers: Vec<HandlerName>,
    /// The most messages to take.
    pub limit: u32,
    /// The most messages of one ordering key among them. 1 or less: one at a time, as every worker can take
    /// them. More: [runs](Store::claim), which bind the worker to their order.
    pub run_limit: u32,
    /// For how long, and for whom.
    pub terms: LeaseTerms,
}

/// A row that does not read back as what was written, and was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptRow {
    /// The row, in terms that help to find it with the database's own tools.
    pub place: String,
    /// What is wrong with it. Never contains the payload.
    pub reason: String,
}

/// The result of [`Store::claim`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "claimed messages stay leased until they are settled"]
pub struct Claims {
    /// The messages, each under its own lease, roughly in order of their due times; those of a
    /// [run](Store::claim) stand together, in their order.
    pub leased: Vec<Leased>,
    /// Due rows that could not be read. The store has made each of them dead, as
    /// [`AfterDead::Continue`]; they are reported once. Until then such a row holds its ordering
    /// key up like any other.
    pub corrupt: Vec<CorruptRow>,
}

/// Whether later messages of the same ordering key may pass a dead one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AfterDead {
    /// The next message of the ordering key is handed out.
    #[default]
    Continue,
    /// The ordering key is blocked until the dead message is replayed or discarded.
    Block,
}

/// How an attempt ended.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The handler completed. `result`, if any, is kept for callers that begin the key again.
    Processed {
        /// Bytes to keep, up to the store's payload limit.
        result: Option<Bytes>,
    },
    /// Try again, no sooner than `after` from now by the store's clock.
    Retry {
        /// How long to wait.
        after: Duration,
        /// Why, kept as the message's last error (see [`error_text`]).
        error: String,
    },
    /// Never try again by itself.
    Dead {
        /// Why, kept as the message's last error (see [`error_text`]).
        reason: String,
        /// What happens to later messages of its ordering key.
        after: AfterDead,
    },
    /// Hand it back untouched: its due time stays, so it is due at once, and the attempt is not
    /// counted.
    Release,
    /// Not now: due again `after` from now by the store's clock, and the attempt is not counted.
    /// For what is no fault of the message's: an outage downstream, a handler that this worker does
    /// not have.
    Defer {
        /// How long to wait.
        after: Duration,
        /// Why, kept as the message's last error (see [`error_text`]); `None` leaves the last error
        /// as it is.
        error: Option<String>,
    },
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Processed { result } => f
                .debug_struct("Processed")
                .field("result_bytes", &result.as_ref().map(Bytes::len))
                .finish(),
            Self::Retry { after, error } => f
                .debug_struct("Retry")
                .field("after", after)
                .field("error", error)
                .finish(),
            Self::Dead { reason, after } => f
                .debug_struct("Dead")
                .field("reason", reason)
                .field("after", after)
                .finish(),
            Self::Release => f.write_str("Release"),
            Self::Defer { after, error } => f
                .debug_struct("Defer")
                .field("after", after)
                .field("error", error)
                .finish(),
        }
    }
}

/// A lease and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The lease, as it was claimed.
    pub lease: Lease,
    /// How the attempt ended.
    pub outcome: Outcome,
}

/// The result of one settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// It is durable. Also the answer to a repetition: the lease was settled before and nobody
    /// has claimed the message since, though an operator may have replayed or discarded it; nothing
    /// was changed then.
    Done,
    /// The token is stale: another worker has claimed the message since, or it is gone. Nothing
    /// was changed.
    LeaseLost,
    /// The outcome breaks a rule of this store (a result over the limit), whatever the token: that
    /// is judged afterwards. Nothing was changed; a lease that stood still stands.
    Refused(Invalid),
}

/// The result of one extension.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Extended {
    /// The lease now runs until then, by the store's clock.
    Until(SystemTime),
    /// The token is stale or the lease is settled. Nothing was changed.
    LeaseLost,
}

/// The answer to *may I run this message's handler now?*
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Begun {
    /// Yes, under this lease. Settle it afterwards.
    Run(Box<Leased>),
    /// No: it was processed; here is the result that was kept.
    Processed {
        /// What the handler's first run stored, if anything.
        result: Option<Bytes>,
    },
    /// No: another worker holds it, or it waits for its due time (a first one, a retry's or a
    /// deferral's), be it behind another of its ordering key or not.
    Busy {
        /// No sooner than this, by the store's clock.
        until: SystemTime,
    },
    /// No: it is due, and another message of its ordering key has the turn.
    Blocked,
    /// No: it is dead.
    Dead {
        /// Why.
        reason: String,
    },
    /// No: an operator discarded it.
    Discarded,
}

/// A wake-up signal, from [`Store::subscribe`].
#[async_trait]
pub trait Subscription: Send {
    /// Waits until work may have become due since the subscription began or since the last time
    /// this returned. May return without cause; may miss a cause, so callers MUST poll as well.
    ///
    /// Cancel-safe: dropping the future loses no signal. Never fails: a broken connection is
    /// mended behind the scenes, and after the mending it returns once.
    async fn woken(&mut self);
}

/// Where messages are kept: the operations that receivers, processors and inline consumers use.
///
/// Object-safe; use it as `Arc<dyn Store>`. Wrappers implement it too and pass the same suite.
///
/// # Rules for implementors
/// - Every operation MUST be atomic for each message, and durable (as
///   [`Capabilities::durability`] says) before it returns `Ok`.
/// - Every operation MUST be one round trip for the whole batch, or the fewest that the database
///   allows, and MUST NOT cost more with the backlog or with the history.
/// - Time MUST be the store's: the server's clock, or [`Clock`](crate::Clock) where there is no
///   server. Never the caller's.
/// - A future of any operation may be dropped at any await point. The operation may then have
///   happened or not, but nothing may be left half-done, and no connection may be left with an
///   open transaction.
/// - Answers come in the order of the input, one per element. An empty input is answered
///   without I/O.
/// - Every error MUST name its method ([`Error::in_operation`](crate::Error::in_operation)).
/// - A unique violation MUST NOT surface as an error, nor an outage as a duplicate.
/// - Every call MUST end: a store that talks to a server has a time limit for each operation
///   (`operation_timeout`), waiting for a connection included. Past it the operation fails as
///   `Unavailable`, its connection is given up, and the next call uses another one.
/// - A lease MUST be measured from the moment at which it is handed out, not from before a wait
///   for a lock.
///
/// # Errors
/// All operations fail as a whole with [`Error`](crate::Error): `Unavailable` or `Conflict`
/// (repeat), `SchemaMissing` or `SchemaVersion` (set up), `Denied`, `Other`. After an error the
/// outcome may be unknown ([`Effect`](crate::Effect)); repeating is always safe. A problem of a
/// single message is that message's answer and never an error of its batch, but for an ordering key
/// where there is no ordering.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What this store can do. Constant for the life of the value.
    fn capabilities(&self) -> Capabilities;

    /// Stores each message whose key is not known yet.
    ///
    /// Over any number of concurrent and repeated receives of one key, at most one answers
    /// [`Receipt::Accepted`]. After `Ok`, each message that was not refused is stored and will be
    /// worked on until it is final. Within a batch the first copy of a key wins. Messages are
    /// accepted in the order of the batch, which is the order that ordering keys keep. A duplicate is
    /// compared with the first copy by [fingerprint](Message::fingerprint), also within the batch.
    ///
    /// Implementors MUST keep the fingerprint of what is accepted, by whatever operation, and SHOULD read
    /// those that are kept only when there are duplicates. They MUST decide by the unique key in one atomic statement, not by looking first;
    /// MUST check sizes before any I/O; MUST store at least what
    /// [`Capabilities::receive_atomicity`] says together or not at all.
    ///
    /// # Errors
    /// Also [`Unsupported`](crate::ErrorKind::Unsupported), for the whole batch and before anything of
    /// it is stored, when any message has an ordering key and [`Capabilities::ordering`] is false.
    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>>;

    /// Takes up to `request.limit` due messages, oldest due first, each under a new lease, and
    /// counts an attempt as started for each.
    ///
    /// At any moment at most one lease on a key is valid. A message whose lease has run out is
    /// taken like a pending one, and has been due since then. Of the messages that share an ordering
    /// key, only the first unfinished one is ever taken, and none while another is leased. One that
    /// was leased keeps its turn when the lease runs out, since that can be revived: an earlier one
    /// that is replayed meanwhile waits until it is settled or discarded. May return fewer than are
    /// due when others claim at the same time; an empty answer means that nothing was due that
    /// others were not just taking.
    ///
    /// Nothing is taken of a handler that is [paused](crate::Operate::pause), be it pending or under a
    /// lease that has run out.
    ///
    /// # Runs
    /// With a [`run_limit`](ClaimRequest::run_limit) above 1, a store with [`Capabilities::runs`] takes
    /// with the first message of an ordering key those that directly follow it in the order of acceptance: a
    /// run. All of them are pending and due, and no attempt of any, the first included, has ended without an
    /// outcome. The first message that is not so ends the run, as do `run_limit` and `limit`. Each has its own lease, and
    /// all leases end together. As long as one of them is leased, no other message of the key is taken.
    ///
    /// The worker MUST keep the order: it works on a message of a run only when those before it have
    /// ended as processed, or as dead with [`AfterDead::Continue`]. Where one ends otherwise, it hands those
    /// behind back ([`Outcome::Release`]) in the same call of [`settle`](Self::settle). It extends the
    /// leases of a run in one call, and when one of them is lost it leaves those behind it.
    ///
    /// The attempt of the first message is counted now; that of another one with the settlement of the last
    /// one before it, or with its own. [`Leased::attempts`] has it in either case. So a worker that dies has
    /// it counted for the message that it worked on, as far as the store was told. Those behind
    /// are then handed out one at a time, so that the one that kills its worker is found.
    ///
    /// When a message of a run whose leases have run out is claimed, begun or rescheduled, the leases of those
    /// behind it are lost in the same step: they cannot be revived, and keep no turn. Otherwise they would come
    /// before that message when it is tried again.
    ///
    /// # For implementors
    /// Implementors MUST draw a new, greater token for each message; MUST NOT make workers wait
    /// for each other's rows where the database can skip them; MUST set corrupt rows aside
    /// rather than fail.
    async fn claim(&self, request: &ClaimRequest) -> Result<Claims>;

    /// Ends leases, each with its own outcome, as if one after the other.
    ///
    /// A stale token changes nothing. A lease that has run out but whose message nobody has
    /// claimed since can still be settled: its token is still the newest.
    ///
    /// An outcome with an error is added to the message's [history](crate::PastAttempt) in the same step,
    /// once however often the settlement is repeated; what [`AttemptEnd::of`](crate::AttemptEnd::of) says
    /// of the outcome decides.
    ///
    /// Implementors MUST compare the token in the statement that writes, and take locks in one
    /// order whatever the order of the input. A transaction that holds one of the messages must not
    /// keep the others from being settled, though the answer may wait for it.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>>;

    /// Makes leases run for `length` from now, by the store's clock. Shortens too.
    ///
    /// A lease that has run out but whose message nobody has claimed since is revived.
    ///
    /// A transaction that holds a message, because it settles it, MUST NOT keep the other leases of
    /// the batch from being extended. That message's lease may keep the end that it has, or be
    /// [`LeaseLost`](Extended::LeaseLost) if it has run out, as may those behind it in its run.
    ///
    /// # Errors
    /// Also [`Invalid`](crate::ErrorKind::Invalid) when `length` is outside
    /// [`LeaseTerms::MIN`] and [`LeaseTerms::MAX`], even if there are no leases.
    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>>;

    /// Decides, in one atomic step, whether the caller may run this message's handler now, and
    /// stores the message when its key is not known yet.
    ///
    /// After [`Begun::Run`] an attempt is counted as started, and the caller MUST settle the
    /// lease. `Run` carries the message as it is stored, which may differ from the argument (an
    /// operator can edit a payload on replay). After any `Ok` the message is durably stored.
    ///
    /// # Errors
    /// Also [`Unsupported`](crate::ErrorKind::Unsupported) as for [`receive`](Self::receive),
    /// [`Invalid`](crate::ErrorKind::Invalid) when the message breaks a rule of this store, whether its
    /// key is known or not, and [`Corrupt`](crate::ErrorKind::Corrupt) when the stored one would run and
    /// cannot be read. Its row may be leased then; a claim sets it aside when that lease has run out.
    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun>;

    /// Subscribes to wake-ups for `handlers`, from now on.
    ///
    /// # Errors
    /// Also [`Unsupported`](crate::ErrorKind::Unsupported) when [`Capabilities::wakeups`] is
    /// [`Wakeups::None`](crate::Wakeups::None).
    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>>;

    /// Releases connections and background tasks. Later calls fail as `Unavailable`; those that need
    /// no I/O, as for an empty input, may be answered. Calling it twice is harmless; not calling it
    /// loses nothing that was answered with `Ok`.
    async fn close(&self);
}

/// Single-message forms of [`Store`]'s operations. Implemented for every store.
#[async_trait]
pub trait StoreExt: Store {
    /// [`Store::receive`] for one message.
    ///
    /// # Errors
    /// As [`Store::receive`].
    async fn receive_one(&self, message: &Message) -> Result<Receipt> {
        let receipts = self.receive(std::slice::from_ref(message)).await?;
        only(receipts, "receive")
    }

    /// [`Store::settle`] for one lease.
    ///
    /// # Errors
    /// As [`Store::settle`].
    async fn settle_one(&self, lease: &Lease, outcome: Outcome) -> Result<Settled> {
        let settlement = Settlement {
            lease: lease.clone(),
            outcome,
        };
        only(self.settle(&[settlement]).await?, "settle")
    }

    /// [`Store::extend`] for one lease.
    ///
    /// # Errors
    /// As [`Store::extend`].
    async fn extend_one(&self, lease: &Lease, length: Duration) -> Result<Extended> {
        only(
            self.extend(std::slice::from_ref(lease), length).await?,
            "extend",
        )
    }

    /// [`Store::claim`] for one handler.
    ///
    /// # Errors
    /// As [`Store::claim`], and `Invalid` for a lease length out of range.
    async fn claim_for(
        &self,
        handler: &HandlerName,
        limit: u32,
        length: Duration,
        worker: &WorkerName,
    ) -> Result<Claims> {
        let terms = LeaseTerms::new(length, worker.clone()).map_err(|e| e.in_operation("claim"))?;
        self.claim(&ClaimRequest {
            handlers: vec![handler.clone()],
            limit,
            run_limit: 1,
            terms,
        })
        .await
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

fn only<T>(answers: Vec<T>, operation: &'static str) -> Result<T> {
    answers.into_iter().next().ok_or_else(|| {
        crate::Error::new(
            crate::ErrorKind::Other,
            "the store gave no answer for the message",
        )
        .in_operation(operation)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_are_cut_at_a_character() {
        let long = "ä".repeat(3000);
        let cut = error_text(&long);
        assert_eq!(cut.len(), 4096);
        assert_eq!(error_text("a\0b"), "a b");
        assert_eq!(error_text(&format!("x{long}")).len(), 4095);
    }

    #[test]
    fn outcomes_hide_results() {
        let outcome = Outcome::Processed {
            result: Some(Bytes::from_static(b"secret")),
        };
        assert_eq!(
            format!("{outcome:?}"),
            "Processed { result_bytes: Some(6) }"
        );
    }
}
