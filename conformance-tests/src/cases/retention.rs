//! Retention: what a purge takes, and what it leaves.

use std::{sync::Arc, time::Duration};

use inbox_api::{
    Bytes, Edit, Filter, Inbox, Key, Operate, Outcome, Page, PurgeRequest, State, Store,
};

use crate::{
    check::{CaseResult, same},
    test_inbox::{
        Context, LONG, TestInbox, claim, dead, message, message_for, numbered, processed,
    },
};

const DAY: Duration = Duration::from_secs(86_400);

fn expired(state: State, older_than: Duration, limit: u32) -> CaseResult<PurgeRequest> {
    Ok(PurgeRequest::new(state, older_than, limit)?)
}

async fn process_all(inbox: &TestInbox, n: usize) -> CaseResult {
    inbox.accept_all(&numbered(n)?).await?;
    for leased in inbox.claim_up_to(1000, LONG).await? {
        inbox.finish(&leased, processed()).await?;
    }
    Ok(())
}

pub(crate) async fn a_purge_takes_final_messages(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for state in [State::Processed, State::Dead, State::Discarded] {
        let sent = message_for(state.as_str(), "1")?;
        inbox.accept_in(&sent, state).await?;
        let purged = inbox.purge(&expired(state, Duration::ZERO, 10)?).await?;
        same(&format!("purged of {state}"), &purged, &1)?;
        same(
            "found afterwards",
            &inbox.get(sent.key()).await?.is_some(),
            &false,
        )?;
    }
    Ok(())
}

/// Defect: a purge that takes messages nobody has worked on.
pub(crate) async fn a_purge_never_takes_unfinished_messages(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    let (pending, leased, expiring) = (message("1")?, message("2")?, message("3")?);
    inbox.accept(&leased).await?;
    inbox.claim_single(LONG).await?;
    inbox.accept(&expiring).await?;
    inbox.claim_single(Duration::from_secs(1)).await?;
    inbox.accept(&pending).await?;
    inbox.pass(Duration::from_secs(30)).await?;
    for state in [State::Processed, State::Dead, State::Discarded] {
        for older_than in [Duration::ZERO, Duration::from_secs(10)] {
            let purged = inbox.purge(&expired(state, older_than, 100)?).await?;
            same(&format!("purged of {state}"), &purged, &0)?;
        }
    }
    inbox.has_state(pending.key(), State::Pending).await?;
    inbox.has_state(leased.key(), State::Leased).await?;
    inbox.has_state(expiring.key(), State::Pending).await
}

/// Defect: a purge that forgets processed keys before their time, so that redeliveries run again.
pub(crate) async fn a_purge_leaves_younger_messages(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    let old = message("old")?;
    // The age counts from when it became final, not from when it was accepted.
    let young = message("young")?;
    inbox.accept_in(&old, State::Processed).await?;
    inbox.accept(&young).await?;
    inbox.pass(DAY).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, processed()).await?;
    inbox.pass(DAY).await?;
    let purged = inbox
        .purge(&expired(State::Processed, DAY + DAY / 2, 10)?)
        .await?;
    same(
        "purged of what finished over a day and a half ago",
        &purged,
        &1,
    )?;
    same(
        "the older is gone",
        &inbox.get(old.key()).await?.is_none(),
        &true,
    )?;
    inbox.has_state(young.key(), State::Processed).await?;
    inbox
        .refuses_copy(&young, "that was processed a day ago")
        .await
}

pub(crate) async fn a_purge_takes_only_the_given_state(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let finals = [State::Processed, State::Dead, State::Discarded];
    for state in finals {
        inbox
            .accept_in(&message_for(state.as_str(), "1")?, state)
            .await?;
    }
    same(
        "purged",
        &inbox
            .purge(&expired(State::Dead, Duration::ZERO, 10)?)
            .await?,
        &1,
    )?;
    inbox
        .has_state(message_for("processed", "1")?.key(), State::Processed)
        .await?;
    inbox
        .has_state(message_for("discarded", "1")?.key(), State::Discarded)
        .await
}

