//! Long times and large numbers.

use std::time::Duration;

use inbox_api::{Begun, Bytes, Due, Filter, Outcome, Page, PurgeRequest, Receipt, Slice, State};

use crate::{
    check::{CaseResult, ensure, same},
    harness::{Restart, Settings},
    place::{
        Context, HANDLER, LONG, Place, claim, dead, ids, message, message_for, processed, retry,
        terms,
    },
};

const DAY: Duration = Duration::from_secs(86_400);
/// More than a year, and than any table for a month or a quarter.
const LONG_AGO: Duration = Duration::from_secs(400 * 86_400);

/// Messages in every state that there is, each of a handler of its own.
const STANDINGS: [&str; 9] = [
    "pending",
    "leased",
    "processed",
    "dead",
    "discarded",
    "retried",
    "delayed",
    "replayed",
    "begun",
];

async fn settle(place: &Place, standing: &str) -> CaseResult {
    let sent = message_for(standing, "1")?;
    if standing == "begun" {
        let begun = place.begin(&sent, &terms(LONG)?).await?;
        ensure!(matches!(begun, Begun::Run(_)), "begin: saw {begun:?}");
        return Ok(());
    }
    let due = match standing {
        "delayed" => Due::After(LONG_AGO + DAY),
        _ => Due::Now,
    };
    place.accept(&sent.clone().with_due(due)).await?;
    let outcome = match standing {
        "processed" => Outcome::Processed {
            result: Some(Bytes::from_static(b"result")),
        },
        "dead" | "replayed" => dead("gave up"),
        "retried" => retry(LONG_AGO + DAY),
        "discarded" => {
            let _ = place.discard(sent.key()).await?;
            return Ok(());
        }
        _ => Outcome::Release,
    };
    for leased in claim(&*place.inbox, standing, 1, LONG).await? {
        if standing != "leased" {
            place.finish(&leased, outcome.clone()).await?;
        }
    }
    if standing == "replayed" {
        let _ = place.replay(sent.key(), None).await?;
    }
    Ok(())
}

async fn a_year_and_more(cx: &Context, settings: &Settings) -> CaseResult {
    let place = cx.fresh_with(settings).await?;
    place.need_clock()?;
    for standing in STANDINGS {
        settle(&place, standing).await?;
    }
    for half in 1..=2 {
        place.pass(LONG_AGO / 2).await?;
        let days = half * 200;
        for standing in STANDINGS {
            let sent = message_for(standing, "1")?;
            let when = format!("{days} days after it was {standing}");
            place.refuses_copy(&sent, &when).await?;
        }
        same(
            &format!("messages in all after {days} days"),
            &place.count(&Filter::default()).await?,
            &(STANDINGS.len() as u64),
        )?;
    }
    for (standing, state) in STANDINGS.into_iter().zip([
        State::Pending,
        State::Pending,
        State::Processed,
        State::Dead,
        State::Discarded,
        State::Pending,
        State::Pending,
        State::Pending,
        State::Pending,
    ]) {
        let key = message_for(standing, "1")?.key().clone();
        place.has_state(&key, state).await?;
        let due = claim(&*place.inbox, standing, 5, LONG).await?;
        let waits = matches!(standing, "retried" | "delayed");
        same(
            &format!("claimable 400 days after it was {standing}"),
            &due.len(),
            &usize::from(state == State::Pending && !waits),
        )?;
    }
    let begun = place
        .begin(&message_for("processed", "1")?, &terms(LONG)?)
        .await?;
    let result = Some(Bytes::from_static(b"result"));
    same(
        "begin 400 days after it was processed",
        &begun,
        &Begun::Processed { result },
    )?;
    // What is not old enough stays, to the day.
    for state in [State::Processed, State::Dead, State::Discarded] {
        for (age, expected) in [(LONG_AGO + DAY, 0), (LONG_AGO - DAY, 1)] {
            let expired = PurgeRequest::new(state, age, 10)?;
            same(
                &format!(
                    "purged of what has been {state} for {} days",
                    age.as_secs() / 86_400
                ),
                &place.purge(&expired).await?,
                &expected,
            )?;
        }
    }
    Ok(())
}

