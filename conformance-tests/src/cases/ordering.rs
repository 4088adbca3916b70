//! Order within an ordering key.

use std::time::Duration;

use inbox_api::{
    AfterDead, Begun, Due, Edit, Effect, ErrorKind, Filter, Intervention, OrderingKey, Outcome,
    PurgeRequest, Settled, State, StoreExt,
};

use crate::{
    check::{CaseResult, ensure, same},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead, dead_blocking, defer, ids, message,
        message_for, ordered, processed, retry, sequence, terms,
    },
};

/// Claims and processes until nothing is due; returns the order.
async fn drain(inbox: &TestInbox) -> CaseResult<Vec<String>> {
    let mut order = Vec::new();
    loop {
        let leased = inbox.claim_up_to(10, LONG).await?;
        if leased.is_empty() {
            return Ok(order);
        }
        order.extend(ids(&leased));
        for leased in &leased {
            inbox.finish(leased, processed()).await?;
        }
    }
}

fn texts(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).into()).collect()
}

pub(crate) async fn messages_of_a_key_come_in_order(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(3, "k")?).await?;
    inbox.accept(&ordered("4", "k")?).await?;
    same(
        "order",
        &drain(&inbox).await?,
        &texts(&["1", "2", "3", "4"]),
    )
}

pub(crate) async fn one_message_of_a_key_at_a_time(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(3, "k")?).await?;
    same(
        "claimed at once",
        &ids(&inbox.claim_up_to(10, LONG).await?),
        &texts(&["1"]),
    )?;
    inbox
        .nothing_due("the first of its ordering key is leased")
        .await?;
    let other = inbox.connections(2).await?;
    let leased = claim(&*other[1], HANDLER, 10, LONG).await?;
    same("claimed by another worker", &ids(&leased), &Vec::new())
}

/// Defect: a retry lets later messages of its ordering key overtake.
pub(crate) async fn a_retry_is_not_overtaken(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(2, "k")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(inbox.brief())).await?;
    inbox
        .nothing_due("the first of its ordering key waits for a retry")
        .await?;
    inbox.pass(inbox.brief()).await?;
    same("order", &drain(&inbox).await?, &texts(&["1", "2"]))
}

/// Defect: a deferral lets later messages of its ordering key overtake.
pub(crate) async fn a_deferral_is_not_overtaken(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(2, "k")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, defer(inbox.brief())).await?;
    inbox
        .nothing_due("the first of its ordering key is deferred")
        .await?;
    inbox.pass(inbox.brief()).await?;
    same("order", &drain(&inbox).await?, &texts(&["1", "2"]))
}

/// Defect: a lease that ran out lets later messages of its ordering key overtake.
pub(crate) async fn an_expired_lease_is_not_overtaken(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(2, "k")?).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    same("order", &drain(&inbox).await?, &texts(&["1", "2"]))
}

pub(crate) async fn a_delayed_message_is_not_overtaken(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox
        .accept(&ordered("1", "k")?.with_due(Due::After(inbox.brief())))
        .await?;
    inbox.accept(&ordered("2", "k")?).await?;
    inbox
        .nothing_due("the first of its ordering key is not due")
        .await?;
    inbox.pass(inbox.brief()).await?;
    same("order", &drain(&inbox).await?, &texts(&["1", "2"]))
}

pub(crate) async fn a_released_message_is_not_overtaken(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(2, "k")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, Outcome::Release).await?;
    same("order", &drain(&inbox).await?, &texts(&["1", "2"]))
}

pub(crate) async fn keys_do_not_hold_each_other_up(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    for (id, key) in [
        ("1", "a"),
        ("2", "a"),
        ("3", "b"),
        ("4", "b"),
        ("5", "A"),
        ("6", "a "),
    ] {
        inbox.accept(&ordered(id, key)?).await?;
    }
    same(
        "claimed",
        &ids(&inbox.claim_up_to(10, LONG).await?),
        &texts(&["1", "3", "5", "6"]),
    )
}

