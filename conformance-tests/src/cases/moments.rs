//! Times are those that were asked for, to the moment: neither early nor late, rounded nor cut.

use std::time::{Duration, SystemTime};

use inbox_api::{
    Begun, Due, Edit, Extended, Filter, HandlerStatistics, LeaseTerms, Message, Page, PurgeRequest,
    Slice, State, StoreExt as _,
};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, dead, defer, ids, message, processed, retry, terms,
    },
    time_text::{apart, format_time},
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

/// Less than a second; no whole number of seconds; more than an hour; as long as a lease can be.
const LEASES: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(25_700),
    Duration::from_secs(61 * 60),
    LeaseTerms::MAX,
];

const DELAYS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(25_700),
    Duration::from_secs(61 * 60),
    Duration::from_secs(40 * 24 * 3600),
];

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Runs `step` and says between which moments of the store's clock that was.
async fn between<T>(
    inbox: &TestInbox,
    step: impl Future<Output = CaseResult<T>>,
) -> CaseResult<(SystemTime, T, SystemTime)> {
    let before = inbox.now().await?;
    let answer = step.await?;
    Ok((before, answer, inbox.now().await?))
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
        "{what}: expected it {after:?} after the call, between {} and {}, saw {}, which is {} than the \
         earliest",
        format_time(earliest),
        format_time(latest),
        format_time(seen),
        apart(seen, earliest)
    );
    Ok(())
}

/// Moves the clock to `moment`, unless it is past it already.
async fn until(inbox: &TestInbox, moment: SystemTime) -> CaseResult {
    if let Ok(left) = moment.duration_since(inbox.now().await?) {
        inbox.fixture.advance_clock(left).await?;
    }
    Ok(())
}

/// Fails unless `message` can be claimed from `moment` on and not before; settles it.
async fn comes_at(
    inbox: &TestInbox,
    message: &Message,
    moment: SystemTime,
    what: &str,
) -> CaseResult {
    for before in BEFORE {
        if inbox.now().await? + before >= moment {
            continue;
        }
        until(inbox, moment - before).await?;
        let claimed = inbox.claim_up_to(10, LONG).await?;
        if claimed.is_empty() {
            continue;
        }
        let now = inbox.now().await?;
        ensure!(
            now >= moment,
            "{what}: claimed {:?} or more before it",
            moment.duration_since(now).unwrap_or_default()
        );
        // The machine was slower than the step.
        return inbox.finish(&claimed[0], processed()).await;
    }
    until(inbox, moment + GRAIN).await?;
    let claimed = inbox.claim_up_to(10, LONG).await?;
    same(
        &format!("claimed at the moment itself: {what}"),
        &ids(&claimed),
        &vec![message.id().to_string()],
    )?;
    inbox.finish(&claimed[0], processed()).await
}

pub(crate) async fn a_lease_runs_to_its_end_and_no_further(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    for (n, length) in LEASES.into_iter().enumerate() {
        let sent = message(&format!("claimed {n}"))?;
        inbox.accept(&sent).await?;
        let (before, leased, after) = between(&inbox, inbox.claim_single(length)).await?;
        let what = format!("the end of a lease of {length:?}");
        is_after(&what, leased.lease.until, (before, after), length)?;
        let shown = inbox.record(sent.key()).await?.lease_until;
        // A store that is slower than the lease shows none.
        if shown.is_some() || inbox.now().await? < leased.lease.until {
            same(
                &format!("{what}, as get shows it"),
                &shown,
                &Some(leased.lease.until),
            )?;
        }
        comes_at(&inbox, &sent, leased.lease.until, &what).await?;

        let sent = message(&format!("begun {n}"))?;
        let begin = async { Ok(inbox.begin(&sent, &terms(length)?).await?) };
        let (before, begun, after) = between(&inbox, begin).await?;
        let Begun::Run(leased) = begun else {
            return Err(Unmet::Failed(format!("begin of a new key: saw {begun:?}")));
        };
        let what = format!("the end of a lease of {length:?} by begin");
        is_after(&what, leased.lease.until, (before, after), length)?;
        comes_at(&inbox, &sent, leased.lease.until, &what).await?;
    }
    Ok(())
}

