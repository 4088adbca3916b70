//! What became of earlier attempts.

use std::time::{Duration, SystemTime};

use inbox_api::{
    AttemptEnd, Begun, Bytes, ClaimRequest, Due, Edit, Filter, HandlerName, History, Intervention,
    InterventionKind, LeaseTerms, Leased, Message, OperatorName, Outcome, Page, PastAttempt,
    PurgeRequest, Record, Settled, Settlement, Slice, State, StoreExt as _, WorkerName,
};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, dead, message, numbered, processed, retry, terms, worker,
    },
    times::about,
};

fn fails(error: &str) -> Outcome {
    Outcome::Retry {
        after: Duration::ZERO,
        error: error.into(),
    }
}

fn waits(error: Option<&str>) -> Outcome {
    Outcome::Defer {
        after: Duration::ZERO,
        error: error.map(str::to_owned),
    }
}

async fn history(inbox: &TestInbox, message: &Message) -> CaseResult<Vec<PastAttempt>> {
    Ok(inbox.record(message.key()).await?.history)
}

/// Number, replays, end and error of each.
fn told(history: &[PastAttempt]) -> Vec<(u32, u32, AttemptEnd, &str)> {
    history
        .iter()
        .map(|past| (past.attempt, past.replays, past.end, &*past.error))
        .collect()
}

async fn attempt(inbox: &TestInbox, outcome: Outcome) -> CaseResult<Leased> {
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, outcome).await?;
    Ok(leased)
}

async fn replay(inbox: &TestInbox, message: &Message, edit: &Edit) -> CaseResult {
    same(
        "replay",
        &inbox.replay(message.key(), edit).await?,
        &Intervention::Done,
    )
}

/// The message, dead after a retry.
async fn twice_failed(inbox: &TestInbox) -> CaseResult<Message> {
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    attempt(inbox, fails("first")).await?;
    attempt(inbox, dead("second")).await?;
    Ok(sent)
}

const TWICE_FAILED: [(u32, u32, AttemptEnd, &str); 2] = [
    (1, 0, AttemptEnd::Retried, "first"),
    (2, 0, AttemptEnd::Dead, "second"),
];

pub(crate) async fn errors_are_kept_in_order(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let steps = [
        (fails("first"), AttemptEnd::Retried, 1),
        (waits(Some("second")), AttemptEnd::Deferred, 2),
        (waits(Some("")), AttemptEnd::Deferred, 2),
        (dead("last"), AttemptEnd::Dead, 2),
    ];
    let mut expected = Vec::new();
    for (n, (outcome, end, number)) in steps.into_iter().enumerate() {
        let worker = WorkerName::new(format!("worker of {n}"))?;
        let request = ClaimRequest {
            handlers: vec![HandlerName::new(HANDLER)?],
            limit: 1,
            terms: LeaseTerms::new(2 * LONG, worker.clone())?,
            run_limit: 1,
        };
        let leased = inbox.claim(&request).await?.leased;
        let lease = leased
            .into_iter()
            .next()
            .ok_or_else(|| Unmet::Failed("claim: saw that nothing is due".into()))?
            .lease;
        let leased_at = inbox.record(sent.key()).await?.leased_at;
        inbox.pass(inbox.brief()).await?;
        let error = AttemptEnd::of(&outcome).map_or("", |(_, error)| error);
        let error = error.to_owned();
        same(
            "settle",
            &inbox.settle_one(&lease, outcome).await?,
            &Settled::Done,
        )?;
        let seen = history(&inbox, &sent).await?;
        let ended_at = seen.last().map(|past| past.ended_at);
        about("when the attempt ended", ended_at, inbox.now().await?)?;
        expected.push(PastAttempt {
            attempt: number,
            replays: 0,
            worker,
            leased_at: leased_at.unwrap_or(SystemTime::UNIX_EPOCH),
            // Judged above.
            ended_at: ended_at.unwrap_or(SystemTime::UNIX_EPOCH),
            end,
            error,
        });
        same("history", &seen, &expected)?;
        let took = seen.last().map(PastAttempt::took);
        ensure!(
            took >= Some(inbox.brief()),
            "how long the attempt took: expected {:?} at least, saw {took:?}",
            inbox.brief()
        );
    }
    Ok(())
}

