//! One holder: a stale token changes nothing.

use std::time::Duration;

use bytes::Bytes;
use inbox_api::{
    Edit, Extended, FencingToken, Filter, Leased, Outcome, PurgeRequest, Settled, Settlement,
    Slice, State, StoreExt,
};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::{Need, Settings},
    test_inbox::{
        Context, LONG, TestInbox, claim, dead, dead_blocking, defer, ids, message, message_for,
        numbered, processed, retry,
    },
};

/// A message whose first lease ran out and that is held under a second one.
async fn taken_over(inbox: &TestInbox) -> CaseResult<(Leased, Leased)> {
    inbox.accept(&message("1")?).await?;
    let stale = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let current = inbox.claim_one().await?;
    Ok((stale, current))
}

/// Settles with the stale lease, and checks that the newest holder's message is as it was.
async fn changes_nothing(cx: &Context, outcome: Outcome) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (stale, current) = taken_over(&inbox).await?;
    let before = inbox.record(&current.lease.key).await?;
    let what = format!("settling with a stale token, {outcome:?}");
    same(
        &what,
        &inbox.settle_one(&stale.lease, outcome).await?,
        &Settled::LeaseLost,
    )?;
    let after = inbox.record(&current.lease.key).await?;
    same("the record after a stale settlement", &after, &before)?;
    inbox.nothing_due("another worker holds it").await?;
    inbox.finish(&current, processed()).await
}

/// Defect: a late acknowledgement completes the message that another worker now runs.
pub(crate) async fn a_stale_settlement_changes_nothing(cx: Context) -> CaseResult {
    changes_nothing(&cx, processed()).await
}

pub(crate) async fn a_stale_retry_changes_nothing(cx: Context) -> CaseResult {
    changes_nothing(&cx, retry(Duration::ZERO)).await
}

pub(crate) async fn a_stale_death_changes_nothing(cx: Context) -> CaseResult {
    changes_nothing(&cx, dead("late")).await
}

pub(crate) async fn a_stale_release_changes_nothing(cx: Context) -> CaseResult {
    changes_nothing(&cx, Outcome::Release).await
}

pub(crate) async fn a_stale_deferral_changes_nothing(cx: Context) -> CaseResult {
    changes_nothing(&cx, defer(Duration::ZERO)).await
}

/// Defect: the worker's name is the fence. Both claims here are by the same worker.
pub(crate) async fn the_same_worker_name_is_no_fence(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (stale, current) = taken_over(&inbox).await?;
    same(
        "settling an earlier lease of the same worker",
        &inbox.settle_one(&stale.lease, processed()).await?,
        &Settled::LeaseLost,
    )?;
    same(
        "extending an earlier lease of the same worker",
        &inbox.extend_one(&stale.lease, LONG).await?,
        &Extended::LeaseLost,
    )?;
    inbox.has_state(&current.lease.key, State::Leased).await
}

/// Defect: a stale heartbeat prolongs another worker's lease.
pub(crate) async fn a_stale_extension_changes_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (stale, current) = taken_over(&inbox).await?;
    let before = inbox.record(&current.lease.key).await?.lease_until;
    let extended = inbox
        .extend_one(&stale.lease, Duration::from_secs(3600))
        .await?;
    same(
        "extending with a stale token",
        &extended,
        &Extended::LeaseLost,
    )?;
    let after = inbox.record(&current.lease.key).await?.lease_until;
    same("end of the newest lease", &after, &before)
}

pub(crate) async fn tokens_grow(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let mut last = None;
    for _ in 0..5 {
        let leased = inbox.claim_one().await?;
        ensure!(
            last.is_none_or(|last| leased.lease.token > last),
            "tokens of one key: expected each greater than the one before, saw {:?} after {last:?}",
            leased.lease.token
        );
        last = Some(leased.lease.token);
        inbox.finish(&leased, Outcome::Release).await?;
    }
    Ok(())
}

/// Defect: attempt numbers as fence. They start again at a replay; tokens must not.
pub(crate) async fn tokens_grow_across_a_replay(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let first = inbox.claim_one().await?;
    inbox.finish(&first, dead("gave up")).await?;
    let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    let second = inbox.claim_one().await?;
    ensure!(
        second.lease.token > first.lease.token,
        "token after a replay: expected more than {:?}, saw {:?}",
        first.lease.token,
        second.lease.token
    );
    let late = inbox.settle_one(&first.lease, processed()).await?;
    same(
        "settling with the token from before the replay",
        &late,
        &Settled::LeaseLost,
    )
}

