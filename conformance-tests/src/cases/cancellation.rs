//! Every operation's future dropped after k polls, for k = 0, 1, 2, … until it completes. Whatever
//! happened, the message is there or it is not, a repetition works, and no connection is lost.

use std::time::Duration;

use inbox_api::{
    Begun, Bytes, Edit, Extended, Filter, Intervention, Key, Message, Operate, Page, PurgeRequest,
    Receipt, Result, Schema, Settled, Settlement, Slice, State, Store, StoreExt,
};

use crate::{
    cancel::drop_after,
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{Context, LONG, TestInbox, dead, message, message_for, processed, terms},
};

/// More polls than any operation needs; also more than any pool has connections.
const MOST_POLLS: usize = 300;

/// Numbers the rounds until an operation completes.
struct Rounds {
    polls: usize,
    completed: bool,
}

impl Rounds {
    fn new() -> Self {
        Self {
            polls: 0,
            completed: false,
        }
    }

    /// The next number of polls, or `None` when the operation has completed. Goes on a little
    /// after the first completion, since the number of polls varies.
    fn next(&mut self) -> CaseResult<Option<usize>> {
        if self.completed {
            return Ok(None);
        }
        ensure!(
            self.polls < MOST_POLLS,
            "the operation did not complete within {MOST_POLLS} polls"
        );
        self.polls += 1;
        Ok(Some(self.polls - 1))
    }

    fn record<T>(&mut self, answer: Option<Result<T>>) -> CaseResult<Option<T>> {
        match answer {
            None => Ok(None),
            Some(answer) => {
                self.completed = true;
                Ok(Some(answer?))
            }
        }
    }
}

/// A message of a handler of its own, so that what a round leaves behind disturbs no other.
fn of_round(polls: usize) -> CaseResult<Message> {
    message_for(&format!("h{polls}"), "1")
}

/// Ends and takes what a dropped claim or begin may have leased, as any worker would.
async fn runs_in_the_end(inbox: &TestInbox, message: &Message) -> CaseResult {
    for _ in 0..50 {
        let handler = message.handler().as_str();
        let leased = crate::test_inbox::claim(&*inbox.store, handler, 10, LONG).await?;
        if let Some(leased) = leased.first() {
            same(
                "messages claimed",
                &crate::test_inbox::ids(std::slice::from_ref(leased)).len(),
                &1,
            )?;
            ensure!(
                leased.attempts.started <= 2,
                "attempts after one dropped claim: expected at most 2, saw {:?}",
                leased.attempts
            );
            return inbox.finish(leased, processed()).await;
        }
        inbox.pass(inbox.brief()).await?;
        // The dropped claim may go on in the server for a while.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Unmet::Failed(format!(
        "{} is held by a lease that does not end",
        message.key()
    )))
}

/// Begins, when the dropped one's lease has run out. That one may go on in the server for a while, and
/// get its lease only then.
async fn begins_in_the_end(inbox: &TestInbox, message: &Message) -> CaseResult {
    let mut seen = None;
    for _ in 0..50 {
        inbox.pass(inbox.brief()).await?;
        match inbox.begin(message, &terms(LONG)?).await? {
            Begun::Run(leased) => return inbox.finish(&leased, processed()).await,
            begun => seen = Some(begun),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Unmet::Failed(format!(
        "begin when the dropped one's lease has run out: expected Run, saw {seen:?}"
    )))
}

/// Purges until a finished message is gone: a dropped purge may go on in the server for a while,
/// and another one passes over what it is removing.
async fn gone_in_the_end(inbox: &TestInbox, expired: &PurgeRequest, key: &Key) -> CaseResult {
    for _ in 0..100 {
        let _ = inbox.purge(expired).await?;
        if inbox.get(key).await?.is_none() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Unmet::Failed(format!("{key} is still there after purging")))
}

pub(crate) async fn receive(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let (one, other) = (of_round(polls)?, message_for(&format!("g{polls}"), "1")?);
        let batch = [one.clone(), other.clone()];
        rounds.record(drop_after(polls, Store::receive(&*inbox.store, &batch)).await)?;
        let receipts = inbox.receive(&batch).await?;
        ensure!(
            !receipts.iter().any(|r| matches!(r, Receipt::Refused(_))) && receipts.len() == 2,
            "receiving again after {polls} polls: saw {receipts:?}"
        );
        same(
            "receipts of one delivery, which is stored together",
            &receipts[0],
            &receipts[1],
        )?;
        for message in [&one, &other] {
            inbox
                .refuses_copy(message, "after a dropped receive")
                .await?;
            runs_in_the_end(&inbox, message).await?;
        }
    }
    Ok(())
}

