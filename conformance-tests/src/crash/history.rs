//! What happened in a run: the calls of all workers, what they asked and what was answered.

use std::{
    collections::{BTreeMap, HashMap},
    error::Error as _,
    iter,
    time::SystemTime,
};

use inbox_api::{
    AfterDead, Begun, Claims, Extended, HandlerName, Key, Lease, Leased, Message, OrderingKey,
    Outcome, Receipt, Settled, Settlement, State, duration_micros, error_text,
};
use serde::{Deserialize, Serialize};

use super::{
    log::{Event, What},
    traffic::altered,
};
use crate::needs::BoxError;

/// One message of a receive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Which message.
    pub key: Key,
    /// Its ordering key.
    pub ordering_key: Option<OrderingKey>,
}

/// A lease, as an operation names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Which message.
    pub key: Key,
    /// The fencing token.
    pub token: i64,
}

/// How an attempt was to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// [`Outcome::Processed`].
    Processed,
    /// [`Outcome::Retry`], in so many microseconds.
    Retry(u64),
    /// [`Outcome::Dead`], not blocking its ordering key.
    Dead,
    /// [`Outcome::Dead`], blocking its ordering key, if it has one.
    Block,
    /// [`Outcome::Release`].
    Release,
    /// [`Outcome::Defer`], by so many microseconds.
    Defer(u64),
}

impl Ending {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Processed { .. } => Self::Processed,
            Outcome::Retry { after, .. } => Self::Retry(duration_micros(*after).unsigned_abs()),
            Outcome::Dead { after, .. } => match after {
                AfterDead::Continue => Self::Dead,
                AfterDead::Block => Self::Block,
            },
            Outcome::Release => Self::Release,
            Outcome::Defer { after, .. } => Self::Defer(duration_micros(*after).unsigned_abs()),
        }
    }

    /// Whether the start of the attempt is taken back.
    #[must_use]
    pub fn is_uncounted(self) -> bool {
        matches!(self, Self::Release | Self::Defer(_))
    }

    /// Whether the message is dead afterwards.
    #[must_use]
    pub fn is_dead(self) -> bool {
        matches!(self, Self::Dead | Self::Block)
    }

    /// Whether nothing further may happen to the message afterwards.
    #[must_use]
    pub fn is_final(self) -> bool {
        self == Self::Processed || self.is_dead()
    }

    /// Whether the next message of the ordering key has its turn afterwards.
    #[must_use]
    pub fn lets_the_next_through(self) -> bool {
        matches!(self, Self::Processed | Self::Dead)
    }
}

/// One settlement of a settle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Under which lease.
    pub held: Held,
    /// How.
    pub ending: Ending,
}

/// What an operator does to a dead message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// It is to be handled again, as if it had just come.
    Replay,
    /// It is given up.
    Discard,
}

/// What a call asks of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    /// A receive; in a transaction of its own or not.
    Receive {
        /// The batch.
        messages: Vec<Sent>,
        /// Whether through [`Transactional::receive_in`](inbox_api::Transactional::receive_in).
        transaction: bool,
    },
    /// A begin, by a consumer that handles the message where it comes in.
    Begin {
        /// The message.
        message: Sent,
        /// The lease's length in microseconds.
        length: u64,
    },
    /// A claim.
    Claim {
        /// For which handlers.
        handlers: Vec<HandlerName>,
        /// At most so many messages.
        limit: u32,
        /// At most so many of one ordering key.
        run_limit: u32,
        /// The leases' length in microseconds.
        length: u64,
    },
    /// A settle.
    Settle {
        /// The batch.
        endings: Vec<Ended>,
        /// Whether in a transaction, in which every processed message's effect is written.
        transaction: bool,
    },
    /// An operator's list of dead messages, the first page of it.
    List {
        /// Only this handler's.
        handler: Option<HandlerName>,
        /// Only those that block their ordering key.
        blocking: bool,
        /// At most so many.
        limit: u32,
    },
    /// An operator's change of one message, which is made if the message is dead.
    Change {
        /// Which message.
        key: Key,
        /// To what.
        change: Change,
    },
    /// An operator's purge.
    Purge {
        /// Of messages in this final state.
        state: State,
        /// For so many microseconds at least.
        older_than: u64,
        /// Of this handler.
        handler: HandlerName,
        /// At most so many.
        limit: u32,
        /// Whether they were read before, as an archiver does.
        archived: bool,
    },
    /// An extension.
    Extend {
        /// The leases.
        leases: Vec<Held>,
        /// Their new length in microseconds.
        length: u64,
    },
}

