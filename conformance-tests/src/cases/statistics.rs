//! Statistics: counts, and how far behind a handler is.

use std::time::Duration;

use inbox_api::{Due, Edit, Filter, HandlerStatistics, Message, Outcome, State};

use crate::{
    check::{CaseResult, Unmet, same},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, dead, dead_blocking, defer, message, message_for,
        numbered, ordered, processed, retry,
    },
    times::about_as_long,
};

async fn of(inbox: &TestInbox, handler: &str) -> CaseResult<HandlerStatistics> {
    let statistics = inbox.statistics().await?;
    statistics
        .handlers
        .into_iter()
        .find(|h| h.handler.as_str() == handler)
        .ok_or_else(|| {
            Unmet::Failed(format!(
                "statistics: expected the handler {handler}, saw none"
            ))
        })
}

pub(crate) async fn an_empty_inbox_has_none(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let statistics = inbox.statistics().await?;
    let any = statistics
        .handlers
        .iter()
        .any(|h| State::ALL.into_iter().any(|s| h.count(s) > 0));
    same("counts in an empty inbox", &any, &false)?;
    same("lag of an empty inbox", &statistics.lag(), &None)
}

pub(crate) async fn counts_are_by_handler_and_state(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for handler in ["b", "a", "C"] {
        for (n, state) in State::ALL.into_iter().rev().enumerate() {
            inbox
                .accept_in(&message_for(handler, &format!("{n}"))?, state)
                .await?;
        }
    }
    let statistics = inbox.statistics().await?;
    let names: Vec<&str> = statistics
        .handlers
        .iter()
        .map(|h| h.handler.as_str())
        .collect();
    same("handlers, in order of name", &names, &vec!["C", "a", "b"])?;
    for handler in &statistics.handlers {
        let counts = State::ALL.map(|state| handler.count(state));
        same(&format!("counts of {}", handler.handler), &counts, &[1; 5])?;
    }
    Ok(())
}

/// Counts that are kept rather than counted must follow every change.
pub(crate) async fn counts_follow_every_change(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let agree = async |step: &str| -> CaseResult {
        let statistics = inbox.statistics().await?;
        for state in State::ALL {
            let filter = Filter {
                states: vec![state],
                ..Filter::default()
            };
            let what = format!("{state} in the statistics and by counting, {step}");
            same(
                &what,
                &statistics.count(state),
                &inbox.count(&filter).await?,
            )?;
        }
        Ok(())
    };
    let all = numbered(8)?;
    inbox.accept_all(&all).await?;
    agree("after a receive").await?;
    let _ = inbox.receive(&all).await?;
    agree("after duplicates").await?;
    let leased = inbox.claim_up_to(6, LONG).await?;
    same("claimed", &leased.len(), &6)?;
    agree("after a claim").await?;
    let outcomes = [
        processed(),
        dead("x"),
        retry(LONG),
        inbox_api::Outcome::Release,
        processed(),
        defer(LONG),
    ];
    for (leased, outcome) in leased.iter().zip(outcomes) {
        inbox.finish(leased, outcome.clone()).await?;
        inbox.finish(leased, outcome).await?;
        agree("after a settlement and its repetition").await?;
    }
    // In which order those of a batch are claimed is the store's affair.
    let is_left = |sent: &&Message| leased.iter().all(|leased| leased.lease.key != *sent.key());
    let left = all.iter().find(is_left).map(Message::key);
    let _ = inbox.replay(&leased[0].lease.key, &Edit::default()).await?;
    for key in [Some(&leased[1].lease.key), left].into_iter().flatten() {
        let _ = inbox.discard(key).await?;
    }
    agree("after interventions").await?;
    for state in [State::Processed, State::Dead, State::Discarded] {
        let expired = inbox_api::PurgeRequest::new(state, Duration::ZERO, 10)?;
        let _ = inbox.purge(&expired).await?;
    }
    agree("after purges").await?;
    same("messages left", &inbox.count(&Filter::default()).await?, &5)
}

pub(crate) async fn lag_and_age_grow_with_waiting(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    inbox
        .accept(&message("1")?.with_due(Due::After(LONG)))
        .await?;
    let waiting = of(&inbox, HANDLER).await?;
    same(
        "lag and age while nothing is due",
        &(waiting.lag, waiting.oldest_due_age),
        &(None, None),
    )?;
    inbox.pass(LONG * 3).await?;
    inbox.accept(&message("2")?).await?;
    let behind = of(&inbox, HANDLER).await?;
    about_as_long("lag", behind.lag, LONG * 2)?;
    about_as_long(
        "age of the oldest due message",
        behind.oldest_due_age,
        LONG * 3,
    )?;
    about_as_long(
        "lag of the inbox",
        inbox.statistics().await?.lag(),
        LONG * 2,
    )
}