/// Defect: a key that was purged and accepted again starts its tokens again.
pub(crate) async fn tokens_grow_across_a_purge(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let first = inbox.claim_one().await?;
    inbox.finish(&first, processed()).await?;
    let purged = inbox
        .purge(&PurgeRequest::new(State::Processed, Duration::ZERO, 10)?)
        .await?;
    same("purged", &purged, &1)?;
    let gone = inbox.settle_one(&first.lease, processed()).await?;
    same("settling a purged message", &gone, &Settled::LeaseLost)?;
    inbox.accept(&sent).await?;
    let second = inbox.claim_one().await?;
    ensure!(
        second.lease.token > first.lease.token,
        "token in the key's second life: expected more than {:?}, saw {:?}",
        first.lease.token,
        second.lease.token
    );
    let late = inbox.settle_one(&first.lease, processed()).await?;
    same(
        "settling with the token of the first life",
        &late,
        &Settled::LeaseLost,
    )?;
    inbox.has_state(sent.key(), State::Leased).await
}

/// A repetition after a lost reply is answered like the first time and changes nothing.
pub(crate) async fn a_repeated_settlement_is_done(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(LONG)).await?;
    let before = inbox.record(sent.key()).await?;
    inbox.finish(&leased, retry(LONG)).await?;
    inbox.finish(&leased, processed()).await?;
    same(
        "the record after repetitions",
        &inbox.record(sent.key()).await?,
        &before,
    )
}

pub(crate) async fn a_repetition_changes_nothing_whatever_it_says(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let outcomes = [
        processed(),
        Outcome::Processed {
            result: Some("result".into()),
        },
        retry(LONG),
        dead("gave up"),
        Outcome::Release,
        defer(LONG),
    ];
    for (n, first) in outcomes.iter().enumerate() {
        let sent = message_for(&format!("handler {n}"), "1")?;
        inbox.accept(&sent).await?;
        let leased = claim(&*inbox.store, sent.handler().as_str(), 1, LONG).await?;
        let Some(leased) = leased.first() else {
            return Err(Unmet::Failed("claim: saw that nothing is due".into()));
        };
        inbox.finish(leased, first.clone()).await?;
        let before = inbox.record(sent.key()).await?;
        for second in &outcomes {
            inbox.finish(leased, second.clone()).await?;
            same(
                &format!("the record settled as {first:?}, then repeated as {second:?}"),
                &inbox.record(sent.key()).await?,
                &before,
            )?;
        }
    }
    Ok(())
}

pub(crate) async fn settling_twice_in_one_batch_counts_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let settlement = |outcome| Settlement {
        lease: leased.lease.clone(),
        outcome,
    };
    let batch = [settlement(dead("first")), settlement(processed())];
    same(
        "answers",
        &inbox.settle(&batch).await?,
        &vec![Settled::Done, Settled::Done],
    )?;
    let record = inbox.record(sent.key()).await?;
    same("state", &record.state, &State::Dead)?;
    same("attempts finished", &record.attempts.finished, &1)
}

/// Defect: one stale lease fails, or is taken along with, its batch.
pub(crate) async fn a_stale_lease_affects_only_itself(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (stale, current) = taken_over(&inbox).await?;
    let more: Vec<_> = numbered(2)?;
    inbox.accept_all(&more).await?;
    let others = inbox.claim_up_to(2, LONG).await?;
    let mut batch: Vec<Settlement> = others
        .iter()
        .map(|leased| Settlement {
            lease: leased.lease.clone(),
            outcome: processed(),
        })
        .collect();
    batch.insert(
        1,
        Settlement {
            lease: stale.lease,
            outcome: processed(),
        },
    );
    let expected = vec![Settled::Done, Settled::LeaseLost, Settled::Done];
    same("answers", &inbox.settle(&batch).await?, &expected)?;
    inbox.has_state(&current.lease.key, State::Leased).await?;
    inbox.has_state(more[0].key(), State::Processed).await?;
    inbox.has_state(more[1].key(), State::Processed).await
}

