//! What a case may need of a harness, and the answers of one.

use std::{error::Error as StdError, fmt, time::Duration};

use serde::Serialize;

/// Something that a case needs and that the harness does not offer or the store cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Need {
    /// [`Fixture::advance_clock`](crate::Fixture::advance_clock).
    Clock,
    /// [`Fixture::second_connection`](crate::Fixture::second_connection).
    SecondConnection,
    /// [`Harness::schema_variant`](crate::Harness::schema_variant) of this kind.
    Schema(SchemaVariant),
    /// [`Fixture::check_invariants`](crate::Fixture::check_invariants).
    Invariants,
    /// [`Fixture::corrupt`](crate::Fixture::corrupt).
    CorruptRows,
    /// [`ServerControl::begin_outage`](crate::ServerControl::begin_outage) and [`ServerControl::end_outage`](crate::ServerControl::end_outage).
    Outage,
    /// [`ServerControl::begin_outage_after`](crate::ServerControl::begin_outage_after).
    OutageAmidWrites,
    /// [`ServerControl::restart`](crate::ServerControl::restart).
    Restart,
    /// [`ServerControl::lose_power`](crate::ServerControl::lose_power).
    PowerLoss,
    /// [`Fixture::transactions`](crate::Fixture::transactions), or the store's own ability
    /// ([`Capabilities::transactions`](inbox_api::Capabilities::transactions)).
    Transactions,
    /// [`BusinessWrites`](crate::BusinessWrites) in the transactions.
    BusinessWrites,
    /// [`BusinessWrites::mishap`](crate::BusinessWrites::mishap) of this kind.
    Mishap(Mishap),
    /// An open transaction that leaves others their writes
    /// ([`Capabilities::exclusive_transactions`](inbox_api::Capabilities::exclusive_transactions)).
    SharedWrites,
    /// [`Fixture::silence`](crate::Fixture::silence).
    Silence,
    /// [`Settings::operation_timeout`].
    OperationTimeout,
    /// [`Settings::payload_limit`].
    PayloadLimit,
    /// [`Settings::drop_processed_payloads`].
    DroppedPayloads,
    /// A payload limit of at least 16 MiB when the settings ask for no other.
    LargePayloads,
    /// [`Capabilities::ordering`](inbox_api::Capabilities::ordering).
    Ordering,
    /// [`Capabilities::runs`](inbox_api::Capabilities::runs).
    Runs,
    /// [`Capabilities::wakeups`](inbox_api::Capabilities::wakeups) other than none.
    Wakeups,
    /// Wake-ups that reach every process.
    WakeupsAcrossProcesses,
    /// [`ReceiveAtomicity::Batch`](inbox_api::ReceiveAtomicity::Batch).
    BatchAtomicity,
}

impl Need {
    /// What a harness may offer or not, whatever its store can do: the optional methods of
    /// [`Harness`](crate::Harness) and [`Fixture`](crate::Fixture). The minimal harness lacks all of it.
    pub const HARNESS: &[Self] = &[
        Self::Clock,
        Self::SecondConnection,
        Self::Schema(SchemaVariant::Missing),
        Self::Schema(SchemaVariant::Incomplete),
        Self::Schema(SchemaVariant::Older),
        Self::Schema(SchemaVariant::Newer),
        Self::Schema(SchemaVariant::Suitable),
        Self::Schema(SchemaVariant::Foreign),
        Self::Schema(SchemaVariant::Kept),
        Self::Invariants,
        Self::CorruptRows,
        Self::Outage,
        Self::OutageAmidWrites,
        Self::Silence,
        Self::Restart,
        Self::PowerLoss,
        Self::Transactions,
    ];

