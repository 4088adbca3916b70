//! Times are those that were asked for, to the moment: neither early nor late, rounded nor cut.

use std::time::{Duration, SystemTime};

use inbox_api::{Begun, Due, Expired, Extended, Filter, LeaseTerms, Message, State, StoreExt as _};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    place::{Context, LONG, Place, dead, ids, message, processed, retry, terms},
};

/// How long before a moment it is looked whether it has come: more than a defect may be off.
const BEFORE: [Duration; 4] = [
    Duration::from_secs(20),
    Duration::from_secs(2),
    Duration::from_millis(300),
    Duration::from_millis(40),
];

/// Stores may keep times to the millisecond, and judge messages by the clocks of several nodes.
const GRAIN: Duration = Duration::from_millis(20);

/// No whole number of seconds; more than an hour; as long as a lease can be.
const LEASES: [Duration; 3] = [
    Duration::from_millis(25_700),
    Duration::from_secs(61 * 60),
    LeaseTerms::MAX,
];

const DELAYS: [Duration; 3] = [
    Duration::from_millis(25_700),
    Duration::from_secs(61 * 60),
    Duration::from_secs(40 * 24 * 3600),
];

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Runs `step` and says between which moments of the store's clock that was.
async fn between<T>(
    place: &Place,
    step: impl Future<Output = CaseResult<T>>,
) -> CaseResult<(SystemTime, T, SystemTime)> {
    let before = place.now().await?;
    let answer = step.await?;
    Ok((before, answer, place.now().await?))
}

/// Fails unless `seen` is `after` a moment between `earliest` and `latest`.
fn is_after(
    what: &str,
    seen: SystemTime,
    (earliest, latest): (SystemTime, SystemTime),
    after: Duration,
) -> CaseResult {
    let (earliest, latest) = (earliest + after - GRAIN, latest + after + GRAIN);
    ensure!(
        earliest <= seen && seen <= latest,
        "{what}: expected it {after:?} after the call, between {earliest:?} and {latest:?}, \
         saw {seen:?}"
    );
    Ok(())
}

/// Moves the clock to `moment`, unless it is past it already.
async fn until(place: &Place, moment: SystemTime) -> CaseResult {
    if let Ok(left) = moment.duration_since(place.now().await?) {
        place.fixture.advance_clock(left).await?;
    }
    Ok(())
}

/// Fails unless `message` can be claimed from `moment` on and not before; settles it.
async fn comes_at(place: &Place, message: &Message, moment: SystemTime, what: &str) -> CaseResult {
    for before in BEFORE {
        if place.now().await? + before >= moment {
            continue;
        }
        until(place, moment - before).await?;
        let claimed = place.claim_up_to(10, LONG).await?;
        if claimed.is_empty() {
            continue;
        }
        let now = place.now().await?;
        ensure!(
            now >= moment,
            "{what}: claimed {:?} or more before it",
            moment.duration_since(now).unwrap_or_default()
        );
        // The machine was slower than the step.
        return place.finish(&claimed[0], processed()).await;
    }
    until(place, moment + GRAIN).await?;
    let claimed = place.claim_up_to(10, LONG).await?;
    same(
        &format!("claimed at the moment itself: {what}"),
        &ids(&claimed),
        &vec![message.id().to_string()],
    )?;
    place.finish(&claimed[0], processed()).await
}

pub(crate) async fn a_lease_runs_to_its_end_and_no_further(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    for (n, length) in LEASES.into_iter().enumerate() {
        let sent = message(&format!("claimed {n}"))?;
        place.accept(&sent).await?;
        let (before, leased, after) = between(&place, place.claim_single(length)).await?;
        let what = format!("the end of a lease of {length:?}");
        is_after(&what, leased.lease.until, (before, after), length)?;
        let shown = place.record(sent.key()).await?.lease_until;
        same(
            &format!("{what}, as get shows it"),
            &shown,
            &Some(leased.lease.until),
        )?;
        comes_at(&place, &sent, leased.lease.until, &what).await?;

        let sent = message(&format!("begun {n}"))?;
        let begin = async { Ok(place.begin(&sent, &terms(length)?).await?) };
        let (before, begun, after) = between(&place, begin).await?;
        let Begun::Run(leased) = begun else {
            return Err(Unmet::Failed(format!("begin of a new key: saw {begun:?}")));
        };
        let what = format!("the end of a lease of {length:?} by begin");
        is_after(&what, leased.lease.until, (before, after), length)?;
        comes_at(&place, &sent, leased.lease.until, &what).await?;
    }
    Ok(())
}