pub(crate) async fn messages_without_a_key_are_not_held_up(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    for n in 1..=5 {
        inbox.accept(&ordered(&format!("k{n}"), "k")?).await?;
        inbox.accept(&message(&format!("{n}"))?).await?;
    }
    let claimed = ids(&inbox.claim_up_to(10, LONG).await?);
    same(
        "claimed",
        &claimed,
        &texts(&["k1", "1", "2", "3", "4", "5"]),
    )
}

pub(crate) async fn handlers_do_not_hold_each_other_up(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    let key = OrderingKey::new("k")?;
    for handler in ["a", "b"] {
        inbox
            .accept(&message_for(handler, "1")?.with_ordering_key(key.clone()))
            .await?;
        same(
            "claimed",
            &ids(&claim(&*inbox.store, handler, 5, LONG).await?),
            &texts(&["1"]),
        )?;
    }
    Ok(())
}

/// Blocked messages must not use a claim's limit up.
pub(crate) async fn a_long_blocked_key_hides_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(300, "k")?).await?;
    inbox.accept(&message("free")?).await?;
    same(
        "first claim",
        &ids(&inbox.claim_up_to(1, LONG).await?),
        &texts(&["1"]),
    )?;
    same(
        "second claim",
        &ids(&inbox.claim_up_to(1, LONG).await?),
        &texts(&["free"]),
    )
}

pub(crate) async fn a_dead_message_lets_the_next_through(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(2, "k")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead("gave up")).await?;
    same(
        "blocks",
        &inbox.record(&leased.lease.key).await?.blocks_ordering_key,
        &false,
    )?;
    same("order", &drain(&inbox).await?, &texts(&["2"]))
}

async fn blocked(cx: &Context) -> CaseResult<TestInbox> {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(3, "k")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead_blocking("gave up")).await?;
    same(
        "blocks",
        &inbox.record(&leased.lease.key).await?.blocks_ordering_key,
        &true,
    )?;
    Ok(inbox)
}

pub(crate) async fn a_dead_message_can_block_its_key(cx: Context) -> CaseResult {
    let inbox = blocked(&cx).await?;
    inbox
        .nothing_due("a dead message blocks its ordering key")
        .await?;
    inbox.accept(&ordered("4", "k")?).await?;
    inbox.accept(&ordered("5", "other")?).await?;
    same(
        "claimed",
        &ids(&inbox.claim_up_to(10, LONG).await?),
        &texts(&["5"]),
    )
}

pub(crate) async fn a_replay_unblocks_in_order(cx: Context) -> CaseResult {
    let inbox = blocked(&cx).await?;
    same(
        "replay",
        &inbox
            .replay(ordered("1", "k")?.key(), &Edit::default())
            .await?,
        &Intervention::Done,
    )?;
    let record = inbox.record(ordered("1", "k")?.key()).await?;
    same("blocks after a replay", &record.blocks_ordering_key, &false)?;
    same("order", &drain(&inbox).await?, &texts(&["1", "2", "3"]))
}

pub(crate) async fn a_discard_unblocks(cx: Context) -> CaseResult {
    let inbox = blocked(&cx).await?;
    same(
        "discard",
        &inbox.discard(ordered("1", "k")?.key()).await?,
        &Intervention::Done,
    )?;
    let record = inbox.record(ordered("1", "k")?.key()).await?;
    same(
        "blocks after a discard",
        &record.blocks_ordering_key,
        &false,
    )?;
    same("order", &drain(&inbox).await?, &texts(&["2", "3"]))
}

pub(crate) async fn a_discard_lifts_no_other_block(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(3, "k")?).await?;
    for outcome in [dead("gave up"), dead_blocking("gave up")] {
        let leased = inbox.claim_one().await?;
        inbox.finish(&leased, outcome).await?;
    }
    let discarded = inbox.discard(ordered("1", "k")?.key()).await?;
    same("discard", &discarded, &Intervention::Done)?;
    inbox
        .nothing_due("a later dead message blocks the ordering key")
        .await?;
    let discarded = inbox.discard(ordered("2", "k")?.key()).await?;
    same("discard", &discarded, &Intervention::Done)?;
    same("order", &drain(&inbox).await?, &texts(&["3"]))
}

