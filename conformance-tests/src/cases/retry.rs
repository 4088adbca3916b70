//! Retry, release, and what counts as an attempt.

use std::time::Duration;

use inbox_api::{Attempts, MAX_ERROR_BYTES, Outcome, Record, State};

use crate::{
    check::{CaseResult, ensure, same},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead, ids, message, numbered, processed, retry,
    },
    times::about,
};

pub(super) async fn attempts(inbox: &TestInbox, id: &str) -> CaseResult<(u32, u32)> {
    let Record { attempts, .. } = inbox.record(message(id)?.key()).await?;
    Ok((attempts.started, attempts.finished))
}

/// Defect: a failed message is claimable again at once.
pub(crate) async fn a_retry_waits(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let now = inbox.now().await?;
    inbox.finish(&leased, retry(inbox.brief())).await?;
    let record = inbox.record(sent.key()).await?;
    same("state", &record.state, &State::Pending)?;
    about("due_at after a retry", record.due_at, now + inbox.brief())?;
    inbox
        .nothing_due("the retry's delay has not passed")
        .await?;
    inbox.pass(inbox.brief()).await?;
    same(
        "claimed after the delay",
        &ids(&inbox.claim_up_to(5, LONG).await?),
        &vec!["1".into()],
    )
}

pub(crate) async fn a_retry_after_nothing_is_due_at_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(Duration::ZERO)).await?;
    inbox.claim_one().await.map(drop)
}

/// Defect: back-off that is kept only in memory.
pub(crate) async fn a_retry_waits_for_every_process(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let other = inbox.fixture.second_connection().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(inbox.brief())).await?;
    let early = claim(&*other, HANDLER, 5, LONG).await?;
    same(
        "claimed by another process before the delay",
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

pub(crate) async fn the_last_error_is_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    same(
        "last error of a new message",
        &inbox.record(sent.key()).await?.last_error,
        &None,
    )?;
    for error in ["first", "second"] {
        let leased = inbox.claim_one().await?;
        let outcome = Outcome::Retry {
            after: Duration::ZERO,
            error: error.into(),
        };
        inbox.finish(&leased, outcome).await?;
        let seen = inbox.record(sent.key()).await?.last_error;
        same("last error after a retry", &seen.as_deref(), &Some(error))?;
    }
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, processed()).await?;
    let record = inbox.record(sent.key()).await?;
    same(
        "last error after success",
        &record.last_error.as_deref(),
        &Some("second"),
    )
}

pub(crate) async fn errors_of_retries_are_cut(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let text = format!("nul \0 {}", "ä".repeat(MAX_ERROR_BYTES));
    let outcome = Outcome::Retry {
        after: Duration::ZERO,
        error: text.clone(),
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

pub(crate) async fn a_final_message_has_its_reason_and_time(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    same(
        "finished_at while pending",
        &inbox.record(sent.key()).await?.finished_at,
        &None,
    )?;
    let now = inbox.now().await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead("card refused")).await?;
    let record = inbox.record(sent.key()).await?;
    same("state", &record.state, &State::Dead)?;
    same(
        "reason",
        &record.last_error.as_deref(),
        &Some("card refused"),
    )?;
    about("finished_at", record.finished_at, now)?;
    inbox.nothing_due("its only message is dead").await
}

/// Defect: a crash does not count as an attempt, so a message that kills its worker never dies.
pub(crate) async fn a_crash_counts_as_an_attempt(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    for started in 1..=3 {
        let leased = inbox.claim_single(inbox.brief()).await?;
        let expected = Attempts {
            started,
            finished: 0,
        };
        same(
            "attempts as claimed, after crashes only",
            &leased.attempts,
            &expected,
        )?;
        same("crashes", &leased.attempts.crashed(true), &(started - 1))?;
        inbox.pass(inbox.brief()).await?;
    }
    same(
        "attempts started and finished",
        &attempts(&inbox, "1").await?,
        &(3, 0),
    )
}

/// Started and finished attempts are told apart.
pub(crate) async fn an_error_counts_as_finished(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    for round in 1..=3 {
        let leased = inbox.claim_one().await?;
        same(
            "attempts started, as claimed",
            &leased.attempts.started,
            &round,
        )?;
        same(
            "attempts finished, as claimed",
            &leased.attempts.finished,
            &(round - 1),
        )?;
        inbox.finish(&leased, retry(Duration::ZERO)).await?;
        same(
            "started and finished",
            &attempts(&inbox, "1").await?,
            &(round, round),
        )?;
    }
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead("enough")).await?;
    same(
        "started and finished, when dead",
        &attempts(&inbox, "1").await?,
        &(4, 4),
    )
}

pub(crate) async fn success_counts_as_finished(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_in(&message("1")?, State::Processed).await?;
    same(
        "started and finished",
        &attempts(&inbox, "1").await?,
        &(1, 1),
    )
}

pub(crate) async fn crashes_and_errors_are_told_apart(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(Duration::ZERO)).await?;
    let record = inbox.record(message("1")?.key()).await?;
    same(
        "started and finished",
        &attempts(&inbox, "1").await?,
        &(2, 1),
    )?;
    same("crashes", &record.attempts.crashed(false), &1)
}

pub(crate) async fn a_release_is_due_at_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, Outcome::Release).await?;
    inbox.has_state(&leased.lease.key, State::Pending).await?;
    inbox.claim_one().await.map(drop)
}

pub(crate) async fn a_release_does_not_count(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    for _ in 0..3 {
        let leased = inbox.claim_one().await?;
        same("attempts started, as claimed", &leased.attempts.started, &1)?;
        inbox.finish(&leased, Outcome::Release).await?;
        same(
            "started and finished",
            &attempts(&inbox, "1").await?,
            &(0, 0),
        )?;
    }
    let record = inbox.record(message("1")?.key()).await?;
    same("last error", &record.last_error, &None)
}

pub(crate) async fn a_released_message_keeps_its_place(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for message in numbered(3)? {
        inbox.accept(&message).await?;
    }
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, Outcome::Release).await?;
    let expected = ["00001", "00002", "00003"].map(String::from).to_vec();
    same(
        "order of the claim",
        &ids(&inbox.claim_up_to(3, LONG).await?),
        &expected,
    )
}

/// Defect: a release sets a due time, so that the message goes to the end of the queue and its lag
/// starts again.
pub(crate) async fn a_release_leaves_the_due_time(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let due = inbox.record(sent.key()).await?.due_at;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, Outcome::Release).await?;
    let shown = inbox.record(sent.key()).await?.due_at;
    same("due_at after a release", &shown, &due)?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(inbox.brief())).await?;
    let due = inbox.record(sent.key()).await?.due_at;
    inbox.pass(inbox.brief()).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, Outcome::Release).await?;
    let shown = inbox.record(sent.key()).await?.due_at;
    same(
        "due_at after a retry, a lease that ran out and a release",
        &shown,
        &due,
    )
}
