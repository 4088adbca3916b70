//! Rescheduling: another due time, and nothing else.

use std::time::Duration;

use inbox_api::{
    ClaimRequest, Due, Filter, HandlerName, Intervention, Outcome, Settled, Slice, State, StoreExt,
};

use super::{
    concurrency::persist,
    wakeups::{subscribed, wakes},
};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::Need,
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, dead, dead_blocking, defer, ids, message, message_for,
        numbered, ordered, processed, retry, terms,
    },
};

async fn reschedule(inbox: &TestInbox, id: &str, due: Due) -> CaseResult {
    let key = message(id)?.key().clone();
    same(
        &format!("reschedule of {id}"),
        &inbox.reschedule(&key, due).await?,
        &Intervention::Done,
    )
}

async fn claimed(inbox: &TestInbox) -> CaseResult<Vec<String>> {
    Ok(ids(&inbox.claim_up_to(10, LONG).await?))
}

pub(crate) async fn later_and_sooner(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let before = inbox.record(sent.key()).await?;
    reschedule(&inbox, "1", Due::After(2 * LONG)).await?;
    inbox.nothing_due("it is rescheduled to later").await?;
    let after = inbox.record(sent.key()).await?;
    ensure!(
        after.due_at >= before.due_at + 2 * LONG && after.due_at <= before.due_at + 4 * LONG,
        "due_at: expected about {:?} later, saw {:?} instead of {:?}",
        2 * LONG,
        after.due_at,
        before.due_at
    );
    let rest = inbox_api::Record {
        due_at: before.due_at,
        ..after
    };
    same("all else of the record", &rest, &before)?;
    reschedule(&inbox, "1", Due::Now).await?;
    same("claimed", &claimed(&inbox).await?, &vec!["1".into()])
}

pub(crate) async fn a_moment_is_kept_to_the_microsecond(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let record = inbox.record(message("1")?.key()).await?;
    let moment = record.accepted_at + 3600 * LONG + Duration::from_micros(1);
    reschedule(&inbox, "1", Due::At(moment)).await?;
    let record = inbox.record(message("1")?.key()).await?;
    same("due_at", &record.due_at, &moment)?;
    reschedule(&inbox, "1", Due::After(Duration::MAX)).await?;
    inbox
        .nothing_due("it is rescheduled beyond all measure")
        .await?;
    reschedule(&inbox, "1", Due::At(std::time::SystemTime::UNIX_EPOCH)).await?;
    let past = inbox.record(message("1")?.key()).await?;
    ensure!(
        past.due_at >= record.accepted_at,
        "due_at after a reschedule to the past: expected the present, saw {:?}",
        past.due_at
    );
    same("claimed", &claimed(&inbox).await?, &vec!["1".into()])
}

pub(crate) async fn it_comes_when_it_should(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    inbox.accept_all(&numbered(2)?).await?;
    reschedule(&inbox, "00001", Due::After(LONG)).await?;
    // Half of it would be due with the first.
    reschedule(&inbox, "00002", Due::After(LONG + LONG / 2)).await?;
    inbox.nothing_due("both are rescheduled to later").await?;
    inbox.pass(LONG).await?;
    same("claimed", &claimed(&inbox).await?, &vec!["00001".into()])?;
    inbox.pass(2 * LONG).await?;
    let taken = claimed(&inbox).await?;
    ensure!(
        taken.contains(&"00002".to_owned()),
        "claimed after three minutes: expected 00002, saw {taken:?}"
    );
    Ok(())
}

/// Waiting for a retry or a deferral is being scheduled, too.
pub(crate) async fn a_retry_can_be_brought_forward(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    for (outcome, finished) in [(retry(LONG), 1), (defer(LONG), 1)] {
        let leased = inbox.claim_one().await?;
        inbox.finish(&leased, outcome).await?;
        inbox.nothing_due("it waits for another attempt").await?;
        let before = inbox.record(sent.key()).await?;
        reschedule(&inbox, "1", Due::Now).await?;
        let after = inbox.record(sent.key()).await?;
        same("attempts", &after.attempts, &before.attempts)?;
        same("attempts finished", &after.attempts.finished, &finished)?;
        same("last error", &after.last_error, &before.last_error)?;
        same("state", &after.state, &State::Pending)?;
    }
    let leased = inbox.claim_one().await?;
    same("attempts started", &leased.attempts.started, &2)?;
    inbox.finish(&leased, processed()).await
}

pub(crate) async fn only_pending_messages_are_rescheduled(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for state in [
        State::Leased,
        State::Processed,
        State::Dead,
        State::Discarded,
    ] {
        let sent = message_for(state.as_str(), "1")?;
        inbox.accept_in(&sent, state).await?;
        let before = inbox.record(sent.key()).await?;
        for due in [Due::Now, Due::After(LONG)] {
            same(
                &format!("reschedule of what is {state}"),
                &inbox.reschedule(sent.key(), due).await?,
                &Intervention::WrongState(state),
            )?;
        }
        same(
            "the record afterwards",
            &inbox.record(sent.key()).await?,
            &before,
        )?;
    }
    let unknown = inbox
        .reschedule(message("unknown")?.key(), Due::Now)
        .await?;
    same(
        "reschedule of an unknown key",
        &unknown,
        &Intervention::NotFound,
    )?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    let _ = inbox
        .reschedule(&leased.lease.key, Due::After(LONG))
        .await?;
    inbox.finish(&leased, processed()).await
}

