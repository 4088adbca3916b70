//! The operator's side of a store: look, replay, discard, purge.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;

use crate::{
    Attempts, ContentType, CorruptRow, HandlerName, Headers, Invalid, Key, Kind, Message,
    OrderingKey, Result, State, WorkerName,
};

/// A message with all that the store knows about it. Times are by the store's clock.
///
/// `Debug` shows lengths of payload and result, never their bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// Its identity.
    pub key: Key,
    /// The event type.
    pub kind: Kind,
    /// The payload's media type, if known.
    pub content_type: Option<ContentType>,
    /// The headers.
    pub headers: Headers,
    /// The ordering key, if it has one.
    pub ordering_key: Option<OrderingKey>,
    /// The payload; `None` when the listing did not ask for it, or when it was dropped.
    pub payload: Option<Bytes>,
    /// The payload's length in bytes; `None` when it was dropped after processing.
    pub payload_bytes: Option<u64>,
    /// Where it stands.
    pub state: State,
    /// Attempts since it was accepted or last replayed.
    pub attempts: Attempts,
    /// How often an operator has replayed it.
    pub replays: u32,
    /// When it was accepted.
    pub accepted_at: SystemTime,
    /// When it is (or was last) due: what was asked for when it was accepted, retried or deferred, or
    /// when it was replayed. Leases and releases leave it.
    pub due_at: SystemTime,
    /// When the lease runs out, for a leased message; `None` in every other state, so also once it
    /// has run out.
    pub lease_until: Option<SystemTime>,
    /// Who holds it, or held it last, also after a replay or a discard.
    pub worker: Option<WorkerName>,
    /// When it became final; `None` while it is not, as after a replay. Of a dead message that was
    /// discarded it is when it was discarded, and its retention counts from there.
    pub finished_at: Option<SystemTime>,
    /// The last error, or why it is dead. It stays when a later attempt succeeds, and goes with a
    /// replay.
    pub last_error: Option<String>,
    /// Whether this dead message blocks its ordering key; never true of one that has none.
    pub blocks_ordering_key: bool,
    /// What the handler stored; `None` when nothing, or when the listing did not ask for it. It goes
    /// with a replay.
    pub result: Option<Bytes>,
    /// Its place in listings.
    pub cursor: Cursor,
}

impl Record {
    /// The message as it was received (or last edited); `None` without its payload.
    #[must_use]
    pub fn message(&self) -> Option<Message> {
        let mut message = Message::new(
            self.key.handler.clone(),
            self.key.id.clone(),
            self.kind.clone(),
            self.payload.clone()?,
        )
        .with_headers(self.headers.clone());
        if let Some(content_type) = &self.content_type {
            message = message.with_content_type(content_type.clone());
        }
        if let Some(ordering_key) = &self.ordering_key {
            message = message.with_ordering_key(ordering_key.clone());
        }
        Some(message)
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("key", &self.key)
            .field("kind", &self.kind)
            .field("state", &self.state)
            .field("attempts", &self.attempts)
            .field("replays", &self.replays)
            .field("payload_bytes", &self.payload_bytes)
            .field("result_bytes", &self.result.as_ref().map(Bytes::len))
            .field("headers", &self.headers)
            .field("ordering_key", &self.ordering_key)
            .field("accepted_at", &self.accepted_at)
            .field("due_at", &self.due_at)
            .field("lease_until", &self.lease_until)
            .field("worker", &self.worker)
            .field("finished_at", &self.finished_at)
            .field("last_error", &self.last_error)
            .field("blocks_ordering_key", &self.blocks_ordering_key)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

/// A place in a listing: opaque, and good for as long as the inbox exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Cursor(String);

impl Cursor {
    /// Wraps a store's own notation, or what a user copied from an earlier page.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The notation.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The sequence number of stores that count their messages in order of acceptance. Which numbers
    /// they give, be they 0 or negative, is theirs to choose, and so is what a number means that they
    /// never gave: a place in that order, or `Invalid`.
    ///
    /// # Errors
    /// [`Invalid::Malformed`] when it is not a number, so not one of this store's.
    pub fn sequence(&self) -> Result<i64, Invalid> {
        self.0.parse().map_err(|_| Invalid::Malformed {
            what: "cursor",
            expected: "one that this inbox printed",
        })
    }
}

impl From<i64> for Cursor {
    fn from(sequence: i64) -> Self {
        Self(sequence.to_string())
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Selects messages to list, count, replay or discard. The default selects all; each part narrows
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In one of these states; empty means any (but see [`Operate::replay_slice`] and
    /// [`Operate::discard_slice`]).
    pub states: Vec<State>,
    /// For this handler.
    pub handler: Option<HandlerName>,
    /// Of this kind.
    pub kind: Option<Kind>,
    /// With this ordering key.
    pub ordering_key: Option<OrderingKey>,
    /// Accepted at least this long ago.
    pub older_than: Option<Duration>,
    /// Accepted less than this long ago.
    pub newer_than: Option<Duration>,
    /// Whose last error contains this text, byte for byte.
    pub error_contains: Option<String>,
}

/// Selects one page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Start behind this place; `None` means at the start.
    pub after: Option<Cursor>,
    /// The most records to return; at most [`Page::MAX`]. A page of 0 is empty, and has no next.
    pub limit: u32,
    /// Latest accepted first, rather than earliest.
    pub newest_first: bool,
    /// Whether to load payloads and results.
    pub with_payload: bool,
}

impl Page {
    /// The most records of one page; larger limits are cut to it.
    pub const MAX: u32 = 10_000;

    /// The first `limit` records, earliest accepted first, without payloads.
    #[must_use]
    pub fn first(limit: u32) -> Self {
        Self {
            after: None,
            limit,
            newest_first: false,
            with_payload: false,
        }
    }
}

/// One page of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The records.
    pub records: Vec<Record>,
    /// Rows of this page that could not be read.
    pub corrupt: Vec<CorruptRow>,
    /// Where the next page starts; `None` when this is the last.
    pub next: Option<Cursor>,
}

/// One bounded step of work over many messages, in order of acceptance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Start behind this place; `None` means at the start.
    pub after: Option<Cursor>,
    /// The most messages to change in this step. A slice of 0 changes nothing, and has no
    /// [`next`](Progress::next).
    pub limit: u32,
}

/// The result of one step over a [`Slice`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many messages were changed.
    pub changed: u64,
    /// Where the next step starts; `None` when the end is reached. A step that changed as many as its
    /// limit need not know whether it has reached it. The place only moves forward, so a loop over
    /// all slices ends even when messages die again behind it.
    pub next: Option<Cursor>,
}

