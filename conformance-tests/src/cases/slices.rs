//! Slices of an operator's work over messages that others take, end or change meanwhile.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_api::{
    Cursor, Filter, HandlerName, Inbox, Intervention, Key, Message, Outcome, Progress,
    PurgeRequest, Settlement, Slice, State, StoreExt as _,
};
use tokio::task::JoinSet;

use super::concurrency::persist;
use crate::{
    check::{CaseResult, ensure, same},
    needs::Settings,
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead, dead_blocking, ids, message_for, numbered,
        ordered, processed, worker,
    },
};

/// Enough for many slices and many claims at once.
const MESSAGES: usize = 1200;
const SLICE: u32 = 60;
/// Slices of [`SLICE`] over [`MESSAGES`] with a wide margin for rows that others have taken.
const MOST_SLICES: usize = 200;

#[derive(Clone, Copy)]
enum Change {
    Discard,
    Replay,
}

/// Runs all slices to their end; how many messages they changed.
async fn all_slices(inbox: &dyn Inbox, change: Change, states: &[State]) -> CaseResult<u64> {
    let filter = Filter {
        states: states.to_vec(),
        ..Filter::default()
    };
    let (mut after, mut changed): (Option<Cursor>, u64) = (None, 0);
    for _ in 0..MOST_SLICES {
        let slice = Slice {
            after: after.take(),
            limit: SLICE,
        };
        let progress: Progress = match change {
            Change::Discard => persist(|| inbox.discard_slice(&filter, &slice)).await?,
            Change::Replay => persist(|| inbox.replay_slice(&filter, &slice)).await?,
        };
        changed += progress.changed;
        match progress.next {
            Some(next) => after = Some(next),
            None => return Ok(changed),
        }
    }
    ensure!(
        false,
        "slices of {SLICE} over {MESSAGES} messages: saw no end after {MOST_SLICES}"
    );
    Ok(changed)
}

/// Defect: a slice of which others have taken a row says that the end is reached.
pub(crate) async fn a_discard_goes_on_past_messages_that_workers_take(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(MESSAGES)?).await?;
    let done = Arc::new(AtomicBool::new(false));
    let mut workers = JoinSet::new();
    for connection in inbox.connections(2).await? {
        let done = Arc::clone(&done);
        workers.spawn(async move {
            let (handler, worker) = (HandlerName::new(HANDLER)?, worker()?);
            let mut taken = 0;
            while !done.load(Ordering::Relaxed) {
                let claims =
                    persist(|| connection.claim_for(&handler, 3, 60 * LONG, &worker)).await?;
                taken += claims.leased.len();
                // Something is left for the next slices, however fast the store is.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(taken)
        });
    }
    let discarded = all_slices(&*inbox.store, Change::Discard, &[State::Pending]).await;
    done.store(true, Ordering::Relaxed);
    let mut taken = 0;
    while let Some(worker) = workers.join_next().await {
        let worker: CaseResult<usize> = worker?;
        taken += worker?;
    }
    let left = inbox.claim_up_to(10_000, LONG).await?.len();
    same(
        &format!(
            "pending messages that are left behind all slices ({} discarded, {taken} taken by workers)",
            discarded?
        ),
        &left,
        &0,
    )?;
    expect_count(&inbox, State::Leased, taken).await
}

/// Messages that are all dead.
async fn dead_ones(inbox: &TestInbox) -> CaseResult<Vec<Message>> {
    let messages = numbered(MESSAGES)?;
    inbox.accept_all(&messages).await?;
    let leased = inbox.claim_up_to(10_000, LONG).await?;
    same("claimed", &leased.len(), &MESSAGES)?;
    let settlements: Vec<_> = leased
        .into_iter()
        .map(|leased| inbox_api::Settlement {
            lease: leased.lease,
            outcome: dead("gave up") as Outcome,
        })
        .collect();
    let _ = inbox.settle(&settlements).await?;
    expect_count(inbox, State::Dead, MESSAGES).await?;
    Ok(messages)
}

async fn expect_count(inbox: &TestInbox, state: State, expected: usize) -> CaseResult {
    let filter = Filter {
        states: vec![state],
        ..Filter::default()
    };
    same(
        &format!("messages that are {state}"),
        &inbox.count(&filter).await?,
        &(expected as u64),
    )
}

/// The same, of dead messages that other operators discard one by one.
pub(crate) async fn a_replay_goes_on_past_messages_that_others_discard(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let messages = dead_ones(&inbox).await?;
    let mut others = JoinSet::new();
    for (n, connection) in inbox.connections(2).await?.into_iter().enumerate() {
        let keys: Vec<Key> = messages
            .iter()
            .skip(n)
            .step_by(5)
            .map(|message| message.key().clone())
            .collect();
        others.spawn(async move {
            let mut discarded = BTreeSet::new();
            for key in keys {
                if persist(|| connection.discard(&key)).await? == Intervention::Done {
                    discarded.insert(key.id.to_string());
                }
            }
            Ok(discarded.len())
        });
    }
    let replayed = all_slices(&*inbox.store, Change::Replay, &[State::Dead]).await;
    let mut discarded = 0;
    while let Some(other) = others.join_next().await {
        let other: CaseResult<usize> = other?;
        discarded += other?;
    }
    let replayed = replayed?;
    let left = inbox
        .count(&Filter {
            states: vec![State::Dead],
            ..Filter::default()
        })
        .await?;
    same(
        &format!(
            "dead messages that are left behind all slices ({replayed} replayed, {discarded} discarded by others)"
        ),
        &left,
        &0,
    )
}

