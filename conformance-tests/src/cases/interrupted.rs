//! What a commit promises when a step of the store's did not come to its end: another transaction held
//! what it needed until its time limit, or its future was dropped.
//!
//! The caller has to roll back then. A case commits all the same, sends everything once more, and sees
//! whether all of it is worked on in the end: nothing may be known and not be there.

use std::{fmt, time::Duration};

use inbox_api::{
    Effect, Filter, Lease, Message, Receipt, Recorded, Result, Settled, Settlement, State,
    Store as _,
};

use crate::{
    cancel::drop_after,
    check::{CaseResult, Unmet, ensure, same},
    needs::{Need, Settings, Unable},
    test_inbox::{Context, LONG, TestInbox, claim, message_for, processed},
    transactions::{AnyTransaction, AnyTransactions},
};

/// How long the store's operations may take here.
const LIMIT: Duration = Duration::from_secs(5);
/// When a future that waits is dropped.
const PATIENCE: Duration = Duration::from_millis(500);
/// When a call counts as one that does not end.
const HUNG: Duration = Duration::from_secs(60);
/// More than stores put into one statement.
const BATCH: usize = 1100;
/// What a slow machine does within [`LIMIT`], too.
const SLICE: u32 = 100;
/// More polls than any step needs.
const MOST_POLLS: usize = 300;

const STEPS: [Step; 3] = [Step::Record, Step::Receive, Step::Settle];

/// What is done in the transaction through the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Record,
    Receive,
    Settle,
}

/// How the transaction is to be committed behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Commit,
    /// With the settlement of another message.
    SettleAndCommit,
}

/// Why it did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Failed,
    Waited,
    Polled(usize),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed => f.write_str("failed at its time limit"),
            Self::Waited => f.write_str("was dropped while it waited for another transaction"),
            Self::Polled(polls) => write!(f, "was dropped after {polls} polls"),
        }
    }
}

fn ends(leases: &[Lease]) -> Vec<Settlement> {
    let of = |lease: &Lease| Settlement {
        lease: lease.clone(),
        outcome: processed(),
    };
    leases.iter().map(of).collect()
}

/// A step, and what it is about.
struct Scene<'a> {
    inbox: &'a TestInbox,
    transactions: &'a dyn AnyTransactions,
    step: Step,
    stop: Stop,
    messages: Vec<Message>,
    leases: Vec<Lease>,
    /// What is settled with the commit.
    last: Option<Lease>,
}

impl fmt::Display for Scene<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match self.step {
            Step::Record => "record",
            Step::Receive => "receive",
            Step::Settle => "settle",
        };
        write!(f, "{step} that {}", self.stop)
    }
}

async fn fresh(cx: &Context) -> CaseResult<TestInbox> {
    let limited = Settings {
        operation_timeout: Some(LIMIT),
        ..Settings::default()
    };
    let inbox = match cx.fresh_with(&limited).await {
        // A store that waits for nothing.
        Err(Unmet::NotChecked(Need::OperationTimeout)) => cx.fresh().await?,
        other => other?,
    };
    if !inbox.capabilities().transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    Ok(inbox)
}

pub(crate) async fn a_step_that_waited_in_vain_commits_all_or_nothing(cx: Context) -> CaseResult {
    let inbox = fresh(&cx).await?;
    if inbox.capabilities().exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    let transactions = inbox.fixture.transactions()?;
    for step in STEPS {
        for stop in [Stop::Failed, Stop::Waited] {
            let rows = if step == Step::Record { 1 } else { BATCH };
            let ending = Ending::Commit;
            let scene = Scene::new(&inbox, &*transactions, (step, stop, ending), rows).await?;
            let mut holder = transactions.open().await?;
            scene.take_last(&mut *holder).await?;
            let mut transaction = transactions.open().await?;
            let noted = scene.note(&mut *transaction).await?;
            let limit = if stop == Stop::Waited { PATIENCE } else { HUNG };
            let answer = tokio::time::timeout(limit, scene.take_all(&mut *transaction)).await;
            holder.roll_back().await?;
            match (stop, &answer) {
                (Stop::Failed, Err(_)) => {
                    return Err(Unmet::Failed(format!(
                        "{scene}: expected an answer within {HUNG:?}, saw none"
                    )));
                }
                // It did not wait: a store that fails at once where another is first.
                (Stop::Failed, Ok(Ok(all))) => ensure!(
                    !all,
                    "{scene}: expected that it fails or is refused what another transaction \
                     holds, saw that it got everything"
                ),
                _ => {}
            }
            let committed = transaction.commit().await;
            scene.judge(&committed, noted, false).await?;
        }
    }
    Ok(())
}

