//! The tables: what a unique key, an index and a counter are in redb.
//!
//! redb's tables are ordered maps, so an index is a table whose key starts with what is looked up
//! and ends with the sequence number: the first rows of a range are the answer, and nothing else
//! is read. The rule behind the choice of indexes is that no operation may cost more when the
//! backlog or the history grows.

use inbox_api::{HandlerName, Key, PurgeRequest};
use redb::{ReadableTable, StorageError, Table, TableDefinition, TableError, WriteTransaction};

use crate::error::Failure;

/// A handler, a time, and the sequence number of the message for which it counts.
type Moment = (&'static str, i64, i64);
/// A handler, a state's code, whether there is a payload or a result, when the message became final, and
/// its sequence number.
type End = (&'static str, u8, bool, i64, i64);
type Json = &'static [u8];

/// The marker by which the inbox is recognised, and its version.
pub(crate) const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
/// The last sequence number and the last token. They outlive what they were drawn for, so a key
/// that is purged and accepted again never sees an old number again.
pub(crate) const COUNTER: TableDefinition<'_, &str, i64> = TableDefinition::new("counter");
/// The unique key: handler and message id, byte for byte, to the sequence number.
pub(crate) const KEY: TableDefinition<'_, (&str, &str), i64> = TableDefinition::new("key");
/// [`MessageRow`](crate::rows::MessageRow)s. Bytes rather than `&str`, because redb panics over a
/// text that is not UTF-8, and a spoilt row must be an answer.
pub(crate) const MESSAGE: TableDefinition<'_, i64, Json> = TableDefinition::new("message");
/// [`StateRow`](crate::rows::StateRow)s. In order of sequence number, which is the order of
/// acceptance and of listings.
pub(crate) const STATE: TableDefinition<'_, i64, Json> = TableDefinition::new("state");
pub(crate) const PAYLOAD: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("payload");
pub(crate) const RESULT: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("result");
/// Pending messages whose turn it is, by due time. One that waits behind another of its ordering
/// key is not here, so a blocked key of a million messages costs a claim nothing.
pub(crate) const READY: TableDefinition<'_, Moment, ()> = TableDefinition::new("ready");
/// Leased messages, by the end of their lease: those up to now have run out and are claimable.
pub(crate) const LEASE: TableDefinition<'_, Moment, ()> = TableDefinition::new("lease");
/// The open messages of each ordering key: handler, key, [`HELD`] or [`WAITING`], sequence number.
/// The first row is the only one that may be claimed. The value is the due time, if it is pending.
pub(crate) const LINE: TableDefinition<'_, (&str, &str, u8, i64), Option<i64>> =
    TableDefinition::new("line");
/// Final messages: retention takes the first rows of a range.
pub(crate) const FINISHED: TableDefinition<'_, End, ()> = TableDefinition::new("finished");
/// The handlers whose messages are not handed out.
pub(crate) const PAUSED: TableDefinition<'_, &str, ()> = TableDefinition::new("paused");
/// How many messages of a handler are stored in a state, so that statistics count nothing. Also
/// how many of the dead hold up their ordering key, as [`BLOCKING`].
pub(crate) const COUNT: TableDefinition<'_, (&str, u8), u64> = TableDefinition::new("count");

/// Stands for a state's code in [`COUNT`]; no state has it.
pub(crate) const BLOCKING: u8 = u8::MAX;

/// Under lease: first in its line even when a replay has put an earlier message back behind it.
pub(crate) const HELD: u8 = 0;
pub(crate) const WAITING: u8 = 1;

/// The names of all tables, with their types for people to read.
pub(crate) const DESCRIPTION: [(&str, &str); 13] = [
    ("meta", "text -> text"),
    ("counter", "text -> i64"),
    ("key", "(handler, message id) -> seq"),
    ("message", "seq -> JSON as bytes"),
    ("state", "seq -> JSON as bytes"),
    ("payload", "seq -> bytes"),
    ("result", "seq -> bytes"),
    ("ready", "(handler, due at, seq) -> ()"),
    ("lease", "(handler, lease end, seq) -> ()"),
    (
        "line",
        "(handler, ordering key, 0 held | 1 waiting, seq) -> due at, if pending",
    ),
    (
        "finished",
        "(handler, state code, has payload or result, finished at, seq) -> ()",
    ),
    ("paused", "handler -> ()"),
    ("count", "(handler, state code | 255 blocking) -> u64"),
];

/// All tables of one write transaction.
pub(crate) struct Tables<'t> {
    pub(crate) counter: Table<'t, &'static str, i64>,
    pub(crate) key: Table<'t, (&'static str, &'static str), i64>,
    pub(crate) message: Table<'t, i64, Json>,
    pub(crate) state: Table<'t, i64, Json>,
    pub(crate) payload: Table<'t, i64, &'static [u8]>,
    pub(crate) result: Table<'t, i64, &'static [u8]>,
    pub(crate) ready: Table<'t, Moment, ()>,
    pub(crate) lease: Table<'t, Moment, ()>,
    pub(crate) line: Table<'t, (&'static str, &'static str, u8, i64), Option<i64>>,
    pub(crate) finished: Table<'t, End, ()>,
    pub(crate) paused: Table<'t, &'static str, ()>,
    pub(crate) count: Table<'t, (&'static str, u8), u64>,
}