/// Defect: protection that ends by itself: a partition that is dropped, a time to live.
pub(crate) async fn a_copy_after_400_days_is_a_duplicate(cx: Context) -> CaseResult {
    a_year_and_more(&cx, &Settings::default()).await
}

pub(crate) async fn a_copy_after_400_days_is_a_duplicate_without_its_payload(
    cx: Context,
) -> CaseResult {
    let settings = Settings {
        drop_processed_payloads: true,
        ..Settings::default()
    };
    a_year_and_more(&cx, &settings).await
}

/// One more than fits into a byte, and some.
const MANY: u32 = 300;

/// Defect: a counter of a byte, which wraps or stays at its end, or fails.
pub(crate) async fn three_hundred_attempts_are_counted(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let crashes = place.need_clock().is_ok();
    place.accept(&message("fails")?).await?;
    if crashes {
        place.accept(&message("crashes")?).await?;
    }
    for n in 1..=MANY {
        let leased = place.claim_up_to(2, LONG).await?;
        same(
            &format!("claimed at attempt {n}"),
            &leased.len(),
            &(1 + usize::from(crashes)),
        )?;
        for leased in &leased {
            same("attempts as claimed", &leased.attempts.started, &n)?;
            if leased.message.id().as_str() == "fails" {
                place.finish(leased, retry(Duration::ZERO)).await?;
            }
        }
        if crashes {
            place.pass(LONG).await?;
        }
    }
    let failed = place.record(message("fails")?.key()).await?.attempts;
    same(
        "started and finished, of a message that failed each time",
        &(failed.started, failed.finished),
        &(MANY, MANY),
    )?;
    if crashes {
        let crashed = place.record(message("crashes")?.key()).await?.attempts;
        same(
            "started and finished, of a message whose worker vanished each time",
            &(crashed.started, crashed.finished),
            &(MANY, 0),
        )?;
    }
    Ok(())
}

/// The same, of replays.
pub(crate) async fn three_hundred_replays_are_counted(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let sent = message("1")?;
    place.accept_in(&sent, State::Discarded).await?;
    for _ in 0..MANY {
        let _ = place.replay(sent.key(), None).await?;
        let _ = place.discard(sent.key()).await?;
    }
    same("replays", &place.record(sent.key()).await?.replays, &MANY)
}

/// One more than a page holds.
const ROWS: u64 = Page::MAX as u64 + 1;

/// Defect: counts that stop at the length of a page, and pages that lose what is beyond it.
pub(crate) async fn a_row_more_than_a_page_holds_is_counted(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let numbers: Vec<u64> = (1..=ROWS).collect();
    for part in numbers.chunks(1000) {
        let batch = part
            .iter()
            .map(|n| message(&format!("{n:05}")))
            .collect::<CaseResult<Vec<_>>>()?;
        place.accept_all(&batch).await?;
    }
    let all = Filter::default();
    same("count", &place.count(&all).await?, &ROWS)?;
    let pending = place.statistics().await?.count(State::Pending);
    same("pending in the statistics", &pending, &ROWS)?;
    for newest_first in [false, true] {
        let page = Page {
            newest_first,
            ..Page::first(u32::MAX)
        };
        let first = place.list(&all, &page).await?;
        same(
            "records of the longest page",
            &(first.records.len() as u64),
            &u64::from(Page::MAX),
        )?;
        ensure!(
            first.next.is_some(),
            "next of the longest page of {ROWS} rows: expected a place, saw none"
        );
        let page = Page {
            after: first.next,
            ..page
        };
        let rest = place.list(&all, &page).await?;
        let expected = if newest_first { 1 } else { ROWS };
        let listed: Vec<String> = rest.records.iter().map(|r| r.key.id.to_string()).collect();
        same(
            "the page behind the longest one",
            &(listed, rest.next),
            &(vec![format!("{expected:05}")], None),
        )?;
    }
    let filter = Filter {
        states: vec![State::Pending],
        ..Filter::default()
    };
    let (mut after, mut discarded) = (None, 0);
    for step in 0.. {
        ensure!(step < 100, "slices of 5000 over {ROWS} rows: saw no end");
        let slice = Slice { after, limit: 5000 };
        let progress = place.discard_slice(&filter, &slice).await?;
        discarded += progress.changed;
        after = progress.next;
        if after.is_none() {
            break;
        }
    }
    same("discarded by slices of 5000", &discarded, &ROWS)?;
    let statistics = place.statistics().await?;
    same(
        "pending and discarded in the statistics",
        &(
            statistics.count(State::Pending),
            statistics.count(State::Discarded),
        ),
        &(0, ROWS),
    )?;
    // More than a store deletes at a time, and less than there is.
    let most = PurgeRequest::new(State::Discarded, Duration::ZERO, Page::MAX)?;
    for (what, expected) in [
        ("the longest page and one more", ROWS - 1),
        ("what is left", 1),
    ] {
        let purged = place.purge(&most).await?;
        same(&format!("purged of {what}"), &purged, &expected)?;
    }
    same("left", &place.count(&all).await?, &0)
}

