//! Retention in finer parts: of one handler, and of payloads before their keys.

use std::time::Duration;

use inbox_api::{
    Begun, Bytes, Edit, HandlerName, Intervention, Key, Message, Outcome, PurgeRequest, State,
};

use crate::{
    check::{CaseResult, same},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, message, message_for, numbered, processed, terms,
    },
};

const DAY: Duration = Duration::from_secs(86_400);
const FINALS: [State; 3] = [State::Processed, State::Dead, State::Discarded];

fn all_of(state: State, limit: u32) -> CaseResult<PurgeRequest> {
    Ok(PurgeRequest::new(state, Duration::ZERO, limit)?)
}

fn of_orders(state: State, limit: u32) -> CaseResult<PurgeRequest> {
    Ok(all_of(state, limit)?.for_handler(HandlerName::new(HANDLER)?))
}

/// Messages of two handlers, those of the other finished first, in the given state.
async fn two_handlers(inbox: &TestInbox, state: State) -> CaseResult<(Vec<Message>, Vec<Message>)> {
    let other = vec![message_for("other", "1")?, message_for("other", "2")?];
    let orders = vec![message("3")?, message("4")?];
    for sent in other.iter().chain(&orders) {
        inbox.accept_in(sent, state).await?;
    }
    Ok((orders, other))
}

/// Defect: the history of one handler goes by the age of another's.
pub(crate) async fn a_purge_of_a_handler_leaves_the_others(cx: Context) -> CaseResult {
    for state in FINALS {
        let inbox = cx.fresh().await?;
        let (orders, other) = two_handlers(&inbox, state).await?;
        let one = of_orders(state, 1)?;
        let expired = inbox.expired(&one).await?;
        let keys: Vec<Key> = expired
            .records
            .into_iter()
            .map(|record| record.key)
            .collect();
        same(
            "expired of a handler",
            &keys,
            &vec![orders[0].key().clone()],
        )?;
        same(
            "purged of a handler, one at most",
            &inbox.purge(&one).await?,
            &1,
        )?;
        let rest = of_orders(state, 10)?;
        same("purged of a handler", &inbox.purge(&rest).await?, &1)?;
        same("purged of a handler again", &inbox.purge(&rest).await?, &0)?;
        for sent in &other {
            inbox.has_state(sent.key(), state).await?;
        }
        let missing = all_of(state, 10)?.for_handler(HandlerName::new("Other")?);
        same(
            "purged of a handler without messages",
            &inbox.purge(&missing).await?,
            &0,
        )?;
    }
    Ok(())
}

pub(crate) async fn the_archived_of_a_handler_are_purged(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (orders, other) = two_handlers(&inbox, State::Dead).await?;
    let keys: Vec<Key> = orders
        .iter()
        .chain(&other)
        .map(|sent| sent.key().clone())
        .collect();
    let request = of_orders(State::Dead, 1)?;
    same("purged", &inbox.purge_archived(&request, &keys).await?, &2)?;
    for sent in &other {
        inbox.has_state(sent.key(), State::Dead).await?;
    }
    Ok(())
}

/// Defect: what is dropped is forgotten.
pub(crate) async fn a_dropped_payload_leaves_the_rest(cx: Context) -> CaseResult {
    for state in FINALS {
        let inbox = cx.fresh().await?;
        let sent = message("1")?.with_header("source", "test")?;
        inbox.accept_in(&sent, state).await?;
        let before = inbox.record(sent.key()).await?;
        same(
            "payloads dropped",
            &inbox.drop_payloads(&all_of(state, 10)?).await?,
            &1,
        )?;
        let after = inbox.record(sent.key()).await?;
        let expected = inbox_api::Record {
            payload: None,
            payload_bytes: None,
            ..before
        };
        same(&format!("record of what is {state}"), &after, &expected)?;
        inbox
            .refuses_copy(&sent, "after its payload was dropped")
            .await?;
        same(
            "replay without a payload",
            &inbox.replay(sent.key(), &Edit::default()).await?,
            &Intervention::PayloadDropped,
        )?;
        let edit = Edit {
            payload: Some(Bytes::from_static(b"new")),
            ..Edit::default()
        };
        same(
            "replay with a payload",
            &inbox.replay(sent.key(), &edit).await?,
            &Intervention::Done,
        )?;
        let leased = inbox.claim_one().await?;
        same(
            "payload",
            leased.message.payload(),
            &Bytes::from_static(b"new"),
        )?;
        inbox.finish(&leased, processed()).await?;
        let again = all_of(State::Processed, 10)?;
        same(
            "payloads dropped after a replay",
            &inbox.drop_payloads(&again).await?,
            &1,
        )?;
        same("purged without a payload", &inbox.purge(&again).await?, &1)?;
    }
    Ok(())
}

