//! What a third party writes: how to get a fresh inbox of its store, and what else the suite may
//! do to it.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_api::{Inbox, Key};
use serde::Serialize;

use crate::transactions::AnyTransactions;

/// Something that a case needs and that the harness does not offer or the store cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Need {
    /// [`Fixture::advance_clock`].
    Clock,
    /// [`Fixture::second_connection`].
    SecondConnection,
    /// [`Harness::schema_variant`] of this kind.
    Schema(SchemaVariant),
    /// [`Fixture::check_invariants`].
    Invariants,
    /// [`Fixture::corrupt`].
    CorruptRows,
    /// [`Fixture::begin_outage`] and [`Fixture::end_outage`].
    Outage,
    /// [`Fixture::begin_outage_after`].
    OutageAmidWrites,
    /// [`Fixture::restart`].
    Restart,
    /// [`Fixture::lose_power`].
    PowerLoss,
    /// [`Fixture::transactions`], or the store's own ability
    /// ([`Capabilities::transactions`](inbox_api::Capabilities::transactions)).
    Transactions,
    /// [`BusinessWrites`](crate::BusinessWrites) in the transactions.
    BusinessWrites,
    /// [`BusinessWrites::mishap`](crate::BusinessWrites::mishap) of this kind.
    Mishap(Mishap),
    /// An open transaction that leaves others their writes
    /// ([`Capabilities::exclusive_transactions`](inbox_api::Capabilities::exclusive_transactions)).
    SharedWrites,
    /// [`Fixture::silence`].
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
    /// [`Capabilities::wakeups`](inbox_api::Capabilities::wakeups) other than none.
    Wakeups,
    /// Wake-ups that reach every process.
    WakeupsAcrossProcesses,
    /// [`ReceiveAtomicity::Batch`](inbox_api::ReceiveAtomicity::Batch).
    BatchAtomicity,
}

impl Need {
    /// What a harness may offer or not, whatever its store can do: the optional methods of
    /// [`Harness`] and [`Fixture`]. The minimal harness lacks all of it.
    pub const HARNESS: &[Self] = &[
        Self::Clock,
        Self::SecondConnection,
        Self::Schema(SchemaVariant::Missing),
        Self::Schema(SchemaVariant::Incomplete),
        Self::Schema(SchemaVariant::Older),
        Self::Schema(SchemaVariant::Newer),
        Self::Schema(SchemaVariant::Foreign),
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
            Self::Schema(SchemaVariant::Foreign) => "the harness makes no place with foreign data",
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
    /// Whether the case restarts the store or takes it away ([`Fixture::restart`],
    /// [`Fixture::begin_outage`]). Inboxes of other cases may share a server; this one needs what
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
    /// An inbox of a later version than this build knows.
    Newer,
    /// Something of the same name that is not an inbox.
    Foreign,
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

/// A store under test. One value serves all cases; see the [crate documentation](crate) for a
/// complete one.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// What the report calls the store.
    fn name(&self) -> String;

    /// A fresh inbox: set up, empty, and not touched by anything else, whatever runs at the same
    /// time. Everything behind it is cleaned up when the fixture is dropped.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] with [`Need::PayloadLimit`], [`Need::DroppedPayloads`] or
    /// [`Need::OperationTimeout`] when `settings` asks for what the store has no option for;
    /// [`Unable::Failed`] otherwise.
    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>>;

    /// A fresh place in the condition `variant`, with a store that has not been set up on it.
    /// [`Fixture::inbox`] of what is returned opens without creating or migrating an inbox; it may make
    /// what an inbox is kept in, such as an empty file or database.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless the harness overrides this.
    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        Err(Unable::NotOffered(Need::Schema(variant)))
    }

    /// What this harness and its store are known to lack. A case that cannot be checked for any
    /// other reason fails, so that nothing is skipped silently.
    fn expected_not_checked(&self) -> Vec<Need> {
        Vec::new()
    }
}

#[async_trait]
impl<H: Harness + ?Sized> Harness for Arc<H> {
    fn name(&self) -> String {
        (**self).name()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        (**self).fresh(settings).await
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        (**self).schema_variant(variant).await
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        (**self).expected_not_checked()
    }
}