/// What became of one received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Received {
    /// [`Receipt::Accepted`].
    Accepted,
    /// [`Receipt::Duplicate`].
    Duplicate,
    /// [`Receipt::Refused`].
    Refused,
}

/// One message that a claim got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The lease.
    pub held: Held,
    /// The message's ordering key.
    pub ordering_key: Option<OrderingKey>,
    /// Attempts started, as the claim reports them.
    pub started: u32,
    /// Attempts finished, as the claim reports them.
    pub finished: u32,
    /// How often the message was replayed, as the claim reports it.
    pub replays: u32,
    /// What of the message is not as it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub altered: Option<String>,
}

/// What a begin was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Beginning {
    /// [`Begun::Run`]
    Run(Granted),
    /// [`Begun::Processed`]
    Processed,
    /// [`Begun::Busy`]
    Busy,
    /// [`Begun::Blocked`]
    Blocked,
    /// [`Begun::Dead`]
    Dead,
    /// [`Begun::Discarded`]
    Discarded,
}

/// What became of one settlement or one extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kept {
    /// [`Settled::Done`], or [`Extended::Until`] another end than before.
    Done,
    /// [`Extended::Until`] the end that the lease had before, or that it may have had: a store may pass over what
    /// another transaction holds.
    Unmoved,
    /// The token was stale.
    LeaseLost,
    /// [`Settled::Refused`].
    Refused,
}

/// What a call answered. A call that failed, or never ended, may have happened or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answered {
    /// Of a receive, one per message.
    Receipts(Vec<Received>),
    /// Of a begin.
    Begun(Beginning),
    /// Of a claim.
    Claims {
        /// The messages it got, in the order of the answer. Those of one ordering key are a run.
        granted: Vec<Granted>,
        /// How many rows it reported as corrupt.
        corrupt: usize,
    },
    /// Of a settle, one per settlement. A transaction answers after its commit or roll-back.
    Settled(Vec<Kept>),
    /// Of an extension, one per lease.
    Extended(Vec<Kept>),
    /// Of a list.
    Listed {
        /// The messages, in the order of the answer.
        keys: Vec<Key>,
        /// Whether there is nothing behind them.
        whole: bool,
        /// How many rows it reported as corrupt.
        corrupt: usize,
    },
    /// Of an operator's change: how many messages were changed.
    Changed(u64),
    /// Of an operator's purge: how many messages were deleted.
    Purged(u64),
    /// The transaction was rolled back, on purpose or because the lease was lost.
    RolledBack,
    /// The call failed.
    Failed {
        /// The error as it displays itself, with its causes.
        error: String,
        /// [`inbox_api::Error::is_retryable`].
        retryable: bool,
        /// Whether the error says that the write may have happened.
        unknown: bool,
    },
}

impl Answered {
    /// An error, or a listing, or a change or purge of no message.
    pub(crate) fn changed_nothing(&self) -> bool {
        matches!(
            self,
            Self::Failed { .. } | Self::Listed { .. } | Self::Changed(0) | Self::Purged(0)
        )
    }

    pub(crate) fn failed(error: &inbox_api::Error) -> Self {
        // With its causes: which of a server's errors it was.
        let causes = iter::successors(error.source(), |cause| (**cause).source());
        let texts = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        Self::Failed {
            error: error_text(&texts).into(),
            retryable: error.is_retryable(),
            unknown: error.effect() == inbox_api::Effect::Unknown,
        }
    }

    pub(crate) fn receipts(receipts: &[Receipt]) -> Self {
        Self::Receipts(
            receipts
                .iter()
                .map(|receipt| match receipt {
                    Receipt::Accepted => Received::Accepted,
                    Receipt::Duplicate { .. } => Received::Duplicate,
                    Receipt::Refused(_) => Received::Refused,
                })
                .collect(),
        )
    }

    pub(crate) fn begun(begun: &Begun) -> Self {
        Self::Begun(match begun {
            Begun::Run(leased) => Beginning::Run(granted(leased)),
            Begun::Processed { .. } => Beginning::Processed,
            Begun::Busy { .. } => Beginning::Busy,
            Begun::Blocked => Beginning::Blocked,
            Begun::Dead { .. } => Beginning::Dead,
            Begun::Discarded => Beginning::Discarded,
        })
    }

    pub(crate) fn claims(claims: &Claims) -> Self {
        Self::Claims {
            granted: claims.leased.iter().map(granted).collect(),
            corrupt: claims.corrupt.len(),
        }
    }

    pub(crate) fn settled(settled: &[Settled]) -> Self {
        Self::Settled(
            settled
                .iter()
                .map(|settled| match settled {
                    Settled::Done => Kept::Done,
                    Settled::LeaseLost => Kept::LeaseLost,
                    Settled::Refused(_) => Kept::Refused,
                })
                .collect(),
        )
    }