pub(crate) async fn a_purge_unblocks(cx: Context) -> CaseResult {
    let inbox = blocked(&cx).await?;
    let purged = inbox
        .purge(&PurgeRequest::new(State::Dead, Duration::ZERO, 10)?)
        .await?;
    same("purged", &purged, &1)?;
    same("order", &drain(&inbox).await?, &texts(&["2", "3"]))
}

pub(crate) async fn discarding_the_first_moves_on(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(3, "k")?).await?;
    for id in ["2", "1"] {
        same(
            "discard",
            &inbox.discard(ordered(id, "k")?.key()).await?,
            &Intervention::Done,
        )?;
    }
    same("order", &drain(&inbox).await?, &texts(&["3"]))
}

pub(crate) async fn a_replayed_message_returns_to_its_old_place(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(4, "k")?).await?;
    let first = inbox.claim_one().await?;
    inbox.finish(&first, processed()).await?;
    let second = inbox.claim_one().await?;
    let _ = inbox.replay(&first.lease.key, &Edit::default()).await?;
    inbox
        .nothing_due("the second of its ordering key is leased")
        .await?;
    inbox.finish(&second, processed()).await?;
    same("order", &drain(&inbox).await?, &texts(&["1", "3", "4"]))
}

pub(crate) async fn blocking_without_a_key_has_no_effect(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&[message("1")?, message("2")?]).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead_blocking("gave up")).await?;
    same(
        "blocks",
        &inbox.record(&leased.lease.key).await?.blocks_ordering_key,
        &false,
    )?;
    same("order", &drain(&inbox).await?, &texts(&["2"]))
}

pub(crate) async fn begin_keeps_the_order(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    let (first, second) = (ordered("1", "k")?, ordered("2", "k")?);
    inbox.accept(&first).await?;
    let begun = inbox.begin(&second, &terms(LONG)?).await?;
    same(
        "begin behind an unfinished message",
        &begun,
        &Begun::Blocked,
    )?;
    inbox.has_state(second.key(), State::Pending).await?;
    let leased = inbox.claim_one().await?;
    let begun = inbox.begin(&second, &terms(LONG)?).await?;
    same("begin behind a leased message", &begun, &Begun::Blocked)?;
    inbox.finish(&leased, processed()).await?;
    let begun = inbox.begin(&second, &terms(LONG)?).await?;
    ensure!(
        matches!(begun, Begun::Run(_)),
        "begin when its turn has come: saw {begun:?}"
    );
    inbox.nothing_due("it runs inline").await
}