/// Defect: the old holder settles what was put off, and it runs a second time.
pub(crate) async fn a_lease_that_ran_out_is_lost(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let old = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    reschedule(&inbox, "1", Due::After(LONG)).await?;
    inbox.nothing_due("it is rescheduled to later").await?;
    same(
        "settling with the old lease",
        &inbox.settle_one(&old.lease, processed()).await?,
        &Settled::LeaseLost,
    )?;
    same(
        "extending the old lease",
        &inbox.extend_one(&old.lease, LONG).await?,
        &inbox_api::Extended::LeaseLost,
    )?;
    reschedule(&inbox, "1", Due::Now).await?;
    let new = inbox.claim_one().await?;
    same("attempts started", &new.attempts.started, &2)?;
    ensure!(
        new.lease.token > old.lease.token,
        "token: expected more than {}, saw {}",
        old.lease.token,
        new.lease.token
    );
    inbox.finish(&new, processed()).await
}

/// A settlement that was done is done, whatever an operator has changed since.
pub(crate) async fn a_repeated_settlement_is_done(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(LONG)).await?;
    reschedule(&inbox, "1", Due::After(2 * LONG)).await?;
    inbox.finish(&leased, retry(Duration::ZERO)).await?;
    inbox.nothing_due("a repetition changes nothing").await
}

pub(crate) async fn its_place_stays(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    for id in ["1", "2", "3"] {
        inbox.accept(&ordered(id, "k")?).await?;
    }
    reschedule(&inbox, "1", Due::After(LONG)).await?;
    inbox
        .nothing_due("the first of its ordering key is not due")
        .await?;
    reschedule(&inbox, "2", Due::Now).await?;
    inbox
        .nothing_due("one that is due does not overtake the first")
        .await?;
    reschedule(&inbox, "3", Due::After(LONG)).await?;
    reschedule(&inbox, "1", Due::Now).await?;
    for id in ["1", "2"] {
        let leased = inbox.claim_one().await?;
        same("claimed", &leased.message.id().as_str(), &id)?;
        inbox.nothing_due("one of its ordering key is held").await?;
        inbox.finish(&leased, processed()).await?;
    }
    inbox
        .nothing_due("the last is rescheduled to later")
        .await?;
    reschedule(&inbox, "3", Due::Now).await?;
    same("claimed", &claimed(&inbox).await?, &vec!["3".into()])
}

/// One that waits behind another, behind a dead one, and behind a lease that ran out.
pub(crate) async fn what_waits_behind_another_goes_on_waiting(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox
        .accept_all(&[ordered("1", "k")?, ordered("2", "k")?])
        .await?;
    let first = inbox.claim_single(inbox.brief()).await?;
    reschedule(&inbox, "2", Due::Now).await?;
    inbox.nothing_due("the first is leased").await?;
    inbox.pass(inbox.brief()).await?;
    // It loses its lease, and not its place.
    reschedule(&inbox, "1", Due::After(LONG)).await?;
    inbox
        .nothing_due("the first is rescheduled to later")
        .await?;
    reschedule(&inbox, "1", Due::Now).await?;
    let again = inbox.claim_one().await?;
    same("claimed", &again.lease.key, &first.lease.key)?;
    inbox.finish(&again, dead_blocking("gave up")).await?;
    reschedule(&inbox, "2", Due::After(LONG)).await?;
    reschedule(&inbox, "2", Due::Now).await?;
    inbox
        .nothing_due("a dead one blocks its ordering key")
        .await?;
    let _ = inbox.discard(&again.lease.key).await?;
    same("claimed", &claimed(&inbox).await?, &vec!["2".into()])
}

async fn all_slices(inbox: &TestInbox, filter: &Filter, due: Due) -> CaseResult<u64> {
    let (mut after, mut changed) = (None, 0);
    for _ in 0..20 {
        let slice = Slice { after, limit: 2 };
        let progress = inbox.reschedule_slice(filter, &slice, due).await?;
        ensure!(
            progress.changed <= 2,
            "a slice of 2 changed {}",
            progress.changed
        );
        changed += progress.changed;
        match progress.next {
            Some(next) => after = Some(next),
            None => return Ok(changed),
        }
    }
    Err(Unmet::Failed(
        "slices of 2 over 7 messages: saw no end".into(),
    ))
}

