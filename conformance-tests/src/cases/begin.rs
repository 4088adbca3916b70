//! Inline use: may I run this message's handler now?

use std::time::Duration;

use inbox_api::{Begun, Bytes, Due, Edit, Leased, Message, Outcome, Receipt, State, StoreExt};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{
        Context, LONG, TestInbox, dead, defer, message, ordered, processed, retry, terms,
    },
};

async fn runs(inbox: &TestInbox, message: &Message, length: Duration) -> CaseResult<Leased> {
    match inbox.begin(message, &terms(length)?).await? {
        Begun::Run(leased) => Ok(*leased),
        other => Err(Unmet::Failed(format!("begin: expected Run, saw {other:?}"))),
    }
}

pub(crate) async fn a_new_key_runs(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?.with_header("source", "test")?;
    let leased = runs(&inbox, &sent, LONG).await?;
    same("message", &leased.message, &sent)?;
    same("attempts started", &leased.attempts.started, &1)?;
    inbox.has_state(sent.key(), State::Leased).await?;
    inbox.nothing_due("it runs inline").await?;
    inbox.finish(&leased, processed()).await
}

pub(crate) async fn a_processed_key_answers_its_result(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (id, result) in [("1", Some(Bytes::from_static(b"receipt"))), ("2", None)] {
        let sent = message(id)?;
        let leased = runs(&inbox, &sent, LONG).await?;
        inbox
            .finish(
                &leased,
                Outcome::Processed {
                    result: result.clone(),
                },
            )
            .await?;
        let begun = inbox.begin(&sent, &terms(LONG)?).await?;
        same("begin again", &begun, &Begun::Processed { result })?;
    }
    Ok(())
}

pub(crate) async fn a_held_key_is_busy(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    let leased = runs(&inbox, &sent, LONG).await?;
    let begun = inbox.begin(&sent, &terms(LONG)?).await?;
    same(
        "begin while held",
        &begun,
        &Begun::Busy {
            until: leased.lease.until,
        },
    )
}

pub(crate) async fn an_expired_lease_runs_anew(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    let first = runs(&inbox, &sent, inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let second = runs(&inbox, &sent, LONG).await?;
    same("attempts started", &second.attempts.started, &2)?;
    let late = inbox.settle_one(&first.lease, processed()).await?;
    same(
        "settling the first run's lease",
        &late,
        &inbox_api::Settled::LeaseLost,
    )?;
    inbox.finish(&second, processed()).await
}

pub(crate) async fn a_retry_is_busy_until_due(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    let leased = runs(&inbox, &sent, LONG).await?;
    inbox.finish(&leased, retry(inbox.brief())).await?;
    let until = inbox.record(sent.key()).await?.due_at;
    let begun = inbox.begin(&sent, &terms(LONG)?).await?;
    same(
        "begin before the retry is due",
        &begun,
        &Begun::Busy { until },
    )?;
    inbox.pass(inbox.brief()).await?;
    runs(&inbox, &sent, LONG).await.map(drop)
}

pub(crate) async fn a_deferral_is_busy_until_due(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    let leased = runs(&inbox, &sent, LONG).await?;
    inbox.finish(&leased, defer(inbox.brief())).await?;
    let until = inbox.record(sent.key()).await?.due_at;
    let begun = inbox.begin(&sent, &terms(LONG)?).await?;
    same(
        "begin before the end of the deferral",
        &begun,
        &Begun::Busy { until },
    )?;
    inbox.pass(inbox.brief()).await?;
    let leased = runs(&inbox, &sent, LONG).await?;
    same("attempts started", &leased.attempts.started, &1)
}

pub(crate) async fn a_delayed_message_is_stored_and_busy(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?.with_due(Due::After(inbox.brief()));
    let begun = inbox.begin(&sent, &terms(LONG)?).await?;
    let until = inbox.record(sent.key()).await?.due_at;
    same(
        "begin of a message that is not due",
        &begun,
        &Begun::Busy { until },
    )?;
    inbox.has_state(sent.key(), State::Pending).await?;
    inbox.pass(inbox.brief()).await?;
    inbox.claim_one().await.map(drop)
}

pub(crate) async fn a_dead_key_says_why(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    let leased = runs(&inbox, &sent, LONG).await?;
    inbox.finish(&leased, dead("card refused")).await?;
    let begun = inbox.begin(&sent, &terms(LONG)?).await?;
    let reason = "card refused".into();
    same("begin of a dead key", &begun, &Begun::Dead { reason })
}

pub(crate) async fn a_discarded_key_says_so(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Discarded).await?;
    let begun = inbox.begin(&sent, &terms(LONG)?).await?;
    same("begin of a discarded key", &begun, &Begun::Discarded)
}

pub(crate) async fn the_stored_message_runs(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Dead).await?;
    let _ = inbox
        .replay(
            sent.key(),
            &Edit {
                payload: Some(Bytes::from_static(b"edited")),
                ..Edit::default()
            },
        )
        .await?;
    let leased = runs(&inbox, &sent, LONG).await?;
    same(
        "payload",
        &leased.message.payload().as_ref(),
        &b"edited".as_ref(),
    )
}

pub(crate) async fn a_received_message_runs_inline(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    same(
        "receipt",
        &inbox.receive_one(&sent).await?,
        &Receipt::Accepted,
    )?;
    let leased = runs(&inbox, &sent, LONG).await?;
    ensure!(
        leased.lease.token.get() > 0,
        "token: expected a positive one, saw {:?}",
        leased.lease.token
    );
    inbox.nothing_due("it runs inline").await?;
    inbox.finish(&leased, processed()).await
}

pub(crate) async fn what_is_not_due_is_busy_before_it_is_blocked(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept(&ordered("1", "k")?).await?;
    let received = ordered("2", "k")?.with_due(Due::After(inbox.brief()));
    inbox.accept(&received).await?;
    let begun = ordered("3", "k")?.with_due(Due::After(inbox.brief()));
    for (what, sent) in [("received", &received), ("new", &begun)] {
        let answer = inbox.begin(sent, &terms(LONG)?).await?;
        let until = inbox.record(sent.key()).await?.due_at;
        same(
            &format!("begin of a {what} message, not due and behind another of its ordering key"),
            &answer,
            &Begun::Busy { until },
        )?;
    }
    inbox.pass(inbox.brief()).await?;
    for sent in [&received, &begun] {
        let answer = inbox.begin(sent, &terms(LONG)?).await?;
        same("begin when it is due", &answer, &Begun::Blocked)?;
    }
    Ok(())
}
