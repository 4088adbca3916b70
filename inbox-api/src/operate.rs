//! The operator's side of a store: look, replay, reschedule, discard, pause and purge.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;

use crate::{
    CorruptRow, Due, Filter, HandlerName, Headers, Invalid, Key, OperatorName, PurgeRequest,
    Record, Result, State, Statistics, check_size,
};

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

/// Selects one page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Start behind this place; `None` means at the start.
    pub after: Option<Cursor>,
    /// The most records to return; at most [`Page::MAX`]. A page of 0 is empty, and has no next.
    pub limit: u32,
    /// Latest accepted first, rather than earliest.
    pub newest_first: bool,
    /// Whether to load payloads, results and histories.
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

/// What a replay changes of a message. The default changes nothing.
///
/// `Debug` shows the payload's length, never its bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Edit {
    /// A payload in place of the old one.
    pub payload: Option<Bytes>,
    /// Headers in place of all old ones.
    pub headers: Option<Headers>,
}

impl Edit {
    /// Checks the payload against a store's limit in bytes. Stores call this before any I/O.
    ///
    /// # Errors
    /// [`Invalid::TooLarge`] when it is over the limit.
    pub fn check_payload(&self, limit: usize) -> Result<(), Invalid> {
        let bytes = self.payload.as_ref().map_or(0, Bytes::len);
        check_size("payload", bytes, limit)
    }
}

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edit")
            .field("payload_bytes", &self.payload.as_ref().map(Bytes::len))
            .field("headers", &self.headers)
            .finish()
    }
}

/// The result of replaying, rescheduling or discarding one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Intervention {
    /// It is done and durable.
    Done,
    /// There is no message of that key.
    NotFound,
    /// Its state does not allow it; nothing was changed.
    WrongState(State),
    /// Its payload was dropped, so it can be replayed only with a new one.
    PayloadDropped,
}

/// The operator's operations: look at messages, replay, reschedule, discard and purge them, and pause
/// their handlers.
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
    /// A handle on the same inbox that signs: each message that it replays, reschedules or discards, alone or
    /// in a slice, keeps what was done, when and by whom, in [`Record::interventions`]. A change through
    /// another handle leaves no such note.
    fn signed_by(&self, operator: &OperatorName) -> Arc<dyn Operate>;

    /// One message, with payload, result and history; `None` when its key is not known.
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
    /// old place in its ordering key, with the payload and headers of `edit` in place of the old ones.
    /// Its fingerprint and its history stay. Pending and leased messages are [`Intervention::WrongState`].
    ///
    /// # Errors
    /// Also `Invalid` when the new payload is over the limit.
    async fn replay(&self, key: &Key, edit: &Edit) -> Result<Intervention>;

    /// Replays, as [`replay`](Self::replay), the final messages of one slice of `filter`. Without
    /// states in the filter it means dead messages. Messages without a payload are passed over.
    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress>;

    /// Makes one pending message due at another time, sooner or later, be it scheduled, waiting for a
    /// retry or due. Attempts and last error stay, and so does its place in its ordering key, whose later
    /// messages wait with it. A lease on it that has run out is lost: settling or extending it says so.
    /// Other states are [`Intervention::WrongState`]. Wakes subscriptions if it is due at once. To cancel
    /// what is scheduled, [`discard`](Self::discard) it.
    async fn reschedule(&self, key: &Key, due: Due) -> Result<Intervention>;

    /// Reschedules, as [`reschedule`](Self::reschedule), the pending messages of one slice of `filter`,
    /// all to the same moment. Without states in the filter it means pending messages.
    async fn reschedule_slice(&self, filter: &Filter, slice: &Slice, due: Due) -> Result<Progress>;

    /// Gives one pending or dead message up: it will not be worked on, its key goes on refusing
    /// duplicates, and its ordering key moves on. A lease on it that has run out is lost: settling or
    /// extending it says so. Other states are [`Intervention::WrongState`].
    async fn discard(&self, key: &Key) -> Result<Intervention>;

    /// Discards, as [`discard`](Self::discard), the pending and dead messages of one slice of
    /// `filter`. Without states in the filter it means dead messages.
    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress>;

    /// Deletes the messages of one slice of a handler, in any state but leased, keys included: for a
    /// test system, or a handler that is retired. Leased messages are passed over; a lease that has run
    /// out is lost. Redeliveries are accepted as new. A [pause](Self::pause) stays.
    async fn clear_slice(&self, handler: &HandlerName, slice: &Slice) -> Result<Progress>;

    /// Stops handing out messages of `handler`, for all workers, until [`resume`](Self::resume): a claim
    /// that begins after this has returned takes none. What is leased may end, be extended and be settled,
    /// and receiving, beginning and recording go on. The handler need not have messages, and being paused
    /// already is no error.
    ///
    /// Implementors MUST see the pause in the statement that claims, without another round trip.
    async fn pause(&self, handler: &HandlerName) -> Result<()>;

    /// Ends a pause, and wakes subscriptions. A handler that is not paused is no error.
    async fn resume(&self, handler: &HandlerName) -> Result<()>;

    /// The handlers that are paused, in order of name, with or without messages.
    async fn paused(&self) -> Result<Vec<HandlerName>>;

    /// Deletes messages that `request` selects, the longest-finished first, and returns how many.
    /// Their keys are no longer protected: a redelivery is accepted as new.
    ///
    /// Implementors MUST NOT touch pending or leased messages whatever their age, and MUST NOT
    /// make live traffic or another purger wait: what is many is deleted in slices, with rests
    /// between them that are as long as the work. With a handler in `request` they SHOULD NOT look at
    /// the history of others.
    async fn purge(&self, request: &PurgeRequest) -> Result<u64>;

    /// What [`purge`](Self::purge) would delete, in the order in which it would (those that finished at
    /// one moment in any), with payloads, results and histories, for an archiver. There is never a
    /// [`next`](Listing::next) page: the next ones come once these are purged.
    async fn expired(&self, request: &PurgeRequest) -> Result<Listing>;

    /// Deletes exactly those of `keys` that are still as `request` says, and returns how many;
    /// its limit does not apply. Rows that [`expired`](Self::expired) reported as corrupt are not
    /// among `keys` and stay.
    ///
    /// A message that was replayed while it was being archived, and is final again, is not as it was
    /// archived. Who asks for messages that are older than those of [`expired`](Self::expired) by the time that has
    /// passed since its answer leaves it alone, as the janitor does.
    async fn purge_archived(&self, request: &PurgeRequest, keys: &[Key]) -> Result<u64>;

    /// Drops payload and result of messages that `request` selects and that have either still, the
    /// longest-finished first, and returns how many these were. All else stays: the key goes on refusing
    /// duplicates, by its fingerprint too. One who begins a processed key is told so without the result,
    /// and a replay has to bring a payload.
    ///
    /// Implementors MUST NOT look at messages again that have neither left, and take care as with
    /// [`purge`](Self::purge).
    async fn drop_payloads(&self, request: &PurgeRequest) -> Result<u64>;
}