pub(crate) async fn a_step_that_is_dropped_commits_all_or_nothing(cx: Context) -> CaseResult {
    let inbox = fresh(&cx).await?;
    let transactions = inbox.fixture.transactions()?;
    let endings = [Ending::Commit, Ending::SettleAndCommit];
    let steps = STEPS
        .iter()
        .flat_map(|step| endings.map(|ending| (*step, ending)));
    for (step, ending) in steps {
        let mut completed = false;
        for polls in 0..MOST_POLLS {
            let stop = Stop::Polled(polls);
            let rows = if step == Step::Record { 1 } else { 3 };
            let scene = Scene::new(&inbox, &*transactions, (step, stop, ending), rows).await?;
            let mut transaction = transactions.open().await?;
            let noted = scene.note(&mut *transaction).await?;
            let answer = drop_after(polls, scene.take_all(&mut *transaction)).await;
            let committed = scene.commit(transaction).await?;
            // Dropped before it has begun, it has no part in the transaction.
            scene.judge(&committed, noted, answer.is_none()).await?;
            if answer.is_some() {
                completed = true;
                break;
            }
        }
        ensure!(
            completed,
            "{step:?} did not complete within {MOST_POLLS} polls"
        );
    }
    Ok(())
}

impl<'a> Scene<'a> {
    /// Stores and leases the messages where the step is a settlement.
    async fn new(
        inbox: &'a TestInbox,
        transactions: &'a dyn AnyTransactions,
        (step, stop, ending): (Step, Stop, Ending),
        rows: usize,
    ) -> CaseResult<Self> {
        // Of a handler of its own.
        let handler = match stop {
            Stop::Polled(polls) => format!("{step:?}-{polls}-{ending:?}"),
            _ => format!("{step:?}-{stop:?}-{ending:?}"),
        };
        let messages: Vec<_> = (1..=rows)
            .map(|n| message_for(&handler, &format!("{n:05}")))
            .collect::<CaseResult<_>>()?;
        let mut scene = Self {
            inbox,
            transactions,
            step,
            stop,
            messages,
            leases: Vec::new(),
            last: None,
        };
        if ending == Ending::SettleAndCommit {
            let handler = format!("{handler}-last");
            inbox.accept(&message_for(&handler, "1")?).await?;
            let leased = claim(&*inbox.store, &handler, 1, 60 * LONG).await?;
            scene.last = leased.into_iter().next().map(|leased| leased.lease);
        }
        if step == Step::Settle {
            for slice in scene.messages.chunks(SLICE as usize) {
                inbox.accept_all(slice).await?;
            }
            scene.leases = scene.claim_all().await?;
            // In the order in which a store may settle them.
            scene.leases.sort_by(|one, other| one.key.cmp(&other.key));
            ensure!(scene.leases.len() == rows, "{scene}: not all was claimed");
        }
        Ok(scene)
    }

    /// Commits, and answers what the store does.
    async fn commit(&self, transaction: Box<dyn AnyTransaction>) -> CaseResult<Result<()>> {
        let Some(last) = &self.last else {
            return Ok(transaction.commit().await);
        };
        let settled = transaction
            .settle_and_commit(&ends(std::slice::from_ref(last)))
            .await;
        let state = self.inbox.record(&last.key).await?.state;
        let is_settled = match &settled {
            Ok(settled) => {
                same(
                    &format!("{self}: settled behind it"),
                    settled,
                    &vec![Settled::Done],
                )?;
                Some(true)
            }
            Err(error) => (error.effect() == Effect::None).then_some(false),
        };
        ensure!(
            is_settled.is_none_or(|is_settled| is_settled == (state == State::Processed)),
            "{self}: settling with the commit answered {settled:?}, but the message is {state}"
        );
        Ok(settled.map(drop))
    }

    async fn claim_all(&self) -> CaseResult<Vec<Lease>> {
        let mut leases = Vec::new();
        let Some(first) = self.messages.first() else {
            return Ok(leases);
        };
        loop {
            let handler = first.handler().as_str();
            let some = claim(&*self.inbox.store, handler, SLICE, 60 * LONG).await?;
            if some.is_empty() {
                return Ok(leases);
            }
            leases.extend(some.into_iter().map(|leased| leased.lease));
        }
    }

    /// The last of what the step needs.
    async fn take_last(&self, transaction: &mut dyn AnyTransaction) -> CaseResult {
        let last = self.messages.len().saturating_sub(1);
        let messages = self.messages.get(last..).unwrap_or_default();
        let leases = self.leases.get(last..).unwrap_or_default();
        let taken = self.take(transaction, messages, leases).await?;
        ensure!(taken, "{self}: the other transaction did not get its row");
        Ok(())
    }

