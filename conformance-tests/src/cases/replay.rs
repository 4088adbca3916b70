//! Replay and discard: what an operator may do to a message.

use std::time::Duration;

use inbox_api::{
    Attempts, Begun, Bytes, Edit, ErrorKind, Filter, Intervention, Kind, Message, Operate, Outcome,
    Progress, Slice, State,
};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::Settings,
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead, ids, message, message_for, numbered,
        processed, retry, terms, worker,
    },
};

async fn replayable(cx: &Context, state: State) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, state).await?;
    same(
        "replay",
        &inbox.replay(sent.key(), &Edit::default()).await?,
        &Intervention::Done,
    )?;
    let record = inbox.record(sent.key()).await?;
    same("state", &record.state, &State::Pending)?;
    same("replays", &record.replays, &1)?;
    same("finished_at", &record.finished_at, &None)?;
    same("last error", &record.last_error, &None)?;
    same("result", &record.result, &None)?;
    let leased = inbox.claim_one().await?;
    same("payload", leased.message.payload(), sent.payload())?;
    inbox.finish(&leased, processed()).await
}

pub(crate) async fn a_dead_message_can_be_replayed(cx: Context) -> CaseResult {
    replayable(&cx, State::Dead).await
}

pub(crate) async fn a_processed_message_can_be_replayed(cx: Context) -> CaseResult {
    replayable(&cx, State::Processed).await
}

pub(crate) async fn a_discarded_message_can_be_replayed(cx: Context) -> CaseResult {
    replayable(&cx, State::Discarded).await
}

/// Defect: a replay that resets nothing, so that the message dies again at once.
pub(crate) async fn a_replay_resets_the_attempts(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    for outcome in [retry(Duration::ZERO), retry(Duration::ZERO), dead("enough")] {
        let leased = inbox.claim_one().await?;
        inbox.finish(&leased, outcome).await?;
    }
    let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    let record = inbox.record(sent.key()).await?;
    same(
        "attempts after a replay",
        &record.attempts,
        &Attempts::default(),
    )?;
    let leased = inbox.claim_one().await?;
    same(
        "attempts started, as claimed after a replay",
        &leased.attempts.started,
        &1,
    )
}

/// Defect: a worker that still holds the message takes a replay for the end of its own lease, and settles the
/// message with the outcome of before.
pub(crate) async fn a_lease_tells_how_often_its_message_was_replayed(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    for replays in 0..3 {
        let begun = match inbox.begin(&sent, &terms(LONG)?).await? {
            Begun::Run(leased) => leased,
            other => return Err(Unmet::Failed(format!("begin: expected Run, saw {other:?}"))),
        };
        same("replays, as begun", &begun.replays, &replays)?;
        inbox.finish(&begun, retry(Duration::ZERO)).await?;
        let leased = inbox.claim_one().await?;
        same("replays, as claimed", &leased.replays, &replays)?;
        inbox.finish(&leased, Outcome::Release).await?;
        let lost = inbox.claim_single(inbox.brief()).await?;
        same("replays, as claimed again", &lost.replays, &replays)?;
        inbox.pass(inbox.brief()).await?;
        let leased = inbox.claim_one().await?;
        same("replays, after a lease ran out", &leased.replays, &replays)?;
        inbox.finish(&leased, dead("enough")).await?;
        same(
            "replay",
            &inbox.replay(sent.key(), &Edit::default()).await?,
            &Intervention::Done,
        )?;
    }
    Ok(())
}

pub(crate) async fn unfinished_messages_cannot_be_replayed(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let pending = Intervention::WrongState(State::Pending);
    same(
        "replay of a pending message",
        &inbox.replay(sent.key(), &Edit::default()).await?,
        &pending,
    )?;
    let leased = inbox.claim_one().await?;
    let held = Intervention::WrongState(State::Leased);
    same(
        "replay of a leased message",
        &inbox.replay(sent.key(), &Edit::default()).await?,
        &held,
    )?;
    same(
        "replay of an unknown key",
        &inbox.replay(message("2")?.key(), &Edit::default()).await?,
        &Intervention::NotFound,
    )?;
    inbox.finish(&leased, processed()).await
}