/// The order holds under load: several workers, retries, expired leases.
pub(crate) async fn order_holds_among_many_workers(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    let mut batch = Vec::new();
    for n in 0..20 {
        for key in ["a", "b", "c"] {
            batch.push(ordered(&format!("{key}{n:02}"), key)?);
        }
    }
    inbox.accept_all(&batch).await?;
    let finished = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for connection in inbox.connections(4).await? {
        let finished = std::sync::Arc::clone(&finished);
        tasks.push(tokio::spawn(async move {
            let mut idle = 0;
            while idle < 20 {
                let handler = inbox_api::HandlerName::new(HANDLER)?;
                let worker = crate::test_inbox::worker()?;
                let claims = super::concurrency::persist(|| {
                    connection.claim_for(&handler, 4, LONG, &worker)
                });
                let leased = claims.await?.leased;
                idle = if leased.is_empty() { idle + 1 } else { 0 };
                for leased in leased {
                    let done =
                        leased.attempts.started > 1 || leased.message.id().as_str().ends_with('1');
                    if done {
                        // Before settling: afterwards another worker may already be on the next.
                        let mut order = finished
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner);
                        order.push(leased.message.id().to_string());
                    }
                    let outcome = if done {
                        processed()
                    } else {
                        retry(Duration::ZERO)
                    };
                    let settled = super::concurrency::persist(|| {
                        connection.settle_one(&leased.lease, outcome.clone())
                    })
                    .await?;
                    same("settling a held lease", &settled, &inbox_api::Settled::Done)?;
                }
                tokio::task::yield_now().await;
            }
            CaseResult::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    let order = finished
        .lock()
        .map(|order| order.clone())
        .unwrap_or_default();
    for key in ["a", "b", "c"] {
        let seen: Vec<_> = order
            .iter()
            .filter(|id| id.starts_with(key))
            .cloned()
            .collect();
        let expected: Vec<_> = (0..20).map(|n| format!("{key}{n:02}")).collect();
        same(&format!("order of ordering key {key}"), &seen, &expected)?;
    }
    Ok(())
}

/// Where they are refused, the call fails before it has stored anything.
pub(crate) async fn keys_are_honoured_or_refused(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (plain, keyed, begun) = (message("1")?, ordered("2", "k")?, ordered("3", "k")?);
    let batch = [plain.clone(), keyed.clone()];
    if inbox.capabilities().ordering {
        inbox.accept_all(&batch).await?;
        let stored = inbox.record(keyed.key()).await?.ordering_key;
        return same(
            "ordering key as stored",
            &stored.as_ref(),
            &keyed.ordering_key(),
        );
    }
    let refused = |what: &str, error: Option<inbox_api::Error>| {
        same(
            &format!("kind and effect of the error of {what}"),
            &error.map(|error| (error.kind(), error.effect())),
            &Some((ErrorKind::Unsupported, Effect::None)),
        )
    };
    let receive = inbox.receive(&batch).await.err();
    refused(
        "a receive of which one message has an ordering key",
        receive,
    )?;
    let begin = inbox.begin(&begun, &terms(LONG)?).await.err();
    refused("a begin with an ordering key", begin)?;
    let stored = inbox.count(&Filter::default()).await?;
    same("stored by the calls that were refused", &stored, &0)?;
    inbox.accept(&plain).await?;
    let copy = inbox.receive_one(&ordered("1", "k")?).await.err();
    refused(
        "a copy with an ordering key of what was stored without",
        copy,
    )
}

pub(crate) async fn a_retried_block_is_lifted(cx: Context) -> CaseResult {
    let inbox = blocked(&cx).await?;
    let first = ordered("1", "k")?;
    let _ = inbox.replay(first.key(), &Edit::default()).await?;
    let leased = inbox.claim_one().await?;
    let outcome = Outcome::Dead {
        reason: "again".into(),
        after: AfterDead::Continue,
    };
    inbox.finish(&leased, outcome).await?;
    same(
        "blocks",
        &inbox.record(first.key()).await?.blocks_ordering_key,
        &false,
    )?;
    same("order", &drain(&inbox).await?, &texts(&["2", "3"]))
}

/// Defect: a lease that ran out counts as given back, so that an earlier message that was replayed
/// goes first, and the lease of the later one is then revived: two of one ordering key at work.
pub(crate) async fn a_turn_outlasts_its_lease(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    let all = sequence(3, "k")?;
    inbox.accept_all(&all).await?;
    let first = inbox.claim_one().await?;
    inbox.finish(&first, dead("gave up")).await?;
    let second = inbox.claim_single(inbox.brief()).await?;
    same(
        "replay of the first while the second is leased",
        &inbox.replay(all[0].key(), &Edit::default()).await?,
        &Intervention::Done,
    )?;
    inbox.pass(inbox.brief()).await?;
    let begun = inbox.begin(&all[0], &terms(LONG)?).await?;
    same(
        "begin of the first, replayed, when the lease of the second ran out",
        &begun,
        &Begun::Blocked,
    )?;
    let again = inbox.claim_one().await?;
    same(
        "claimed when the lease of the second ran out",
        &again.message.id().as_str(),
        &"2",
    )?;
    same(
        "settling the second with its first lease",
        &inbox.settle_one(&second.lease, processed()).await?,
        &Settled::LeaseLost,
    )?;
    // A retry ends the turn.
    inbox.finish(&again, retry(Duration::ZERO)).await?;
    same("order", &drain(&inbox).await?, &texts(&["1", "2", "3"]))
}
