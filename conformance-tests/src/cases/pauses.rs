//! Pausing a handler, for all workers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_api::{
    Begun, ClaimRequest, HandlerName, Inbox, PurgeRequest, Receipt, Slice, State, Store, StoreExt,
};

use super::{
    concurrency::persist,
    wakeups::{subscribed, wakes},
};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{
        Context, HANDLER, LONG, claim, ids, message, message_for, numbered, ordered, processed,
        terms,
    },
};

fn handler(name: &str) -> CaseResult<HandlerName> {
    Ok(HandlerName::new(name)?)
}

async fn claimed(inbox: &dyn Inbox, handlers: &[&str]) -> CaseResult<Vec<String>> {
    let request = ClaimRequest {
        handlers: handlers
            .iter()
            .map(|name| handler(name))
            .collect::<CaseResult<_>>()?,
        limit: 10,
        terms: terms(LONG)?,
        run_limit: 1,
    };
    Ok(ids(&Store::claim(inbox, &request).await?.leased))
}

/// Defect: a pause that is kept and not minded.
pub(crate) async fn a_pause_stops_claims(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(3)?).await?;
    inbox.accept(&message_for("other", "other-1")?).await?;
    inbox.pause(&handler(HANDLER)?).await?;
    inbox.nothing_due("its handler is paused").await?;
    let taken = claimed(&*inbox.store, &[HANDLER, "other"]).await?;
    same(
        "claimed with a handler that is not paused",
        &taken,
        &vec!["other-1".into()],
    )?;
    // What comes later is paused as well.
    inbox.accept(&message("later")?).await?;
    inbox
        .nothing_due("its handler was paused before it came")
        .await
}

pub(crate) async fn a_lease_that_runs_out_stays_paused(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_single(inbox.brief()).await?;
    inbox.pause(leased.message.handler()).await?;
    inbox.pass(inbox.brief()).await?;
    inbox.nothing_due("its handler is paused").await?;
    inbox.has_state(&leased.lease.key, State::Pending).await?;
    inbox.resume(leased.message.handler()).await?;
    same(
        "claimed",
        &ids(&inbox.claim_up_to(5, LONG).await?),
        &vec!["1".into()],
    )
}

pub(crate) async fn all_but_claims_go_on(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for sent in [message("1")?, message("2")?, message("3")?] {
        inbox.accept(&sent).await?;
    }
    let leased = inbox.claim_up_to(2, LONG).await?;
    ensure!(
        leased.len() == 2,
        "claim: expected two messages, saw {}",
        leased.len()
    );
    inbox.pause(&handler(HANDLER)?).await?;
    let extended = inbox.extend_one(&leased[0].lease, 2 * LONG).await?;
    ensure!(
        matches!(extended, inbox_api::Extended::Until(_)),
        "extend while paused: expected a new end, saw {extended:?}"
    );
    inbox.finish(&leased[0], processed()).await?;
    inbox
        .finish(&leased[1], inbox_api::Outcome::Release)
        .await?;
    inbox.nothing_due("its handler is paused").await?;
    same(
        "receipt of a copy while paused",
        &inbox.receive_one(&message("1")?).await?,
        &Receipt::Duplicate { differs: false },
    )?;
    let begun = inbox.begin(&message("4")?, &terms(LONG)?).await?;
    let Begun::Run(begun) = begun else {
        return Err(Unmet::Failed(format!(
            "begin while paused: expected Run, saw {begun:?}"
        )));
    };
    inbox.finish(&begun, processed()).await?;
    let _ = inbox.discard(message("2")?.key()).await?;
    inbox.has_state(message("2")?.key(), State::Discarded).await
}

pub(crate) async fn a_resume_hands_out_in_the_old_order(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(2)?).await?;
    let ordered_too = inbox.capabilities().ordering;
    inbox.pause(&handler(HANDLER)?).await?;
    if ordered_too {
        inbox
            .accept_all(&[ordered("a", "k")?, ordered("b", "k")?])
            .await?;
    }
    inbox.resume(&handler(HANDLER)?).await?;
    let mut expected = vec!["00001".to_owned(), "00002".into()];
    expected.extend(ordered_too.then(|| "a".to_owned()));
    same(
        "claimed",
        &ids(&inbox.claim_up_to(10, LONG).await?),
        &expected,
    )
}

pub(crate) async fn pauses_are_listed_and_can_be_repeated(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let longest = "x".repeat(128);
    let names = [
        "Orders",
        "orders",
        "orders ",
        "%",
        "a'b\"",
        "\u{1f980}",
        &longest,
    ];
    let sorted = |names: &[&str]| -> CaseResult<Vec<HandlerName>> {
        let mut handlers: Vec<HandlerName> = names
            .iter()
            .map(|name| handler(name))
            .collect::<CaseResult<_>>()?;
        handlers.sort();
        Ok(handlers)
    };
    same("paused at first", &inbox.paused().await?, &Vec::new())?;
    for name in names.iter().chain(&names) {
        inbox.pause(&handler(name)?).await?;
    }
    same("paused", &inbox.paused().await?, &sorted(&names)?)?;
    for name in ["orders", "orders", "never paused"] {
        inbox.resume(&handler(name)?).await?;
    }
    let left: Vec<&str> = names.into_iter().filter(|name| *name != "orders").collect();
    same(
        "paused after a resume",
        &inbox.paused().await?,
        &sorted(&left)?,
    )?;
    for name in ["orders", "Orders"] {
        inbox.accept(&message_for(name, name)?).await?;
    }
    let taken = claimed(&*inbox.store, &["orders", "Orders"]).await?;
    same("claimed", &taken, &vec!["orders".into()])
}