pub(crate) async fn an_extension_runs_to_its_end_and_no_further(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    for (n, length) in LEASES.into_iter().enumerate() {
        let sent = message(&format!("{n}"))?;
        place.accept(&sent).await?;
        let leased = place.claim_single(LONG).await?;
        place.fixture.advance_clock(LONG / 2).await?;
        let extend = async { Ok(place.extend_one(&leased.lease, length).await?) };
        let (before, extended, after) = between(&place, extend).await?;
        let Extended::Until(end) = extended else {
            return Err(Unmet::Failed(format!(
                "extending a lease: saw {extended:?}"
            )));
        };
        let what = format!("the end of a lease that was extended for {length:?}");
        is_after(&what, end, (before, after), length)?;
        comes_at(&place, &sent, end, &what).await?;
    }
    Ok(())
}

pub(crate) async fn a_delay_ends_when_it_should(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    for (n, delay) in DELAYS.into_iter().enumerate() {
        let sent = message(&format!("received {n}"))?.with_due(Due::After(delay));
        let (before, (), after) = between(&place, place.accept(&sent)).await?;
        let due = place.record(sent.key()).await?.due_at;
        let what = format!("the end of a delay of {delay:?}");
        is_after(&what, due, (before, after), delay)?;
        comes_at(&place, &sent, due, &what).await?;

        let sent = message(&format!("begun {n}"))?.with_due(Due::After(delay));
        let begin = async { Ok(place.begin(&sent, &terms(LONG)?).await?) };
        let (before, begun, after) = between(&place, begin).await?;
        let Begun::Busy { until: due } = begun else {
            return Err(Unmet::Failed(format!(
                "begin of a message that is not due: saw {begun:?}"
            )));
        };
        let what = format!("the end of a delay of {delay:?} by begin");
        is_after(&what, due, (before, after), delay)?;
        comes_at(&place, &sent, due, &what).await?;
    }
    Ok(())
}

pub(crate) async fn a_due_time_is_kept(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    for (n, ahead) in DELAYS.into_iter().enumerate() {
        let due = place.now().await? + ahead;
        let sent = message(&format!("{n}"))?.with_due(Due::At(due));
        place.accept(&sent).await?;
        same("due_at", &place.record(sent.key()).await?.due_at, &due)?;
        let what = format!("a due time {ahead:?} ahead");
        comes_at(&place, &sent, due, &what).await?;
    }
    Ok(())
}

pub(crate) async fn a_retry_comes_when_it_should(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    for (n, delay) in DELAYS.into_iter().enumerate() {
        let sent = message(&format!("{n}"))?;
        place.accept(&sent).await?;
        let leased = place.claim_one().await?;
        let settle = place.finish(&leased, retry(delay));
        let (before, (), after) = between(&place, settle).await?;
        let due = place.record(sent.key()).await?.due_at;
        let what = format!("a retry after {delay:?}");
        is_after(&what, due, (before, after), delay)?;
        comes_at(&place, &sent, due, &what).await?;
    }
    Ok(())
}