pub(crate) async fn a_replay_can_edit_the_payload(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?.with_header("source", "test")?;
    inbox.accept_in(&sent, State::Dead).await?;
    let edited = Bytes::from_static(b"edited \0");
    same(
        "replay",
        &inbox
            .replay(
                sent.key(),
                &Edit {
                    payload: Some(edited.clone()),
                    ..Edit::default()
                },
            )
            .await?,
        &Intervention::Done,
    )?;
    let record = inbox.record(sent.key()).await?;
    same("payload as stored", &record.payload, &Some(edited.clone()))?;
    same("payload length as stored", &record.payload_bytes, &Some(8))?;
    let leased = inbox.claim_one().await?;
    same("payload as claimed", leased.message.payload(), &edited)?;
    same(
        "headers as claimed",
        leased.message.headers(),
        sent.headers(),
    )
}

pub(crate) async fn an_empty_payload_can_be_given(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Dead).await?;
    same(
        "replay with an empty payload",
        &inbox
            .replay(
                sent.key(),
                &Edit {
                    payload: Some(Bytes::new()),
                    ..Edit::default()
                },
            )
            .await?,
        &Intervention::Done,
    )?;
    let record = inbox.record(sent.key()).await?;
    same("payload as stored", &record.payload, &Some(Bytes::new()))?;
    same("payload length as stored", &record.payload_bytes, &Some(0))?;
    let leased = inbox.claim_one().await?;
    same(
        "payload as claimed",
        leased.message.payload(),
        &Bytes::new(),
    )
}

pub(crate) async fn an_edited_payload_keeps_to_the_limit(cx: Context) -> CaseResult {
    let settings = Settings {
        payload_limit: Some(1000),
        ..Settings::default()
    };
    let inbox = cx.fresh_with(&settings).await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Dead).await?;
    let Err(error) = inbox
        .replay(
            sent.key(),
            &Edit {
                payload: Some(vec![0; 1001].into()),
                ..Edit::default()
            },
        )
        .await
    else {
        return Err(Unmet::Failed(
            "replay with an oversized payload: expected an error, saw an answer".into(),
        ));
    };
    same("kind of the error", &error.kind(), &ErrorKind::Invalid)?;
    inbox.has_state(sent.key(), State::Dead).await
}

pub(crate) async fn a_dropped_payload_needs_a_new_one(cx: Context) -> CaseResult {
    let settings = Settings {
        drop_processed_payloads: true,
        ..Settings::default()
    };
    let inbox = cx.fresh_with(&settings).await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Processed).await?;
    same(
        "replay",
        &inbox.replay(sent.key(), &Edit::default()).await?,
        &Intervention::PayloadDropped,
    )?;
    let passed = inbox
        .replay_slice(&of(&[State::Processed]), &slice(None, 10))
        .await?;
    same("changed by a slice over it", &passed.changed, &0)?;
    inbox.has_state(sent.key(), State::Processed).await?;
    let new = Edit {
        payload: Some(Bytes::from_static(b"new")),
        ..Edit::default()
    };
    same(
        "replay with a payload",
        &inbox.replay(sent.key(), &new).await?,
        &Intervention::Done,
    )?;
    same(
        "payload",
        &inbox.claim_one().await?.message.payload().as_ref(),
        &b"new".as_ref(),
    )
}

fn of(states: &[State]) -> Filter {
    Filter {
        states: states.to_vec(),
        ..Filter::default()
    }
}

fn slice(after: Option<inbox_api::Cursor>, limit: u32) -> Slice {
    Slice { after, limit }
}

/// Two operators at once: one wins, the other is told so.
pub(crate) async fn two_replays_at_once_count_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Dead).await?;
    let (connections, edit) = (inbox.connections(8).await?, Edit::default());
    let answers =
        futures_util::future::join_all(connections.iter().map(|connection| {
            super::concurrency::persist(|| connection.replay(sent.key(), &edit))
        }))
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let done = answers.iter().filter(|a| **a == Intervention::Done).count();
    same("replays that answered Done", &done, &1)?;
    same("replays", &inbox.record(sent.key()).await?.replays, &1)
}

