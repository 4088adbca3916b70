//! Long times and large numbers.

use std::time::Duration;

use inbox_api::{
    Begun, Bytes, Due, Edit, Filter, Outcome, Page, PurgeRequest, Receipt, Slice, State,
};

use crate::{
    check::{CaseResult, ensure, same},
    needs::{Restart, Settings},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead, ids, message, message_for, processed,
        retry, terms,
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

async fn settle(inbox: &TestInbox, standing: &str) -> CaseResult {
    let sent = message_for(standing, "1")?;
    if standing == "begun" {
        let begun = inbox.begin(&sent, &terms(LONG)?).await?;
        ensure!(matches!(begun, Begun::Run(_)), "begin: saw {begun:?}");
        return Ok(());
    }
    let due = match standing {
        "delayed" => Due::After(LONG_AGO + DAY),
        _ => Due::Now,
    };
    inbox.accept(&sent.clone().with_due(due)).await?;
    let outcome = match standing {
        "processed" => Outcome::Processed {
            result: Some(Bytes::from_static(b"result")),
        },
        "dead" | "replayed" => dead("gave up"),
        "retried" => retry(LONG_AGO + DAY),
        "discarded" => {
            let _ = inbox.discard(sent.key()).await?;
            return Ok(());
        }
        _ => Outcome::Release,
    };
    for leased in claim(&*inbox.store, standing, 1, LONG).await? {
        if standing != "leased" {
            inbox.finish(&leased, outcome.clone()).await?;
        }
    }
    if standing == "replayed" {
        let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    }
    Ok(())
}

async fn a_year_and_more(cx: &Context, settings: &Settings) -> CaseResult {
    let inbox = cx.fresh_with(settings).await?;
    inbox.need_clock()?;
    for standing in STANDINGS {
        settle(&inbox, standing).await?;
    }
    for half in 1..=2 {
        inbox.pass(LONG_AGO / 2).await?;
        let days = half * 200;
        for standing in STANDINGS {
            let sent = message_for(standing, "1")?;
            let when = format!("{days} days after it was {standing}");
            inbox.refuses_copy(&sent, &when).await?;
        }
        same(
            &format!("messages in all after {days} days"),
            &inbox.count(&Filter::default()).await?,
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
        inbox.has_state(&key, state).await?;
        let due = claim(&*inbox.store, standing, 5, LONG).await?;
        let waits = matches!(standing, "retried" | "delayed");
        same(
            &format!("claimable 400 days after it was {standing}"),
            &due.len(),
            &usize::from(state == State::Pending && !waits),
        )?;
    }
    let begun = inbox
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
                &inbox.purge(&expired).await?,
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
    let inbox = cx.fresh().await?;
    let crashes = inbox.need_clock().is_ok();
    inbox.accept(&message("fails")?).await?;
    if crashes {
        inbox.accept(&message("crashes")?).await?;
    }
    for n in 1..=MANY {
        let leased = inbox.claim_up_to(2, LONG).await?;
        same(
            &format!("claimed at attempt {n}"),
            &leased.len(),
            &(1 + usize::from(crashes)),
        )?;
        for leased in &leased {
            same("attempts as claimed", &leased.attempts.started, &n)?;
            if leased.message.id().as_str() == "fails" {
                inbox.finish(leased, retry(Duration::ZERO)).await?;
            }
        }
        if crashes {
            inbox.pass(LONG).await?;
        }
    }
    let failed = inbox.record(message("fails")?.key()).await?.attempts;
    same(
        "started and finished, of a message that failed each time",
        &(failed.started, failed.finished),
        &(MANY, MANY),
    )?;
    if crashes {
        let crashed = inbox.record(message("crashes")?.key()).await?.attempts;
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
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Discarded).await?;
    for _ in 0..MANY {
        let _ = inbox.replay(sent.key(), &Edit::default()).await?;
        let _ = inbox.discard(sent.key()).await?;
    }
    same("replays", &inbox.record(sent.key()).await?.replays, &MANY)
}

/// One more than a page holds.
const ROWS: u64 = Page::MAX as u64 + 1;

/// Defect: counts that stop at the length of a page, and pages that lose what is beyond it.
pub(crate) async fn a_row_more_than_a_page_holds_is_counted(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let numbers: Vec<u64> = (1..=ROWS).collect();
    for part in numbers.chunks(1000) {
        let batch = part
            .iter()
            .map(|n| message(&format!("{n:05}")))
            .collect::<CaseResult<Vec<_>>>()?;
        inbox.accept_all(&batch).await?;
    }
    let all = Filter::default();
    same("count", &inbox.count(&all).await?, &ROWS)?;
    let pending = inbox.statistics().await?.count(State::Pending);
    same("pending in the statistics", &pending, &ROWS)?;
    for newest_first in [false, true] {
        let page = Page {
            newest_first,
            ..Page::first(u32::MAX)
        };
        let first = inbox.list(&all, &page).await?;
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
        let rest = inbox.list(&all, &page).await?;
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
        let progress = inbox.discard_slice(&filter, &slice).await?;
        discarded += progress.changed;
        after = progress.next;
        if after.is_none() {
            break;
        }
    }
    same("discarded by slices of 5000", &discarded, &ROWS)?;
    let statistics = inbox.statistics().await?;
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
        let purged = inbox.purge(&most).await?;
        same(&format!("purged of {what}"), &purged, &expected)?;
    }
    same("left", &inbox.count(&all).await?, &0)
}

/// Each drawn by another process, and each greater than those before, whatever happens to the message
/// in between.
async fn tokens_grow(inbox: &mut TestInbox, restart: bool) -> CaseResult {
    let second = inbox.connections(2).await?.swap_remove(1);
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
            inbox.fixture.server().restart(Restart::Orderly).await?;
            inbox.store = inbox.fixture.inbox();
            let probe = message_for("probe", &format!("{n}"))?;
            let _ = super::outage::recovered(inbox, &probe).await?;
        }
        let (here, there) = if n % 2 == 0 || restart {
            (&inbox.store, &inbox.store)
        } else {
            (&second, &inbox.store)
        };
        match n {
            0 => inbox.accept(&sent).await?,
            1 => inbox.pass(inbox.brief()).await?,
            2 | 3 => {}
            _ => {
                same("purged", &there.purge(&everything).await?, &1)?;
                let receipts = here.receive(std::slice::from_ref(&sent)).await?;
                same("receipt after a purge", &receipts, &vec![Receipt::Accepted])?;
            }
        }
        let length = if n == 0 { inbox.brief() } else { LONG };
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
            1 => inbox.finish(&leased[0], Outcome::Release).await?,
            2 => {
                inbox.finish(&leased[0], dead("gave up")).await?;
                let _ = inbox.replay(sent.key(), &Edit::default()).await?;
            }
            _ => inbox.finish(&leased[0], processed()).await?,
        }
    }
    Ok(())
}

/// Defect: each process draws its own tokens.
pub(crate) async fn tokens_grow_across_processes(cx: Context) -> CaseResult {
    let mut inbox = cx.fresh().await?;
    drop(inbox.fixture.second_connection().await?);
    tokens_grow(&mut inbox, false).await
}

/// Defect: tokens start again with the store.
pub(crate) async fn tokens_grow_across_restarts(cx: Context) -> CaseResult {
    let mut inbox = cx.fresh_to_disrupt().await?;
    tokens_grow(&mut inbox, true).await
}