/// The result of replaying or discarding one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Intervention {
    /// It is done and durable.
    Done,
    /// There is no message of that key.
    NotFound,
    /// Its state does not allow it; nothing was changed.
    WrongState(State),
    /// Its payload was dropped after processing, so it can be replayed only with a new one.
    PayloadDropped,
}

/// Counts of one handler's messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HandlerStatistics {
    /// The handler.
    pub handler: HandlerName,
    /// Messages that wait, those whose lease has run out included.
    pub pending: u64,
    /// Messages under a lease that has not run out.
    pub leased: u64,
    /// Messages whose handler has completed.
    pub processed: u64,
    /// Messages set aside.
    pub dead: u64,
    /// Messages that an operator discarded.
    pub discarded: u64,
    /// Those of the dead that hold their ordering keys up: see [`Record::blocks_ordering_key`].
    /// What waits behind them is pending and never due, so neither lag nor age shows it. It waits
    /// until they are replayed, discarded or purged.
    pub blocking: u64,
    /// How long ago the longest-due claimable message was accepted; `None` when none is due.
    pub oldest_due_age: Option<Duration>,
    /// For how long the longest-due claimable message has been due, which for one whose lease has run
    /// out is since then; `None` when none is due.
    pub lag: Option<Duration>,
}

impl HandlerStatistics {
    /// A handler without messages.
    #[must_use]
    pub fn empty(handler: HandlerName) -> Self {
        Self {
            handler,
            pending: 0,
            leased: 0,
            processed: 0,
            dead: 0,
            discarded: 0,
            blocking: 0,
            oldest_due_age: None,
            lag: None,
        }
    }

    /// Messages that are not final.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.pending + self.leased
    }

    /// The count of one state.
    #[must_use]
    pub fn count(&self, state: State) -> u64 {
        match state {
            State::Pending => self.pending,
            State::Leased => self.leased,
            State::Processed => self.processed,
            State::Dead => self.dead,
            State::Discarded => self.discarded,
        }
    }
}

/// Counts of all messages, by handler in order of name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// One entry per handler that has messages.
    pub handlers: Vec<HandlerStatistics>,
}

impl Statistics {
    /// The count of one state over all handlers.
    #[must_use]
    pub fn count(&self, state: State) -> u64 {
        self.handlers.iter().map(|h| h.count(state)).sum()
    }