/// An operator and a worker at once: the replay and a late settlement never both count.
pub(crate) async fn a_replay_during_its_attempt_counts_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for n in 0..10 {
        let sent = message(&format!("{n}"))?;
        inbox.accept(&sent).await?;
        let (leased, edit) = (inbox.claim_one().await?, Edit::default());
        let replay = super::concurrency::persist(|| inbox.replay(sent.key(), &edit));
        let settle = super::concurrency::persist(|| {
            inbox_api::StoreExt::settle_one(&*inbox.store, &leased.lease, dead("gave up"))
        });
        let (replayed, settled) = futures_util::future::join(replay, settle).await;
        let (replayed, settled) = (replayed?, settled?);
        same("settled", &settled, &inbox_api::Settled::Done)?;
        let expected = if replayed == Intervention::Done {
            State::Pending
        } else {
            same(
                "replay",
                &replayed,
                &Intervention::WrongState(State::Leased),
            )?;
            State::Dead
        };
        inbox.has_state(sent.key(), expected).await?;
        let _ = inbox.discard(sent.key()).await?;
    }
    Ok(())
}

async fn dead_ones(inbox: &TestInbox, n: usize) -> CaseResult<Vec<Message>> {
    let all = numbered(n)?;
    inbox.accept_all(&all).await?;
    for leased in inbox.claim_up_to(1000, LONG).await? {
        inbox.finish(&leased, dead("gave up")).await?;
    }
    Ok(all)
}

pub(crate) async fn slices_cover_everything_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    dead_ones(&inbox, 7).await?;
    let (mut after, mut steps) = (None, Vec::new());
    loop {
        let Progress { changed, next } = inbox
            .replay_slice(&Filter::default(), &slice(after, 3))
            .await?;
        steps.push(changed);
        ensure!(
            steps.len() < 10,
            "slices of 3 over 7 messages: saw no end, {steps:?}"
        );
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    same("changed by slices of 3", &steps, &vec![3, 3, 1])?;
    same(
        "claimed afterwards",
        &inbox.claim_up_to(100, LONG).await?.len(),
        &7,
    )
}

