//! One message as an operator sees it.

use std::{fmt, time::SystemTime};

use bytes::Bytes;

use crate::{
    Attempts, ContentType, Cursor, Fingerprint, Headers, Key, Kind, Message, OrderingKey,
    PastAttempt, PastIntervention, State, WorkerName,
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
    /// The payload's length in bytes; `None` when it was dropped after processing, or later by
    /// [`Operate::drop_payloads`](crate::Operate::drop_payloads).
    pub payload_bytes: Option<u64>,
    /// The fingerprint with which its key was accepted, whatever became of the payload since.
    pub fingerprint: Fingerprint,
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
    /// When its last attempt was leased, by a claim or inline; `None` before the first. Extending a lease
    /// leaves it, and so does all that ends one.
    pub leased_at: Option<SystemTime>,
    /// Who holds it, or held it last, also after a replay or a discard.
    pub worker: Option<WorkerName>,
    /// When it became final; `None` while it is not, as after a replay. Of a dead message that was
    /// discarded it is when it was discarded, and its retention counts from there.
    pub finished_at: Option<SystemTime>,
    /// The last error, or why it is dead. It stays when a later attempt succeeds, and goes with a
    /// replay.
    pub last_error: Option<String>,
    /// What became of earlier attempts that ended with an error, oldest first: the newest
    /// [`History::KEPT`](crate::History::KEPT). It stays until the key goes, over replays, edits, discards and dropped
    /// payloads. Empty when the listing did not ask for payloads.
    pub history: Vec<PastAttempt>,
    /// What operators did to it through handles that [sign](crate::Operate::signed_by), in the order in which that took effect. Kept as
    /// long as the history, and with it the newest [`History::KEPT`](crate::History::KEPT).
    pub interventions: Vec<PastIntervention>,
    /// Whether this dead message blocks its ordering key; never true of one that has none.
    pub blocks_ordering_key: bool,
    /// What the handler stored; `None` when nothing, or when the listing did not ask for it. It goes
    /// with a replay.
    pub result: Option<Bytes>,
    /// Its place in listings.
    pub cursor: Cursor,
}

impl Record {
    /// The message as it was received (or last edited), but for its due time and for a fingerprint that
    /// was given with it (see [`fingerprint`](Self::fingerprint)); `None` without its payload.
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
            .field("fingerprint", &self.fingerprint)
            .field("result_bytes", &self.result.as_ref().map(Bytes::len))
            .field("headers", &self.headers)
            .field("ordering_key", &self.ordering_key)
            .field("accepted_at", &self.accepted_at)
            .field("due_at", &self.due_at)
            .field("lease_until", &self.lease_until)
            .field("leased_at", &self.leased_at)
            .field("worker", &self.worker)
            .field("finished_at", &self.finished_at)
            .field("last_error", &self.last_error)
            .field("history", &self.history)
            .field("interventions", &self.interventions)
            .field("blocks_ordering_key", &self.blocks_ordering_key)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}