/// Defect: unbounded deletes.
pub(crate) async fn a_purge_is_bounded_and_takes_the_oldest(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let all = numbered(5)?;
    inbox.accept_all(&all).await?;
    // Finished in the opposite order of acceptance.
    for leased in inbox.claim_up_to(10, LONG).await?.iter().rev() {
        inbox.finish(leased, processed()).await?;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    same(
        "purged",
        &inbox
            .purge(&expired(State::Processed, Duration::ZERO, 2)?)
            .await?,
        &2,
    )?;
    let mut left = Vec::new();
    for message in &all {
        left.push(inbox.get(message.key()).await?.is_some());
    }
    same("left", &left, &vec![true, true, true, false, false])?;
    same(
        "purged with the limit 0",
        &inbox
            .purge(&expired(State::Processed, Duration::ZERO, 0)?)
            .await?,
        &0,
    )?;
    same(
        "purged then",
        &inbox
            .purge(&expired(State::Processed, Duration::ZERO, 10)?)
            .await?,
        &3,
    )
}

pub(crate) async fn a_purged_key_is_new_again(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Processed).await?;
    same(
        "purged",
        &inbox
            .purge(&expired(State::Processed, Duration::ZERO, 10)?)
            .await?,
        &1,
    )?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    same("attempts started", &leased.attempts.started, &1)?;
    same("replays", &inbox.record(sent.key()).await?.replays, &0)
}

pub(crate) async fn a_replayed_message_is_not_purged(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Dead).await?;
    let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    same(
        "purged",
        &inbox
            .purge(&expired(State::Dead, Duration::ZERO, 10)?)
            .await?,
        &0,
    )?;
    inbox.claim_one().await.map(drop)
}

pub(crate) async fn what_would_be_purged_can_be_had_first(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?.with_header("source", "test")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let result = Some(Bytes::from_static(b"result"));
    inbox
        .finish(
            &leased,
            Outcome::Processed {
                result: result.clone(),
            },
        )
        .await?;
    inbox.accept_in(&message("2")?, State::Dead).await?;
    let listing = inbox
        .expired(&expired(State::Processed, Duration::ZERO, 10)?)
        .await?;
    same("records", &listing.records.len(), &1)?;
    let record = listing.records.first();
    same(
        "message",
        &record.and_then(inbox_api::Record::message),
        &Some(sent.clone()),
    )?;
    same("result", &record.and_then(|r| r.result.clone()), &result)?;
    inbox.has_state(sent.key(), State::Processed).await?;
    let none = inbox.expired(&expired(State::Processed, LONG, 10)?).await?;
    same("records older than a minute", &none.records.len(), &0)
}

pub(crate) async fn what_is_expired_keeps_to_its_limit(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let all = numbered(4)?;
    inbox.accept_all(&all).await?;
    let leased = inbox.claim_up_to(10, LONG).await?;
    // Not in the order of their acceptance.
    for n in [2, 0, 3, 1] {
        inbox.finish(&leased[n], processed()).await?;
        inbox.pass(Duration::from_millis(20)).await?;
    }
    for (limit, expected) in [
        (0, vec![]),
        (1, vec![2]),
        (3, vec![2, 0, 3]),
        (10, vec![2, 0, 3, 1]),
    ] {
        let what = expired(State::Processed, Duration::ZERO, limit)?;
        let records = inbox.expired(&what).await?.records;
        let listed: Vec<_> = records.iter().map(|record| &record.key).collect();
        let expected: Vec<_> = expected.iter().map(|n: &usize| all[*n].key()).collect();
        same(
            &format!("the first {limit} of what would be purged"),
            &listed,
            &expected,
        )?;
    }
    Ok(())
}

/// Nothing is deleted that the archiver has not taken.
pub(crate) async fn only_what_was_archived_is_purged(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    process_all(&inbox, 4).await?;
    let all = numbered(4)?;
    let what = expired(State::Processed, Duration::ZERO, 1)?;
    let _ = inbox.replay(all[1].key(), &Edit::default()).await?;
    let keys = [
        all[0].key().clone(),
        all[1].key().clone(),
        message("unknown")?.key().clone(),
    ];
    same("purged", &inbox.purge_archived(&what, &keys).await?, &1)?;
    same(
        "the archived is gone",
        &inbox.get(all[0].key()).await?.is_none(),
        &true,
    )?;
    inbox.has_state(all[1].key(), State::Pending).await?;
    inbox.has_state(all[2].key(), State::Processed).await?;
    same(
        "purged of no keys",
        &inbox.purge_archived(&what, &[]).await?,
        &0,
    )?;
    let old = expired(State::Processed, LONG, 10)?;
    let keys = [all[2].key().clone(), all[3].key().clone()];
    same(
        "purged of what is too young",
        &inbox.purge_archived(&old, &keys).await?,
        &0,
    )?;
    let others = expired(State::Dead, Duration::ZERO, 10)?;
    same(
        "purged of another state",
        &inbox.purge_archived(&others, &keys).await?,
        &0,
    )?;
    let what = expired(State::Processed, Duration::ZERO, 1)?;
    same(
        "purged beyond the limit of a step",
        &inbox.purge_archived(&what, &keys).await?,
        &2,
    )
}