impl<'t> Tables<'t> {
    /// Opens all but [`META`]. redb makes what is missing, which is what creating an inbox means;
    /// everything else checks first that nothing is missing. Fails when a table has other types.
    pub(crate) fn open(transaction: &'t WriteTransaction) -> Result<Self, TableError> {
        Ok(Self {
            counter: transaction.open_table(COUNTER)?,
            key: transaction.open_table(KEY)?,
            message: transaction.open_table(MESSAGE)?,
            state: transaction.open_table(STATE)?,
            payload: transaction.open_table(PAYLOAD)?,
            result: transaction.open_table(RESULT)?,
            ready: transaction.open_table(READY)?,
            lease: transaction.open_table(LEASE)?,
            line: transaction.open_table(LINE)?,
            finished: transaction.open_table(FINISHED)?,
            paused: transaction.open_table(PAUSED)?,
            count: transaction.open_table(COUNT)?,
        })
    }
}

/// A key as [`KEY`] has it.
pub(crate) fn unique(key: &Key) -> (&str, &str) {
    (key.handler.as_str(), key.id.as_str())
}

/// The sequence number of a key.
pub(crate) fn seq_of(
    table: &impl ReadableTable<(&'static str, &'static str), i64>,
    key: &Key,
) -> Result<Option<i64>, StorageError> {
    Ok(table.get(unique(key))?.map(|seq| seq.value()))
}

/// The messages of `table`, [`READY`] or [`LEASE`], whose moment has come: time and sequence
/// number, the longest-due first.
pub(crate) fn come<'a>(
    table: &'a impl ReadableTable<Moment, ()>,
    handler: &'a str,
    now: i64,
) -> Result<impl Iterator<Item = Result<(i64, i64), StorageError>> + 'a, StorageError> {
    let range = table.range((handler, i64::MIN, i64::MIN)..=(handler, now, i64::MAX))?;
    Ok(range.map(|entry| {
        entry.map(|(moment, _)| {
            let (_, at, seq) = moment.value();
            (at, seq)
        })
    }))
}

/// Which final messages an operation of retention takes.
pub(crate) struct Expired<'a> {
    pub(crate) request: &'a PurgeRequest,
    /// The latest moment at which they became final.
    pub(crate) cutoff: i64,
    /// Only those that have a payload or a result.
    pub(crate) with_content: bool,
}

impl Expired<'_> {
    /// Their sequence numbers in `finished`, the longest-finished first, passing over what is not
    /// `wanted`. Of each handler that `counts` knows, no more are taken than the request's limit: of other
    /// handlers, states and ages none is read.
    pub(crate) fn find(
        &self,
        finished: &impl ReadableTable<End, ()>,
        counts: &impl ReadableTable<(&'static str, u8), u64>,
        wanted: impl Fn(i64) -> Result<bool, Failure>,
    ) -> Result<Vec<i64>, Failure> {
        let (code, limit) = (self.request.state().code(), self.request.limit() as usize);
        let mut moments = Vec::new();
        for entry in counts.iter()? {
            let (place, _) = entry?;
            let (handler, counted) = place.value();
            let is_other = |only: &HandlerName| only.as_str() != handler;
            if counted != code || self.request.handler().is_some_and(is_other) {
                continue;
            }
            for content in [false, true] {
                if self.with_content && !content {
                    continue;
                }
                let first = (handler, code, content, i64::MIN, i64::MIN);
                let last = (handler, code, content, self.cutoff, i64::MAX);
                let mut taken = 0;
                for entry in finished.range(first..=last)? {
                    if taken == limit {
                        break;
                    }
                    let (end, _) = entry?;
                    let (_, _, _, at, seq) = end.value();
                    if wanted(seq)? {
                        taken += 1;
                        moments.push((at, seq));
                    }
                }
            }
        }
        moments.sort_unstable();
        moments.truncate(limit);
        Ok(moments.into_iter().map(|(_, seq)| seq).collect())
    }
}