    /// What a harness does to the disk below the store, which it cannot where the store has a
    /// server.
    pub const DISK: [Self; 2] = [Self::OutageAmidWrites, Self::PowerLoss];
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clock => "the harness cannot advance the store's clock",
            Self::SecondConnection => "the harness opens no second connection",
            Self::Schema(SchemaVariant::Missing) => "the harness makes no place without an inbox",
            Self::Schema(SchemaVariant::Incomplete) => "the harness makes no incomplete inbox",
            Self::Schema(SchemaVariant::Older) => "the harness makes no older inbox",
            Self::Schema(SchemaVariant::Newer) => "the harness makes no newer inbox",
            Self::Schema(SchemaVariant::Suitable) => {
                "the harness makes no newer inbox that allows this build"
            }
            Self::Schema(SchemaVariant::Foreign) => "the harness makes no place with foreign data",
            Self::Schema(SchemaVariant::Kept) => "the harness has kept no inbox",
            Self::Invariants => "the harness cannot check the store's own tables",
            Self::CorruptRows => "the harness cannot corrupt a row",
            Self::Outage => "the harness cannot make the store unreachable",
            Self::OutageAmidWrites => "the harness cannot stop the store between two writes",
            Self::Restart => "the harness cannot restart the store",
            Self::PowerLoss => "the harness cannot lose what was not made durable",
            Self::Transactions => "the store has no transactions, or the harness offers none",
            Self::BusinessWrites => "the harness offers no business writes in a transaction",
            Self::Mishap(mishap) => return write!(f, "the harness has no handler that {mishap}"),
            Self::SharedWrites => "an open transaction keeps every other write waiting",
            Self::Silence => "the harness cannot make connections go silent",
            Self::OperationTimeout => "the harness cannot set a time limit for operations",
            Self::PayloadLimit => "the harness cannot set a payload limit",
            Self::DroppedPayloads => "the store cannot drop processed payloads",
            Self::LargePayloads => "the store's payload limit is below 16 MiB",
            Self::Ordering => "the store does not honour ordering keys",
            Self::Runs => "the store hands out one message of an ordering key at a time",
            Self::Wakeups => "the store has no wake-ups",
            Self::WakeupsAcrossProcesses => "the store's wake-ups stay within a process",
            Self::BatchAtomicity => "the store does not store whole batches together",
        })
    }
}

/// A failure of the harness itself, with whatever it met.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why an ability of a harness did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Unable {
    /// The harness does not offer it; the cases that need it are *not checked*.
    #[error("not offered: {0}")]
    NotOffered(Need),
    /// The harness offers it and failed; the case *fails*.
    #[error("the harness failed: {0}")]
    Failed(#[source] BoxError),
}

impl Unable {
    /// An attempt that failed.
    #[must_use]
    pub fn failed(error: impl Into<BoxError>) -> Self {
        Self::Failed(error.into())
    }
}

impl From<inbox_api::Error> for Unable {
    fn from(error: inbox_api::Error) -> Self {
        Self::failed(error)
    }
}

impl From<std::io::Error> for Unable {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error)
    }
}

/// The answer of an ability.
pub type Offered<T> = Result<T, Unable>;

/// With which options a case wants its inbox. The default is the store's own defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The largest payload and result, in bytes; `None` is the store's default.
    pub payload_limit: Option<usize>,
    /// Whether payloads are dropped when their messages are processed. A store without this
    /// option answers [`Need::DroppedPayloads`].
    pub drop_processed_payloads: bool,
    /// The longest that one operation may take; `None` is the store's default. A store that
    /// waits for nothing answers [`Need::OperationTimeout`].
    pub operation_timeout: Option<Duration>,
    /// Whether the case restarts the store or takes it away ([`ServerControl::restart`](crate::ServerControl::restart),
    /// [`ServerControl::begin_outage`](crate::ServerControl::begin_outage)). Inboxes of other cases may share a server; this one needs what
    /// can be harmed without them.
    pub disrupted: bool,
}

/// In which condition a place is found by a store that is about to be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchemaVariant {
    /// There is nothing.
    Missing,
    /// An inbox of the expected version that lacks a part: a column, an index, a table.
    Incomplete,
    /// An inbox of an earlier version.
    Older,
    /// An inbox of a later version than this build knows, for newer builds only.
    Newer,
    /// An inbox of a later version, which says that this build may work with it.
    Suitable,
    /// Something of the same name that is not an inbox.
    Foreign,
    /// What [`Fixture::keep`](crate::Fixture::keep) has kept of an inbox of the expected version.
    Kept,
}

/// What to spoil in a stored row, behind the store's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// Headers that are not a JSON object of texts.
    Headers,
}

/// What a handler does to the transaction that it was given, other than its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mishap {
    /// A statement fails (a unique key, say), and the handler goes on as if it had not.
    FailedStatement,
    /// The server rolls the transaction back (a deadlock, SQLite's `ON CONFLICT ROLLBACK`), and
    /// the handler goes on as if it had not.
    RolledBackByServer,
    /// It commits by itself, with the database's own statement.
    Commit,
    /// It rolls back by itself, with the database's own statement.
    RollBack,
    /// It changes the schema: creates a table of its own.
    SchemaChange,
}

impl Mishap {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::FailedStatement,
        Self::RolledBackByServer,
        Self::Commit,
        Self::RollBack,
        Self::SchemaChange,
    ];
}

impl fmt::Display for Mishap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FailedStatement => "swallows a failed statement",
            Self::RolledBackByServer => "swallows that the server rolled it back",
            Self::Commit => "commits by itself",
            Self::RollBack => "rolls back by itself",
            Self::SchemaChange => "changes the schema",
        })
    }
}

/// How to restart a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Stopped in order, started again.
    Orderly,
    /// Killed without warning, started again.
    Killed,
}
