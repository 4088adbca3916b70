//! Every operation's future dropped after k polls, for k = 0, 1, 2, … until it completes. Whatever
//! happened, the message is there or it is not, a repetition works, and no connection is lost.

use std::time::Duration;

use inbox_api::{
    Begun, Bytes, Extended, Filter, Intervention, Key, Message, Operate, Page, PurgeRequest,
    Receipt, Result, Schema, Settled, Settlement, Slice, State, Store, StoreExt,
};

use crate::{
    cancel::drop_after,
    check::{CaseResult, Unmet, ensure, same},
    place::{Context, LONG, Place, dead, message, message_for, processed, terms},
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
async fn runs_in_the_end(place: &Place, message: &Message) -> CaseResult {
    for _ in 0..50 {
        let handler = message.handler().as_str();
        let leased = crate::place::claim(&*place.inbox, handler, 10, LONG).await?;
        if let Some(leased) = leased.first() {
            same(
                "messages claimed",
                &crate::place::ids(std::slice::from_ref(leased)).len(),
                &1,
            )?;
            ensure!(
                leased.attempts.started <= 2,
                "attempts after one dropped claim: expected at most 2, saw {:?}",
                leased.attempts
            );
            return place.finish(leased, processed()).await;
        }
        place.pass(place.brief()).await?;
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
async fn begins_in_the_end(place: &Place, message: &Message) -> CaseResult {
    let mut seen = None;
    for _ in 0..5 {
        place.pass(place.brief()).await?;
        match place.begin(message, &terms(LONG)?).await? {
            Begun::Run(leased) => return place.finish(&leased, processed()).await,
            begun => seen = Some(begun),
        }
    }
    Err(Unmet::Failed(format!(
        "begin when the dropped one's lease has run out: expected Run, saw {seen:?}"
    )))
}

/// Purges until a finished message is gone: a dropped purge may go on in the server for a while,
/// and another one passes over what it is removing.
async fn gone_in_the_end(place: &Place, expired: &PurgeRequest, key: &Key) -> CaseResult {
    for _ in 0..100 {
        let _ = place.purge(expired).await?;
        if place.get(key).await?.is_none() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(Unmet::Failed(format!("{key} is still there after purging")))
}

pub(crate) async fn receive(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let (one, other) = (of_round(polls)?, message_for(&format!("g{polls}"), "1")?);
        let batch = [one.clone(), other.clone()];
        rounds.record(drop_after(polls, Store::receive(&*place.inbox, &batch)).await)?;
        let receipts = place.receive(&batch).await?;
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
            place
                .refuses_copy(message, "after a dropped receive")
                .await?;
            runs_in_the_end(&place, message).await?;
        }
    }
    Ok(())
}

/// Not part of the contract for every store; where the capabilities promise it, it holds.
pub(crate) async fn receive_of_a_whole_batch(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    if place.capabilities().receive_atomicity != inbox_api::ReceiveAtomicity::Batch {
        return Err(Unmet::NotChecked(crate::harness::Need::BatchAtomicity));
    }
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let batch: Vec<Message> = (0..20)
            .map(|n| message_for(&format!("h{}", n % 3), &format!("{polls}-{n}")))
            .collect::<CaseResult<_>>()?;
        rounds.record(drop_after(polls, Store::receive(&*place.inbox, &batch)).await)?;
        let receipts = place.receive(&batch).await?;
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
    let place = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let sent = of_round(polls)?;
        place.accept(&sent).await?;
        let request = inbox_api::ClaimRequest {
            handlers: vec![sent.handler().clone()],
            limit: 5,
            terms: terms(place.brief())?,
        };
        rounds.record(drop_after(polls, Store::claim(&*place.inbox, &request)).await)?;
        runs_in_the_end(&place, &sent).await?;
    }
    Ok(())
}

pub(crate) async fn begin(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let sent = of_round(polls)?;
        let brief = terms(place.brief())?;
        rounds.record(drop_after(polls, Store::begin(&*place.inbox, &sent, &brief)).await)?;
        let begun = place.begin(&sent, &brief).await?;
        ensure!(
            matches!(begun, Begun::Run(_) | Begun::Busy { .. }),
            "begin after a dropped begin: expected Run or Busy, saw {begun:?}"
        );
        begins_in_the_end(&place, &sent).await?;
    }
    Ok(())
}

/// A leased message of the round's own handler.
async fn held(place: &Place, polls: usize) -> CaseResult<inbox_api::Leased> {
    let sent = of_round(polls)?;
    place.accept(&sent).await?;
    let leased = crate::place::claim(&*place.inbox, sent.handler().as_str(), 1, LONG).await?;
    leased
        .into_iter()
        .next()
        .ok_or_else(|| Unmet::Failed("claim: expected the due message, saw nothing".into()))
}

pub(crate) async fn settle(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let leased = held(&place, polls).await?;
        let settlement = [Settlement {
            lease: leased.lease.clone(),
            outcome: processed(),
        }];
        rounds.record(drop_after(polls, Store::settle(&*place.inbox, &settlement)).await)?;
        same(
            "settling again",
            &place.settle(&settlement).await?,
            &vec![Settled::Done],
        )?;
        let record = place.record(&leased.lease.key).await?;
        same("state", &record.state, &State::Processed)?;
        same("attempts finished", &record.attempts.finished, &1)?;
    }
    Ok(())
}

pub(crate) async fn extend(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let leased = held(&place, polls).await?;
        let leases = [leased.lease.clone()];
        rounds.record(drop_after(polls, Store::extend(&*place.inbox, &leases, LONG)).await)?;
        let again = place.extend_one(&leased.lease, LONG).await?;
        ensure!(
            matches!(again, Extended::Until(_)),
            "extending again: saw {again:?}"
        );
        place.finish(&leased, processed()).await?;
    }
    Ok(())
}

