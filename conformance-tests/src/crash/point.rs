//! Where a worker is killed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A place in a worker's life at which it is killed.
///
/// At a *before* or *after* point and within handler and transaction, the worker stops and waits
/// for its death. During a call, it goes on and the kill comes when it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// The delivery is there, the store knows nothing.
    BeforeReceive,
    /// The store is at it.
    DuringReceive,
    /// The store has answered and nobody has noted the answer.
    AfterReceive,
    /// The store is at a begin.
    DuringBegin,
    /// The store has answered it, and nobody has noted the answer.
    AfterBegin,
    /// The store is at it.
    DuringClaim,
    /// The messages are leased, no handler has begun.
    AfterClaim,
    /// The handler is at work.
    DuringHandler,
    /// Messages of a run are handled, and others of it have not been begun.
    WithinRun,
    /// The handler is done, the store knows nothing.
    BeforeSettle,
    /// The store is at it.
    DuringSettle,
    /// The store has answered and nobody has noted the answer.
    AfterSettle,
    /// The effect is written and the message settled, and not committed.
    BeforeCommit,
    /// The database is at it.
    DuringCommit,
    /// Committed, and nobody has noted it.
    AfterCommit,
    /// The store is at a replay or a discard.
    DuringChange,
    /// The store has answered it, and nobody has noted the answer.
    AfterChange,
    /// The store is at a purge.
    DuringPurge,
    /// The store has answered it, and nobody has noted the answer.
    AfterPurge,
    /// Whatever the worker does.
    AnyTime,
}

impl Point {
    /// The points of a worker that receives.
    pub(crate) const RECEIVER: [Self; 6] = [
        Self::BeforeReceive,
        Self::DuringReceive,
        Self::AfterReceive,
        Self::DuringBegin,
        Self::AfterBegin,
        Self::AnyTime,
    ];

    /// The points of a worker that processes.
    pub(crate) const PROCESSOR: [Self; 7] = [
        Self::DuringClaim,
        Self::AfterClaim,
        Self::DuringHandler,
        Self::BeforeSettle,
        Self::DuringSettle,
        Self::AfterSettle,
        Self::AnyTime,
    ];

    /// The further points of a worker that processes in transactions.
    pub(crate) const TRANSACTION: [Self; 3] =
        [Self::BeforeCommit, Self::DuringCommit, Self::AfterCommit];

    /// The further point of a worker that gets runs.
    pub(crate) const RUNS: [Self; 1] = [Self::WithinRun];

    /// The points of an operator.
    pub(crate) const OPERATOR: [Self; 5] = [
        Self::DuringChange,
        Self::AfterChange,
        Self::DuringPurge,
        Self::AfterPurge,
        Self::AnyTime,
    ];

    /// Whether the worker stops there.
    pub(crate) fn stops(self) -> bool {
        !matches!(
            self,
            Self::DuringReceive
                | Self::DuringBegin
                | Self::DuringClaim
                | Self::DuringSettle
                | Self::DuringCommit
                | Self::DuringChange
                | Self::DuringPurge
        )
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::BeforeReceive => "before receive",
            Self::DuringReceive => "during receive",
            Self::AfterReceive => "after receive",
            Self::DuringBegin => "during begin",
            Self::AfterBegin => "after begin",
            Self::DuringClaim => "during claim",
            Self::AfterClaim => "after claim",
            Self::DuringHandler => "during the handler",
            Self::WithinRun => "within a run",
            Self::BeforeSettle => "before settle",
            Self::DuringSettle => "during settle",
            Self::AfterSettle => "after settle",
            Self::BeforeCommit => "before commit",
            Self::DuringCommit => "during commit",
            Self::AfterCommit => "after commit",
            Self::DuringChange => "during an operator's change",
            Self::AfterChange => "after an operator's change",
            Self::DuringPurge => "during a purge",
            Self::AfterPurge => "after a purge",
            Self::AnyTime => "at any time",
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
