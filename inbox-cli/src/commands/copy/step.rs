//! One page of messages: stored in the target all at once, then brought into their states.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use inbox::{
    AfterDead, Begun, Due, Inbox, Intervention, Key, LeaseTerms, Message, Outcome, Receipt, Record,
    Settled, State, StoreExt as _, WorkerName,
};

use super::Report;

/// How long a message is held to be settled, which takes no time. A copy that is killed meanwhile leaves it
/// for so long.
const LEASE: Duration = Duration::from_secs(10);

/// How many messages are brought into their states at a time.
const AT_ONCE: usize = 16;

pub(super) struct Step<'a> {
    to: &'a dyn Inbox,
    records: &'a [Record],
}

/// Why a message is not as it was.
type Problem = Option<(Key, String)>;

impl<'a> Step<'a> {
    pub(super) fn new(to: &'a dyn Inbox, records: &'a [Record]) -> Self {
        Self { to, records }
    }

    pub(super) async fn run(&self, report: &mut Report) -> Result<()> {
        let messages: Vec<Message> = self.records.iter().map(message).collect();
        let receipts = self.to.receive(&messages).await?;
        ensure!(
            receipts.len() == messages.len(),
            "the target gave no answer for a message"
        );
        let mut there = Vec::new();
        for (record, receipt) in self.records.iter().zip(receipts) {
            let key = || record.key.clone();
            match receipt {
                Receipt::Accepted => report.copied += 1,
                Receipt::Duplicate { differs: true, .. } => {
                    let problem = "the target has another message of this key".to_owned();
                    report.problems.push((key(), problem));
                    report.altered.insert(key());
                    continue;
                }
                Receipt::Duplicate { .. } => report.present += 1,
                Receipt::Refused(invalid) => {
                    let problem = format!("the target refuses it: {invalid}");
                    report.problems.push((key(), problem));
                    report.altered.insert(key());
                    continue;
                }
            }
            report.without_payload += u64::from(record.payload.is_none());
            there.push(record);
        }
        // First, since they hold nothing up then.
        let discarded = there.iter().filter(|r| r.state == State::Discarded);
        let discarding = stream::iter(discarded.map(|record| self.discard(record)));
        let problems: Vec<Problem> = discarding.buffer_unordered(AT_ONCE).try_collect().await?;
        note(report, problems);
        // One after the other of each ordering key.
        let mut groups: BTreeMap<_, Vec<&Record>> = BTreeMap::new();
        let is_worked_off = |r: &&&Record| matches!(r.state, State::Processed | State::Dead);
        for (number, record) in there.iter().filter(is_worked_off).enumerate() {
            let group = match &record.ordering_key {
                Some(key) => (Some((&record.key.handler, key)), 0),
                None => (None, number),
            };
            groups.entry(group).or_default().push(record);
        }
        let finishing = groups.into_values().map(|group| async move {
            let mut problems = Vec::new();
            for record in group {
                problems.push(self.finish(record).await?);
            }
            anyhow::Ok(problems)
        });
        let finishing = stream::iter(finishing).buffer_unordered(AT_ONCE);
        let problems: Vec<Vec<Problem>> = finishing.try_collect().await?;
        note(report, problems.into_iter().flatten());
        Ok(())
    }

    async fn discard(&self, record: &Record) -> Result<Problem> {
        Ok(match self.to.discard(&record.key).await? {
            Intervention::Done | Intervention::WrongState(State::Discarded) => None,
            Intervention::WrongState(state) => other_state(record, state),
            Intervention::NotFound | Intervention::PayloadDropped => {
                Some((record.key.clone(), "it is gone from the target".to_owned()))
            }
        })
    }

    /// Settles a message as it was settled in the source.
    async fn finish(&self, record: &Record) -> Result<Problem> {
        let terms = LeaseTerms::new(LEASE, WorkerName::new("inbox copy")?)?;
        let message = message(record);
        let leased = loop {
            match self.to.begin(&message, &terms).await? {
                Begun::Run(leased) => break leased,
                Begun::Processed { .. } => return Ok(is(record, State::Processed)),
                Begun::Dead { .. } => return Ok(is(record, State::Dead)),
                Begun::Discarded => return Ok(is(record, State::Discarded)),
                Begun::Busy { until } => {
                    // A copy that was killed held it, and only for so long.
                    let wait = until.duration_since(SystemTime::now()).unwrap_or_default();
                    if wait > LEASE * 2 {
                        bail!("{}: others work on the target", record.key);
                    }
                    tokio::time::sleep(wait.max(Duration::from_millis(50))).await;
                }
                Begun::Blocked => {
                    // An earlier one of its key was replayed, and is not final. Its handler must not run again.
                    let _ = self.to.discard(&record.key).await?;
                    let problem = "it is discarded in the target, since an earlier message of its ordering \
                                   key is not final or blocks it";
                    return Ok(Some((record.key.clone(), problem.to_owned())));
                }
            }
        };
        let settled = self.to.settle_one(&leased.lease, outcome(record)).await?;
        match settled {
            Settled::Done => Ok(None),
            Settled::LeaseLost => bail!("{}: others work on the target", record.key),
            Settled::Refused(invalid) => {
                // What it keeps is too much for the target; that it is done is what counts.
                let outcome = match outcome(record) {
                    Outcome::Dead { after, .. } => Outcome::Dead {
                        reason: String::new(),
                        after,
                    },
                    _ => Outcome::Processed { result: None },
                };
                ensure!(
                    self.to.settle_one(&leased.lease, outcome).await? == Settled::Done,
                    "{}: the target does not take its outcome",
                    record.key
                );
                let problem = format!("its result or error is not in the target: {invalid}");
                Ok(Some((record.key.clone(), problem)))
            }
        }
    }
}

fn note(report: &mut Report, problems: impl IntoIterator<Item = Problem>) {
    for (key, problem) in problems.into_iter().flatten() {
        report.altered.insert(key.clone());
        report.problems.push((key, problem));
    }
}

/// The message as it is to be stored: due when it was, if it is still to be worked on.
fn message(record: &Record) -> Message {
    let with_payload = Record {
        payload: Some(record.payload.clone().unwrap_or_default()),
        ..record.clone()
    };
    let message = with_payload.message().unwrap_or_else(|| {
        let Key { handler, id } = record.key.clone();
        Message::new(handler, id, record.kind.clone(), Bytes::new())
    });
    let message = message.with_fingerprint(record.fingerprint);
    match record.state {
        State::Pending | State::Leased => message.with_due(Due::At(record.due_at)),
        _ => message,
    }
}

fn outcome(record: &Record) -> Outcome {
    match record.state {
        State::Dead => Outcome::Dead {
            reason: record.last_error.clone().unwrap_or_default(),
            after: if record.blocks_ordering_key {
                AfterDead::Block
            } else {
                AfterDead::Continue
            },
        },
        _ => Outcome::Processed {
            result: record.result.clone(),
        },
    }
}

/// A message that was in the target before, in this state.
fn is(record: &Record, state: State) -> Problem {
    (record.state != state).then(|| other_state(record, state))?
}

fn other_state(record: &Record, state: State) -> Problem {
    let problem = format!(
        "it is {state} in the target and {} in the source",
        record.state
    );
    Some((record.key.clone(), problem))
}
