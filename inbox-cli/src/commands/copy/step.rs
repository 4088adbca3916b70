//! One page of messages: stored in the target all at once, then brought into their states.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use inbox::{
    AfterDead, Begun, Due, Filter, Inbox, Intervention, Key, LeaseTerms, Message, Outcome, Page,
    Receipt, Record, Settled, State, StoreExt as _, WorkerName,
};

use super::Report;

/// How long a message is held to be settled, which takes no time. A copy that is killed meanwhile leaves it
/// for so long.
const LEASE: Duration = Duration::from_secs(10);

/// A message that is busy until the same moment for so long is not held by a copy, whose lease would have run out.
/// Twice the length, for a target of several servers whose clocks differ.
const WATCH: Duration = Duration::from_secs(20);

/// Nor is one that is busy for so long in all, until ever later moments: others renew its lease.
const LONGEST_WATCH: Duration = Duration::from_secs(60);

/// How long to wait before the target is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// How many messages are brought into their states at a time.
const AT_ONCE: usize = 16;

pub(super) struct Step<'a> {
    from: &'a dyn Inbox,
    to: &'a dyn Inbox,
    /// Whether what only the target has is its own.
    merge: bool,
    records: &'a [Record],
}

/// Why a message is not as it was.
type Problem = Option<(Key, String)>;