/// Defect: what one call has settled is told by the message, whichever of its leases it names.
pub(crate) async fn a_stale_lease_next_to_its_newest_is_lost(cx: Context) -> CaseResult {
    for newest_first in [false, true] {
        let inbox = cx.fresh().await?;
        let (stale, current) = taken_over(&inbox).await?;
        let key = current.lease.key.clone();
        let mut batch = [(stale, processed()), (current, Outcome::Release)]
            .map(|(leased, outcome)| (leased.lease, outcome))
            .map(|(lease, outcome)| Settlement { lease, outcome });
        let mut expected = vec![Settled::LeaseLost, Settled::Done];
        if newest_first {
            batch.reverse();
            expected.reverse();
        }
        same("answers", &inbox.settle(&batch).await?, &expected)?;
        inbox.has_state(&key, State::Pending).await?;
        let again = inbox.claim_one().await?;
        inbox.finish(&again, processed()).await?;
    }
    Ok(())
}

/// Defect: one outcome for a whole batch, or results and errors that are given to others of it.
pub(crate) async fn outcomes_of_one_batch_are_each_done(cx: Context) -> CaseResult {
    let settings = Settings {
        drop_processed_payloads: cx.unless_lacking(Need::DroppedPayloads).is_ok(),
        ..Settings::default()
    };
    let inbox = cx.fresh_with(&settings).await?;
    inbox.accept_all(&numbered(8)?).await?;
    let leased = inbox.claim_up_to(8, LONG).await?;
    same("claimed", &leased.len(), &8)?;
    let with = |result: &'static [u8]| Outcome::Processed {
        result: Some(Bytes::from_static(result)),
    };
    let of = |n: usize, outcome| Settlement {
        lease: leased[n].lease.clone(),
        outcome,
    };
    let mut never_drawn = of(5, processed());
    never_drawn.lease.token = FencingToken::new(never_drawn.lease.token.get() + 1);
    let mut unknown = of(0, processed());
    unknown.lease.key = message("unknown")?.key().clone();
    unknown.lease.locator = u64::MAX;
    let batch = [
        never_drawn,
        of(0, with(b"one")),
        of(1, retry(LONG)),
        of(2, dead_blocking("gave up")),
        of(3, Outcome::Release),
        of(4, with(b"")),
        of(6, defer(LONG)),
        of(
            7,
            Outcome::Defer {
                after: Duration::ZERO,
                error: None,
            },
        ),
        of(0, retry(Duration::ZERO)),
        unknown,
    ];
    use Settled::{Done, LeaseLost};
    let mut expected = vec![Done; batch.len()];
    expected[0] = LeaseLost;
    expected[batch.len() - 1] = LeaseLost;
    same("answers", &inbox.settle(&batch).await?, &expected)?;

    let mut seen = Vec::new();
    for leased in &leased {
        let record = inbox.record(&leased.lease.key).await?;
        seen.push((
            record.state,
            (record.attempts.started, record.attempts.finished),
            record.last_error,
            record.result,
            record.payload.is_some(),
        ));
    }
    let text = |text: &str| Some(text.to_owned());
    let kept = !settings.drop_processed_payloads;
    let result = |result| Some(Bytes::from_static(result));
    let expected = vec![
        (State::Processed, (1, 1), None, result(b"one"), kept),
        (State::Pending, (1, 1), text("try again"), None, true),
        (State::Dead, (1, 1), text("gave up"), None, true),
        (State::Pending, (0, 0), None, None, true),
        (State::Processed, (1, 1), None, result(b""), kept),
        (State::Leased, (1, 0), None, None, true),
        (State::Pending, (0, 0), text("not now"), None, true),
        (State::Pending, (0, 0), None, None, true),
    ];
    same("what became of them", &seen, &expected)?;
    let due_at_once = [3, 7].map(|n: usize| leased[n].message.id().to_string());
    let due = inbox.claim_up_to(10, LONG).await?;
    same("due then", &ids(&due), &due_at_once.to_vec())
}

pub(crate) async fn a_lease_that_ran_out_unclaimed_can_be_settled(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    inbox.finish(&leased, processed()).await?;
    inbox.has_state(&leased.lease.key, State::Processed).await
}

/// An operator who discards a message whose worker vanished is not overruled by that worker.
pub(crate) async fn a_discarded_lease_is_lost(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let _ = inbox.discard(&leased.lease.key).await?;
    let late = inbox.settle_one(&leased.lease, processed()).await?;
    same(
        "settling what was discarded meanwhile",
        &late,
        &Settled::LeaseLost,
    )?;
    inbox.has_state(&leased.lease.key, State::Discarded).await
}