/// Defect: a row for each message that is processed.
pub(crate) async fn what_has_no_error_is_not_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    attempt(&inbox, Outcome::Release).await?;
    attempt(&inbox, waits(None)).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    attempt(&inbox, processed()).await?;
    let seen = history(&inbox, &sent).await?;
    same("history without an error", &seen, &Vec::new())
}

/// Attempts that vanish leave their numbers out.
pub(crate) async fn a_crash_is_a_missing_number(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    attempt(&inbox, fails("first")).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    attempt(&inbox, fails("third")).await?;
    same(
        "history",
        &told(&history(&inbox, &sent).await?),
        &vec![
            (1, 0, AttemptEnd::Retried, "first"),
            (3, 0, AttemptEnd::Retried, "third"),
        ],
    )
}

/// Defect: a lost reply doubles what it was about.
pub(crate) async fn a_repetition_adds_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let other = inbox.connections(2).await?.swap_remove(1);
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let outcomes = [
        retry(Duration::ZERO),
        waits(Some("not now")),
        dead("gave up"),
    ];
    for (n, outcome) in outcomes.iter().enumerate() {
        let leased = inbox.claim_one().await?;
        let settlement = Settlement {
            lease: leased.lease.clone(),
            outcome: outcome.clone(),
        };
        let batch = vec![settlement.clone(), settlement];
        let done = vec![Settled::Done; 2];
        same("settled", &inbox.settle(&batch).await?, &done)?;
        let first = history(&inbox, &sent).await?;
        same("entries after a settlement", &first.len(), &(n + 1))?;
        for repeated in &outcomes {
            for store in [&inbox.store, &other] {
                let _ = store.settle_one(&leased.lease, repeated.clone()).await?;
            }
        }
        let seen = history(&inbox, &sent).await?;
        same("history after repetitions", &seen, &first)?;
    }
    Ok(())
}

pub(crate) async fn a_stale_settlement_adds_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let stale = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let newest = inbox.claim_one().await?;
    for outcome in [fails("late"), waits(Some("late")), dead("late")] {
        same(
            "settled with a stale token",
            &inbox.settle_one(&stale.lease, outcome).await?,
            &Settled::LeaseLost,
        )?;
        let seen = history(&inbox, &sent).await?;
        same("history", &seen, &Vec::new())?;
    }
    inbox.finish(&newest, fails("in time")).await?;
    same(
        "history",
        &told(&history(&inbox, &sent).await?),
        &vec![(2, 0, AttemptEnd::Retried, "in time")],
    )
}

/// Defect: a message that fails for ever grows for ever.
pub(crate) async fn the_newest_are_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let last = u32::try_from(History::KEPT).unwrap_or(u32::MAX) + 2;
    for n in 1..=last {
        attempt(&inbox, fails(&format!("error {n}"))).await?;
    }
    let errors: Vec<String> = (3..=last).map(|n| format!("error {n}")).collect();
    let expected: Vec<_> = (3..=last)
        .zip(&errors)
        .map(|(n, error)| (n, 0, AttemptEnd::Retried, &**error))
        .collect();
    let seen = history(&inbox, &sent).await?;
    same("the newest past attempts", &told(&seen), &expected)
}

/// Defect: what a replay was for is gone after it.
pub(crate) async fn it_outlives_replays_and_edits(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = twice_failed(&inbox).await?;
    let edit = Edit {
        payload: Some(Bytes::from_static(b"edited")),
        ..Edit::default()
    };
    let mut expected = TWICE_FAILED.to_vec();
    replay(&inbox, &sent, &edit).await?;
    let seen = history(&inbox, &sent).await?;
    same("history after a replay", &told(&seen), &expected)?;
    attempt(&inbox, dead("again")).await?;
    expected.push((1, 1, AttemptEnd::Dead, "again"));
    let slice = Slice {
        after: None,
        limit: 10,
    };
    let progress = inbox.replay_slice(&Filter::default(), &slice).await?;
    same("messages of the slice", &progress.changed, &1)?;
    attempt(&inbox, processed()).await?;
    let seen = history(&inbox, &sent).await?;
    same("history after a second replay", &told(&seen), &expected)?;
    replay(&inbox, &sent, &Edit::default()).await?;
    attempt(&inbox, waits(Some("late"))).await?;
    expected.push((1, 3, AttemptEnd::Deferred, "late"));
    let seen = history(&inbox, &sent).await?;
    same("history after a third replay", &told(&seen), &expected)
}

