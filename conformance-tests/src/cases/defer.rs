//! Deferral: later, and no attempt.

use std::time::Duration;

use inbox_api::{Attempts, MAX_ERROR_BYTES, Outcome, State};

use super::retry::attempts;
use crate::{
    check::{CaseResult, ensure, same},
    test_inbox::{Context, HANDLER, LONG, claim, defer, ids, message, retry},
    times::about,
};

/// Defect: a deferral is taken for a release.
pub(crate) async fn a_deferred_message_waits(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let now = inbox.now().await?;
    inbox.finish(&leased, defer(inbox.brief())).await?;
    let record = inbox.record(sent.key()).await?;
    same("state", &record.state, &State::Pending)?;
    same(
        "end of the lease after a deferral",
        &record.lease_until,
        &None,
    )?;
    about(
        "due_at after a deferral",
        record.due_at,
        now + inbox.brief(),
    )?;
    inbox.nothing_due("the deferral has not passed").await?;
    inbox.pass(inbox.brief()).await?;
    same(
        "claimed after the deferral",
        &ids(&inbox.claim_up_to(5, LONG).await?),
        &vec!["1".into()],
    )
}

/// Unlike a release, which leaves the due time.
pub(crate) async fn a_deferral_by_nothing_is_due_at_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    inbox.pass(inbox.brief()).await?;
    let leased = inbox.claim_one().await?;
    let now = inbox.now().await?;
    inbox.finish(&leased, defer(Duration::ZERO)).await?;
    let due = inbox.record(sent.key()).await?.due_at;
    about("due_at after a deferral by nothing", due, now)?;
    inbox.claim_one().await.map(drop)
}

/// Defect: a deferral that is kept only in memory.
pub(crate) async fn a_deferral_waits_for_every_process(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let other = inbox.fixture.second_connection().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, defer(inbox.brief())).await?;
    let early = claim(&*other, HANDLER, 5, LONG).await?;
    same(
        "claimed by another process before the deferral has passed",
        &ids(&early),
        &Vec::new(),
    )?;
    inbox.pass(inbox.brief()).await?;
    let due = claim(&*other, HANDLER, 5, LONG).await?;
    same(
        "claimed by another process after it",
        &ids(&due),
        &vec!["1".into()],
    )
}

/// Defect: an outage downstream uses up the attempts of what waits for it.
pub(crate) async fn a_deferral_does_not_count(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    for _ in 0..3 {
        let leased = inbox.claim_one().await?;
        same("attempts started, as claimed", &leased.attempts.started, &1)?;
        inbox.finish(&leased, defer(Duration::ZERO)).await?;
        same(
            "started and finished, deferred before anything else",
            &attempts(&inbox, "1").await?,
            &(0, 0),
        )?;
    }
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(Duration::ZERO)).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    for _ in 0..2 {
        let leased = inbox.claim_one().await?;
        same(
            "attempts as claimed, after an error, a crash and deferrals",
            &leased.attempts,
            &Attempts {
                started: 3,
                finished: 1,
            },
        )?;
        inbox.finish(&leased, defer(Duration::ZERO)).await?;
        same(
            "started and finished, deferred after an error and a crash",
            &attempts(&inbox, "1").await?,
            &(2, 1),
        )?;
    }
    Ok(())
}

pub(crate) async fn the_error_of_a_deferral_is_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    for (error, expected) in [
        (None, None),
        (Some("first"), Some("first")),
        (None, Some("first")),
        (Some("second"), Some("second")),
        (Some(""), Some("")),
        (None, Some("")),
    ] {
        let leased = inbox.claim_one().await?;
        let outcome = Outcome::Defer {
            after: Duration::ZERO,
            error: error.map(String::from),
        };
        inbox.finish(&leased, outcome).await?;
        let seen = inbox.record(sent.key()).await?.last_error;
        same(
            &format!("last error after a deferral with {error:?}"),
            &seen.as_deref(),
            &expected,
        )?;
    }
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(Duration::ZERO)).await?;
    let failed = inbox.record(sent.key()).await?.last_error;
    let leased = inbox.claim_one().await?;
    let silent = Outcome::Defer {
        after: inbox.brief(),
        error: None,
    };
    inbox.finish(&leased, silent).await?;
    let seen = inbox.record(sent.key()).await?.last_error;
    same(
        "last error after a retry and a deferral without one",
        &seen,
        &failed,
    )
}

pub(crate) async fn errors_of_deferrals_are_cut(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let text = format!("nul \0 {}", "ä".repeat(MAX_ERROR_BYTES));
    let outcome = Outcome::Defer {
        after: Duration::ZERO,
        error: Some(text.clone()),
    };
    inbox.finish(&leased, outcome).await?;
    let expected = inbox_api::error_text(&text).into_owned();
    let stored = inbox.record(sent.key()).await?.last_error;
    ensure!(
        stored.as_deref() == Some(expected.as_str()),
        "error of {} bytes: expected it cut to {} bytes without NUL, saw {:?} bytes",
        text.len(),
        expected.len(),
        stored.map(|text| text.len())
    );
    Ok(())
}

/// Defect: what comes late is taken for what vanished, and its message is due.
pub(crate) async fn a_lease_that_ran_out_can_be_deferred(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    inbox.finish(&leased, defer(inbox.brief())).await?;
    same(
        "started and finished",
        &attempts(&inbox, "1").await?,
        &(0, 0),
    )?;
    inbox
        .nothing_due("the deferral, which came late, has not passed")
        .await?;
    inbox.pass(inbox.brief()).await?;
    inbox.claim_one().await.map(drop)
}