/// Defect: a bulk replay that loops, because what it replays dies again behind it.
pub(crate) async fn slices_end_although_messages_die_again(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    dead_ones(&inbox, 6).await?;
    let (mut after, mut replayed, mut steps) = (None, 0, 0);
    loop {
        let progress = inbox
            .replay_slice(&Filter::default(), &slice(after, 2))
            .await?;
        replayed += progress.changed;
        steps += 1;
        ensure!(
            steps < 10,
            "slices of 2 over 6 messages that die again: saw no end"
        );
        for leased in inbox.claim_up_to(10, LONG).await? {
            inbox.finish(&leased, dead("again")).await?;
        }
        match progress.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    same("replayed in all", &replayed, &6)
}

/// Defect: a bulk replay loses messages that die while it runs.
pub(crate) async fn messages_that_die_meanwhile_stay_dead(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    dead_ones(&inbox, 3).await?;
    let first = inbox
        .replay_slice(&Filter::default(), &slice(None, 2))
        .await?;
    same("changed by the first slice", &first.changed, &2)?;
    for leased in inbox.claim_up_to(10, LONG).await? {
        inbox.finish(&leased, dead("again")).await?;
    }
    let second = inbox
        .replay_slice(&Filter::default(), &slice(first.next, 2))
        .await?;
    same(
        "changed by the second slice",
        &second,
        &Progress {
            changed: 1,
            next: None,
        },
    )?;
    same("dead", &inbox.count(&of(&[State::Dead])).await?, &2)
}

pub(crate) async fn slices_mean_dead_messages_by_default(cx: Context) -> CaseResult {
    for discard in [false, true] {
        let inbox = cx.fresh().await?;
        for (n, state) in State::ALL.into_iter().enumerate() {
            let sent = message_for(state.as_str(), &format!("{n}"))?;
            inbox.accept_in(&sent, state).await?;
        }
        let (all, slice) = (Filter::default(), slice(None, 10));
        let progress = if discard {
            inbox.discard_slice(&all, &slice).await?
        } else {
            inbox.replay_slice(&all, &slice).await?
        };
        same(
            "changed without states in the filter",
            &progress.changed,
            &1,
        )?;
        same("dead left", &inbox.count(&of(&[State::Dead])).await?, &0)?;
    }
    Ok(())
}

pub(crate) async fn slices_pass_over_what_they_must_not_change(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (n, state) in State::ALL.into_iter().enumerate() {
        inbox
            .accept_in(&message_for(state.as_str(), &format!("{n}"))?, state)
            .await?;
    }
    let every = of(&State::ALL);
    let discarded = inbox.discard_slice(&every, &slice(None, 10)).await?;
    same(
        "discarded of one of each state",
        &discarded,
        &Progress {
            changed: 2,
            next: None,
        },
    )?;
    inbox
        .has_state(message_for("leased", "1")?.key(), State::Leased)
        .await?;
    inbox
        .has_state(message_for("processed", "2")?.key(), State::Processed)
        .await?;
    let replayed = inbox.replay_slice(&every, &slice(None, 10)).await?;
    same(
        "replayed of the final ones",
        &replayed,
        &Progress {
            changed: 4,
            next: None,
        },
    )?;
    inbox
        .has_state(message_for("leased", "1")?.key(), State::Leased)
        .await
}

pub(crate) async fn slices_keep_to_their_filter(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut other = message("other")?;
    other = Message::new(
        other.handler().clone(),
        other.id().clone(),
        Kind::new("other")?,
        "x",
    );
    inbox.accept_in(&other, State::Dead).await?;
    inbox.accept_in(&message("1")?, State::Dead).await?;
    inbox
        .accept_in(&message_for("billing", "1")?, State::Dead)
        .await?;
    let filter = Filter {
        handler: Some(inbox_api::HandlerName::new(HANDLER)?),
        kind: Some(Kind::new("other")?),
        error_contains: Some("gave".into()),
        ..Filter::default()
    };
    let replayed = inbox.replay_slice(&filter, &slice(None, 10)).await?;
    same("changed", &replayed.changed, &1)?;
    inbox.has_state(other.key(), State::Pending).await?;
    inbox.has_state(message("1")?.key(), State::Dead).await
}

pub(crate) async fn a_slice_of_nothing_changes_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let all = dead_ones(&inbox, 2).await?;
    let behind = inbox.record(all[0].key()).await?.cursor;
    let nothing = Progress {
        changed: 0,
        next: None,
    };
    for after in [None, Some(behind)] {
        let none = slice(after, 0);
        let replayed = inbox.replay_slice(&Filter::default(), &none).await?;
        same("replayed with the limit 0", &replayed, &nothing)?;
        let discarded = inbox.discard_slice(&Filter::default(), &none).await?;
        same("discarded with the limit 0", &discarded, &nothing)?;
    }
    same("dead", &inbox.count(&of(&[State::Dead])).await?, &2)
}

pub(crate) async fn a_pending_or_dead_message_can_be_discarded(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (id, state) in [("1", State::Pending), ("2", State::Dead)] {
        let sent = message_for(state.as_str(), id)?;
        inbox.accept_in(&sent, state).await?;
        same(
            "discard",
            &inbox.discard(sent.key()).await?,
            &Intervention::Done,
        )?;
        let record = inbox.record(sent.key()).await?;
        same("state", &record.state, &State::Discarded)?;
        ensure!(
            record.finished_at.is_some(),
            "finished_at of a discarded message: saw none"
        );
        same(
            "claimed",
            &claim(&*inbox.store, state.as_str(), 5, LONG).await?.len(),
            &0,
        )?;
    }
    let dead = inbox.record(message_for("dead", "2")?.key()).await?;
    same(
        "last error of what was dead",
        &dead.last_error.as_deref(),
        &Some("gave up"),
    )
}

pub(crate) async fn other_states_cannot_be_discarded(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (id, state) in [
        ("1", State::Leased),
        ("2", State::Processed),
        ("3", State::Discarded),
    ] {
        let sent = message_for(state.as_str(), id)?;
        inbox.accept_in(&sent, state).await?;
        let expected = Intervention::WrongState(state);
        same("discard", &inbox.discard(sent.key()).await?, &expected)?;
        inbox.has_state(sent.key(), state).await?;
    }
    same(
        "discard of an unknown key",
        &inbox.discard(message("9")?.key()).await?,
        &Intervention::NotFound,
    )
}