pub(crate) async fn a_result_goes_with_the_payload(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let result = Some(Bytes::from_static(b"result"));
    inbox.finish(&leased, Outcome::Processed { result }).await?;
    let request = all_of(State::Processed, 10)?;
    same(
        "payloads dropped",
        &inbox.drop_payloads(&request).await?,
        &1,
    )?;
    same("result", &inbox.record(sent.key()).await?.result, &None)?;
    same(
        "begin afterwards",
        &inbox.begin(&sent, &terms(LONG)?).await?,
        &Begun::Processed { result: None },
    )?;
    same(
        "payloads dropped again",
        &inbox.drop_payloads(&request).await?,
        &0,
    )
}

/// Where payloads go when they are processed, results are left to drop.
pub(crate) async fn a_result_without_a_payload_is_dropped(cx: Context) -> CaseResult {
    let settings = crate::needs::Settings {
        drop_processed_payloads: true,
        ..Default::default()
    };
    let inbox = cx.fresh_with(&settings).await?;
    for (id, result) in [("1", None), ("2", Some(Bytes::from_static(b"")))] {
        inbox.accept(&message(id)?).await?;
        let leased = inbox.claim_one().await?;
        inbox.finish(&leased, Outcome::Processed { result }).await?;
    }
    let request = all_of(State::Processed, 10)?;
    same(
        "payloads or results dropped",
        &inbox.drop_payloads(&request).await?,
        &1,
    )?;
    same(
        "result",
        &inbox.record(message("2")?.key()).await?.result,
        &None,
    )?;
    same("dropped again", &inbox.drop_payloads(&request).await?, &0)
}

/// Defect: each step begins with what the steps before have dropped, and gets no further.
pub(crate) async fn the_longest_finished_go_first_and_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let messages = numbered(5)?;
    inbox.accept_all(&messages).await?;
    let mut leased = inbox.claim_up_to(10, LONG).await?;
    leased.reverse();
    for leased in &leased {
        inbox.finish(leased, processed()).await?;
    }
    for step in [2, 2, 1, 0] {
        let request = all_of(State::Processed, 2)?;
        same(
            "payloads dropped, two at most",
            &inbox.drop_payloads(&request).await?,
            &step,
        )?;
        let left = async |sent: &Message| -> CaseResult<bool> {
            Ok(inbox.record(sent.key()).await?.payload_bytes.is_some())
        };
        if step == 2 && left(&messages[2]).await? {
            // After the first step: those that were finished first are the last ones accepted.
            same("payload of the last", &left(&messages[4]).await?, &false)?;
            same("payload of the first", &left(&messages[0]).await?, &true)?;
        }
    }
    same(
        "payloads dropped, none at most",
        &inbox.drop_payloads(&all_of(State::Processed, 0)?).await?,
        &0,
    )
}

pub(crate) async fn only_what_is_asked_for_is_dropped(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (pending, leased) = (message("pending")?, message("leased")?);
    inbox.accept(&leased).await?;
    inbox.claim_single(LONG * 1000).await?;
    let mut all = vec![leased];
    for (state, handler) in [
        (State::Processed, "a"),
        (State::Dead, "b"),
        (State::Discarded, "c"),
        (State::Dead, "d"),
    ] {
        let sent = message_for(handler, "1")?;
        inbox.accept_in(&sent, state).await?;
        all.push(sent);
    }
    inbox.accept(&pending).await?;
    all.push(pending);
    let request = all_of(State::Dead, 10)?.for_handler(HandlerName::new("b")?);
    same(
        "payloads dropped",
        &inbox.drop_payloads(&request).await?,
        &1,
    )?;
    for sent in &all {
        let record = inbox.record(sent.key()).await?;
        let is_left = sent.handler().as_str() != "b";
        same(
            &format!("whether {} has a payload", sent.key()),
            &record.payload.is_some(),
            &is_left,
        )?;
    }
    Ok(())
}

pub(crate) async fn a_payload_stays_until_its_age(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    let (old, young) = (message("old")?, message("young")?);
    inbox.accept_in(&old, State::Processed).await?;
    inbox.accept(&young).await?;
    inbox.pass(DAY).await?;
    for leased in claim(&*inbox.store, HANDLER, 1, LONG).await? {
        inbox.finish(&leased, processed()).await?;
    }
    inbox.pass(DAY).await?;
    let older = PurgeRequest::new(State::Processed, DAY + DAY / 2, 10)?;
    same("payloads dropped", &inbox.drop_payloads(&older).await?, &1)?;
    same(
        "payload of the old one",
        &inbox.record(old.key()).await?.payload,
        &None,
    )?;
    let payload = inbox.record(young.key()).await?.payload;
    same(
        "whether the young one has a payload",
        &payload.is_some(),
        &true,
    )?;
    let days = PurgeRequest::new(State::Processed, Duration::MAX, 10)?;
    same(
        "dropped beyond all measure",
        &inbox.drop_payloads(&days).await?,
        &0,
    )
}
