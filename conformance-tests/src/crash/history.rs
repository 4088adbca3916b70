//! What happened in a run: every worker writes events to a log of its own, and the orchestrator
//! reads them into one history.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use inbox_api::{
    Claims, Extended, HandlerName, Key, Lease, Message, OrderingKey, Outcome, Receipt, Settled,
    Settlement, duration_micros,
};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::point::Point;
use crate::harness::BoxError;

/// Microseconds of the host's monotonic clock, which all processes on it share.
pub(crate) fn now() -> io::Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(io::Error::from)?;
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
    Ok(seconds * 1_000_000 + nanos / 1_000)
}

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
    /// [`Outcome::Release`].
    Release,
}

impl Ending {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Processed { .. } => Self::Processed,
            Outcome::Retry { after, .. } => Self::Retry(duration_micros(*after).unsigned_abs()),
            Outcome::Dead { .. } => Self::Dead,
            Outcome::Release => Self::Release,
        }
    }

    /// Whether nothing further may happen to the message afterwards.
    #[must_use]
    pub fn is_final(self) -> bool {
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
    /// A claim.
    Claim {
        /// For which handlers.
        handlers: Vec<HandlerName>,
        /// At most so many messages.
        limit: u32,
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
}

/// What became of one settlement or one extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kept {
    /// [`Settled::Done`] or [`Extended::Until`].
    Done,
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
    /// Of a claim.
    Claims {
        /// The messages it got.
        granted: Vec<Granted>,
        /// How many rows it reported as corrupt.
        corrupt: usize,
    },
    /// Of a settle, one per settlement. A transaction answers after its commit or roll-back.
    Settled(Vec<Kept>),
    /// Of an extension, one per lease.
    Extended(Vec<Kept>),
    /// The transaction was rolled back, on purpose or because the lease was lost.
    RolledBack,
    /// The call failed.
    Failed {
        /// The error as it displays itself.
        error: String,
        /// [`inbox_api::Error::is_retryable`].
        retryable: bool,
        /// Whether the error says that the write may have happened.
        unknown: bool,
    },
}

impl Answered {
    pub(crate) fn failed(error: &inbox_api::Error) -> Self {
        Self::Failed {
            error: error.to_string(),
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
                    Receipt::Duplicate => Received::Duplicate,
                    Receipt::Refused(_) => Received::Refused,
                })
                .collect(),
        )
    }

    pub(crate) fn claims(claims: &Claims) -> Self {
        Self::Claims {
            granted: claims
                .leased
                .iter()
                .map(|leased| Granted {
                    held: held(&leased.lease),
                    ordering_key: leased.message.ordering_key().cloned(),
                    started: leased.attempts.started,
                    finished: leased.attempts.finished,
                })
                .collect(),
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

    pub(crate) fn extended(extended: &[Extended]) -> Self {
        Self::Extended(
            extended
                .iter()
                .map(|extended| match extended {
                    Extended::Until(_) => Kept::Done,
                    Extended::LeaseLost => Kept::LeaseLost,
                })
                .collect(),
        )
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

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Event {
    /// When, in microseconds of the host's monotonic clock.
    at: u64,
    pid: u32,
    /// Which of the worker's calls it belongs to.
    call: u64,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum What {
    Start(Asked),
    End(Answered),
    /// The worker has come to the point at which it is to be killed.
    Point(Point),
}

/// A worker's log: one line per event, each appended by one write, so that a killed process
/// leaves at most its last line incomplete.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    pid: u32,
    calls: u64,
}

impl Log {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: OpenOptions::new().append(true).create_new(true).open(path)?,
            pid: std::process::id(),
            calls: 0,
        })
    }

    /// Before a call; answers its number.
    pub(crate) fn start(&mut self, asked: Asked) -> io::Result<u64> {
        self.calls += 1;
        self.write(now()?, self.calls, What::Start(asked))?;
        Ok(self.calls)
    }

    /// After the call `call`, which answered at `at`.
    pub(crate) fn end(&mut self, at: u64, call: u64, answered: Answered) -> io::Result<()> {
        self.write(at, call, What::End(answered))
    }

    pub(crate) fn point(&mut self, point: Point) -> io::Result<()> {
        self.write(now()?, self.calls, What::Point(point))
    }

    fn write(&mut self, at: u64, call: u64, what: What) -> io::Result<()> {
        let event = Event {
            at,
            pid: self.pid,
            call,
            what,
        };
        let mut line = serde_json::to_vec(&event)?;
        line.push(b'\n');
        self.file.write_all(&line)
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

/// All calls of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The calls, in no particular order.
    pub calls: Vec<Call>,
    open: HashMap<(u32, u64), usize>,
    operations: u64,
}

impl History {
    /// How many operations were answered: receipts, claimed messages, settlements and
    /// extensions, each counted per message. A claim that got nothing counts as none.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations
    }

    fn add(&mut self, worker: u32, event: Event) -> Result<(), BoxError> {
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
                self.operations += match &answered {
                    Answered::Receipts(answers) => answers.len() as u64,
                    Answered::Claims { granted, .. } => granted.len() as u64,
                    Answered::Settled(answers) | Answered::Extended(answers) => {
                        answers.len() as u64
                    }
                    Answered::RolledBack => 1,
                    Answered::Failed { .. } => 0,
                };
                call.end = Some(event.at);
                call.answered = Some(answered);
            }
            What::Point(_) => {}
        }
        Ok(())
    }
}