/// Each drawn by another process, and each greater than those before, whatever happens to the message
/// in between.
async fn tokens_grow(place: &mut Place, restart: bool) -> CaseResult {
    let second = place.connections(2).await?.swap_remove(1);
    let sent = message("1")?;
    let everything = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    let mut last = i64::MIN;
    for (n, step) in [
        "it was accepted",
        "its lease ran out",
        "it was released",
        "it was replayed",
        "it was purged and accepted again",
        "it was purged and accepted again, in another order",
    ]
    .into_iter()
    .enumerate()
    {
        if restart && matches!(n, 1 | 4) {
            place.fixture.restart(Restart::Orderly).await?;
            place.inbox = place.fixture.inbox();
            let probe = message_for("probe", &format!("{n}"))?;
            let _ = super::outage::recovered(place, &probe).await?;
        }
        let (here, there) = if n % 2 == 0 || restart {
            (&place.inbox, &place.inbox)
        } else {
            (&second, &place.inbox)
        };
        match n {
            0 => place.accept(&sent).await?,
            1 => place.pass(place.brief()).await?,
            2 | 3 => {}
            _ => {
                same("purged", &there.purge(&everything).await?, &1)?;
                let receipts = here.receive(std::slice::from_ref(&sent)).await?;
                same("receipt after a purge", &receipts, &vec![Receipt::Accepted])?;
            }
        }
        let length = if n == 0 { place.brief() } else { LONG };
        let leased = claim(&**here, HANDLER, 5, length).await?;
        same(
            &format!("claimed after {step}"),
            &ids(&leased),
            &vec!["1".into()],
        )?;
        let token = leased[0].lease.token.get();
        ensure!(
            token > last,
            "token after {step}: expected more than {last}, saw {token}"
        );
        last = token;
        match n {
            0 => {}
            1 => place.finish(&leased[0], Outcome::Release).await?,
            2 => {
                place.finish(&leased[0], dead("gave up")).await?;
                let _ = place.replay(sent.key(), None).await?;
            }
            _ => place.finish(&leased[0], processed()).await?,
        }
    }
    Ok(())
}

/// Defect: each process draws its own tokens.
pub(crate) async fn tokens_grow_across_processes(cx: Context) -> CaseResult {
    let mut place = cx.fresh().await?;
    drop(place.fixture.second_connection().await?);
    tokens_grow(&mut place, false).await
}

/// Defect: tokens start again with the store.
pub(crate) async fn tokens_grow_across_restarts(cx: Context) -> CaseResult {
    let mut place = cx.fresh_to_disrupt().await?;
    tokens_grow(&mut place, true).await
}
