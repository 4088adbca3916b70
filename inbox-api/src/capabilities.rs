//! What a store can and cannot do, as a value.

use serde::Serialize;

/// How far a store's wake-ups reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wakeups {
    /// None: workers poll.
    None,
    /// To workers that use the same store value (or a clone of it).
    SameProcess,
    /// To every worker on the inbox.
    EveryProcess,
}

/// What one [`receive`](crate::Store::receive) stores together or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveAtomicity {
    /// The messages of the batch that share a message id: one delivery's fan-out.
    MessageId,
    /// The whole batch.
    Batch,
}

/// What a store can do. Callers and the conformance suite ask, so that nothing is skipped
/// silently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// What accepted messages survive, for people to read; the store's documentation says more.
    pub durability: &'static str,
    /// Whether several processes can use one inbox at the same time.
    pub multi_process: bool,
    /// Whether the store also implements [`Transactional`](crate::Transactional).
    pub transactions: bool,
    /// Whether an open transaction of [`Transactional`](crate::Transactional) keeps every other
    /// write of the inbox waiting until it ends. Where it does not, a transaction that holds one
    /// message MUST cost the other messages nothing.
    pub exclusive_transactions: bool,
    /// Whether ordering keys are honoured. In a store without them every call that is given a message
    /// with one MUST fail as a whole, as [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported),
    /// before anything is stored.
    pub ordering: bool,
    /// Whether a claim hands out several messages of an ordering key, as
    /// [runs](crate::Store::claim), to those who ask for them. Where not, all runs are of one message.
    pub runs: bool,
    /// How far wake-ups reach.
    pub wakeups: Wakeups,
    /// What one receive stores together.
    pub receive_atomicity: ReceiveAtomicity,
    /// The largest payload and the largest result, in bytes.
    pub payload_limit: usize,
}

impl Capabilities {
    /// The least that a store may offer; set the fields that it does better in.
    #[must_use]
    pub fn minimal(durability: &'static str, payload_limit: usize) -> Self {
        Self {
            durability,
            multi_process: false,
            transactions: false,
            exclusive_transactions: false,
            ordering: false,
            runs: false,
            wakeups: Wakeups::None,
            receive_atomicity: ReceiveAtomicity::MessageId,
            payload_limit,
        }
    }
}