    /// Dead messages that hold ordering keys up, over all handlers.
    #[must_use]
    pub fn blocking(&self) -> u64 {
        self.handlers.iter().map(|h| h.blocking).sum()
    }

    /// The longest time for which any message has been due.
    #[must_use]
    pub fn lag(&self) -> Option<Duration> {
        self.handlers.iter().filter_map(|h| h.lag).max()
    }
}

/// Selects final messages to purge, or to archive before they are purged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurgeRequest {
    state: State,
    older_than: Duration,
    limit: u32,
}

impl PurgeRequest {
    /// Up to `limit` messages that have been in `state` for at least `older_than`.
    ///
    /// # Errors
    /// [`Invalid::Malformed`] when `state` is not final: pending and leased messages are never
    /// purged.
    pub fn new(state: State, older_than: Duration, limit: u32) -> Result<Self, Invalid> {
        if !state.is_final() {
            return Err(Invalid::Malformed {
                what: "state to purge",
                expected: "final: processed, dead or discarded",
            });
        }
        Ok(Self {
            state,
            older_than,
            limit,
        })
    }

    /// The final state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// The least time since they became final.
    #[must_use]
    pub fn older_than(&self) -> Duration {
        self.older_than
    }

    /// The most messages to take in one step.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }
}

/// The operator's operations: look at messages, replay, discard and purge them.
///
/// # Rules for implementors
/// - Listings are in order of acceptance; a message's place never changes, so paging neither
///   skips nor repeats messages that exist throughout, whatever happens to them meanwhile.
/// - Every change MUST check the state in the statement that writes, so that two operators, or an
///   operator and a worker, cannot both win.
/// - Each call MUST be bounded by its limit.
/// - A slice MUST end at the last row that it looked at, whatever others have done to the rows
///   meanwhile: rows that it could not change are no sign of the end.
///
/// # Errors
/// As [`Store`](crate::Store); also `Invalid` for a cursor that is not this store's.
#[async_trait]
pub trait Operate: Send + Sync {
    /// One message, with payload and result; `None` when its key is not known.
    ///
    /// # Errors
    /// Also `Corrupt` when its row cannot be read.
    async fn get(&self, key: &Key) -> Result<Option<Record>>;

    /// One page of the messages that `filter` means.
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing>;

    /// How many messages `filter` means. May look at all of them; use
    /// [`statistics`](Self::statistics) for anything that runs regularly.
    async fn count(&self, filter: &Filter) -> Result<u64>;

    /// Counts by handler and state, and how far behind each handler is. Implementors MUST NOT
    /// count rows of the history or the backlog for it.
    async fn statistics(&self) -> Result<Statistics>;

    /// Makes one final message pending again: due now, attempts, last error and result reset, in its
    /// old place in its ordering key, with `payload` in place of the old one if given. Pending and
    /// leased messages are [`Intervention::WrongState`].
    ///
    /// # Errors
    /// Also `Invalid` when the new payload is over the limit.
    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention>;

    /// Replays, as [`replay`](Self::replay), the final messages of one slice of `filter`. Without
    /// states in the filter it means dead messages. Messages without a payload are passed over.
    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress>;

    /// Gives one pending or dead message up: it will not be worked on, its key goes on refusing
    /// duplicates, and its ordering key moves on. A lease on it that has run out is lost: settling or
    /// extending it says so. Other states are [`Intervention::WrongState`].
    async fn discard(&self, key: &Key) -> Result<Intervention>;

    /// Discards, as [`discard`](Self::discard), the pending and dead messages of one slice of
    /// `filter`. Without states in the filter it means dead messages.
    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress>;

    /// Deletes messages that `request` selects, the longest-finished first, and returns how many.
    /// Their keys are no longer protected: a redelivery is accepted as new.
    ///
    /// Implementors MUST NOT touch pending or leased messages whatever their age, and MUST NOT
    /// make live traffic or another purger wait: what is many is deleted in slices, with rests
    /// between them that are as long as the work.
    async fn purge(&self, request: &PurgeRequest) -> Result<u64>;

    /// What [`purge`](Self::purge) would delete, in the order in which it would (those that finished at
    /// one moment in any), with payloads and results, for an archiver. There is never a
    /// [`next`](Listing::next) page: the next ones come once these are purged.
    async fn expired(&self, request: &PurgeRequest) -> Result<Listing>;

    /// Deletes exactly those of `keys` that are still as `request` says, and returns how many;
    /// its limit does not apply. Rows that [`expired`](Self::expired) reported as corrupt are not
    /// among `keys` and stay.
    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64>;
}