pub(crate) async fn an_extension_runs_to_its_end_and_no_further(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    for (n, length) in LEASES.into_iter().enumerate() {
        let sent = message(&format!("{n}"))?;
        inbox.accept(&sent).await?;
        let leased = inbox.claim_single(LONG).await?;
        inbox.fixture.advance_clock(LONG / 2).await?;
        let extend = async { Ok(inbox.extend_one(&leased.lease, length).await?) };
        let (before, extended, after) = between(&inbox, extend).await?;
        let Extended::Until(end) = extended else {
            return Err(Unmet::Failed(format!(
                "extending a lease: saw {extended:?}"
            )));
        };
        let what = format!("the end of a lease that was extended for {length:?}");
        is_after(&what, end, (before, after), length)?;
        comes_at(&inbox, &sent, end, &what).await?;
    }
    Ok(())
}

pub(crate) async fn a_delay_ends_when_it_should(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    for (n, delay) in DELAYS.into_iter().enumerate() {
        let sent = message(&format!("received {n}"))?.with_due(Due::After(delay));
        let (before, (), after) = between(&inbox, inbox.accept(&sent)).await?;
        let due = inbox.record(sent.key()).await?.due_at;
        let what = format!("the end of a delay of {delay:?}");
        is_after(&what, due, (before, after), delay)?;
        comes_at(&inbox, &sent, due, &what).await?;

        let sent = message(&format!("begun {n}"))?.with_due(Due::After(delay));
        let begin = async { Ok(inbox.begin(&sent, &terms(LONG)?).await?) };
        let (before, begun, after) = between(&inbox, begin).await?;
        let Begun::Busy { until: due } = begun else {
            return Err(Unmet::Failed(format!(
                "begin of a message that is not due: saw {begun:?}"
            )));
        };
        let what = format!("the end of a delay of {delay:?} by begin");
        is_after(&what, due, (before, after), delay)?;
        comes_at(&inbox, &sent, due, &what).await?;
    }
    Ok(())
}

pub(crate) async fn a_due_time_is_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    for (n, ahead) in DELAYS.into_iter().enumerate() {
        let due = inbox.now().await? + ahead;
        let sent = message(&format!("{n}"))?.with_due(Due::At(due));
        inbox.accept(&sent).await?;
        // One that has passed by the time the message is accepted is the time of acceptance.
        let record = inbox.record(sent.key()).await?;
        same("due_at", &record.due_at, &due.max(record.accepted_at))?;
        let what = format!("a due time {ahead:?} ahead");
        comes_at(&inbox, &sent, due, &what).await?;
    }
    Ok(())
}

pub(crate) async fn a_retry_comes_when_it_should(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    for (n, delay) in DELAYS.into_iter().enumerate() {
        let sent = message(&format!("{n}"))?;
        inbox.accept(&sent).await?;
        let leased = inbox.claim_one().await?;
        let settle = inbox.finish(&leased, retry(delay));
        let (before, (), after) = between(&inbox, settle).await?;
        let due = inbox.record(sent.key()).await?.due_at;
        let what = format!("a retry after {delay:?}");
        is_after(&what, due, (before, after), delay)?;
        comes_at(&inbox, &sent, due, &what).await?;
    }
    Ok(())
}

pub(crate) async fn a_deferral_ends_when_it_should(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    for (n, delay) in DELAYS.into_iter().enumerate() {
        let sent = message(&format!("{n}"))?;
        inbox.accept(&sent).await?;
        let leased = inbox.claim_one().await?;
        let settle = inbox.finish(&leased, defer(delay));
        let (before, (), after) = between(&inbox, settle).await?;
        let due = inbox.record(sent.key()).await?.due_at;
        let what = format!("a deferral by {delay:?}");
        is_after(&what, due, (before, after), delay)?;
        comes_at(&inbox, &sent, due, &what).await?;
    }
    Ok(())
}