pub(crate) async fn it_outlives_a_discard_and_its_payload(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = twice_failed(&inbox).await?;
    same(
        "discard",
        &inbox.discard(sent.key()).await?,
        &Intervention::Done,
    )?;
    let all = PurgeRequest::new(State::Discarded, Duration::ZERO, 10)?;
    same("payloads dropped", &inbox.drop_payloads(&all).await?, &1)?;
    let seen = history(&inbox, &sent).await?;
    same("history", &told(&seen), &TWICE_FAILED.to_vec())
}

/// Defect: a new life of a key that begins with the failures of the last one.
pub(crate) async fn it_goes_with_its_key(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let is_purged = |sent: Message| {
        let inbox = &inbox;
        async move {
            inbox.accept(&sent).await?;
            let record = inbox.record(sent.key()).await?;
            same("history of a new life", &record.history, &Vec::new())?;
            same("leased_at of a new life", &record.leased_at, &None)?;
            attempt(inbox, fails("third")).await?;
            same(
                "history of a new life",
                &told(&history(inbox, &sent).await?),
                &vec![(1, 0, AttemptEnd::Retried, "third")],
            )
        }
    };
    let sent = twice_failed(&inbox).await?;
    let all = PurgeRequest::new(State::Dead, Duration::ZERO, 10)?;
    same("purged", &inbox.purge(&all).await?, &1)?;
    is_purged(sent.clone()).await?;
    let slice = Slice {
        after: None,
        limit: 10,
    };
    let handler = HandlerName::new(HANDLER)?;
    let cleared = inbox.clear_slice(&handler, &slice).await?;
    same("cleared", &cleared.changed, &1)?;
    is_purged(sent).await
}

/// Defect: an error that is that of another message.
pub(crate) async fn each_of_a_batch_has_its_own(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let messages = numbered(8)?;
    inbox.accept_all(&messages).await?;
    // All but two have failed before.
    let leased = inbox.claim_up_to(8, LONG).await?;
    let outcome = |n: usize| match n {
        0 | 1 => Outcome::Release,
        _ => fails(&format!("{n} before")),
    };
    let batch = |leased: &[Leased], outcome: &dyn Fn(usize) -> Outcome| -> Vec<Settlement> {
        let place = |leased: &Leased| {
            let is_it = |message: &Message| message.key() == &leased.lease.key;
            messages.iter().position(is_it).unwrap_or_default()
        };
        leased
            .iter()
            .map(|leased| Settlement {
                lease: leased.lease.clone(),
                outcome: outcome(place(leased)),
            })
            .collect()
    };
    let done = vec![Settled::Done; 8];
    let settled = inbox.settle(&batch(&leased, &outcome)).await?;
    same("settled", &settled, &done)?;
    let outcome = |n: usize| match n % 6 {
        0 => fails(&format!("{n} retried")),
        1 => dead(&format!("{n} dead")),
        2 => waits(Some(&format!("{n} deferred"))),
        3 => processed(),
        4 => Outcome::Release,
        _ => waits(None),
    };
    let mut leased = inbox.claim_up_to(8, LONG).await?;
    leased.reverse();
    let settled = inbox.settle(&batch(&leased, &outcome)).await?;
    same("settled", &settled, &done)?;
    for (n, message) in messages.iter().enumerate() {
        let mut expected = Vec::new();
        let before = format!("{n} before");
        if n > 1 {
            expected.push((1, 0, AttemptEnd::Retried, &*before));
        }
        let outcome = outcome(n);
        if let Some((end, error)) = AttemptEnd::of(&outcome) {
            expected.push((expected.len() as u32 + 1, 0, end, error));
        }
        let seen = history(&inbox, message).await?;
        same(
            &format!("history of the message at place {n} of a batch"),
            &told(&seen),
            &expected,
        )?;
    }
    Ok(())
}