    async fn take_all(&self, transaction: &mut dyn AnyTransaction) -> Result<bool> {
        self.take(transaction, &self.messages, &self.leases).await
    }

    /// Does the step; whether it got everything.
    async fn take(
        &self,
        transaction: &mut dyn AnyTransaction,
        messages: &[Message],
        leases: &[Lease],
    ) -> Result<bool> {
        Ok(match (self.step, messages) {
            (Step::Record, [message]) => {
                transaction.record(message, None).await? == Recorded::First
            }
            (Step::Record, _) => false,
            (Step::Receive, _) => {
                let receipts = transaction.receive(messages).await?;
                receipts.iter().all(|receipt| *receipt == Receipt::Accepted)
            }
            (Step::Settle, _) => {
                let settled = transaction.settle(&ends(leases)).await?;
                settled.iter().all(|settled| *settled == Settled::Done)
            }
        })
    }

    fn note_text(&self) -> String {
        let handler = self
            .messages
            .first()
            .map(|message| message.handler().as_str());
        format!("of {}", handler.unwrap_or_default())
    }

    /// Writes what the handler writes, if the harness has such writes.
    async fn note(&self, transaction: &mut dyn AnyTransaction) -> CaseResult<bool> {
        match transaction.write(&self.note_text()).await {
            Ok(()) => Ok(true),
            Err(Unable::NotOffered(_)) => Ok(false),
            Err(failed) => Err(failed.into()),
        }
    }

    /// Compares what commit answered with what is there.
    async fn judge(&self, committed: &Result<()>, noted: bool, may_lack: bool) -> CaseResult {
        let answer = match committed {
            Ok(()) => "answered Ok".to_owned(),
            Err(error) => format!("failed ({error})"),
        };
        let there = self.there(&answer).await?;
        let all = there == self.messages.len();
        ensure!(
            all || there == 0,
            "{self}: commit {answer}, but {there} of {} are there",
            self.messages.len()
        );
        let written = !noted
            || self
                .transactions
                .written()
                .await?
                .contains(&self.note_text());
        let truthful = match committed {
            Ok(()) => written && (all || may_lack),
            Err(error) if error.effect() == Effect::None => !all && (!noted || !written),
            Err(_) => !all || written,
        };
        ensure!(
            truthful,
            "{self}: commit {answer}, but what the step does is {}there, and what the handler \
             wrote is {}there",
            if all { "" } else { "not " },
            if written { "" } else { "not " }
        );
        Ok(())
    }

    /// How many of the step's effects are there. Sends everything once more, and sees that all of it
    /// comes to its end; also through another connection, to which nothing may look corrupt.
    async fn there(&self, answer: &str) -> CaseResult<usize> {
        let other = self.inbox.connections(2).await?.pop();
        let Some((other, first)) = other.zip(self.messages.first()) else {
            return Ok(0);
        };
        let _ = other.get(first.key()).await?;
        let mut there = 0;
        if self.step == Step::Settle {
            there = self.count_processed(first).await?;
        } else {
            for slice in self.messages.chunks(SLICE as usize) {
                let receipts = other.receive(slice).await?;
                there += receipts
                    .iter()
                    .filter(|r| **r == Receipt::Duplicate { differs: false })
                    .count();
            }
        }
        let mut leases = self.claim_all().await?;
        if self.step == Step::Settle {
            leases.clone_from(&self.leases);
        }
        let mut finished = 0;
        for slice in ends(&leases).chunks(SLICE as usize) {
            let settled = self.inbox.settle(slice).await?;
            finished += settled.iter().filter(|s| **s == Settled::Done).count();
        }
        let expected = match self.step {
            // What is recorded is processed.
            Step::Record => self.messages.len().saturating_sub(there),
            Step::Receive | Step::Settle => self.messages.len(),
        };
        same(
            &format!(
                "{self}, commit {answer}: how many could be finished behind it, of {there} that were there"
            ),
            &finished,
            &expected,
        )?;
        same(
            &format!("{self}, commit {answer}: how many are processed in the end"),
            &self.count_processed(first).await?,
            &self.messages.len(),
        )?;
        Ok(there)
    }

    /// Of all messages of its handler, which no other step has.
    async fn count_processed(&self, first: &Message) -> CaseResult<usize> {
        let filter = Filter {
            handler: Some(first.handler().clone()),
            states: vec![State::Processed],
            ..Filter::default()
        };
        let count = self.inbox.count(&filter).await?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }
}
