//! What a run does to the server and to the connections, next to killing workers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that goes wrong with the server behind an inbox, or on the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fault {
    /// The server is killed and started again. Of several servers, one that matters, so that another takes
    /// over.
    Killed,
    /// It is stopped in order and started again.
    Stopped,
    /// It is paused for some seconds: connections stay open, and nothing answers.
    Paused,
    /// All connections end.
    Cut,
    /// Nothing passes for some seconds, and then everything that was held back.
    Stalled,
    /// What is open stays open and silent for good, as behind a firewall that has forgotten it. New connections
    /// work.
    Silenced,
    /// The server does its work, its answer is lost, and the connection ends.
    AnswerLost,
    /// Everything takes longer for some seconds.
    Slowed,
    /// The disk is full for some seconds, and then has room again. A server that ends at that is started
    /// again.
    Filled,
    /// The clock by which leases and due times are judged jumps, forwards or backwards, by less or more than a lease is
    /// long. After a while it jumps back to the true time, or stays where it is. The workers' clocks do not change.
    ClockMoved,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Killed,
        Self::Stopped,
        Self::Paused,
        Self::Cut,
        Self::Stalled,
        Self::Silenced,
        Self::AnswerLost,
        Self::Slowed,
        Self::Filled,
        Self::ClockMoved,
    ];

    /// The fault's name in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::Paused => "paused",
            Self::Cut => "cut",
            Self::Stalled => "stalled",
            Self::Silenced => "silenced",
            Self::AnswerLost => "answer lost",
            Self::Slowed => "slowed",
            Self::Filled => "filled",
            Self::ClockMoved => "clock moved",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