/// Three ordering keys, each blocked by its first message with two behind it.
async fn three_blocked(cx: &Context) -> CaseResult<TestInbox> {
    let inbox = cx.fresh_ordered().await?;
    let keys = ["a", "b", "c"];
    let of_each = |n: usize| -> CaseResult<Vec<Message>> {
        let of = |key: &&str| ordered(&format!("{key}{n}"), key);
        keys.iter().map(of).collect()
    };
    inbox.accept_all(&of_each(1)?).await?;
    let mut leased = inbox.claim_up_to(10, LONG).await?;
    leased.sort_by_key(|leased| leased.message.id().to_string());
    for leased in leased {
        inbox.finish(&leased, dead_blocking("gave up")).await?;
        // One moment each, so that the longest finished is known.
        inbox.pass(Duration::from_millis(2)).await?;
    }
    for n in [2, 3] {
        inbox.accept_all(&of_each(n)?).await?;
    }
    inbox.nothing_due("every ordering key is blocked").await?;
    Ok(inbox)
}

async fn blocking_in_all(inbox: &TestInbox) -> CaseResult<u64> {
    Ok(inbox.statistics().await?.blocking())
}

/// Defect: what a bulk change or a purge sets free stays blocked, or all is set free by it.
pub(crate) async fn they_set_free_what_they_unblock(cx: Context) -> CaseResult {
    let two = Slice {
        after: None,
        limit: 2,
    };
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 2)?;
    let everything = Filter::default();
    for change in ["replay", "discard", "purge", "purge of what was archived"] {
        let inbox = three_blocked(&cx).await?;
        let changed = match change {
            "replay" => inbox.replay_slice(&everything, &two).await?.changed,
            "discard" => inbox.discard_slice(&everything, &two).await?.changed,
            "purge" => inbox.purge(&expired).await?,
            _ => {
                let archived = inbox.expired(&expired).await?.records;
                let keys: Vec<Key> = archived.into_iter().map(|record| record.key).collect();
                inbox.purge_archived(&expired, &keys).await?
            }
        };
        same(&format!("changed by a {change} of two"), &changed, &2)?;
        let when = format!("after a {change} of two that blocked");
        same(
            &format!("dead messages that block, {when}"),
            &blocking_in_all(&inbox).await?,
            &1,
        )?;
        let first = if change == "replay" { 1 } else { 2 };
        for n in first..=3 {
            let leased = inbox.claim_up_to(10, LONG).await?;
            let mut seen = ids(&leased);
            seen.sort();
            let expected = vec![format!("a{n}"), format!("b{n}")];
            same(&format!("claimable {when}"), &seen, &expected)?;
            for leased in &leased {
                inbox.finish(leased, processed()).await?;
            }
        }
        inbox
            .nothing_due("the third ordering key is blocked")
            .await?;
    }
    Ok(())
}

/// Defect: a slice of pending messages sets free what is behind one that is not first of its key, or
/// not what is behind one that is.
pub(crate) async fn a_discard_of_the_pending_keeps_the_order(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    let all: Vec<Message> = (1..=6)
        .map(|n| ordered(&format!("{n}"), "k"))
        .collect::<CaseResult<_>>()?;
    inbox.accept_all(&all).await?;
    let first = inbox.claim_one().await?;
    // 2 and 3, behind the one that is leased.
    let pending = Filter {
        states: vec![State::Pending],
        ..Filter::default()
    };
    let two = Slice {
        after: None,
        limit: 2,
    };
    let progress = inbox.discard_slice(&pending, &two).await?;
    same("discarded", &progress.changed, &2)?;
    inbox
        .nothing_due("the first of its ordering key is leased")
        .await?;
    inbox.finish(&first, processed()).await?;
    let fourth = inbox.claim_one().await?;
    same("claimed", &fourth.message.id().as_str(), &"4")?;
    inbox.finish(&fourth, Outcome::Release).await?;
    let one = Slice {
        after: None,
        limit: 1,
    };
    let progress = inbox.discard_slice(&pending, &one).await?;
    same("discarded", &progress.changed, &1)?;
    let fifth = inbox.claim_one().await?;
    same("claimed", &fifth.message.id().as_str(), &"5")
}