pub(crate) async fn long_errors_are_cut(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let most = PastAttempt::MAX_ERROR_BYTES;
    let errors = [
        "x".repeat(most),
        "x".repeat(most + 1),
        "ä".repeat(most),
        format!("x{}", "ä".repeat(most)),
        format!("xx{}", "\u{1f980}".repeat(most)),
        "nul \0, \"quotes\" and \\ \u{1} \r\n\t".into(),
        "\u{feff}e\u{301} %s $1 {} [] null".into(),
    ];
    let mut expected = Vec::new();
    for error in &errors {
        attempt(&inbox, fails(error)).await?;
        expected.push(PastAttempt::error_text(error).into_owned());
        let seen = history(&inbox, &sent).await?;
        let seen: Vec<&str> = seen.iter().map(|past| &*past.error).collect();
        ensure!(
            seen == expected,
            "error of {} bytes: expected it cut to {:?} bytes without NUL, saw {:?} bytes: {:?}",
            error.len(),
            expected.last().map(String::len),
            seen.last().map(|text| text.len()),
            seen.last()
        );
    }
    Ok(())
}

pub(crate) async fn inline_attempts_are_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    for outcome in [fails("first"), dead("second")] {
        let now = inbox.now().await?;
        let begun = inbox.begin(&sent, &terms(LONG)?).await?;
        let Begun::Run(leased) = begun else {
            return Err(Unmet::Failed(format!("begin: expected Run, saw {begun:?}")));
        };
        about(
            "leased_at of what is run inline",
            inbox.record(sent.key()).await?.leased_at,
            now,
        )?;
        inbox.finish(&leased, outcome).await?;
        let seen = history(&inbox, &sent).await?;
        same(
            "worker of the past attempt",
            &seen.last().map(|past| past.worker.clone()),
            &Some(worker()?),
        )?;
        inbox.pass(inbox.brief()).await?;
    }
    let seen = history(&inbox, &sent).await?;
    same("history", &told(&seen), &TWICE_FAILED.to_vec())?;
    let apart = seen
        .windows(2)
        .all(|two| two[1].leased_at > two[0].ended_at);
    ensure!(
        apart,
        "times of inline attempts: expected one after the other, saw {seen:?}"
    );
    Ok(())
}

/// A name that must not be read as anything else.
const OPERATOR: &str = "O'Neil \"b\" \\ $1 %s ä \u{1f980}";

/// What was done and by whom.
fn noted(record: &Record) -> Vec<(InterventionKind, &str)> {
    let notes = record.interventions.iter();
    notes.map(|note| (note.kind, note.by.as_str())).collect()
}

pub(crate) async fn signed_interventions_are_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = twice_failed(&inbox).await?;
    let other = message("2")?;
    inbox.accept_in(&other, State::Dead).await?;
    let signing = inbox.store.signed_by(&OperatorName::new(OPERATOR)?);
    let edit = Edit {
        headers: Some(inbox_api::Headers::new()),
        ..Edit::default()
    };
    let mut expected = Vec::new();
    for kind in [
        InterventionKind::Replayed,
        InterventionKind::Rescheduled,
        InterventionKind::Discarded,
        InterventionKind::Edited,
    ] {
        let key = sent.key();
        let done = match kind {
            InterventionKind::Replayed => signing.replay(key, &Edit::default()).await?,
            InterventionKind::Edited => signing.replay(key, &edit).await?,
            InterventionKind::Rescheduled => signing.reschedule(key, Due::After(LONG)).await?,
            InterventionKind::Discarded => signing.discard(key).await?,
        };
        same(&format!("{kind}"), &done, &Intervention::Done)?;
        let record = inbox.record(key).await?;
        expected.push((kind, OPERATOR));
        same("interventions", &noted(&record), &expected)?;
        let at = record.interventions.last().map(|note| note.at);
        about(&format!("when it was {kind}"), at, inbox.now().await?)?;
        same(
            "history",
            &told(&record.history),
            &TWICE_FAILED[..].to_vec(),
        )?;
    }
    attempt(&inbox, fails("later")).await?;
    let record = inbox.record(sent.key()).await?;
    same("interventions after an attempt", &noted(&record), &expected)?;
    same("past attempts", &record.history.len(), &3)?;
    let record = inbox.record(other.key()).await?;
    same("those of another message", &noted(&record), &Vec::new())
}