pub(crate) async fn stamps_are_of_the_call(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let none = Duration::ZERO;
    let sent = message("1")?;
    let (before, (), after) = between(&inbox, inbox.accept(&sent)).await?;
    let record = inbox.record(sent.key()).await?;
    is_after("accepted_at", record.accepted_at, (before, after), none)?;
    is_after("due_at", record.due_at, (before, after), none)?;
    for (outcome, state) in [
        (dead("gave up"), State::Dead),
        (processed(), State::Processed),
    ] {
        if inbox.need_clock().is_ok() {
            inbox.fixture.advance_clock(LONG).await?;
        }
        let leased = inbox.claim_one().await?;
        let finish = inbox.finish(&leased, outcome);
        let (before, (), after) = between(&inbox, finish).await?;
        let finished = inbox.record(sent.key()).await?.finished_at;
        let what = format!("finished_at of a {state} message");
        let Some(finished) = finished else {
            return Err(Unmet::Failed(format!("{what}: expected a time, saw none")));
        };
        is_after(&what, finished, (before, after), none)?;
        let replay = async { Ok(inbox.replay(sent.key(), &Edit::default()).await?) };
        let (before, _, after) = between(&inbox, replay).await?;
        let record = inbox.record(sent.key()).await?;
        is_after(
            "due_at after a replay",
            record.due_at,
            (before, after),
            none,
        )?;
        same("finished_at after a replay", &record.finished_at, &None)?;
    }
    let discard = async { Ok(inbox.discard(sent.key()).await?) };
    let (before, _, after) = between(&inbox, discard).await?;
    let finished = inbox.record(sent.key()).await?.finished_at;
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
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    for state in [State::Processed, State::Dead, State::Discarded] {
        let sent = message(&format!("{state}"))?;
        inbox.accept(&sent).await?;
        // Long accepted, long due, and for long leased.
        inbox.fixture.advance_clock(3 * DAY).await?;
        match state {
            State::Discarded => {
                let _ = inbox.discard(sent.key()).await?;
            }
            _ => {
                let leased = inbox.claim_single(LeaseTerms::MAX).await?;
                inbox.fixture.advance_clock(DAY / 2).await?;
                let outcome = match state {
                    State::Dead => dead("gave up"),
                    _ => processed(),
                };
                inbox.finish(&leased, outcome).await?;
            }
        }
        let finished = inbox.record(sent.key()).await?.finished_at;
        let moment = finished.unwrap_or(SystemTime::UNIX_EPOCH) + DAY;
        let expired = PurgeRequest::new(state, DAY, 10)?;
        for before in BEFORE {
            if inbox.now().await? + before >= moment {
                continue;
            }
            until(&inbox, moment - before).await?;
            let listed = inbox.expired(&expired).await?.records.len();
            let purged = inbox.purge(&expired).await?;
            if inbox.now().await? >= moment {
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
        if inbox.get(sent.key()).await?.is_some() {
            until(&inbox, moment + GRAIN).await?;
            let what = format!("purged of a {state} message that is a day old");
            same(&what, &inbox.purge(&expired).await?, &1)?;
        }
    }
    Ok(())
}

pub(crate) async fn ages_count_from_acceptance(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    let sent = message("1")?.with_due(Due::After(2 * DAY));
    inbox.accept(&sent).await?;
    let moment = inbox.record(sent.key()).await?.accepted_at + DAY;
    let aged = |older, newer| Filter {
        handler: Some(sent.handler().clone()),
        older_than: older,
        newer_than: newer,
        ..Filter::default()
    };
    let (older, newer) = (aged(Some(DAY), None), aged(None, Some(DAY)));
    for before in BEFORE {
        until(&inbox, moment - before).await?;
        let counted = (inbox.count(&older).await?, inbox.count(&newer).await?);
        if inbox.now().await? >= moment {
            break;
        }
        let what = format!("older and newer than a day, {before:?} before it is a day old");
        same(&what, &counted, &(0, 1))?;
    }
    until(&inbox, moment + GRAIN).await?;
    let counted = (inbox.count(&older).await?, inbox.count(&newer).await?);
    same(
        "older and newer than a day, when it is a day old",
        &counted,
        &(1, 0),
    )
}

pub(crate) async fn stamps_of_slices_are_of_the_call(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    let none = Duration::ZERO;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Dead).await?;
    let (filter, slice) = (Filter::default(), all_at_once());
    inbox.fixture.advance_clock(LONG).await?;
    let replay = async { Ok(inbox.replay_slice(&filter, &slice).await?) };
    let (before, _, after) = between(&inbox, replay).await?;
    let record = inbox.record(sent.key()).await?;
    let what = "due_at after a replay by a slice";
    is_after(what, record.due_at, (before, after), none)?;
    let what = "finished_at after a replay by a slice";
    same(what, &record.finished_at, &None)?;
    inbox.fixture.advance_clock(LONG).await?;
    let pending = Filter {
        states: vec![State::Pending],
        handler: Some(sent.handler().clone()),
        ..Filter::default()
    };
    let discard = async { Ok(inbox.discard_slice(&pending, &slice).await?) };
    let (before, _, after) = between(&inbox, discard).await?;
    let what = "finished_at after a discard by a slice";
    let finished = inbox.record(sent.key()).await?.finished_at;
    let finished =
        finished.ok_or_else(|| Unmet::Failed(format!("{what}: expected a time, saw none")))?;
    is_after(what, finished, (before, after), none)
}

fn all_at_once() -> Slice {
    Slice {
        after: None,
        limit: 10,
    }
}

/// Defect: begin judges due times or leases by another measure than a claim.
pub(crate) async fn begin_waits_as_a_claim_does(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    let length = Duration::from_millis(25_700);
    for what in ["a delay", "a retry", "a deferral", "a lease"] {
        let mut sent = message(what)?;
        if what == "a delay" {
            sent = sent.with_due(Due::After(length));
        }
        inbox.accept(&sent).await?;
        if what != "a delay" {
            let leased = inbox.claim_single(length).await?;
            match what {
                "a retry" => inbox.finish(&leased, retry(length)).await?,
                "a deferral" => inbox.finish(&leased, defer(length)).await?,
                _ => {}
            }
        }
        let record = inbox.record(sent.key()).await?;
        let moment = record.lease_until.unwrap_or(record.due_at);
        begins_at(&inbox, &sent, moment, &format!("the end of {what}")).await?;
    }
    Ok(())
}

/// Fails unless `message` can be begun from `moment` on and not before; settles it.
async fn begins_at(
    inbox: &TestInbox,
    message: &Message,
    moment: SystemTime,
    what: &str,
) -> CaseResult {
    for before in BEFORE {
        if inbox.now().await? + before >= moment {
            continue;
        }
        until(inbox, moment - before).await?;
        match inbox.begin(message, &terms(LONG)?).await? {
            Begun::Run(leased) => {
                let now = inbox.now().await?;
                ensure!(
                    now >= moment,
                    "{what}: begun {:?} or more before it",
                    moment.duration_since(now).unwrap_or_default()
                );
                // The machine was slower than the step.
                return inbox.finish(&leased, processed()).await;
            }
            begun => same(
                &format!("begin {before:?} before {what}"),
                &begun,
                &Begun::Busy { until: moment },
            )?,
        }
    }
    until(inbox, moment + GRAIN).await?;
    match inbox.begin(message, &terms(LONG)?).await? {
        Begun::Run(leased) => inbox.finish(&leased, processed()).await,
        begun => Err(Unmet::Failed(format!(
            "begin at the moment itself: {what}: expected Run, saw {begun:?}"
        ))),
    }
}

pub(crate) async fn lag_and_age_are_to_the_moment(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    let (length, waited) = (Duration::from_millis(25_700), Duration::from_millis(11_300));
    let sent = message("1")?.with_due(Due::After(length));
    inbox.accept(&sent).await?;
    let record = inbox.record(sent.key()).await?;
    let shown = async |what: &str, due: SystemTime| -> CaseResult {
        until(&inbox, due + waited).await?;
        let statistics = async { Ok(inbox.statistics().await?) };
        let (before, statistics, after) = between(&inbox, statistics).await?;
        let mut handlers = statistics.handlers.into_iter();
        let of = handlers.find(|of| of.handler.as_str() == HANDLER);
        let HandlerStatistics {
            lag,
            oldest_due_age,
            ..
        } = of.ok_or_else(|| Unmet::Failed("statistics: saw no handler".into()))?;
        for (figure, seen, since) in [
            ("lag", lag, due),
            (
                "age of the oldest due message",
                oldest_due_age,
                record.accepted_at,
            ),
        ] {
            let [least, most] = [before - GRAIN, after + GRAIN]
                .map(|time| time.duration_since(since).unwrap_or_default());
            ensure!(
                seen.is_some_and(|seen| least <= seen && seen <= most),
                "{figure}, {what}: expected between {least:?} and {most:?}, saw {seen:?}"
            );
        }
        Ok(())
    };
    shown("of a message with a delay", record.due_at).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(length)).await?;
    let due = inbox.record(sent.key()).await?.due_at;
    shown("after a retry", due).await?;
    let leased = inbox.claim_single(length).await?;
    shown("after a lease that ran out", leased.lease.until).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, inbox_api::Outcome::Release).await?;
    shown("after a release", due).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead("gave up")).await?;
    let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    let due = inbox.record(sent.key()).await?.due_at;
    shown("after a replay", due).await
}

