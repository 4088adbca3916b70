//! Time is the store's, never a worker's.

use std::time::{Duration, SystemTime};

use inbox_api::{Due, State};

use crate::{
    check::{CaseResult, same},
    test_inbox::{Context, LONG, ids, message, retry},
    times::about,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Defect: leases by the worker's clock. The store's clock is an hour ahead of this process's,
/// so a lease that is reckoned here has run out before it began.
pub(crate) async fn leases_run_by_the_stores_clock(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    inbox.pass(HOUR).await?;
    inbox.accept(&message("1")?).await?;
    let now = inbox.now().await?;
    let leased = inbox.claim_one().await?;
    about(
        "end of the lease, by a store that is an hour ahead",
        leased.lease.until,
        now + LONG,
    )?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    inbox
        .nothing_due("its lease has a minute to run by the store's clock")
        .await?;
    inbox.pass(LONG).await?;
    same(
        "claimed after the lease",
        &ids(&inbox.claim_up_to(5, LONG).await?),
        &vec!["1".into()],
    )
}

/// Defect: due times by the worker's clock.
pub(crate) async fn delays_run_by_the_stores_clock(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    inbox.pass(HOUR).await?;
    inbox
        .accept(&message("1")?.with_due(Due::After(LONG)))
        .await?;
    inbox
        .nothing_due("it is due in a minute by the store's clock")
        .await?;
    inbox.accept(&message("2")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(LONG)).await?;
    inbox
        .nothing_due("both are due in a minute by the store's clock")
        .await?;
    inbox.pass(LONG).await?;
    same(
        "claimed when due",
        &inbox.claim_up_to(5, LONG).await?.len(),
        &2,
    )
}

/// Stamps are the store's as well.
pub(crate) async fn stamps_are_by_the_stores_clock(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    let before = inbox.now().await?;
    inbox.pass(HOUR).await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Dead).await?;
    let record = inbox.record(sent.key()).await?;
    for (what, time) in [
        ("accepted_at", Some(record.accepted_at)),
        ("due_at", Some(record.due_at)),
        ("finished_at", record.finished_at),
    ] {
        about(&format!("{what} an hour later"), time, before + HOUR)?;
    }
    Ok(())
}

pub(crate) async fn a_delayed_message_waits(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?.with_due(Due::After(inbox.brief()));
    inbox.accept(&sent).await?;
    inbox.has_state(sent.key(), State::Pending).await?;
    inbox.nothing_due("it is not due yet").await?;
    inbox.pass(inbox.brief()).await?;
    same(
        "claimed when due",
        &ids(&inbox.claim_up_to(5, LONG).await?),
        &vec!["1".into()],
    )
}

pub(crate) async fn a_message_due_at_a_moment_waits_for_it(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let due = inbox.now().await? + inbox.brief();
    let sent = message("1")?.with_due(Due::At(due));
    inbox.accept(&sent).await?;
    same("due_at", &inbox.record(sent.key()).await?.due_at, &due)?;
    inbox.nothing_due("it is not due yet").await?;
    inbox.pass(inbox.brief()).await?;
    same(
        "claimed when due",
        &ids(&inbox.claim_up_to(5, LONG).await?),
        &vec!["1".into()],
    )
}

pub(crate) async fn a_moment_in_the_past_means_now(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?.with_due(Due::At(SystemTime::UNIX_EPOCH));
    inbox.accept(&sent).await?;
    let record = inbox.record(sent.key()).await?;
    same("due_at", &record.due_at, &record.accepted_at)?;
    inbox.claim_one().await.map(drop)
}

pub(crate) async fn the_longest_due_come_first(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (brief, half) = (inbox.brief(), inbox.brief() / 2);
    inbox
        .accept(&message("late")?.with_due(Due::After(brief)))
        .await?;
    inbox
        .accept(&message("early")?.with_due(Due::After(half)))
        .await?;
    inbox.accept(&message("expired")?).await?;
    inbox.claim_single(half + half / 8).await?;
    inbox.accept(&message("now")?).await?;
    inbox.pass(brief).await?;
    let expected = ["now", "early", "expired", "late"]
        .map(String::from)
        .to_vec();
    same(
        "order of the claim",
        &ids(&inbox.claim_up_to(10, LONG).await?),
        &expected,
    )
}
