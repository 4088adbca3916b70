//! Statistics: counts, and how far behind a handler is.

use std::time::Duration;

use inbox_api::{Due, Filter, HandlerStatistics, State};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    place::{
        Context, HANDLER, LONG, Place, TOLERANCE, dead, message, message_for, numbered, ordered,
        processed, retry,
    },
};

async fn of(place: &Place, handler: &str) -> CaseResult<HandlerStatistics> {
    let statistics = place.statistics().await?;
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
    let place = cx.fresh().await?;
    let statistics = place.statistics().await?;
    let any = statistics
        .handlers
        .iter()
        .any(|h| State::ALL.into_iter().any(|s| h.count(s) > 0));
    same("counts in an empty inbox", &any, &false)?;
    same("lag of an empty inbox", &statistics.lag(), &None)
}

pub(crate) async fn counts_are_by_handler_and_state(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    for handler in ["b", "a", "C"] {
        for (n, state) in State::ALL.into_iter().rev().enumerate() {
            place
                .accept_in(&message_for(handler, &format!("{n}"))?, state)
                .await?;
        }
    }
    let statistics = place.statistics().await?;
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
    let place = cx.fresh().await?;
    let agree = async |step: &str| -> CaseResult {
        let statistics = place.statistics().await?;
        for state in State::ALL {
            let filter = Filter {
                states: vec![state],
                ..Filter::default()
            };
            let what = format!("{state} in the statistics and by counting, {step}");
            same(
                &what,
                &statistics.count(state),
                &place.count(&filter).await?,
            )?;
        }
        Ok(())
    };
    let all = numbered(8)?;
    place.accept_all(&all).await?;
    agree("after a receive").await?;
    let _ = place.receive(&all).await?;
    agree("after duplicates").await?;
    let leased = place.claim_up_to(6, LONG).await?;
    agree("after a claim").await?;
    let outcomes = [
        processed(),
        dead("x"),
        retry(LONG),
        inbox_api::Outcome::Release,
        processed(),
    ];
    for (leased, outcome) in leased.iter().zip(outcomes) {
        place.finish(leased, outcome.clone()).await?;
        place.finish(leased, outcome).await?;
        agree("after a settlement and its repetition").await?;
    }
    let _ = place.replay(all[0].key(), None).await?;
    let _ = place.discard(all[1].key()).await?;
    let _ = place.discard(all[7].key()).await?;
    agree("after interventions").await?;
    for state in [State::Processed, State::Dead, State::Discarded] {
        let expired = inbox_api::Expired::new(state, Duration::ZERO, 10)?;
        let _ = place.purge(&expired).await?;
    }
    agree("after purges").await?;
    same("messages left", &place.count(&Filter::default()).await?, &5)
}

pub(crate) async fn lag_and_age_grow_with_waiting(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    place
        .accept(&message("1")?.with_due(Due::After(LONG)))
        .await?;
    let waiting = of(&place, HANDLER).await?;
    same(
        "lag and age while nothing is due",
        &(waiting.lag, waiting.oldest_due_age),
        &(None, None),
    )?;
    place.pass(LONG * 3).await?;
    place.accept(&message("2")?).await?;
    let behind = of(&place, HANDLER).await?;
    about("lag", behind.lag, LONG * 2)?;
    about(
        "age of the oldest due message",
        behind.oldest_due_age,
        LONG * 3,
    )?;
    about(
        "lag of the inbox",
        place.statistics().await?.lag(),
        LONG * 2,
    )
}

fn about(what: &str, seen: Option<Duration>, expected: Duration) -> CaseResult {
    ensure!(
        seen.is_some_and(|seen| seen.abs_diff(expected) <= TOLERANCE),
        "{what}: expected about {expected:?}, saw {seen:?}"
    );
    Ok(())
}

pub(crate) async fn a_leased_message_is_no_lag(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.need_clock()?;
    place.accept(&message("1")?).await?;
    place.claim_single(LONG).await?;
    place.pass(LONG / 2).await?;
    same("lag while leased", &of(&place, HANDLER).await?.lag, &None)?;
    place.pass(LONG).await?;
    let expired = of(&place, HANDLER).await?;
    about("lag since the lease ran out", expired.lag, LONG / 2)?;
    about(
        "age since it was accepted",
        expired.oldest_due_age,
        LONG + LONG / 2,
    )
}

pub(crate) async fn a_blocked_message_is_no_lag(cx: Context) -> CaseResult {
    let place = cx.fresh_ordered().await?;
    place.need_clock()?;
    place.accept(&ordered("1", "k")?).await?;
    place.accept(&ordered("2", "k")?).await?;
    place.claim_single(LONG * 10).await?;
    place.pass(LONG).await?;
    let blocked = of(&place, HANDLER).await?;
    same(
        "pending and lag behind a leased message",
        &(blocked.pending, blocked.lag),
        &(1, None),
    )
}

pub(crate) async fn a_finished_backlog_has_no_lag(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    for (n, state) in [State::Processed, State::Dead, State::Discarded]
        .into_iter()
        .enumerate()
    {
        place.accept_in(&message(&format!("{n}"))?, state).await?;
    }
    let done = of(&place, HANDLER).await?;
    same(
        "backlog, lag and age",
        &(done.backlog(), done.lag, done.oldest_due_age),
        &(0, None, None),
    )
}
