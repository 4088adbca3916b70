//! Each write as the last one before a loss of power.

use std::time::Duration;

use inbox_api::{
    Begun, Bytes, Due, Edit, Extended, Filter, Intervention, Lease, Message, Outcome, Progress,
    PurgeRequest, Receipt, Record, Recorded, Settled, Settlement, Slice, State, StoreExt as _,
};

use super::outage::recovered;
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::{Need, Unable},
    test_inbox::{
        Context, LONG, TestInbox, claim, dead, defer, message_for, retry, terms, without_times,
    },
    transactions::AnyTransaction,
};

/// What is answered before the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Receive,
    Begin,
    Claim,
    Complete,
    Retry,
    Defer,
    Release,
    Die,
    Extend,
    Replay,
    ReplaySlice,
    Reschedule,
    RescheduleSlice,
    Discard,
    DiscardSlice,
    ClearSlice,
    Pause,
    Resume,
    DropPayloads,
    Purge,
    PurgeArchived,
    ReceiveIn,
    RecordIn,
    SettleIn,
    SettleAndCommit,
}

const WRITES: [Write; 21] = [
    Write::Receive,
    Write::Begin,
    Write::Claim,
    Write::Complete,
    Write::Retry,
    Write::Defer,
    Write::Release,
    Write::Die,
    Write::Extend,
    Write::Replay,
    Write::ReplaySlice,
    Write::Reschedule,
    Write::RescheduleSlice,
    Write::Discard,
    Write::DiscardSlice,
    Write::ClearSlice,
    Write::Pause,
    Write::Resume,
    Write::DropPayloads,
    Write::Purge,
    Write::PurgeArchived,
];

const WRITES_IN_TRANSACTIONS: [Write; 4] = [
    Write::ReceiveIn,
    Write::RecordIn,
    Write::SettleIn,
    Write::SettleAndCommit,
];

/// What there is to see of a message and its handler, but for times.
#[derive(Debug, PartialEq)]
struct Seen {
    record: Option<Record>,
    is_due_later: bool,
    is_leased_for_long: bool,
    is_paused: bool,
}

impl Seen {
    async fn of(inbox: &TestInbox, sent: &Message) -> CaseResult<Self> {
        let record = inbox.get(sent.key()).await?;
        let is_due_later = |record: &Record| record.due_at >= record.accepted_at + LONG / 2;
        let is_leased_for_long = |record: &Record| {
            let times = record.lease_until.zip(record.leased_at);
            times.is_some_and(|(until, since)| until >= since + 2 * LONG)
        };
        Ok(Self {
            is_due_later: record.as_ref().is_some_and(is_due_later),
            is_leased_for_long: record.as_ref().is_some_and(is_leased_for_long),
            is_paused: inbox.paused().await?.contains(sent.handler()),
            record: record.map(without_times),
        })
    }
}

impl Write {
    /// The state of its message before; `None` when that is not known.
    fn before(self) -> Option<State> {
        match self {
            Self::Receive | Self::ReceiveIn | Self::RecordIn => None,
            Self::Begin
            | Self::Claim
            | Self::Reschedule
            | Self::RescheduleSlice
            | Self::Discard
            | Self::ClearSlice
            | Self::Pause
            | Self::Resume => Some(State::Pending),
            Self::Complete
            | Self::Retry
            | Self::Defer
            | Self::Release
            | Self::Die
            | Self::Extend
            | Self::SettleIn
            | Self::SettleAndCommit => Some(State::Leased),
            Self::Replay | Self::ReplaySlice | Self::DiscardSlice => Some(State::Dead),
            Self::DropPayloads | Self::Purge | Self::PurgeArchived => Some(State::Processed),
        }
    }

    /// A message of its own handler.
    fn message(self) -> CaseResult<Message> {
        message_for(&format!("{self:?}"), "1")
    }

    /// Brings its message to the state before; with the lease, if that is leased.
    async fn prepare(self, inbox: &TestInbox) -> CaseResult<Option<Lease>> {
        let sent = self.message()?;
        match self.before() {
            None => return Ok(None),
            Some(State::Leased) => inbox.accept(&sent).await?,
            Some(state) => inbox.accept_in(&sent, state).await?,
        }
        if self == Self::Resume {
            inbox.pause(sent.handler()).await?;
        }
        if self.before() != Some(State::Leased) {
            return Ok(None);
        }
        let leased = claim(&*inbox.store, sent.handler().as_str(), 1, LONG).await?;
        same("claimed", &leased.len(), &1)?;
        Ok(leased.into_iter().next().map(|leased| leased.lease))
    }

    fn outcome(self) -> Outcome {
        match self {
            Self::Retry => retry(LONG),
            Self::Defer => defer(LONG),
            Self::Release => Outcome::Release,
            Self::Die => dead("gave up"),
            _ => Outcome::Processed {
                result: Some(Bytes::from_static(b"result")),
            },
        }
    }