/// Defect: a list of keys taken for a set: what is named twice is counted twice, or fails half-way.
pub(crate) async fn a_key_that_is_archived_twice_is_purged_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for state in [State::Processed, State::Dead, State::Discarded] {
        let handler = state.as_str();
        for id in ["1", "2", "3"] {
            inbox.accept_in(&message_for(handler, id)?, state).await?;
        }
        let key = |id| CaseResult::Ok(message_for(handler, id)?.key().clone());
        let keys = [key("2")?, key("1")?, key("unknown")?, key("2")?, key("2")?];
        let what = expired(state, Duration::ZERO, 1)?;
        same(
            &format!("purged of two {state} messages, one of them named three times"),
            &inbox.purge_archived(&what, &keys).await?,
            &2,
        )?;
        inbox.has_state(&key("3")?, state).await?;
        same(
            &format!("{state} in the statistics afterwards"),
            &inbox.statistics().await?.count(state),
            &1,
        )?;
    }
    Ok(())
}

/// Claims and ends the one message of `handler` that is due.
async fn end(inbox: &TestInbox, handler: &str, state: State) -> CaseResult {
    let outcome = match state {
        State::Processed => processed(),
        _ => dead("gave up"),
    };
    for leased in claim(&*inbox.store, handler, 1, LONG).await? {
        inbox.finish(&leased, outcome.clone()).await?;
    }
    if state == State::Discarded {
        let _ = inbox.discard(message_for(handler, "1")?.key()).await?;
    }
    Ok(())
}

/// What may become of a message between its archiving and its purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Nothing,
    Replayed,
    Leased,
    RanAndEndedTheSame,
    EndedOtherwise,
    PurgedAndReceived,
    PurgedAndEndedAgain,
}

const SINCE: [Since; 7] = [
    Since::Nothing,
    Since::Replayed,
    Since::Leased,
    Since::RanAndEndedTheSame,
    Since::EndedOtherwise,
    Since::PurgedAndReceived,
    Since::PurgedAndEndedAgain,
];

/// Defect: the archiver's keys are deleted whatever has become of them since.
pub(crate) async fn what_changed_since_it_was_archived_is_not_purged(cx: Context) -> CaseResult {
    let finals = [State::Processed, State::Dead, State::Discarded];
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    for (state, other) in finals.into_iter().zip(finals.into_iter().cycle().skip(1)) {
        let handler = |since: Since| format!("{state} {since:?}");
        for since in SINCE {
            let sent = message_for(&handler(since), "1")?;
            inbox.accept_in(&sent, state).await?;
        }
        inbox.pass(DAY).await?;
        let what = expired(state, DAY, 100)?;
        let archived = inbox.expired(&what).await?.records;
        // Not what has ended like this in an earlier round.
        let keys: Vec<Key> = archived
            .into_iter()
            .map(|record| record.key)
            .filter(|key| key.handler.as_str().starts_with(state.as_str()))
            .collect();
        same(&format!("archived of {state}"), &keys.len(), &SINCE.len())?;
        for since in SINCE {
            let handler = handler(since);
            let sent = message_for(&handler, "1")?;
            match since {
                Since::Nothing => continue,
                Since::PurgedAndReceived | Since::PurgedAndEndedAgain => {
                    let one = [sent.key().clone()];
                    same("purged", &inbox.purge_archived(&what, &one).await?, &1)?;
                    inbox.accept(&sent).await?;
                }
                _ => drop(inbox.replay(sent.key(), &Edit::default()).await?),
            }
            match since {
                Since::Leased => drop(claim(&*inbox.store, &handler, 1, LONG).await?),
                Since::RanAndEndedTheSame | Since::PurgedAndEndedAgain => {
                    end(&inbox, &handler, state).await?;
                }
                Since::EndedOtherwise => end(&inbox, &handler, other).await?,
                _ => {}
            }
        }
        let mut left = Vec::new();
        let purged = inbox.purge_archived(&what, &keys).await?;
        for since in SINCE {
            let key = message_for(&handler(since), "1")?.key().clone();
            if inbox.get(&key).await?.is_some() {
                left.push(since);
            }
        }
        same(
            &format!("left of what was archived as {state}, by what became of it since"),
            &left,
            &SINCE[1..].to_vec(),
        )?;
        same(
            &format!("purged of what was archived as {state}"),
            &purged,
            &1,
        )?;
    }
    Ok(())
}

/// Defect: purgers that delete the same rows, or deadlock.
pub(crate) async fn two_purgers_share_the_work(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    process_all(&inbox, 200).await?;
    let mut tasks = Vec::new();
    for connection in inbox.connections(4).await? {
        tasks.push(tokio::spawn(purge_until_empty(connection)));
    }
    let mut total = 0;
    for task in tasks {
        total += task.await??;
    }
    same("purged by four purgers in all", &total, &200)
}