pub(crate) async fn replay(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let leased = held(&place, polls).await?;
        place.finish(&leased, dead("gave up")).await?;
        let key = &leased.lease.key;
        let payload = Some(Bytes::from_static(b"edited"));
        let dropped = Operate::replay(&*place.inbox, key, payload.clone());
        rounds.record(drop_after(polls, dropped).await)?;
        let again = place.replay(key, payload.clone()).await?;
        ensure!(
            matches!(
                again,
                Intervention::Done | Intervention::WrongState(State::Pending)
            ),
            "replaying again: saw {again:?}"
        );
        let record = place.record(key).await?;
        same(
            "state, payload and replays",
            &(record.state, record.payload, record.replays),
            &(State::Pending, payload, 1),
        )?;
        runs_in_the_end(&place, &leased.message).await?;
    }
    Ok(())
}

pub(crate) async fn discard(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let sent = of_round(polls)?;
        place.accept(&sent).await?;
        rounds.record(drop_after(polls, Operate::discard(&*place.inbox, sent.key())).await)?;
        let again = place.discard(sent.key()).await?;
        ensure!(
            matches!(
                again,
                Intervention::Done | Intervention::WrongState(State::Discarded)
            ),
            "discarding again: saw {again:?}"
        );
        place.has_state(sent.key(), State::Discarded).await?;
    }
    same(
        "discarded in the statistics",
        &place.statistics().await?.count(State::Discarded),
        &(rounds.polls as u64),
    )
}

pub(crate) async fn slices(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let leased = held(&place, polls).await?;
        place.finish(&leased, dead("gave up")).await?;
        let filter = Filter {
            handler: Some(leased.message.handler().clone()),
            ..Filter::default()
        };
        let slice = Slice {
            after: None,
            limit: 10,
        };
        rounds.record(
            drop_after(polls, Operate::replay_slice(&*place.inbox, &filter, &slice)).await,
        )?;
        let _ = place.replay_slice(&filter, &slice).await?;
        place.has_state(&leased.lease.key, State::Pending).await?;
        let pending = Filter {
            states: vec![State::Pending],
            ..filter
        };
        let _ = drop_after(
            polls,
            Operate::discard_slice(&*place.inbox, &pending, &slice),
        )
        .await;
        let _ = place.discard_slice(&pending, &slice).await?;
        place.has_state(&leased.lease.key, State::Discarded).await?;
    }
    Ok(())
}

pub(crate) async fn purge(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut rounds = Rounds::new();
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    while let Some(polls) = rounds.next()? {
        let leased = held(&place, polls).await?;
        place.finish(&leased, processed()).await?;
        rounds.record(drop_after(polls, Operate::purge(&*place.inbox, &expired)).await)?;
        gone_in_the_end(&place, &expired, &leased.lease.key).await?;
        place.accept(&leased.message).await?;
        runs_in_the_end(&place, &leased.message).await?;
        let keys = [leased.lease.key.clone()];
        let _ = drop_after(
            polls,
            Operate::purge_archived(&*place.inbox, &expired, &keys),
        )
        .await;
        let _ = place.purge_archived(&expired, &keys).await?;
        same(
            "found after purging it as archived",
            &place.get(&leased.lease.key).await?.is_some(),
            &false,
        )?;
    }
    Ok(())
}

/// Looking changes nothing, so what counts is that no connection is lost.
pub(crate) async fn looking(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let sent = message("1")?;
    place.accept_in(&sent, State::Dead).await?;
    let inbox = &*place.inbox;
    let (filter, page) = (Filter::default(), Page::first(10));
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10)?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let done = [
            drop_after(polls, Operate::get(inbox, sent.key()))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Operate::list(inbox, &filter, &page))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Operate::count(inbox, &filter))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Operate::statistics(inbox))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Operate::expired(inbox, &expired))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Schema::exists(inbox))
                .await
                .map(|r| r.map(drop)),
            drop_after(polls, Schema::version(inbox))
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
        place.has_state(sent.key(), State::Dead).await?;
    }
    same("count", &place.count(&filter).await?, &1)
}

pub(crate) async fn set_up(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let sent = message("1")?;
    place.accept(&sent).await?;
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let _ = drop_after(polls, Schema::create(&*place.inbox)).await;
        rounds.record(drop_after(polls, Schema::migrate(&*place.inbox)).await)?;
        place.create().await?;
        same("exists", &place.exists().await?, &true)?;
        place.has_state(sent.key(), State::Pending).await?;
    }
    Ok(())
}

pub(crate) async fn subscribe(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    if place.capabilities().wakeups == inbox_api::Wakeups::None {
        return Err(Unmet::NotChecked(crate::harness::Need::Wakeups));
    }
    let mut rounds = Rounds::new();
    while let Some(polls) = rounds.next()? {
        let sent = of_round(polls)?;
        let handlers = [sent.handler().clone()];
        rounds.record(drop_after(polls, Store::subscribe(&*place.inbox, &handlers)).await)?;
        let mut subscription = place.subscribe(&handlers).await?;
        place.accept(&sent).await?;
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
        let place = cx.variant(crate::harness::SchemaVariant::Missing).await?;
        rounds.record(drop_after(polls, Schema::create(&*place.inbox)).await)?;
        place.create().await?;
        same("exists", &place.exists().await?, &true)?;
        place.accept(&message("1")?).await?;
    }
    Ok(())
}