/// Counts in the statistics, and by counting.
async fn counts(inbox: &TestInbox, when: &str, expected: [u64; 5]) -> CaseResult {
    let statistics = inbox.statistics().await?;
    let seen = State::ALL.map(|state| statistics.count(state));
    same(
        &format!("pending, leased, processed, dead and discarded in the statistics {when}"),
        &seen,
        &expected,
    )?;
    let mut counted = [0; 5];
    for (state, counted) in State::ALL.into_iter().zip(&mut counted) {
        let filter = Filter {
            states: vec![state],
            ..Filter::default()
        };
        *counted = inbox.count(&filter).await?;
    }
    same(
        &format!("pending, leased, processed, dead and discarded by counting {when}"),
        &counted,
        &expected,
    )
}

/// Defect: counts that are kept follow single changes, and not those by slice or by key list.
pub(crate) async fn counts_follow_them(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let finals = [State::Processed, State::Dead, State::Discarded];
    for handler in ["a", "b"] {
        let all: Vec<Message> = (0..12)
            .map(|n| message_for(handler, &format!("{n:02}")))
            .collect::<CaseResult<_>>()?;
        inbox.accept_all(&all).await?;
        let leased = claim(&*inbox.store, handler, 8, LONG).await?;
        let ends: Vec<Settlement> = leased
            .into_iter()
            .enumerate()
            .map(|(n, leased)| Settlement {
                lease: leased.lease,
                outcome: if n < 4 { processed() } else { dead("gave up") },
            })
            .collect();
        let _ = inbox.settle(&ends).await?;
        for message in &all[8..11] {
            let _ = inbox.discard(message.key()).await?;
        }
    }
    counts(&inbox, "to begin with", [2, 0, 8, 8, 6]).await?;
    let of = |state: State| Filter {
        states: vec![state],
        ..Filter::default()
    };
    let slice = |limit| Slice { after: None, limit };
    let mut expected = [2, 0, 8, 8, 6];
    for (at, state) in finals.into_iter().enumerate() {
        let _ = inbox.replay_slice(&of(state), &slice(3)).await?;
        expected[2 + at] -= 3;
        expected[0] += 3;
        let when = format!("after a replay of three that were {state}");
        counts(&inbox, &when, expected).await?;
    }
    for (at, state) in [(3, State::Dead), (0, State::Pending)] {
        let _ = inbox.discard_slice(&of(state), &slice(2)).await?;
        expected[at] -= 2;
        expected[4] += 2;
        let when = format!("after a discard of two that were {state}");
        counts(&inbox, &when, expected).await?;
    }
    for (at, state) in finals.into_iter().enumerate() {
        let expired = PurgeRequest::new(state, Duration::ZERO, 1)?;
        let archived = inbox.expired(&expired).await?.records;
        let keys: Vec<Key> = archived.into_iter().map(|record| record.key).collect();
        let _ = inbox.purge_archived(&expired, &keys).await?;
        expected[2 + at] -= 1;
        let when = format!("after a purge of an archived message that was {state}");
        counts(&inbox, &when, expected).await?;
        let _ = inbox.purge(&expired).await?;
        expected[2 + at] -= 1;
        let when = format!("after a purge of one that was {state}");
        counts(&inbox, &when, expected).await?;
    }
    Ok(())
}

/// Defect: a slice ends at a message without a payload, fails at it, or counts it.
pub(crate) async fn a_dropped_payload_in_the_middle_is_passed_over(cx: Context) -> CaseResult {
    let settings = Settings {
        drop_processed_payloads: true,
        ..Settings::default()
    };
    let finals = [State::Processed, State::Dead, State::Discarded];
    // Which of them end as processed, so that their payload is dropped.
    for dropped in [[1, 2, 3, 6], [0, 1, 4, 5], [0, 2, 4, 6]] {
        let inbox = cx.fresh_with(&settings).await?;
        let all = numbered(7)?;
        inbox.accept_all(&all).await?;
        let mut ends = Vec::new();
        for (n, leased) in inbox.claim_up_to(10, LONG).await?.into_iter().enumerate() {
            let outcome = if dropped.contains(&n) {
                processed()
            } else {
                dead("gave up")
            };
            ends.push(Settlement {
                lease: leased.lease,
                outcome,
            });
        }
        let _ = inbox.settle(&ends).await?;
        let filter = Filter {
            states: finals.to_vec(),
            ..Filter::default()
        };
        let (mut after, mut changed) = (None, 0);
        for step in 0.. {
            ensure!(step < 20, "slices of 2 over 7 messages: saw no end");
            let slice = Slice {
                after: after.take(),
                limit: 2,
            };
            let progress = inbox.replay_slice(&filter, &slice).await?;
            changed += progress.changed;
            match progress.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let what = format!("replayed of 7 messages, of which {dropped:?} have no payload any more");
        same(&what, &changed, &3)?;
        let states: Vec<State> = super::filters::list_keys(&inbox, &Filter::default())
            .await?
            .into_values()
            .map(|record| record.state)
            .collect();
        let expected: Vec<State> = (0..7)
            .map(|n| {
                if dropped.contains(&n) {
                    State::Processed
                } else {
                    State::Pending
                }
            })
            .collect();
        same(&format!("states: {what}"), &states, &expected)?;
    }
    Ok(())
}