    /// Does it; fails unless it is answered as done.
    async fn perform(self, inbox: &TestInbox, lease: Option<&Lease>) -> CaseResult {
        let sent = self.message()?;
        let (key, handler) = (sent.key(), sent.handler());
        let of_handler = Filter {
            handler: Some(handler.clone()),
            ..Filter::default()
        };
        let slice = Slice {
            after: None,
            limit: 10,
        };
        let processed = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
        let processed = processed.for_handler(handler.clone());
        match self {
            Self::Receive => inbox.accept(&sent).await,
            Self::Begin => {
                let begun = inbox.begin(&sent, &terms(LONG)?).await?;
                ensure!(matches!(begun, Begun::Run(_)), "begin: saw {begun:?}");
                Ok(())
            }
            Self::Claim => {
                let leased = claim(&*inbox.store, handler.as_str(), 1, LONG).await?;
                same("claimed", &leased.len(), &1)
            }
            Self::Complete | Self::Retry | Self::Defer | Self::Release | Self::Die => {
                let settled = inbox.settle(&[self.settlement(lease)?]).await?;
                same("settled", &settled, &vec![Settled::Done])
            }
            Self::Extend => {
                let lease = self.settlement(lease)?.lease;
                let extended = inbox.extend_one(&lease, 50 * LONG).await?;
                ensure!(
                    matches!(extended, Extended::Until(_)),
                    "extend: saw {extended:?}"
                );
                Ok(())
            }
            Self::Replay => done(inbox.replay(key, &Edit::default()).await?),
            Self::ReplaySlice => one(&inbox.replay_slice(&of_handler, &slice).await?),
            Self::Reschedule => done(inbox.reschedule(key, Due::After(LONG)).await?),
            Self::RescheduleSlice => {
                let due = Due::After(LONG);
                one(&inbox.reschedule_slice(&of_handler, &slice, due).await?)
            }
            Self::Discard => done(inbox.discard(key).await?),
            Self::DiscardSlice => one(&inbox.discard_slice(&of_handler, &slice).await?),
            Self::ClearSlice => one(&inbox.clear_slice(handler, &slice).await?),
            Self::Pause => Ok(inbox.pause(handler).await?),
            Self::Resume => Ok(inbox.resume(handler).await?),
            Self::DropPayloads => same("dropped", &inbox.drop_payloads(&processed).await?, &1),
            Self::Purge => same("purged", &inbox.purge(&processed).await?, &1),
            Self::PurgeArchived => {
                let purged = inbox.purge_archived(&processed, std::slice::from_ref(key));
                same("purged", &purged.await?, &1)
            }
            Self::ReceiveIn | Self::RecordIn | Self::SettleIn | Self::SettleAndCommit => {
                let transaction = inbox.fixture.transactions()?.open().await?;
                self.perform_in(transaction, &sent, lease).await
            }
        }
    }

    async fn perform_in(
        self,
        mut transaction: Box<dyn AnyTransaction>,
        sent: &Message,
        lease: Option<&Lease>,
    ) -> CaseResult {
        match self {
            Self::ReceiveIn => {
                let receipts = transaction.receive(std::slice::from_ref(sent)).await?;
                same("receipts", &receipts, &vec![Receipt::Accepted])?;
            }
            Self::RecordIn => {
                let recorded = transaction.record(sent, None).await?;
                same("record", &recorded, &Recorded::First)?;
            }
            _ => {
                let settlement = [self.settlement(lease)?];
                if self == Self::SettleAndCommit {
                    let settled = transaction.settle_and_commit(&settlement).await?;
                    return same("settled", &settled, &vec![Settled::Done]);
                }
                let settled = transaction.settle(&settlement).await?;
                same("settled", &settled, &vec![Settled::Done])?;
            }
        }
        Ok(transaction.commit().await?)
    }

    fn settlement(self, lease: Option<&Lease>) -> CaseResult<Settlement> {
        let lease = lease.ok_or_else(|| Unmet::Failed(format!("{self:?}: saw no lease")))?;
        Ok(Settlement {
            lease: lease.clone(),
            outcome: self.outcome(),
        })
    }
}

fn done(answer: Intervention) -> CaseResult {
    same("answer", &answer, &Intervention::Done)
}

fn one(progress: &Progress) -> CaseResult {
    same("changed", &progress.changed, &1)
}

/// Defect: only some writes are made durable, and those before one of them with it.
pub(crate) async fn each_answer_is_on_the_disk(cx: Context) -> CaseResult {
    cx.unless_lacking(Need::PowerLoss)?;
    // What it looks like where the power stays.
    let spared = cx.fresh().await?;
    let mut inbox = cx.fresh_to_disrupt().await?;
    let has_transactions = match inbox.fixture.transactions() {
        Ok(_) => inbox.capabilities().transactions,
        Err(Unable::NotOffered(_)) => false,
        Err(failed) => return Err(failed.into()),
    };
    let in_transactions = WRITES_IN_TRANSACTIONS
        .into_iter()
        .filter(|_| has_transactions);
    for write in WRITES.into_iter().chain(in_transactions) {
        let sent = write.message()?;
        let lease = write.prepare(&spared).await?;
        write.perform(&spared, lease.as_ref()).await?;
        let expected = Seen::of(&spared, &sent).await?;

        let lease = write.prepare(&inbox).await?;
        write.perform(&inbox, lease.as_ref()).await?;
        inbox.fixture.server().lose_power().await?;
        inbox.store = inbox.fixture.inbox();
        let _ = recovered(&inbox, &message_for("later", &format!("{write:?}"))?).await?;
        same(
            &format!("after {write:?}, the last write before a loss of power"),
            &Seen::of(&inbox, &sent).await?,
            &expected,
        )?;
    }
    Ok(())
}