/// Not part of the contract for every store; where the capabilities promise it, it holds.
pub(crate) async fn receive_of_a_whole_batch(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    if inbox.capabilities().receive_atomicity != inbox_api::ReceiveAtomicity::Batch {
        return Err(Unmet::NotChecked(crate::needs::Need::BatchAtomicity));
    }
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let batch: Vec<Message> = (0..20)
            .map(|n| message_for(&format!("h{}", n % 3), &format!("{polls}-{n}")))
            .collect::<CaseResult<_>>()?;
        rounds.record(drop_after(polls, Store::receive(&*inbox.store, &batch)).await)?;
        let receipts = inbox.receive(&batch).await?;
        let all = vec![receipts[0].clone(); batch.len()];
        same(
            "receipts of a batch, which is stored together",
            &receipts,
            &all,
        )?;
    }
    Ok(())
}

pub(crate) async fn claim(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let sent = of_round(polls)?;
        inbox.accept(&sent).await?;
        let request = inbox_api::ClaimRequest {
            handlers: vec![sent.handler().clone()],
            limit: 5,
            terms: terms(inbox.brief())?,
            run_limit: 1,
        };
        rounds.record(drop_after(polls, Store::claim(&*inbox.store, &request)).await)?;
        runs_in_the_end(&inbox, &sent).await?;
    }
    Ok(())
}

pub(crate) async fn begin(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let sent = of_round(polls)?;
        let brief = terms(inbox.brief())?;
        rounds.record(drop_after(polls, Store::begin(&*inbox.store, &sent, &brief)).await)?;
        let begun = inbox.begin(&sent, &brief).await?;
        ensure!(
            matches!(begun, Begun::Run(_) | Begun::Busy { .. }),
            "begin after a dropped begin: expected Run or Busy, saw {begun:?}"
        );
        begins_in_the_end(&inbox, &sent).await?;
    }
    Ok(())
}

/// A leased message of the round's own handler.
async fn claim_one(inbox: &TestInbox, polls: usize) -> CaseResult<inbox_api::Leased> {
    let sent = of_round(polls)?;
    inbox.accept(&sent).await?;
    let leased = crate::test_inbox::claim(&*inbox.store, sent.handler().as_str(), 1, LONG).await?;
    leased
        .into_iter()
        .next()
        .ok_or_else(|| Unmet::Failed("claim: expected the due message, saw nothing".into()))
}

pub(crate) async fn settle(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let leased = claim_one(&inbox, polls).await?;
        let settlement = [Settlement {
            lease: leased.lease.clone(),
            outcome: processed(),
        }];
        rounds.record(drop_after(polls, Store::settle(&*inbox.store, &settlement)).await)?;
        same(
            "settling again",
            &inbox.settle(&settlement).await?,
            &vec![Settled::Done],
        )?;
        let record = inbox.record(&leased.lease.key).await?;
        same("state", &record.state, &State::Processed)?;
        same("attempts finished", &record.attempts.finished, &1)?;
    }
    Ok(())
}

pub(crate) async fn extend(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let leased = claim_one(&inbox, polls).await?;
        let leases = [leased.lease.clone()];
        rounds.record(drop_after(polls, Store::extend(&*inbox.store, &leases, LONG)).await)?;
        let again = inbox.extend_one(&leased.lease, LONG).await?;
        ensure!(
            matches!(again, Extended::Until(_)),
            "extending again: saw {again:?}"
        );
        inbox.finish(&leased, processed()).await?;
    }
    Ok(())
}

pub(crate) async fn replay(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let leased = claim_one(&inbox, polls).await?;
        inbox.finish(&leased, dead("gave up")).await?;
        let key = &leased.lease.key;
        let edit = Edit {
            payload: Some(Bytes::from_static(b"edited")),
            ..Edit::default()
        };
        let dropped = Operate::replay(&*inbox.store, key, &edit);
        rounds.record(drop_after(polls, dropped).await)?;
        let again = inbox.replay(key, &edit).await?;
        ensure!(
            matches!(
                again,
                Intervention::Done | Intervention::WrongState(State::Pending)
            ),
            "replaying again: saw {again:?}"
        );
        let record = inbox.record(key).await?;
        same(
            "state, payload and replays",
            &(record.state, record.payload, record.replays),
            &(State::Pending, edit.payload, 1),
        )?;
        runs_in_the_end(&inbox, &leased.message).await?;
    }
    Ok(())
}