pub(crate) async fn stamps_are_of_the_call(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let none = Duration::ZERO;
    let sent = message("1")?;
    let (before, (), after) = between(&place, place.accept(&sent)).await?;
    let record = place.record(sent.key()).await?;
    is_after("accepted_at", record.accepted_at, (before, after), none)?;
    is_after("due_at", record.due_at, (before, after), none)?;
    for (outcome, state) in [
        (dead("gave up"), State::Dead),
        (processed(), State::Processed),
    ] {
        let leased = place.claim_one().await?;
        let finish = place.finish(&leased, outcome);
        let (before, (), after) = between(&place, finish).await?;
        let finished = place.record(sent.key()).await?.finished_at;
        let what = format!("finished_at of a {state} message");
        let Some(finished) = finished else {
            return Err(Unmet::Failed(format!("{what}: expected a time, saw none")));
        };
        is_after(&what, finished, (before, after), none)?;
        let replay = async { Ok(place.replay(sent.key(), None).await?) };
        let (before, _, after) = between(&place, replay).await?;
        let record = place.record(sent.key()).await?;
        is_after(
            "due_at after a replay",
            record.due_at,
            (before, after),
            none,
        )?;
        same("finished_at after a replay", &record.finished_at, &None)?;
    }
    let discard = async { Ok(place.discard(sent.key()).await?) };
    let (before, _, after) = between(&place, discard).await?;
    let finished = place.record(sent.key()).await?.finished_at;
    let Some(finished) = finished else {
        return Err(Unmet::Failed(
            "finished_at of a discarded message: expected a time, saw none".into(),
        ));
    };
    is_after(
        "finished_at of a discarded message",
        finished,
        (before, after),
        none,
    )
}

pub(crate) async fn retention_counts_from_the_end(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    for state in [State::Processed, State::Dead, State::Discarded] {
        let sent = message(&format!("{state}"))?;
        place.accept(&sent).await?;
        // Long accepted, long due, and for long leased.
        place.fixture.advance_clock(3 * DAY).await?;
        match state {
            State::Discarded => {
                let _ = place.discard(sent.key()).await?;
            }
            _ => {
                let leased = place.claim_single(LeaseTerms::MAX).await?;
                place.fixture.advance_clock(DAY / 2).await?;
                let outcome = match state {
                    State::Dead => dead("gave up"),
                    _ => processed(),
                };
                place.finish(&leased, outcome).await?;
            }
        }
        let finished = place.record(sent.key()).await?.finished_at;
        let moment = finished.unwrap_or(SystemTime::UNIX_EPOCH) + DAY;
        let expired = Expired::new(state, DAY, 10)?;
        for before in BEFORE {
            if place.now().await? + before >= moment {
                continue;
            }
            until(&place, moment - before).await?;
            let listed = place.expired(&expired).await?.records.len();
            let purged = place.purge(&expired).await?;
            if place.now().await? >= moment {
                break;
            }
            same(
                &format!("listed as expired {before:?} before a {state} message is a day old"),
                &listed,
                &0,
            )?;
            same(
                &format!("purged {before:?} before a {state} message is a day old"),
                &purged,
                &0,
            )?;
        }
        if place.get(sent.key()).await?.is_some() {
            until(&place, moment + GRAIN).await?;
            let what = format!("purged of a {state} message that is a day old");
            same(&what, &place.purge(&expired).await?, &1)?;
        }
    }
    Ok(())
}

pub(crate) async fn ages_count_from_acceptance(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    let sent = message("1")?.with_due(Due::After(2 * DAY));
    place.accept(&sent).await?;
    let moment = place.record(sent.key()).await?.accepted_at + DAY;
    let aged = |older, newer| Filter {
        handler: Some(sent.handler().clone()),
        older_than: older,
        newer_than: newer,
        ..Filter::default()
    };
    let (older, newer) = (aged(Some(DAY), None), aged(None, Some(DAY)));
    for before in BEFORE {
        until(&place, moment - before).await?;
        let counted = (place.count(&older).await?, place.count(&newer).await?);
        if place.now().await? >= moment {
            break;
        }
        let what = format!("older and newer than a day, {before:?} before it is a day old");
        same(&what, &counted, &(0, 1))?;
    }
    until(&place, moment + GRAIN).await?;
    let counted = (place.count(&older).await?, place.count(&newer).await?);
    same(
        "older and newer than a day, when it is a day old",
        &counted,
        &(1, 0),
    )
}