pub(crate) async fn a_leased_message_is_no_lag(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.need_clock()?;
    inbox.accept(&message("1")?).await?;
    inbox.claim_single(LONG).await?;
    inbox.pass(LONG / 2).await?;
    same("lag while leased", &of(&inbox, HANDLER).await?.lag, &None)?;
    inbox.pass(LONG).await?;
    let expired = of(&inbox, HANDLER).await?;
    about_as_long("lag since the lease ran out", expired.lag, LONG / 2)?;
    about_as_long(
        "age since it was accepted",
        expired.oldest_due_age,
        LONG + LONG / 2,
    )
}

/// Defect: what waits for an outage downstream looks like a worker that is too slow.
pub(crate) async fn a_deferred_message_is_no_lag(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, defer(inbox.brief())).await?;
    let deferred = of(&inbox, HANDLER).await?;
    same(
        "pending and leased after a deferral",
        &(deferred.pending, deferred.leased),
        &(1, 0),
    )?;
    same(
        "lag and age before the end of a deferral",
        &(deferred.lag, deferred.oldest_due_age),
        &(None, None),
    )?;
    inbox.need_clock()?;
    inbox.pass(LONG * 3).await?;
    let due = of(&inbox, HANDLER).await?;
    about_as_long("lag after it", due.lag, LONG * 2)
}

pub(crate) async fn a_blocked_message_is_no_lag(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.need_clock()?;
    inbox.accept(&ordered("1", "k")?).await?;
    inbox.accept(&ordered("2", "k")?).await?;
    inbox.claim_single(LONG * 10).await?;
    inbox.pass(LONG).await?;
    let blocked = of(&inbox, HANDLER).await?;
    same(
        "pending and lag behind a leased message",
        &(blocked.pending, blocked.lag),
        &(1, None),
    )
}

pub(crate) async fn what_is_due_is_counted(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let due = async |expected: u64, when: &str| -> CaseResult {
        let shown = of(&inbox, HANDLER).await?;
        same(&format!("due {when}"), &shown.due, &expected)
    };
    inbox.accept_all(&numbered(4)?).await?;
    inbox
        .accept(&message("later")?.with_due(Due::After(LONG * 10)))
        .await?;
    due(4, "of four and one for later").await?;
    let leased = inbox.claim_up_to(3, LONG).await?;
    due(1, "while three are leased").await?;
    inbox.finish(&leased[0], processed()).await?;
    inbox.finish(&leased[1], retry(LONG * 10)).await?;
    due(1, "after an end and a retry").await?;
    let _ = inbox.pause(leased[0].message.handler()).await;
    due(1, "of a paused handler").await
}

pub(crate) async fn what_falls_due_is_counted(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let brief = inbox.brief();
    inbox.accept_all(&numbered(3)?).await?;
    inbox
        .accept(&message("later")?.with_due(Due::After(brief)))
        .await?;
    let leased = inbox.claim_up_to(3, brief * 100).await?;
    inbox.finish(&leased[0], retry(brief)).await?;
    inbox.finish(&leased[1], Outcome::Release).await?;
    inbox.claim_single(brief).await?;
    inbox.pass(brief).await?;
    let due = of(&inbox, HANDLER).await?.due;
    same(
        "scheduled, to be retried, and of a lost lease, due",
        &due,
        &3,
    )
}

pub(crate) async fn what_waits_for_its_key_is_not_due(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    for id in ["1", "2", "3"] {
        inbox.accept(&ordered(id, "k")?).await?;
    }
    inbox.accept(&ordered("4", "l")?).await?;
    let due = of(&inbox, HANDLER).await?.due;
    same("due, with two keys", &due, &2)?;
    let leased = inbox.claim_one().await?;
    let due = of(&inbox, HANDLER).await?.due;
    same("due while one of a key is leased", &due, &1)?;
    inbox.finish(&leased, dead_blocking("gave up")).await?;
    let due = of(&inbox, HANDLER).await?.due;
    same("due while one of a key blocks it", &due, &1)
}

/// Defect: statistics that cost more the further behind a handler is.
pub(crate) async fn due_is_counted_up_to_a_bound(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let most = HandlerStatistics::DUE_COUNTED;
    let messages = numbered(usize::try_from(most).unwrap_or(0) + 1)?;
    for some in messages.chunks(500) {
        inbox.accept_all(some).await?;
    }
    let shown = of(&inbox, HANDLER).await?;
    same(
        "pending and due",
        &(shown.pending, shown.due),
        &(most + 1, most),
    )?;
    let _ = inbox.discard(messages[0].key()).await?;
    let _ = inbox.discard(messages[1].key()).await?;
    let due = of(&inbox, HANDLER).await?.due;
    same("due below the bound", &due, &(most - 1))
}