pub(crate) async fn unsigned_and_refused_ones_are_not(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = twice_failed(&inbox).await?;
    let signing = inbox.store.signed_by(&OperatorName::new("a")?);
    let key = sent.key();
    let refused = signing.reschedule(key, Due::Now).await?;
    same(
        "reschedule of a dead one",
        &refused,
        &Intervention::WrongState(State::Dead),
    )?;
    replay(&inbox, &sent, &Edit::default()).await?;
    let refused = signing.replay(key, &Edit::default()).await?;
    same(
        "replay of a pending one",
        &refused,
        &Intervention::WrongState(State::Pending),
    )?;
    let _ = inbox.reschedule(key, Due::Now).await?;
    let _ = inbox.discard(key).await?;
    let record = inbox.record(key).await?;
    same("interventions", &noted(&record), &Vec::new())
}

pub(crate) async fn slices_sign_what_they_change(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let messages = numbered(4)?;
    for message in &messages {
        inbox.accept(message).await?;
        attempt(&inbox, dead("gave up")).await?;
    }
    let signing = inbox.store.signed_by(&OperatorName::new(OPERATOR)?);
    let slice = Slice {
        after: None,
        limit: 3,
    };
    let all = Filter::default();
    let replayed = signing.replay_slice(&all, &slice).await?;
    same("replayed", &replayed.changed, &3)?;
    let rescheduled = signing.reschedule_slice(&all, &slice, Due::Now).await?;
    same("rescheduled", &rescheduled.changed, &3)?;
    let discarded = signing.discard_slice(&all, &slice).await?;
    same("discarded", &discarded.changed, &1)?;
    let by = |kinds: &[InterventionKind]| -> Vec<(InterventionKind, &str)> {
        kinds.iter().map(|kind| (*kind, OPERATOR)).collect()
    };
    for (n, message) in messages.iter().enumerate() {
        let record = inbox.record(message.key()).await?;
        let expected = if n < 3 {
            by(&[InterventionKind::Replayed, InterventionKind::Rescheduled])
        } else {
            by(&[InterventionKind::Discarded])
        };
        let what = format!("interventions of the message at place {n}");
        same(&what, &noted(&record), &expected)?;
    }
    Ok(())
}

/// Defect: a message that is replayed for ever grows for ever.
pub(crate) async fn the_newest_of_both_are_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = twice_failed(&inbox).await?;
    let signing = inbox.store.signed_by(&OperatorName::new("a")?);
    let _ = signing.replay(sent.key(), &Edit::default()).await?;
    for _ in 3..=History::KEPT {
        let _ = signing.reschedule(sent.key(), Due::Now).await?;
    }
    let record = inbox.record(sent.key()).await?;
    let kept = |record: &Record| (record.history.len(), record.interventions.len());
    same(
        "attempts and interventions kept",
        &kept(&record),
        &(1, History::KEPT - 1),
    )?;
    attempt(&inbox, fails("later")).await?;
    let record = inbox.record(sent.key()).await?;
    same(
        "error that is kept",
        &told(&record.history),
        &vec![(1, 1, AttemptEnd::Retried, "later")],
    )?;
    let kinds: Vec<InterventionKind> = record.interventions.iter().map(|note| note.kind).collect();
    let mut expected = vec![InterventionKind::Replayed];
    expected.resize(History::KEPT - 1, InterventionKind::Rescheduled);
    same("interventions that are kept", &kinds, &expected)
}

pub(crate) async fn listings_have_it_with_payloads(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = twice_failed(&inbox).await?;
    let expected = history(&inbox, &sent).await?;
    same("past attempts", &expected.len(), &2)?;
    let of = |records: Vec<Record>| -> Vec<Vec<PastAttempt>> {
        records.into_iter().map(|record| record.history).collect()
    };
    for newest_first in [false, true] {
        let page = Page {
            newest_first,
            ..Page::first(10)
        };
        let listing = inbox.list(&Filter::default(), &page).await?;
        same(
            "history without payloads",
            &of(listing.records),
            &vec![vec![]],
        )?;
        let page = Page {
            with_payload: true,
            ..page
        };
        let listing = inbox.list(&Filter::default(), &page).await?;
        let seen = of(listing.records);
        same("history with payloads", &seen, &vec![expected.clone()])?;
    }
    let all = PurgeRequest::new(State::Dead, Duration::ZERO, 10)?;
    let seen = of(inbox.expired(&all).await?.records);
    same("history for an archive", &seen, &vec![expected])
}
