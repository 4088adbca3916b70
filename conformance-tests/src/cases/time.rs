//! Time is the store's, never a worker's.

use std::time::{Duration, SystemTime};

use inbox_api::{Due, State};

use crate::{
    check::{CaseResult, same},
    place::{Context, LONG, ids, message, retry},
    times::about,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Defect: leases by the worker's clock. The store's clock is an hour ahead of this process's,
/// so a lease that is reckoned here has run out before it began.
pub(crate) async fn leases_run_by_the_stores_clock(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    place.pass(HOUR).await?;
    place.accept(&message("1")?).await?;
    let now = place.now().await?;
    let leased = place.claim_one().await?;
    about(
        "end of the lease, by a store that is an hour ahead",
        leased.lease.until,
        now + LONG,
    )?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    place
        .nothing_due("its lease has a minute to run by the store's clock")
        .await?;
    place.pass(LONG).await?;
    same(
        "claimed after the lease",
        &ids(&place.claim_up_to(5, LONG).await?),
        &vec!["1".into()],
    )
}

/// Defect: due times by the worker's clock.
pub(crate) async fn delays_run_by_the_stores_clock(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    place.pass(HOUR).await?;
    place
        .accept(&message("1")?.with_due(Due::After(LONG)))
        .await?;
    place
        .nothing_due("it is due in a minute by the store's clock")
        .await?;
    place.accept(&message("2")?).await?;
    let leased = place.claim_one().await?;
    place.finish(&leased, retry(LONG)).await?;
    place
        .nothing_due("both are due in a minute by the store's clock")
        .await?;
    place.pass(LONG).await?;
    same(
        "claimed when due",
        &place.claim_up_to(5, LONG).await?.len(),
        &2,
    )
}

/// Stamps are the store's as well.
pub(crate) async fn stamps_are_by_the_stores_clock(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    let before = place.now().await?;
    place.pass(HOUR).await?;
    let sent = message("1")?;
    place.accept_in(&sent, State::Dead).await?;
    let record = place.record(sent.key()).await?;
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
    let place = cx.fresh().await?;
    let sent = message("1")?.with_due(Due::After(place.brief()));
    place.accept(&sent).await?;
    place.has_state(sent.key(), State::Pending).await?;
    place.nothing_due("it is not due yet").await?;
    place.pass(place.brief()).await?;
    same(
        "claimed when due",
        &ids(&place.claim_up_to(5, LONG).await?),
        &vec!["1".into()],
    )
}

pub(crate) async fn a_message_due_at_a_moment_waits_for_it(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let due = place.now().await? + place.brief();
    let sent = message("1")?.with_due(Due::At(due));
    place.accept(&sent).await?;
    same("due_at", &place.record(sent.key()).await?.due_at, &due)?;
    place.nothing_due("it is not due yet").await?;
    place.pass(place.brief()).await?;
    same(
        "claimed when due",
        &ids(&place.claim_up_to(5, LONG).await?),
        &vec!["1".into()],
    )
}

pub(crate) async fn a_moment_in_the_past_means_now(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let sent = message("1")?.with_due(Due::At(SystemTime::UNIX_EPOCH));
    place.accept(&sent).await?;
    let record = place.record(sent.key()).await?;
    same("due_at", &record.due_at, &record.accepted_at)?;
    place.claim_one().await.map(drop)
}

pub(crate) async fn the_longest_due_come_first(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let (brief, half) = (place.brief(), place.brief() / 2);
    place
        .accept(&message("late")?.with_due(Due::After(brief)))
        .await?;
    place
        .accept(&message("early")?.with_due(Due::After(half)))
        .await?;
    place.accept(&message("expired")?).await?;
    place.claim_single(half + half / 8).await?;
    place.accept(&message("now")?).await?;
    place.pass(brief).await?;
    let expected = ["now", "early", "expired", "late"]
        .map(String::from)
        .to_vec();
    same(
        "order of the claim",
        &ids(&place.claim_up_to(10, LONG).await?),
        &expected,
    )
}