async fn purge_until_empty(inbox: Arc<dyn Inbox>) -> CaseResult<u64> {
    let what = expired(State::Processed, Duration::ZERO, 7)?;
    let (mut total, mut idle) = (0, 0);
    while idle < 3 {
        let purged = super::concurrency::persist(|| inbox.purge(&what)).await?;
        idle = if purged == 0 { idle + 1 } else { 0 };
        total += purged;
    }
    Ok(total)
}

/// Defect: a purge deadlocks with live traffic.
pub(crate) async fn a_purge_during_traffic_disturbs_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let connections = inbox.connections(3).await?;
    let purger = tokio::spawn(purge_while(Arc::clone(&connections[0])));
    let mut workers = Vec::new();
    for (n, connection) in connections.into_iter().enumerate().skip(1) {
        workers.push(tokio::spawn(async move {
            let handler = format!("h{n}");
            for round in 0..20 {
                let message = message_for(&handler, &format!("{round}"))?;
                let receipts = super::concurrency::persist(|| {
                    connection.receive(std::slice::from_ref(&message))
                })
                .await?;
                same("receipt", &receipts, &vec![inbox_api::Receipt::Accepted])?;
                let request = inbox_api::ClaimRequest {
                    handlers: vec![message.handler().clone()],
                    limit: 5,
                    terms: crate::test_inbox::terms(LONG)?,
                    run_limit: 1,
                };
                let leased = super::concurrency::persist(|| Store::claim(&*connection, &request))
                    .await?
                    .leased;
                same("claimed", &leased.len(), &1)?;
                for leased in leased {
                    let settlement = [inbox_api::Settlement {
                        lease: leased.lease,
                        outcome: processed(),
                    }];
                    let settled =
                        super::concurrency::persist(|| connection.settle(&settlement)).await?;
                    same("settled", &settled, &vec![inbox_api::Settled::Done])?;
                }
            }
            CaseResult::Ok(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    let purged = purger.await??;
    let rest = Operate::purge(
        &*inbox.store,
        &expired(State::Processed, Duration::ZERO, 1000)?,
    )
    .await?;
    same("purged in all", &(purged + rest), &40)
}

async fn purge_while(inbox: Arc<dyn Inbox>) -> CaseResult<u64> {
    let what = expired(State::Processed, Duration::ZERO, 3)?;
    let mut total = 0;
    for _ in 0..30 {
        total += super::concurrency::persist(|| inbox.purge(&what)).await?;
        tokio::task::yield_now().await;
    }
    Ok(total)
}

/// Defect: a listing fails when a message is purged before its payload is read.
pub(crate) async fn what_is_purged_meanwhile_spoils_no_listing(cx: Context) -> CaseResult {
    const ALL: usize = 200;
    let inbox = cx.fresh().await?;
    process_all(&inbox, ALL).await?;
    let connections = inbox.connections(3).await?;
    let purger = tokio::spawn(purge_until_empty(Arc::clone(&connections[0])));
    let mut readers = Vec::new();
    for (connection, archives) in connections.into_iter().skip(1).zip([true, false]) {
        readers.push(tokio::spawn(async move {
            let request = expired(State::Processed, Duration::ZERO, Page::MAX)?;
            let (filter, page) = (
                Filter::default(),
                Page {
                    with_payload: true,
                    ..Page::first(Page::MAX)
                },
            );
            loop {
                let listing = match archives {
                    true => super::concurrency::persist(|| connection.expired(&request)).await?,
                    false => {
                        super::concurrency::persist(|| connection.list(&filter, &page)).await?
                    }
                };
                same("corrupt rows", &listing.corrupt.len(), &0)?;
                if listing.records.is_empty() {
                    return CaseResult::Ok(());
                }
                tokio::task::yield_now().await;
            }
        }));
    }
    for reader in readers {
        reader.await??;
    }
    same("purged", &purger.await??, &(ALL as u64))
}

/// Defect: an archiver that follows `next` leaves out what is behind the keys that it has purged.
pub(crate) async fn what_is_expired_has_no_next_page(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for sent in numbered(3)? {
        inbox.accept_in(&sent, State::Dead).await?;
    }
    let mut archived = Vec::new();
    for _ in 0..4 {
        let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 1)?;
        let listing = inbox.expired(&expired).await?;
        same("next of what is expired", &listing.next, &None)?;
        let keys: Vec<_> = listing.records.iter().map(|r| r.key.clone()).collect();
        let purged = inbox.purge_archived(&expired, &keys).await?;
        same("purged of the archived", &purged, &(keys.len() as u64))?;
        archived.extend(keys);
    }
    let expected: Vec<_> = numbered(3)?.iter().map(|m| m.key().clone()).collect();
    same("archived one by one", &archived, &expected)
}
