//! Waiting for work.

use std::time::Duration;

use inbox_api::{ErrorKind, HandlerName, Inbox, Outcome, Subscription, Wakeups};

use crate::{
    check::{CaseResult, Unmet, same},
    harness::Need,
    place::{Context, HANDLER, Place, dead, message, ordered, processed, retry},
};

/// How long a wake-up may take.
pub(super) const SOON: Duration = Duration::from_secs(30);

async fn subscribed(inbox: &dyn Inbox) -> CaseResult<Box<dyn Subscription>> {
    if inbox.capabilities().wakeups == Wakeups::None {
        return Err(Unmet::NotChecked(Need::Wakeups));
    }
    let mut subscription = inbox.subscribe(&[HandlerName::new(HANDLER)?]).await?;
    // Spurious wake-ups are allowed; those of the past are used up here.
    while tokio::time::timeout(Duration::from_millis(20), subscription.woken())
        .await
        .is_ok()
    {}
    Ok(subscription)
}

async fn wakes(subscription: &mut dyn Subscription, cause: &str) -> CaseResult {
    tokio::time::timeout(SOON, subscription.woken())
        .await
        .map_err(|_| Unmet::Failed(format!("no wake-up within {SOON:?} of {cause}")))
}

pub(crate) async fn a_receive_wakes(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut subscription = subscribed(&*place.inbox).await?;
    for id in ["1", "2"] {
        place.accept(&message(id)?).await?;
        wakes(&mut *subscription, "a receive").await?;
    }
    Ok(())
}

pub(crate) async fn a_signal_before_waiting_is_kept(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut subscription = subscribed(&*place.inbox).await?;
    place.accept(&message("1")?).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    wakes(&mut *subscription, "a receive before waiting began").await
}

pub(crate) async fn a_dropped_wait_loses_no_signal(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut subscription = subscribed(&*place.inbox).await?;
    for polls in 0..4 {
        let _ = crate::cancel::drop_after(polls.min(1), subscription.woken()).await;
    }
    place.accept(&message("1")?).await?;
    wakes(
        &mut *subscription,
        "a receive after waits that were dropped",
    )
    .await
}

pub(crate) async fn work_that_comes_back_wakes(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.accept(&message("1")?).await?;
    for (outcome, cause) in [
        (retry(Duration::ZERO), "a retry that is due at once"),
        (Outcome::Release, "a release"),
    ] {
        let leased = place.claim_one().await?;
        let mut subscription = subscribed(&*place.inbox).await?;
        place.finish(&leased, outcome).await?;
        wakes(&mut *subscription, cause).await?;
    }
    let leased = place.claim_one().await?;
    place.finish(&leased, dead("gave up")).await?;
    let mut subscription = subscribed(&*place.inbox).await?;
    let _ = place.replay(&leased.lease.key, None).await?;
    wakes(&mut *subscription, "a replay").await
}

async fn two_of_a_key(cx: &Context) -> CaseResult<Place> {
    let place = cx.fresh_ordered().await?;
    place.accept(&ordered("1", "k")?).await?;
    place.accept(&ordered("2", "k")?).await?;
    Ok(place)
}

pub(crate) async fn the_next_of_an_ordering_key_wakes(cx: Context) -> CaseResult {
    for (outcome, cause) in [(processed(), "processed"), (dead("gave up"), "dead")] {
        let place = two_of_a_key(&cx).await?;
        let leased = place.claim_one().await?;
        let mut subscription = subscribed(&*place.inbox).await?;
        place.finish(&leased, outcome).await?;
        wakes(
            &mut *subscription,
            &format!("the one before it being {cause}"),
        )
        .await?;
    }
    let place = two_of_a_key(&cx).await?;
    let leased = place.claim_one().await?;
    place
        .finish(&leased, crate::place::dead_blocking("gave up"))
        .await?;
    let mut subscription = subscribed(&*place.inbox).await?;
    let _ = place.discard(&leased.lease.key).await?;
    wakes(
        &mut *subscription,
        "the one that blocked it being discarded",
    )
    .await
}

pub(crate) async fn every_subscription_is_woken(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let mut one = subscribed(&*place.inbox).await?;
    let mut other = subscribed(&*place.inbox).await?;
    place.accept(&message("1")?).await?;
    wakes(&mut *one, "a receive, of the first subscription").await?;
    wakes(&mut *other, "a receive, of the second subscription").await
}

pub(crate) async fn another_process_is_woken(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    if place.capabilities().wakeups != Wakeups::EveryProcess {
        return Err(Unmet::NotChecked(Need::WakeupsAcrossProcesses));
    }
    let other = place.fixture.second_connection().await?;
    let mut subscription = subscribed(&*other).await?;
    place.accept(&message("1")?).await?;
    wakes(&mut *subscription, "a receive by another process").await
}

/// Defect: other processes learn only of new messages.
pub(crate) async fn another_process_is_woken_by_work_that_comes_back(cx: Context) -> CaseResult {
    let place = two_of_a_key(&cx).await?;
    if place.capabilities().wakeups != Wakeups::EveryProcess {
        return Err(Unmet::NotChecked(Need::WakeupsAcrossProcesses));
    }
    let other = place.fixture.second_connection().await?;
    for (outcome, cause) in [
        (retry(Duration::ZERO), "a retry in another process"),
        (Outcome::Release, "a release in another process"),
        (
            processed(),
            "the one before it being processed in another process",
        ),
        (dead("gave up"), "a replay in another process"),
    ] {
        let leased = place.claim_one().await?;
        let replayed = matches!(outcome, Outcome::Dead { .. });
        if replayed {
            place.finish(&leased, outcome).await?;
            let mut subscription = subscribed(&*other).await?;
            let _ = place.replay(&leased.lease.key, None).await?;
            wakes(&mut *subscription, cause).await?;
        } else {
            let mut subscription = subscribed(&*other).await?;
            place.finish(&leased, outcome).await?;
            wakes(&mut *subscription, cause).await?;
        }
    }
    Ok(())
}

pub(crate) async fn subscriptions_are_given_or_refused(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let answer = place.subscribe(&[HandlerName::new(HANDLER)?]).await;
    if place.capabilities().wakeups != Wakeups::None {
        return Ok(answer.map(drop)?);
    }
    let kind = answer.err().map(|error| error.kind());
    same("kind of the error", &kind, &Some(ErrorKind::Unsupported))
}