/// Its retention counts from there: what was given up today is not older than that.
pub(crate) async fn a_discard_is_a_new_end(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let by_key = message_for("key", "1")?;
    let by_slice = message_for("slice", "1")?;
    let mut ends = Vec::new();
    for sent in [&by_key, &by_slice] {
        inbox.accept_in(sent, State::Dead).await?;
        ends.push(inbox.record(sent.key()).await?.finished_at);
    }
    inbox.pass(inbox.brief()).await?;
    let _ = inbox.discard(by_key.key()).await?;
    let filter = Filter {
        handler: Some(by_slice.handler().clone()),
        ..Filter::default()
    };
    let _ = inbox.discard_slice(&filter, &slice(None, 5)).await?;
    for (sent, died) in [&by_key, &by_slice].into_iter().zip(ends) {
        let record = inbox.record(sent.key()).await?;
        same("state", &record.state, &State::Discarded)?;
        let later = record.finished_at.zip(died);
        let later = later.and_then(|(end, died)| end.duration_since(died).ok());
        ensure!(
            later.is_some_and(|later| later >= inbox.brief()),
            "finished_at of what was discarded by {}: expected {:?} or more after its death, saw {}",
            sent.handler(),
            inbox.brief(),
            later.map_or_else(|| "no such time".into(), |later| format!("{later:?}")),
        );
    }
    Ok(())
}

pub(crate) async fn an_expired_lease_can_be_discarded(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    same(
        "discard",
        &inbox.discard(sent.key()).await?,
        &Intervention::Done,
    )?;
    inbox.nothing_due("its only message is discarded").await
}

pub(crate) async fn a_replay_clears_the_result(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for by_slice in [false, true] {
        let how = if by_slice { "slice" } else { "key" };
        let sent = message_for(how, "1")?;
        inbox.accept(&sent).await?;
        let result = Some(Bytes::from_static(b"old"));
        for outcome in [retry(Duration::ZERO), Outcome::Processed { result }] {
            let leased = claim(&*inbox.store, how, 1, LONG).await?;
            for leased in &leased {
                inbox.finish(leased, outcome.clone()).await?;
            }
        }
        inbox.has_state(sent.key(), State::Processed).await?;
        if by_slice {
            let filter = Filter {
                handler: Some(sent.handler().clone()),
                ..of(&[State::Processed])
            };
            let _ = inbox.replay_slice(&filter, &slice(None, 5)).await?;
        } else {
            let _ = inbox.replay(sent.key(), &Edit::default()).await?;
        }
        let record = inbox.record(sent.key()).await?;
        same(
            &format!("result and last error after a replay by {how}"),
            &(record.result, record.last_error),
            &(None, None),
        )?;
        let leased = claim(&*inbox.store, how, 1, LONG).await?;
        same("claimed", &ids(&leased), &vec!["1".into()])?;
        for leased in &leased {
            inbox.finish(leased, processed()).await?;
        }
        same(
            &format!("result of the second run, after a replay by {how}"),
            &inbox.record(sent.key()).await?.result,
            &None,
        )?;
    }
    Ok(())
}

pub(crate) async fn a_record_keeps_its_last_worker(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Dead).await?;
    let last = Some(worker()?);
    let shown = async |when: &str, is_final: bool| -> CaseResult {
        let record = inbox.record(sent.key()).await?;
        same(
            &format!("worker and whether there is a time of its end, {when}"),
            &(record.worker, record.finished_at.is_some()),
            &(last.clone(), is_final),
        )
    };
    shown("when it died", true).await?;
    let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    shown("when it was replayed", false).await?;
    let _ = inbox.discard(sent.key()).await?;
    shown("when it was discarded", true).await?;
    let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, Outcome::Release).await?;
    shown("when it was released", false).await?;
    let idle = message("2")?;
    inbox.accept_in(&idle, State::Discarded).await?;
    let record = inbox.record(idle.key()).await?;
    same(
        "worker and whether there is a time of its end, discarded without an attempt",
        &(record.worker, record.finished_at.is_some()),
        &(None, true),
    )
}