pub(crate) async fn slices_reschedule_what_is_pending(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_in(&message("dead")?, State::Dead).await?;
    inbox.accept_in(&message("leased")?, State::Leased).await?;
    for id in ["1", "2", "3", "4"] {
        inbox.accept(&message(id)?).await?;
    }
    inbox.accept(&message_for("other", "5")?).await?;
    let orders = Filter {
        handler: Some(HandlerName::new(HANDLER)?),
        ..Filter::default()
    };
    same(
        "rescheduled",
        &all_slices(&inbox, &orders, Due::After(LONG)).await?,
        &4,
    )?;
    inbox.nothing_due("all are rescheduled to later").await?;
    inbox.has_state(message("dead")?.key(), State::Dead).await?;
    inbox
        .has_state(message("leased")?.key(), State::Leased)
        .await?;
    let other = crate::test_inbox::claim(&*inbox.store, "other", 5, LONG).await?;
    same(
        "claimed of another handler",
        &ids(&other),
        &vec!["5".into()],
    )?;
    let finals = Filter {
        states: vec![State::Dead, State::Leased],
        ..Filter::default()
    };
    same(
        "rescheduled of dead and leased",
        &all_slices(&inbox, &finals, Due::Now).await?,
        &0,
    )?;
    let scheduled = Filter {
        due_later_than: Some(Duration::ZERO),
        ids: vec![
            message("2")?.id().clone(),
            message("3")?.id().clone(),
            message("dead")?.id().clone(),
        ],
        ..Filter::default()
    };
    same(
        "rescheduled by ids",
        &all_slices(&inbox, &scheduled, Due::Now).await?,
        &2,
    )?;
    let mut taken = claimed(&inbox).await?;
    taken.sort();
    same("claimed", &taken, &vec!["2".into(), "3".into()])
}

pub(crate) async fn a_reschedule_wakes(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox
        .accept(&message("1")?.with_due(Due::After(LONG)))
        .await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    reschedule(&inbox, "1", Due::Now).await?;
    wakes(&mut *subscription, "a reschedule to now").await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(LONG)).await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    let slice = Slice {
        after: None,
        limit: 10,
    };
    let _ = inbox
        .reschedule_slice(&Filter::default(), &slice, Due::Now)
        .await?;
    wakes(&mut *subscription, "a slice that reschedules to now").await
}

pub(crate) async fn another_process_is_woken_by_a_reschedule(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    if inbox.capabilities().wakeups != inbox_api::Wakeups::EveryProcess {
        return Err(Unmet::NotChecked(Need::WakeupsAcrossProcesses));
    }
    let other = inbox.fixture.second_connection().await?;
    inbox
        .accept(&message("1")?.with_due(Due::After(LONG)))
        .await?;
    let mut subscription = subscribed(&*other).await?;
    reschedule(&inbox, "1", Due::Now).await?;
    wakes(&mut *subscription, "a reschedule in another process").await
}

pub(crate) async fn counts_and_lag_follow(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_in(&message("dead")?, State::Dead).await?;
    inbox.accept(&message("1")?).await?;
    reschedule(&inbox, "1", Due::After(LONG)).await?;
    let counted = async || -> CaseResult<_> {
        let statistics = inbox.statistics().await?;
        let of = statistics.handlers.first();
        Ok(of.map(|h| (h.pending, h.leased, h.dead, h.lag.is_some())))
    };
    same(
        "pending, leased, dead, and whether it lags",
        &counted().await?,
        &Some((1, 0, 1, false)),
    )?;
    reschedule(&inbox, "1", Due::Now).await?;
    same(
        "the same when it is due",
        &counted().await?,
        &Some((1, 0, 1, true)),
    )?;
    let leased = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    reschedule(&inbox, "1", Due::After(LONG)).await?;
    same(
        "the same after a lost lease",
        &counted().await?,
        &Some((1, 0, 1, false)),
    )?;
    let _ = inbox.settle_one(&leased.lease, Outcome::Release).await?;
    same(
        "the same after a stale release",
        &counted().await?,
        &Some((1, 0, 1, false)),
    )?;
    let _ = inbox.discard(&leased.lease.key).await?;
    same(
        "the same after it is cancelled",
        &counted().await?,
        &Some((0, 0, 1, false)),
    )
}

/// An operator and a worker at once: who comes second is told.
pub(crate) async fn of_a_claim_and_a_reschedule_one_wins(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let connections = inbox.connections(2).await?;
    let request = ClaimRequest {
        handlers: vec![HandlerName::new(HANDLER)?],
        limit: 1,
        terms: terms(10 * LONG)?,
        run_limit: 1,
    };
    for n in 0..20 {
        let sent = message(&format!("{n}"))?;
        inbox.accept(&sent).await?;
        let (rescheduled, claims) = tokio::join!(
            persist(|| connections[0].reschedule(sent.key(), Due::After(LONG))),
            persist(|| connections[1].claim(&request)),
        );
        let (rescheduled, leased) = (rescheduled?, claims?.leased);
        // The claim may have come first, and the reschedule was refused; never both.
        match (rescheduled, leased.len()) {
            (Intervention::Done, 0) => {
                inbox.has_state(sent.key(), State::Pending).await?;
                let _ = inbox.discard(sent.key()).await?;
            }
            (Intervention::WrongState(State::Leased), 1) => {
                inbox.finish(&leased[0], dead("gave up")).await?;
            }
            other => {
                return Err(Unmet::Failed(format!(
                    "a reschedule during a claim: expected that one of them has the message, saw {other:?}"
                )));
            }
        }
    }
    Ok(())
}