pub(crate) async fn retention_of_the_archived_counts_from_the_end(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    inbox.fixture.advance_clock(3 * DAY).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, processed()).await?;
    let finished = inbox.record(sent.key()).await?.finished_at;
    let moment = finished.unwrap_or(SystemTime::UNIX_EPOCH) + DAY;
    let (expired, keys) = (
        PurgeRequest::new(State::Processed, DAY, 10)?,
        [sent.key().clone()],
    );
    for before in BEFORE {
        until(&inbox, moment - before).await?;
        let purged = inbox.purge_archived(&expired, &keys).await?;
        if inbox.now().await? >= moment {
            break;
        }
        same(
            &format!("purged of the archived {before:?} before the message is a day old"),
            &purged,
            &0,
        )?;
    }
    if inbox.get(sent.key()).await?.is_some() {
        until(&inbox, moment + GRAIN).await?;
        same(
            "purged of the archived when the message is a day old",
            &inbox.purge_archived(&expired, &keys).await?,
            &1,
        )?;
    }
    Ok(())
}

pub(crate) async fn slices_by_age_count_from_acceptance(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Dead).await?;
    let moment = inbox.record(sent.key()).await?.accepted_at + DAY;
    let aged = |older, newer| Filter {
        states: vec![State::Dead],
        handler: Some(sent.handler().clone()),
        older_than: older,
        newer_than: newer,
        ..Filter::default()
    };
    let (older, newer) = (aged(Some(DAY), None), aged(None, Some(DAY)));
    let slice = all_at_once();
    let listed = async |filter: &Filter| -> CaseResult<usize> {
        let page = Page::first(10);
        Ok(inbox.list(filter, &page).await?.records.len())
    };
    for before in BEFORE {
        until(&inbox, moment - before).await?;
        let seen = (
            listed(&older).await?,
            inbox.replay_slice(&older, &slice).await?.changed,
            inbox.discard_slice(&older, &slice).await?.changed,
        );
        if inbox.now().await? >= moment {
            return Ok(());
        }
        let what = format!(
            "listed, replayed and discarded as older than a day, {before:?} before it is a day old"
        );
        same(&what, &seen, &(0, 0, 0))?;
    }
    until(&inbox, moment + GRAIN).await?;
    let seen = (
        listed(&newer).await?,
        inbox.replay_slice(&newer, &slice).await?.changed,
        inbox.discard_slice(&newer, &slice).await?.changed,
        listed(&older).await?,
        inbox.replay_slice(&older, &slice).await?.changed,
    );
    same(
        "listed, replayed and discarded as newer than a day, listed and replayed as older, when it \
         is a day old",
        &seen,
        &(0, 0, 0, 1, 1),
    )
}