/// Defect: a pause that is known to one process only.
pub(crate) async fn every_process_is_paused(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let other = inbox.fixture.second_connection().await?;
    inbox.accept_all(&numbered(2)?).await?;
    // What it has learned before must not last.
    same(
        "claimed",
        &claim(&*other, HANDLER, 1, LONG).await?.len(),
        &1,
    )?;
    inbox.pause(&handler(HANDLER)?).await?;
    same(
        "claimed by another process",
        &claimed(&*other, &[HANDLER]).await?,
        &Vec::new(),
    )?;
    same(
        "paused, seen by another process",
        &other.paused().await?,
        &vec![handler(HANDLER)?],
    )?;
    other.resume(&handler(HANDLER)?).await?;
    inbox.claim_one().await.map(drop)
}

/// Workers that claim all the time, and a pause: none that asks afterwards gets anything.
pub(crate) async fn a_pause_under_load_is_final(cx: Context) -> CaseResult {
    let (inbox, orders) = (cx.fresh().await?, handler(HANDLER)?);
    for round in 0..5 {
        let messages: Vec<_> = (0..200)
            .map(|n| message(&format!("{round}-{n}")))
            .collect::<CaseResult<_>>()?;
        inbox.accept_all(&messages).await?;
        let (paused, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let mut workers = tokio::task::JoinSet::new();
        for connection in inbox.connections(4).await? {
            let (paused, done) = (Arc::clone(&paused), Arc::clone(&done));
            let request = ClaimRequest {
                handlers: vec![handler(HANDLER)?],
                limit: 2,
                terms: terms(10 * LONG)?,
                run_limit: 1,
            };
            workers.spawn(async move {
                while !done.load(Ordering::SeqCst) {
                    let was_paused = paused.load(Ordering::SeqCst);
                    let taken = persist(|| connection.claim(&request)).await?.leased.len();
                    ensure!(
                        !was_paused || taken == 0,
                        "a claim that began after the pause: expected nothing, saw {taken} messages"
                    );
                    tokio::task::yield_now().await;
                }
                CaseResult::Ok(())
            });
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        let answer = persist(|| inbox.pause(&orders)).await;
        paused.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        done.store(true, Ordering::SeqCst);
        answer?;
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        inbox.resume(&orders).await?;
    }
    Ok(())
}

pub(crate) async fn statistics_show_it(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    inbox.accept(&message_for("other", "1")?).await?;
    for name in [HANDLER, "without messages"] {
        inbox.pause(&handler(name)?).await?;
    }
    let shown = async || -> CaseResult<_> {
        let statistics = inbox.statistics().await?;
        let mut shown: Vec<_> = statistics
            .handlers
            .into_iter()
            .map(|h| (h.handler.to_string(), h.paused, h.pending, h.lag.is_some()))
            .collect();
        shown.sort();
        Ok(shown)
    };
    let expected = |paused| {
        vec![
            (HANDLER.to_owned(), paused, 1, true),
            ("other".to_owned(), false, 1, true),
        ]
    };
    let what = "handler, paused, pending and whether it lags";
    same(what, &shown().await?, &expected(true))?;
    inbox.resume(&handler(HANDLER)?).await?;
    same(
        &format!("{what}, after a resume"),
        &shown().await?,
        &expected(false),
    )
}

pub(crate) async fn a_resume_wakes(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    inbox.pause(&handler(HANDLER)?).await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    inbox.resume(&handler(HANDLER)?).await?;
    wakes(&mut *subscription, "a resume").await?;
    inbox.claim_one().await.map(drop)
}

pub(crate) async fn another_process_is_woken_by_a_resume(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    if inbox.capabilities().wakeups != inbox_api::Wakeups::EveryProcess {
        return Err(Unmet::NotChecked(
            crate::needs::Need::WakeupsAcrossProcesses,
        ));
    }
    let other = inbox.fixture.second_connection().await?;
    inbox.accept(&message("1")?).await?;
    inbox.pause(&handler(HANDLER)?).await?;
    let mut subscription = subscribed(&*other).await?;
    inbox.resume(&handler(HANDLER)?).await?;
    wakes(&mut *subscription, "a resume in another process").await
}

pub(crate) async fn a_pause_outlives_its_messages(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_in(&message("1")?, State::Processed).await?;
    inbox.accept(&message("2")?).await?;
    inbox.pause(&handler(HANDLER)?).await?;
    let all = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    same("purged", &inbox.purge(&all).await?, &1)?;
    let slice = Slice {
        after: None,
        limit: 10,
    };
    let cleared = inbox.clear_slice(&handler(HANDLER)?, &slice).await?;
    same("cleared", &cleared.changed, &1)?;
    same(
        "paused without messages",
        &inbox.paused().await?,
        &vec![handler(HANDLER)?],
    )?;
    inbox.accept(&message("3")?).await?;
    inbox.nothing_due("its handler is paused").await
}