/// Dead and blocking, each on a key of its own, with another message behind it.
async fn blocked(inbox: &TestInbox, ids: &[&str]) -> CaseResult {
    for id in ids {
        inbox.accept(&ordered(id, id)?).await?;
        let leased = inbox.claim_one().await?;
        inbox.finish(&leased, dead_blocking("gave up")).await?;
        inbox.accept(&ordered(&format!("behind {id}"), id)?).await?;
    }
    Ok(())
}

async fn blocking(inbox: &TestInbox, expected: u64, when: &str) -> CaseResult {
    same(
        &format!("dead messages that block, {when}"),
        &of(inbox, HANDLER).await?.blocking,
        &expected,
    )
}

pub(crate) async fn a_blocked_key_shows(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_in(&message("d")?, State::Dead).await?;
    inbox.accept(&message("u")?).await?;
    let unordered = inbox.claim_one().await?;
    inbox.finish(&unordered, dead_blocking("gave up")).await?;
    inbox.accept(&ordered("c", "c")?).await?;
    let passed = inbox.claim_one().await?;
    inbox.finish(&passed, dead("gave up")).await?;
    blocking(&inbox, 0, "while nothing is held up").await?;
    blocked(&inbox, &["1", "2"]).await?;
    inbox
        .accept_in(&message_for("other", "1")?, State::Dead)
        .await?;
    let shown = of(&inbox, HANDLER).await?;
    same(
        "dead, those of them that block, pending, lag",
        &(shown.dead, shown.blocking, shown.pending, shown.lag),
        &(5, 2, 2, None),
    )?;
    same(
        "of another handler",
        &of(&inbox, "other").await?.blocking,
        &0,
    )?;
    same("of all", &inbox.statistics().await?.blocking(), &2)
}

pub(crate) async fn a_blocked_key_shows_until_it_goes_on(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    let ids = ["1", "2", "3", "4", "5", "6"];
    blocked(&inbox, &ids).await?;
    blocking(&inbox, 6, "of six keys").await?;
    let key = |id: &str| -> CaseResult<_> { Ok(ordered(id, id)?.key().clone()) };
    let _ = inbox.replay(&key("1")?, &Edit::default()).await?;
    blocking(&inbox, 5, "after a replay").await?;
    let again = inbox.claim_one().await?;
    inbox.finish(&again, dead_blocking("gave up")).await?;
    inbox.finish(&again, dead_blocking("gave up")).await?;
    blocking(&inbox, 6, "after a second death, told twice").await?;
    let _ = inbox.discard(&key("1")?).await?;
    let _ = inbox.discard(&key("1")?).await?;
    blocking(&inbox, 5, "after a discard").await?;
    let _ = inbox.replay(&key("1")?, &Edit::default()).await?;
    blocking(&inbox, 5, "after a replay of what was discarded").await?;
    let one = |id: &str| -> CaseResult<_> {
        Ok(Filter {
            states: vec![State::Dead],
            ordering_key: Some(inbox_api::OrderingKey::new(id)?),
            ..Filter::default()
        })
    };
    let slice = inbox_api::Slice {
        after: None,
        limit: 10,
    };
    let _ = inbox.replay_slice(&one("2")?, &slice).await?;
    blocking(&inbox, 4, "after a replay of many").await?;
    let _ = inbox.discard_slice(&one("3")?, &slice).await?;
    blocking(&inbox, 3, "after a discard of many").await?;
    let expired = inbox_api::PurgeRequest::new(State::Dead, Duration::ZERO, 1)?;
    let _ = inbox.purge_archived(&expired, &[key("5")?]).await?;
    blocking(&inbox, 2, "after a purge of what was archived").await?;
    let _ = inbox.purge(&expired).await?;
    blocking(&inbox, 1, "after a purge").await?;
    let _ = inbox.purge(&expired).await?;
    blocking(&inbox, 0, "after a purge of the last").await
}

pub(crate) async fn a_finished_backlog_has_no_lag(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (n, state) in [State::Processed, State::Dead, State::Discarded]
        .into_iter()
        .enumerate()
    {
        inbox.accept_in(&message(&format!("{n}"))?, state).await?;
    }
    let done = of(&inbox, HANDLER).await?;
    same(
        "backlog, lag and age",
        &(done.backlog(), done.lag, done.oldest_due_age),
        &(0, None, None),
    )
}
