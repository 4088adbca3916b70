//! The inbox contract: what every store promises, as Rust traits and types.
//!
//! Brokers and webhooks deliver *at least once*. An inbox makes the effect happen once: it stores
//! each message under a unique [`Key`] before the broker is acknowledged, refuses the second
//! copy, and sees the first through to *processed* or *dead*.
//!
//! Applications use the crate `inbox`, which brings the runtime and the stores; this crate is for
//! those who write a store, a wrapper around one, or tools.
//!
//! # Three ways to use a store
//! 1. **Store, then process.** A receiver [`receive`](Store::receive)s a batch of deliveries and
//!    only then acknowledges the broker. A processor [`claim`](Store::claim)s due messages, runs
//!    handlers and [`settle`](Store::settle)s them.
//! 2. **Inline.** [`begin`](Store::begin) a key under a lease, run the handler in the delivery's
//!    own task, settle.
//! 3. **Transactional.** Record or settle in the caller's own database transaction
//!    ([`Transactional`]), so that the handler's writes and the completion commit together.
//!
//! # Roles
//! | trait | for | object-safe |
//! |---|---|---|
//! | [`Store`] | receivers, processors, inline consumers | yes |
//! | [`Schema`] | setting up | yes |
//! | [`Operate`] | looking, replaying, rescheduling, discarding, pausing, purging | yes |
//! | [`Inbox`] | all three in one, for `Arc<dyn Inbox>` | yes |
//! | [`Transactional`] | transactional use; names the driver's transaction type | no |
//!
//! # What a store guarantees
//! - **Accept once**: over any number of concurrent and repeated receives of one key, at most one
//!   reports [`Receipt::Accepted`].
//! - **One holder**: at any moment at most one lease on a key is valid; a stale
//!   [`FencingToken`] changes nothing.
//! - **Progress**: a message whose worker vanished becomes claimable when its lease ends, and the
//!   vanished attempt is counted ([`Attempts`]).
//! - **Duplicates stay duplicates** in every state, until the key is purged.
//! - **One key, one content**: a duplicate says whether it is another message than the first
//!   ([`Fingerprint`]).
//! - **An outage is never a duplicate**: answers and [`Error`]s are different things.
//! - **Order**: messages of one handler that share an [`OrderingKey`] are handed out in the order
//!   in which they were accepted, one at a time.
//! - **Time** is the store's, never a worker's.
//!
//! Times in this API are [`std::time`] types and kept to the microsecond.

mod arc_impls;
mod capabilities;
mod clock;
mod error;
mod error_type;
mod filter;
mod fingerprint;
pub mod headers;
mod history;
mod lease;
mod message;
mod names;
mod operate;
mod record;
mod retention;
mod schema;
mod state;
mod statistics;
mod store;
mod summary;
mod transactional;
mod url;

pub use capabilities::{Capabilities, ReceiveAtomicity, Wakeups};
pub use clock::{Clock, ClockOffset, duration_micros, from_micros, time_limit, to_micros};
pub use error::{Effect, Error, ErrorKind, Invalid, Result};
pub use error_type::ErrorType;
pub use filter::Filter;
pub use fingerprint::Fingerprint;
pub use headers::{Headers, HeadersBuilder};
pub use history::{AttemptEnd, History, InterventionKind, PastAttempt, PastIntervention};
pub use lease::{Attempts, FencingToken, Lease, LeaseTerms, Leased};
pub use message::{DEFAULT_PAYLOAD_LIMIT, Due, Event, Message, check_size};
pub use names::{
    ContentType, HandlerName, InboxName, Key, Kind, MessageId, OperatorName, OrderingKey,
    WorkerName,
};
pub use operate::{Cursor, Edit, Intervention, Listing, Operate, Page, Progress, Slice};
pub use record::Record;
pub use retention::PurgeRequest;
pub use schema::{Migration, Schema};
pub use state::State;
pub use statistics::{HandlerStatistics, Statistics};
pub use store::{
    AfterDead, Begun, ClaimRequest, Claims, CorruptRow, Extended, MAX_ERROR_BYTES, Outcome,
    Receipt, Settled, Settlement, Store, StoreExt, Subscription, error_text,
};
pub use summary::{MessageGroup, MessageSummary, OperateExt, Span, error_shape};
pub use transactional::{Recorded, Transactional, settle_then_commit};
pub use url::hide_password;

pub use bytes::Bytes;

/// A whole inbox: working side, schema and operator's side. Implemented by everything that
/// implements the three; use it as `Arc<dyn Inbox>`.
pub trait Inbox: Store + Schema + Operate {}

impl<T: Store + Schema + Operate + ?Sized> Inbox for T {}