    /// Of leases that ended at `before` until then, as far as is known.
    pub(crate) fn extended(extended: &[Extended], before: &[Option<SystemTime>]) -> Self {
        let before = before.iter().copied().chain(iter::repeat(None));
        Self::Extended(
            extended
                .iter()
                .zip(before)
                .map(|(extended, before)| match extended {
                    Extended::Until(until) => match before {
                        Some(before) if before != *until => Kept::Done,
                        _ => Kept::Unmoved,
                    },
                    Extended::LeaseLost => Kept::LeaseLost,
                })
                .collect(),
        )
    }
}

fn granted(leased: &Leased) -> Granted {
    Granted {
        held: held(&leased.lease),
        ordering_key: leased.message.ordering_key().cloned(),
        started: leased.attempts.started,
        finished: leased.attempts.finished,
        replays: leased.replays,
        altered: altered(&leased.message).map(str::to_owned),
    }
}

pub(crate) fn held(lease: &Lease) -> Held {
    Held {
        key: lease.key.clone(),
        token: lease.token.get(),
    }
}

pub(crate) fn sent(message: &Message) -> Sent {
    Sent {
        key: message.key().clone(),
        ordering_key: message.ordering_key().cloned(),
    }
}

pub(crate) fn ended(settlement: &Settlement) -> Ended {
    Ended {
        held: held(&settlement.lease),
        ending: Ending::of(&settlement.outcome),
    }
}

/// One call of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which worker: a number that is not used again, unlike the process id.
    pub worker: u32,
    /// Its process.
    pub pid: u32,
    /// Just before the call, in microseconds of the host's monotonic clock.
    pub start: u64,
    /// Just after its answer.
    pub end: Option<u64>,
    /// What it asked.
    pub asked: Asked,
    /// What it answered; `None` when the worker died first.
    pub answered: Option<Answered>,
}

/// A jump of the clock by which the store judges leases and due times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockMove {
    /// Just before it, in microseconds of the host's monotonic clock.
    pub start: u64,
    /// Just after it.
    pub end: u64,
    /// How far the clock is ahead of the true time since, in microseconds; negative if it is behind.
    pub ahead: i64,
}

/// All calls of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The calls, in no particular order.
    pub calls: Vec<Call>,
    /// When the store's clock was moved, in order. Before the first it shows the true time.
    pub moves: Vec<ClockMove>,
    open: HashMap<(u32, u64), usize>,
    operations: u64,
}

impl History {
    /// How many operations of the store, whole batches each, were answered. Claims that got
    /// nothing do not count.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations
    }

    pub(super) fn add(&mut self, worker: u32, event: Event) -> Result<(), BoxError> {
        match event.what {
            What::Start(asked) => {
                self.open.insert((worker, event.call), self.calls.len());
                self.calls.push(Call {
                    worker,
                    pid: event.pid,
                    start: event.at,
                    end: None,
                    asked,
                    answered: None,
                });
            }
            What::End(answered) => {
                let call = self
                    .open
                    .remove(&(worker, event.call))
                    .and_then(|index| self.calls.get_mut(index))
                    .ok_or("a log has the end of a call without its start")?;
                let nothing = match &answered {
                    Answered::Claims { granted, .. } => granted.is_empty(),
                    Answered::Begun(begun) => !matches!(begun, Beginning::Run(_)),
                    other => other.changed_nothing(),
                };
                self.operations += u64::from(!nothing);
                call.end = Some(event.at);
                call.answered = Some(answered);
            }
            What::Point(_) => {}
        }
        Ok(())
    }
}

/// The runs in a claim's answer: the places of the messages of each ordering key that has several.
pub(crate) fn runs_in(granted: &[Granted]) -> Vec<Vec<usize>> {
    let mut runs: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (place, one) in granted.iter().enumerate() {
        if let Some(ordering_key) = &one.ordering_key {
            let of_key = (&one.held.key.handler, ordering_key);
            runs.entry(of_key).or_default().push(place);
        }
    }
    runs.into_values().filter(|run| run.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_end_that_is_as_before_or_was_not_known_is_not_moved() {
        let end = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let until = |seconds| Extended::Until(end(seconds));
        let answers = [until(2), until(1), until(2), Extended::LeaseLost];
        let before = [Some(end(1)), Some(end(1)), None, Some(end(1))];
        let kept = vec![Kept::Done, Kept::Unmoved, Kept::Unmoved, Kept::LeaseLost];
        assert_eq!(
            Answered::extended(&answers, &before),
            Answered::Extended(kept)
        );
    }
}