impl<'a> Step<'a> {
    pub(super) fn new(
        from: &'a dyn Inbox,
        to: &'a dyn Inbox,
        merge: bool,
        records: &'a [Record],
    ) -> Self {
        Self {
            from,
            to,
            merge,
            records,
        }
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
        let mut watch = Watch::default();
        let leased = loop {
            let asked = Instant::now();
            match self.to.begin(&message, &terms).await? {
                Begun::Run(leased) => break leased,
                Begun::Processed { .. } => return Ok(is(record, State::Processed)),
                Begun::Dead { .. } => return Ok(is(record, State::Dead)),
                Begun::Discarded if self.merge && may_be_discarded(record) => return Ok(None),
                Begun::Discarded => return Ok(is(record, State::Discarded)),
                Begun::Busy { until } => {
                    // Perhaps by a copy that was killed.
                    if watch.is_over(until, asked, Instant::now()) {
                        bail!(
                            "{}: others work on it in the target, or it waits for its time there",
                            record.key
                        );
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Begun::Blocked => return self.leave_blocked(record).await.map(Some),
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

    /// What becomes of a message behind another one of its ordering key, and the problem that it is.
    async fn leave_blocked(&self, record: &Record) -> Result<(Key, String)> {
        let problem = if !self.merge && self.is_behind_another(record).await? {
            "an earlier message of its ordering key, which only the target has, is not final or blocks it"
        } else {
            // An earlier one of its key was replayed and is not final, or is the target's own. Its handler must not run
            // again.
            let _ = self.to.discard(&record.key).await?;
            if may_be_discarded(record) {
                "it is discarded in the target, since an earlier message of its ordering key is not final or blocks \
                 it; run this again with --merge to leave it so"
            } else {
                "it is discarded in the target, since an earlier message of its ordering key is not final or blocks \
                 it, and blocks the key in the source: discard it there, too, and run this again"
            }
        };
        Ok((record.key.clone(), problem.to_owned()))
    }

    /// Whether the target alone has the message that is first of this one's ordering key there. When that one is out of
    /// the way, another run settles this one.
    async fn is_behind_another(&self, record: &Record) -> Result<bool> {
        let of_its_key = Filter {
            handler: Some(record.key.handler.clone()),
            ordering_key: record.ordering_key.clone(),
            ..Filter::default()
        };
        let unfinished = Filter {
            states: vec![State::Pending, State::Leased],
            ..of_its_key.clone()
        };
        let blocking = Filter {
            blocking: true,
            ..of_its_key
        };
        for filter in [unfinished, blocking] {
            let first = self.to.list(&filter, &Page::first(1)).await?;
            if let Some(first) = first.records.first()
                && self.from.get(&first.key).await?.is_none()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// For how long a message has been busy. The target's moments are compared with one another only, as this machine's
/// clock may be another.
#[derive(Default)]
struct Watch {
    /// When the target said so for the first time.
    first: Option<Instant>,
    /// Until when it is, and since when the target says that.
    known: Option<(SystemTime, Instant)>,
}

impl Watch {
    /// Whether no copy holds it, now that the target has `answered` what it was `asked`: busy `until` then.
    fn is_over(&mut self, until: SystemTime, asked: Instant, answered: Instant) -> bool {
        let first = *self.first.get_or_insert(answered);
        let since = match self.known {
            Some((same, since)) if same == until => since,
            _ => {
                self.known = Some((until, answered));
                answered
            }
        };
        // What the target says may be as old as the question.
        asked.saturating_duration_since(since) >= WATCH
            || asked.saturating_duration_since(first) >= LONGEST_WATCH
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

/// Whether the target is as good without this message's outcome, as far as a merge goes: its duplicates are refused
/// there, and nothing waits for it in the source.
pub(super) fn may_be_discarded(record: &Record) -> bool {
    match record.state {
        State::Processed => true,
        State::Dead => !record.blocks_ordering_key,
        _ => false,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use inbox::{
        Clock, HandlerName, Kind, MessageId,
        memory::{MemoryOptions, MemoryStore},
    };

    use super::*;

    /// With its clock ahead of this machine's.
    fn target() -> Arc<dyn Inbox> {
        let clock = Clock::system();
        clock.advance(Duration::from_secs(60 * 60));
        Arc::new(MemoryStore::with(MemoryOptions::new().clock(clock)))
    }

    fn terms(length: Duration) -> LeaseTerms {
        LeaseTerms::new(length, WorkerName::new("w").unwrap()).unwrap()
    }

    #[tokio::test]
    async fn what_a_killed_copy_holds_is_waited_for_whatever_this_machines_clock_says() {
        let from = inbox::connect("memory://").await.unwrap();
        from.create().await.unwrap();
        let message = Message::new(
            HandlerName::new("h").unwrap(),
            MessageId::new("1").unwrap(),
            Kind::new("k").unwrap(),
            "",
        );
        let begun = from.begin(&message, &terms(LEASE)).await.unwrap();
        let Begun::Run(leased) = begun else {
            panic!("it is new");
        };
        let processed = Outcome::Processed { result: None };
        let settled = from.settle_one(&leased.lease, processed).await.unwrap();
        assert_eq!(settled, Settled::Done);
        let page = Page {
            with_payload: true,
            ..Page::first(1)
        };
        let records = from.list(&Filter::default(), &page).await.unwrap().records;

        let to = target();
        to.create().await.unwrap();
        let short = terms(Duration::from_millis(300));
        let held = to.begin(&message, &short).await.unwrap();
        assert!(matches!(held, Begun::Run(_)), "{held:?}");
        let mut report = Report::default();
        let step = Step::new(&*from, &*to, false, &records);
        step.run(&mut report).await.unwrap();
        assert!(report.is_good(), "{report:?}");
        let copy = to.get(message.key()).await.unwrap().unwrap();
        assert_eq!(copy.state, State::Processed);
    }

    #[test]
    fn what_others_hold_is_waited_for_only_so_long() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let until = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut watch = Watch::default();
        assert!(!watch.is_over(until(9), at(0), at(30)));
        assert!(!watch.is_over(until(9), at(49), at(49)));
        assert!(watch.is_over(until(9), at(50), at(50)));
        // It is renewed.
        let mut watch = Watch::default();
        for seconds in (0..60).step_by(5) {
            let is_over = watch.is_over(until(seconds), at(seconds), at(seconds));
            assert!(!is_over, "{seconds}");
        }
        assert!(watch.is_over(until(60), at(60), at(60)));
    }
}