/// A worker that settles after an operator replayed its message does not end the replay.
pub(crate) async fn a_settlement_after_a_replay_changes_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead("gave up")).await?;
    let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    let _ = inbox.settle_one(&leased.lease, processed()).await?;
    inbox.has_state(sent.key(), State::Pending).await
}

pub(crate) async fn a_result_over_the_limit_is_refused_whatever_the_token(
    cx: Context,
) -> CaseResult {
    let settings = Settings {
        payload_limit: Some(1000),
        ..Settings::default()
    };
    let inbox = cx.fresh_with(&settings).await?;
    let (stale, current) = taken_over(&inbox).await?;
    let oversized = || Outcome::Processed {
        result: Some(Bytes::from(vec![b'x'; 1001])),
    };
    let refused = Settled::Refused(inbox_api::Invalid::TooLarge {
        what: "result",
        bytes: 1001,
        limit: 1000,
    });
    same(
        "settling with a stale token and a result over the limit",
        &inbox.settle_one(&stale.lease, oversized()).await?,
        &refused,
    )?;
    inbox.finish(&current, processed()).await?;
    same(
        "repeating a settlement with a result over the limit",
        &inbox.settle_one(&current.lease, oversized()).await?,
        &refused,
    )
}

/// Defect: which leases were settled is kept in the process.
pub(crate) async fn a_repetition_in_another_process_is_done(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let other = inbox.fixture.second_connection().await?;
    let outcomes = [
        processed(),
        retry(LONG),
        dead("gave up"),
        Outcome::Release,
        defer(LONG),
    ];
    for (n, outcome) in outcomes.into_iter().enumerate() {
        let sent = message_for(&format!("handler {n}"), "1")?;
        inbox.accept(&sent).await?;
        let leased = claim(&*inbox.store, sent.handler().as_str(), 1, LONG).await?;
        let Some(leased) = leased.first() else {
            return Err(Unmet::Failed("claim: saw that nothing is due".into()));
        };
        inbox.finish(leased, outcome.clone()).await?;
        let before = inbox.record(sent.key()).await?;
        same(
            &format!("repeating the settlement {outcome:?} in another process"),
            &other.settle_one(&leased.lease, outcome).await?,
            &Settled::Done,
        )?;
        let after = inbox.record(sent.key()).await?;
        same("the record after the repetition", &after, &before)?;
    }
    Ok(())
}

/// A worker that missed the answer asks again. It has not lost what it had, so that it must not tell its
/// handler so.
pub(crate) async fn a_repetition_after_an_intervention_is_done(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let slice = Slice {
        after: None,
        limit: 10,
    };
    let settled = async |handler: &str, outcome: Outcome| -> CaseResult<Leased> {
        let sent = message_for(handler, "1")?;
        inbox.accept(&sent).await?;
        let leased = claim(&*inbox.store, handler, 1, LONG).await?;
        let leased = leased.into_iter().next();
        let leased = leased.ok_or_else(|| Unmet::Failed("claim: expected the message".into()))?;
        inbox.finish(&leased, outcome).await?;
        Ok(leased)
    };
    for (handler, outcome) in [
        ("replayed", processed()),
        ("replayed when dead", dead("gave up")),
        ("replayed by a slice", dead("gave up")),
        ("discarded when dead", dead("gave up")),
        ("discarded by a slice", dead("gave up")),
        ("discarded when it waited", retry(LONG)),
    ] {
        let leased = settled(handler, outcome.clone()).await?;
        let key = &leased.lease.key;
        let filter = Filter {
            handler: Some(key.handler.clone()),
            ..Filter::default()
        };
        match handler {
            "replayed by a slice" => drop(inbox.replay_slice(&filter, &slice).await?),
            "discarded by a slice" => drop(inbox.discard_slice(&filter, &slice).await?),
            _ if handler.starts_with("replayed") => {
                let _ = inbox.replay(key, &Edit::default()).await?;
            }
            _ => drop(inbox.discard(key).await?),
        }
        let before = inbox.record(key).await?;
        same(
            &format!("settling again what was {handler}"),
            &inbox.settle_one(&leased.lease, outcome).await?,
            &Settled::Done,
        )?;
        let what = format!("the record of what was {handler}, after a repetition");
        same(&what, &inbox.record(key).await?, &before)?;
    }
    let leased = settled("purged", processed()).await?;
    let gone = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    inbox.purge(&gone).await?;
    same(
        "settling again what was purged",
        &inbox.settle_one(&leased.lease, processed()).await?,
        &Settled::LeaseLost,
    )
}