pub(crate) async fn discard(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let sent = of_round(polls)?;
        inbox.accept(&sent).await?;
        rounds.record(drop_after(polls, Operate::discard(&*inbox.store, sent.key())).await)?;
        let again = inbox.discard(sent.key()).await?;
        ensure!(
            matches!(
                again,
                Intervention::Done | Intervention::WrongState(State::Discarded)
            ),
            "discarding again: saw {again:?}"
        );
        inbox.has_state(sent.key(), State::Discarded).await?;
    }
    same(
        "discarded in the statistics",
        &inbox.statistics().await?.count(State::Discarded),
        &(rounds.polls as u64),
    )
}

pub(crate) async fn slices(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let leased = claim_one(&inbox, polls).await?;
        inbox.finish(&leased, dead("gave up")).await?;
        let filter = Filter {
            handler: Some(leased.message.handler().clone()),
            ..Filter::default()
        };
        let slice = Slice {
            after: None,
            limit: 10,
        };
        rounds.record(
            drop_after(polls, Operate::replay_slice(&*inbox.store, &filter, &slice)).await,
        )?;
        let _ = inbox.replay_slice(&filter, &slice).await?;
        inbox.has_state(&leased.lease.key, State::Pending).await?;
        let pending = Filter {
            states: vec![State::Pending],
            ..filter
        };
        let _ = drop_after(
            polls,
            Operate::discard_slice(&*inbox.store, &pending, &slice),
        )
        .await;
        let _ = inbox.discard_slice(&pending, &slice).await?;
        inbox.has_state(&leased.lease.key, State::Discarded).await?;
    }
    Ok(())
}

pub(crate) async fn purge(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut rounds = Rounds::new();
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    while let Some(polls) = rounds.next()? {
        let leased = claim_one(&inbox, polls).await?;
        inbox.finish(&leased, processed()).await?;
        rounds.record(drop_after(polls, Operate::purge(&*inbox.store, &expired)).await)?;
        gone_in_the_end(&inbox, &expired, &leased.lease.key).await?;
        inbox.accept(&leased.message).await?;
        runs_in_the_end(&inbox, &leased.message).await?;
        let keys = [leased.lease.key.clone()];
        let _ = drop_after(
            polls,
            Operate::purge_archived(&*inbox.store, &expired, &keys),
        )
        .await;
        let _ = inbox.purge_archived(&expired, &keys).await?;
        same(
            "found after purging it as archived",
            &inbox.get(&leased.lease.key).await?.is_some(),
            &false,
        )?;
    }
    Ok(())
}

/// Looking changes nothing, so what counts is that no connection is lost.
pub(crate) async fn looking(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Dead).await?;
    let connection = &*inbox.store;
    let (filter, page) = (Filter::default(), Page::first(10));
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10)?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let done = [
            drop_after(polls, Operate::get(connection, sent.key()))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Operate::list(connection, &filter, &page))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Operate::count(connection, &filter))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Operate::statistics(connection))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Operate::expired(connection, &expired))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Schema::exists(connection))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Schema::version(connection))
                .await
                .map(|r| r.map(drop)),
        ];
        let mut all = true;
        for answer in done {
            match answer {
                Some(answer) => answer?,
                None => all = false,
            }
        }
        rounds.completed = all;
        inbox.has_state(sent.key(), State::Dead).await?;
    }
    same("count", &inbox.count(&filter).await?, &1)
}

pub(crate) async fn set_up(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let _ = drop_after(polls, Schema::create(&*inbox.store)).await;
        rounds.record(drop_after(polls, Schema::migrate(&*inbox.store)).await)?;
        inbox.create().await?;
        same("exists", &inbox.exists().await?, &true)?;
        inbox.has_state(sent.key(), State::Pending).await?;
    }
    Ok(())
}

pub(crate) async fn subscribe(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    if inbox.capabilities().wakeups == inbox_api::Wakeups::None {
        return Err(Unmet::NotChecked(crate::needs::Need::Wakeups));
    }
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let sent = of_round(polls)?;
        let handlers = [sent.handler().clone()];
        rounds.record(drop_after(polls, Store::subscribe(&*inbox.store, &handlers)).await)?;
        let mut subscription = inbox.subscribe(&handlers).await?;
        inbox.accept(&sent).await?;
        let woken = tokio::time::timeout(super::wakeups::SOON, subscription.woken()).await;
        ensure!(
            woken.is_ok(),
            "no wake-up after {polls} polls of a dropped subscribe"
        );
    }
    Ok(())
}

/// Sets up a place where there is nothing, with the set-up itself dropped.
pub(crate) async fn first_set_up(cx: Context) -> CaseResult {
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let inbox = cx.variant(crate::needs::SchemaVariant::Missing).await?;
        rounds.record(drop_after(polls, Schema::create(&*inbox.store)).await)?;
        inbox.create().await?;
        same("exists", &inbox.exists().await?, &true)?;
        inbox.accept(&message("1")?).await?;
    }
    Ok(())
}