/// Follows one worker's log while it grows.
#[derive(Debug)]
pub(crate) struct Follower {
    worker: u32,
    path: PathBuf,
    file: Option<File>,
    rest: Vec<u8>,
}

impl Follower {
    pub(crate) fn new(worker: u32, path: PathBuf) -> Self {
        Self {
            worker,
            path,
            file: None,
            rest: Vec::new(),
        }
    }

    /// Reads what is new. An incomplete last line waits for its end, which never comes if its
    /// writer was killed.
    pub(crate) fn read(&mut self, history: &mut History) -> Result<(), BoxError> {
        let file = match &mut self.file {
            Some(file) => file,
            None => match File::open(&self.path) {
                Ok(file) => self.file.insert(file),
                // The worker has not come that far.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error.into()),
            },
        };
        file.read_to_end(&mut self.rest)?;
        let whole = self
            .rest
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        let rest = self.rest.split_off(whole);
        let lines = std::mem::replace(&mut self.rest, rest);
        for line in lines.split(|byte| *byte == b'\n') {
            if !line.is_empty() {
                history.add(self.worker, serde_json::from_slice(line)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use inbox_api::MessageId;

    use super::*;

    fn key() -> Key {
        Key::new(HandlerName::new("h").unwrap(), MessageId::new("m1").unwrap())
    }

    fn receive() -> Asked {
        Asked::Receive {
            messages: vec![Sent {
                key: key(),
                ordering_key: None,
            }],
            transaction: false,
        }
    }

    #[test]
    fn a_log_reads_back_while_it_grows_and_without_its_last_half_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1.ndjson");
        let mut follower = Follower::new(1, path.clone());
        let mut history = History::default();
        follower.read(&mut history).unwrap();

        let mut log = Log::create(&path).unwrap();
        let first = log.start(receive()).unwrap();
        follower.read(&mut history).unwrap();
        assert_eq!(history.calls.len(), 1);
        assert_eq!(history.calls[0].answered, None);
        let second = log.start(receive()).unwrap();
        let answer = Answered::Receipts(vec![Received::Duplicate]);
        log.end(now().unwrap(), second, answer.clone()).unwrap();
        log.point(Point::AfterReceive).unwrap();
        log.file.write_all(b"{\"at\":1,\"pi").unwrap();
        follower.read(&mut history).unwrap();
        assert_ne!(first, second);
        assert_eq!(history.calls.len(), 2);
        assert_eq!(history.calls[0].end, None);
        assert_eq!(history.calls[1].answered, Some(answer));
        assert!(history.calls[1].end >= Some(history.calls[1].start));
        assert_eq!(history.operations(), 1);
        // The rest of that line makes it whole.
        log.file.write_all(b"d\":1}\n").unwrap();
        assert!(follower.read(&mut history).is_err(), "not an event");
    }
}