/// One isolated inbox, and what the harness can do to it. Dropping it cleans up.
///
/// Only [`inbox`](Self::inbox) is required; each ability that is offered besides lets more cases
/// be checked.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// The inbox. Called several times, it may return the same value.
    fn inbox(&self) -> Arc<dyn Inbox>;

    /// Moves the store's clock forward. Without it, cases wait for short real times, and those
    /// that would have to wait longer than a fifth of a second are not checked.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        let _ = by;
        Err(Unable::NotOffered(Need::Clock))
    }

    /// Opens the same inbox as another process would: own connections, own memory, the same
    /// clock.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Err(Unable::NotOffered(Need::SecondConnection))
    }

    /// Checks the store's own tables, indexes or keys against each other, by the database's own means
    /// and without the store's own statements: that counts are those of the rows, that each message
    /// is in one state and where a claim finds it, that no index has what the rows do not, that each
    /// ordering key has one message that can be claimed, leased or blocking. Answers what does not
    /// agree, a sentence each; nothing when all does.
    ///
    /// The suite asks after each case that passed, once for each inbox that the case made, and the case
    /// fails with what is answered. So it should be quick: one query, or one round trip. The store may
    /// still finish what a case has dropped, so the query has to see one moment. It is not asked about an
    /// inbox in an [outage](Self::begin_outage), nor after [`corrupt`](Self::corrupt),
    /// [`silence`](Self::silence) or [`lose_power`](Self::lose_power), nor where there is no inbox. No
    /// clock may decide the answer: a lease that has run out is no contradiction.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn check_invariants(&self) -> Offered<Vec<String>> {
        Err(Unable::NotOffered(Need::Invariants))
    }

    /// Spoils the stored row of `key` with the database's own means.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let _ = (key, corruption);
        Err(Unable::NotOffered(Need::CorruptRows))
    }

    /// Makes the store unable to answer, until [`end_outage`](Self::end_outage): the server
    /// stopped, the network cut, the file locked.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn begin_outage(&self) -> Offered<()> {
        Err(Unable::NotOffered(Need::Outage))
    }

    /// Ends what [`begin_outage`](Self::begin_outage) began.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn end_outage(&self) -> Offered<()> {
        Err(Unable::NotOffered(Need::Outage))
    }

    /// As [`begin_outage`](Self::begin_outage), but the next `writes` writes to the disk succeed:
    /// the store stops in the middle of what it does. Behind it, the case ends the outage and restarts
    /// the store as [`Restart::Killed`]. For stores within the process, whose writes a harness can
    /// count.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn begin_outage_after(&self, writes: u32) -> Offered<()> {
        let _ = writes;
        Err(Unable::NotOffered(Need::OutageAmidWrites))
    }

    /// Makes every connection that is open now go silent, for good: nothing that is sent on it
    /// arrives or is refused, as behind a firewall that has forgotten it. New connections work.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn silence(&self) -> Offered<()> {
        Err(Unable::NotOffered(Need::Silence))
    }

    /// Restarts what is behind the inbox, and returns when it answers again. The value that
    /// [`inbox`](Self::inbox) returned before must go on working, or `inbox` return a new one.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn restart(&self, how: Restart) -> Offered<()> {
        let _ = how;
        Err(Unable::NotOffered(Need::Restart))
    }

    /// Takes the machine's power away, and returns when the store is there again: gone is what was
    /// written and not yet made durable. A kill is not that: the operating system outlives it, and so
    /// does what it has not written to the disk yet. As for [`restart`](Self::restart),
    /// [`inbox`](Self::inbox) may return a new value.
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    async fn lose_power(&self) -> Offered<()> {
        Err(Unable::NotOffered(Need::PowerLoss))
    }

    /// The store's transactions; see [`Transactions`](crate::Transactions).
    ///
    /// # Errors
    /// [`Unable::NotOffered`] unless overridden.
    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        Err(Unable::NotOffered(Need::Transactions))
    }
}
