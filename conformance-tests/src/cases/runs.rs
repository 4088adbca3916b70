//! Runs: several messages of one ordering key for one worker.

mod ran_out;

use std::{sync::Arc, time::Duration};

use inbox_api::{
    Attempts, Begun, ClaimRequest, Due, Edit, Extended, HandlerName, Inbox, Intervention, Leased,
    Message, Outcome, Settled, Settlement, State, Store,
};

use super::{concurrency::persist, transactions::transactional};
use crate::{
    check::{CaseResult, Unmet, same},
    needs::Need,
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, dead, dead_blocking, defer, ids, message, message_for,
        ordered, processed, retry, sequence, terms,
    },
};

pub(crate) use ran_out::*;

/// More than any of these cases has.
const MANY: u32 = 10;

async fn with_runs(cx: &Context) -> CaseResult<TestInbox> {
    let inbox = cx.fresh_ordered().await?;
    if inbox.capabilities().runs {
        Ok(inbox)
    } else {
        Err(Unmet::NotChecked(Need::Runs))
    }
}

fn request(limit: u32, run_limit: u32, length: Duration) -> CaseResult<ClaimRequest> {
    Ok(ClaimRequest {
        handlers: vec![HandlerName::new(HANDLER)?],
        limit,
        run_limit,
        terms: terms(length)?,
    })
}

async fn claim_runs(
    inbox: &dyn Inbox,
    limit: u32,
    run_limit: u32,
    length: Duration,
) -> CaseResult<Vec<Leased>> {
    let claims = Store::claim(inbox, &request(limit, run_limit, length)?).await?;
    same("rows claimed as corrupt", &claims.corrupt, &Vec::new())?;
    Ok(claims.leased)
}

/// Claims runs of any length, which have to be of these messages.
async fn expect(inbox: &TestInbox, expected: &[&str]) -> CaseResult<Vec<Leased>> {
    let leased = claim_runs(&*inbox.store, MANY, MANY, LONG).await?;
    same("claimed in runs", &ids(&leased), &texts(expected))?;
    Ok(leased)
}

fn texts(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).into()).collect()
}

/// Settles in one call.
async fn settle(inbox: &TestInbox, ends: &[(&Leased, Outcome)]) -> CaseResult {
    let settlements: Vec<_> = ends
        .iter()
        .map(|(leased, outcome)| Settlement {
            lease: leased.lease.clone(),
            outcome: outcome.clone(),
        })
        .collect();
    same(
        "settlements of a run",
        &Store::settle(&*inbox.store, &settlements).await?,
        &vec![Settled::Done; ends.len()],
    )
}

async fn process_all(inbox: &TestInbox, leased: &[Leased]) -> CaseResult {
    let ends: Vec<_> = leased.iter().map(|leased| (leased, processed())).collect();
    settle(inbox, &ends).await
}

fn attempts(started: u32, finished: u32) -> Attempts {
    Attempts { started, finished }
}

/// Fails unless the message of this id has had these attempts.
async fn has_attempts(inbox: &TestInbox, id: &str, expected: Attempts) -> CaseResult {
    let record = inbox.record(message(id)?.key()).await?;
    same(&format!("attempts of {id}"), &record.attempts, &expected)
}

/// All of the key are pending and due, and none is leased.
async fn accepted(cx: &Context, n: usize) -> CaseResult<TestInbox> {
    let inbox = with_runs(cx).await?;
    inbox.accept_all(&sequence(n, "k")?).await?;
    Ok(inbox)
}

pub(crate) async fn who_does_not_ask_gets_one_at_a_time(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(3, "k")?).await?;
    for run_limit in [0, 1] {
        let leased = claim_runs(&*inbox.store, MANY, run_limit, LONG).await?;
        same("claimed", &ids(&leased), &texts(&["1"]))?;
        inbox.finish(&leased[0], Outcome::Release).await?;
    }
    Ok(())
}

/// Also by stores without runs: they answer runs of one.
pub(crate) async fn who_asks_gets_the_order(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept_all(&sequence(7, "k")?).await?;
    let mut order = Vec::new();
    loop {
        let leased = claim_runs(&*inbox.store, MANY, 3, LONG).await?;
        if leased.is_empty() {
            break;
        }
        let most = if inbox.capabilities().runs { 3 } else { 1 };
        let expected = most.min(7 - order.len());
        same("length of the run", &leased.len(), &expected)?;
        order.extend(ids(&leased));
        process_all(&inbox, &leased).await?;
    }
    same(
        "order",
        &order,
        &texts(&["1", "2", "3", "4", "5", "6", "7"]),
    )
}

pub(crate) async fn runs_stand_together(cx: Context) -> CaseResult {
    let inbox = with_runs(&cx).await?;
    for (id, key) in [("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b")] {
        inbox.accept(&ordered(id, key)?).await?;
        inbox.accept(&message(&format!("{id}-free"))?).await?;
    }
    expect(
        &inbox,
        &[
            "a1", "a2", "a1-free", "b1", "b2", "b1-free", "a2-free", "b2-free",
        ],
    )
    .await?;
    Ok(())
}

pub(crate) async fn a_run_keeps_to_both_limits(cx: Context) -> CaseResult {
    let inbox = with_runs(&cx).await?;
    for key in ["a", "b"] {
        for n in 1..=3 {
            inbox.accept(&ordered(&format!("{key}{n}"), key)?).await?;
        }
    }
    let leased = claim_runs(&*inbox.store, 3, 2, LONG).await?;
    same("claimed", &ids(&leased), &texts(&["a1", "a2", "b1"]))?;
    process_all(&inbox, &leased).await?;
    expect(&inbox, &["a3", "b2", "b3"]).await?;
    Ok(())
}

pub(crate) async fn handlers_have_runs_of_their_own(cx: Context) -> CaseResult {
    let inbox = with_runs(&cx).await?;
    let of = |handler: &str, id: &str| -> CaseResult<Message> {
        let key = inbox_api::OrderingKey::new("k")?;
        Ok(message_for(handler, id)?.with_ordering_key(key))
    };
    for (handler, id) in [
        (HANDLER, "1"),
        ("other", "2"),
        (HANDLER, "3"),
        ("other", "4"),
    ] {
        inbox.accept(&of(handler, id)?).await?;
    }
    let mut both = request(MANY, MANY, LONG)?;
    both.handlers.push(HandlerName::new("other")?);
    let claims = Store::claim(&*inbox.store, &both).await?;
    same(
        "claimed",
        &ids(&claims.leased),
        &texts(&["1", "3", "2", "4"]),
    )
}

pub(crate) async fn what_is_not_due_ends_a_run(cx: Context) -> CaseResult {
    let inbox = with_runs(&cx).await?;
    for n in 1..=4 {
        let due = match n {
            3 => Due::After(inbox.brief()),
            _ => Due::Now,
        };
        inbox
            .accept(&ordered(&format!("{n}"), "k")?.with_due(due))
            .await?;
    }
    let leased = expect(&inbox, &["1", "2"]).await?;
    process_all(&inbox, &leased).await?;
    inbox
        .nothing_due("the first of its ordering key is not due")
        .await?;
    inbox.pass(inbox.brief()).await?;
    expect(&inbox, &["3", "4"]).await?;
    Ok(())
}

pub(crate) async fn what_blocks_ends_a_run(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let leased = expect(&inbox, &["1", "2", "3"]).await?;
    settle(
        &inbox,
        &[
            (&leased[0], processed()),
            (&leased[1], dead_blocking("poison")),
            (&leased[2], Outcome::Release),
        ],
    )
    .await?;
    inbox.nothing_due("the ordering key is blocked").await?;
    let _ = inbox.replay(message("1")?.key(), &Edit::default()).await?;
    expect(&inbox, &["1"]).await?;
    Ok(())
}

pub(crate) async fn final_messages_are_no_part_of_a_run(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 4).await?;
    same(
        "discard",
        &inbox.discard(message("2")?.key()).await?,
        &Intervention::Done,
    )?;
    expect(&inbox, &["1", "3", "4"]).await?;
    Ok(())
}

pub(crate) async fn each_of_a_run_tells_its_replays(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 4).await?;
    let leased = expect(&inbox, &["1", "2", "3", "4"]).await?;
    let outcomes = [
        processed(),
        dead("enough"),
        dead("enough"),
        Outcome::Release,
    ];
    let ends: Vec<_> = leased.iter().zip(outcomes).collect();
    settle(&inbox, &ends).await?;
    for id in ["2", "3"] {
        same(
            "replay",
            &inbox.replay(message(id)?.key(), &Edit::default()).await?,
            &Intervention::Done,
        )?;
    }
    let leased = expect(&inbox, &["2", "3", "4"]).await?;
    let replays: Vec<u32> = leased.iter().map(|leased| leased.replays).collect();
    same("replays of a run", &replays, &vec![1, 1, 0])
}

/// Defect: the next of the key is handed out when the first of the run is settled.
pub(crate) async fn a_key_is_held_until_its_run_is_over(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 4).await?;
    let leased = claim_runs(&*inbox.store, MANY, 2, LONG).await?;
    same("claimed", &ids(&leased), &texts(&["1", "2"]))?;
    let other = inbox.connections(2).await?;
    for one in &leased {
        let taken = claim_runs(&*other[1], MANY, MANY, LONG).await?;
        same("claimed by another worker", &ids(&taken), &Vec::new())?;
        inbox.finish(one, processed()).await?;
    }
    expect(&inbox, &["3", "4"]).await?;
    Ok(())
}

pub(crate) async fn a_run_is_settled_in_one_call_or_several(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 5).await?;
    let leased = expect(&inbox, &["1", "2", "3", "4", "5"]).await?;
    inbox.finish(&leased[0], processed()).await?;
    process_all(&inbox, &leased[1..3]).await?;
    inbox.finish(&leased[3], dead("gave up")).await?;
    inbox.finish(&leased[4], processed()).await?;
    for one in &leased {
        let expected = if one.message.id().as_str() == "4" {
            State::Dead
        } else {
            State::Processed
        };
        inbox.has_state(one.message.key(), expected).await?;
        has_attempts(&inbox, one.message.id().as_str(), attempts(1, 1)).await?;
    }
    // Again.
    process_all(&inbox, &leased).await?;
    inbox.nothing_due("everything is settled").await
}

/// Defect: a crash counts against messages that nobody had begun with.
pub(crate) async fn an_attempt_counts_when_its_turn_comes(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let leased = expect(&inbox, &["1", "2", "3"]).await?;
    for one in &leased {
        same("attempts of a claimed one", &one.attempts, &attempts(1, 0))?;
    }
    has_attempts(&inbox, "1", attempts(1, 0)).await?;
    has_attempts(&inbox, "2", attempts(0, 0)).await?;
    inbox.finish(&leased[0], processed()).await?;
    has_attempts(&inbox, "1", attempts(1, 1)).await?;
    has_attempts(&inbox, "2", attempts(1, 0)).await?;
    has_attempts(&inbox, "3", attempts(0, 0)).await
}

/// Defect: the rest of a run is stuck, or comes before the one that is tried again.
pub(crate) async fn a_retry_hands_the_rest_back(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 4).await?;
    let leased = expect(&inbox, &["1", "2", "3", "4"]).await?;
    settle(
        &inbox,
        &[
            (&leased[0], processed()),
            (&leased[1], retry(inbox.brief())),
            (&leased[2], Outcome::Release),
            (&leased[3], Outcome::Release),
        ],
    )
    .await?;
    has_attempts(&inbox, "2", attempts(1, 1)).await?;
    has_attempts(&inbox, "3", attempts(0, 0)).await?;
    has_attempts(&inbox, "4", attempts(0, 0)).await?;
    inbox
        .nothing_due("the first of its ordering key waits for a retry")
        .await?;
    inbox.pass(inbox.brief()).await?;
    let leased = expect(&inbox, &["2", "3", "4"]).await?;
    same("attempts of 2", &leased[0].attempts, &attempts(2, 1))?;
    same("attempts of 3", &leased[1].attempts, &attempts(1, 0))
}

pub(crate) async fn a_deferral_hands_the_rest_back(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 2).await?;
    let leased = expect(&inbox, &["1", "2"]).await?;
    settle(
        &inbox,
        &[
            (&leased[0], defer(inbox.brief())),
            (&leased[1], Outcome::Release),
        ],
    )
    .await?;
    inbox
        .nothing_due("the first of its ordering key is deferred")
        .await?;
    inbox.pass(inbox.brief()).await?;
    let leased = expect(&inbox, &["1", "2"]).await?;
    same("attempts of 1", &leased[0].attempts, &attempts(1, 0))
}

pub(crate) async fn a_run_that_is_handed_back_is_untouched(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    for _ in 0..2 {
        let leased = expect(&inbox, &["1", "2", "3"]).await?;
        let ends: Vec<_> = leased.iter().map(|one| (one, Outcome::Release)).collect();
        settle(&inbox, &ends).await?;
        for id in ["1", "2", "3"] {
            has_attempts(&inbox, id, attempts(0, 0)).await?;
        }
    }
    Ok(())
}

/// The last first, as nobody should.
pub(crate) async fn a_run_that_is_handed_back_in_any_order_comes_again(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let leased = expect(&inbox, &["1", "2", "3"]).await?;
    for one in leased.iter().rev() {
        inbox.finish(one, Outcome::Release).await?;
    }
    let leased = expect(&inbox, &["1", "2", "3"]).await?;
    inbox.finish(&leased[2], processed()).await?;
    has_attempts(&inbox, "3", attempts(1, 1)).await?;
    process_all(&inbox, &leased[..2]).await?;
    inbox.nothing_due("everything is settled").await
}

pub(crate) async fn a_run_is_extended(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let leased = claim_runs(&*inbox.store, MANY, 2, inbox.brief()).await?;
    let leases: Vec<_> = leased.iter().map(|one| one.lease.clone()).collect();
    let extended = Store::extend(&*inbox.store, &leases, LONG * 2).await?;
    for one in &extended {
        same(
            "whether a lease is extended",
            &matches!(one, Extended::Until(_)),
            &true,
        )?;
    }
    same("where the leases of a run end", &extended[0], &extended[1])?;
    inbox.pass(inbox.brief()).await?;
    inbox.nothing_due("the run was extended").await?;
    inbox.finish(&leased[0], processed()).await?;
    inbox.nothing_due("the rest was extended").await?;
    inbox.finish(&leased[1], processed()).await?;
    expect(&inbox, &["3"]).await?;
    Ok(())
}

/// Defect: an inline consumer runs what a worker holds.
pub(crate) async fn begin_respects_a_run(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let leased = claim_runs(&*inbox.store, MANY, MANY, inbox.brief()).await?;
    let until = leased[1].lease.until;
    same("end of the second lease", &until, &leased[0].lease.until)?;
    for id in ["1", "2", "3"] {
        same(
            "begin of one that is leased",
            &inbox.begin(&ordered(id, "k")?, &terms(LONG)?).await?,
            &Begun::Busy { until },
        )?;
    }
    inbox.pass(inbox.brief()).await?;
    for id in ["2", "3"] {
        same(
            "begin of one behind others, all of whose leases have run out",
            &inbox.begin(&ordered(id, "k")?, &terms(LONG)?).await?,
            &Begun::Blocked,
        )?;
    }
    let begun = inbox.begin(&ordered("1", "k")?, &terms(LONG)?).await?;
    let Begun::Run(first) = begun else {
        return Err(Unmet::Failed(format!(
            "begin of the first one, whose lease has run out: expected Run, saw {begun:?}"
        )));
    };
    inbox.finish(&first, processed()).await?;
    expect(&inbox, &["2"]).await?;
    Ok(())
}

pub(crate) async fn operators_leave_a_run_alone(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let leased = expect(&inbox, &["1", "2", "3"]).await?;
    let leased_state = Intervention::WrongState(State::Leased);
    for one in &leased {
        let key = one.message.key();
        inbox.has_state(key, State::Leased).await?;
        same("discard", &inbox.discard(key).await?, &leased_state)?;
        same(
            "replay",
            &inbox.replay(key, &Edit::default()).await?,
            &leased_state,
        )?;
        same(
            "reschedule",
            &inbox.reschedule(key, Due::After(LONG)).await?,
            &leased_state,
        )?;
    }
    process_all(&inbox, &leased).await
}

pub(crate) async fn a_replay_waits_for_the_run_behind_it(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 4).await?;
    let leased = claim_runs(&*inbox.store, MANY, 3, LONG).await?;
    inbox.finish(&leased[0], processed()).await?;
    let _ = inbox.replay(message("1")?.key(), &Edit::default()).await?;
    for one in &leased[1..] {
        inbox.nothing_due("a run is under way").await?;
        inbox.finish(one, processed()).await?;
    }
    expect(&inbox, &["1", "4"]).await?;
    Ok(())
}

pub(crate) async fn a_run_is_counted_as_leased(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 5).await?;
    let counts = async |what: &str, pending: u64, leased: u64| -> CaseResult {
        let statistics = inbox.statistics().await?;
        let seen = statistics.handlers.first();
        same(
            &format!("pending and leased {what}"),
            &seen.map(|handler| (handler.pending, handler.leased)),
            &Some((pending, leased)),
        )
    };
    let leased = claim_runs(&*inbox.store, MANY, 3, inbox.brief()).await?;
    counts("under a run", 2, 3).await?;
    inbox.finish(&leased[0], processed()).await?;
    counts("after the first", 2, 2).await?;
    inbox.pass(inbox.brief()).await?;
    counts("after the run has run out", 4, 0).await
}

/// Runs and workers that die, retry and take one at a time, all in turns.
pub(crate) async fn order_holds_among_many_workers_with_runs(cx: Context) -> CaseResult {
    let inbox = with_runs(&cx).await?;
    let mut batch = Vec::new();
    for n in 0..40 {
        for key in ["a", "b", "c"] {
            batch.push(ordered(&format!("{key}{n:02}"), key)?);
        }
    }
    inbox.accept_all(&batch).await?;
    let finished = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (number, connection) in (0_u32..).zip(inbox.connections(4).await?) {
        let finished = Arc::clone(&finished);
        tasks.push(tokio::spawn(async move {
            let mut idle = 0;
            while idle < 20 {
                let request = request(7, [1, 3, 5, 9][number as usize % 4], LONG)?;
                let claims = persist(|| Store::claim(&*connection, &request)).await?;
                idle = if claims.leased.is_empty() {
                    idle + 1
                } else {
                    0
                };
                work_in_order(&*connection, claims.leased, &finished).await?;
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
            .filter(|id: &&String| id.starts_with(key))
            .cloned()
            .collect();
        let expected: Vec<_> = (0..40).map(|n| format!("{key}{n:02}")).collect();
        same(&format!("order of ordering key {key}"), &seen, &expected)?;
    }
    Ok(())
}

/// Processes what is claimed as a worker has to: behind one that is tried again, its key is handed back.
async fn work_in_order(
    connection: &dyn Inbox,
    leased: Vec<Leased>,
    finished: &std::sync::Mutex<Vec<String>>,
) -> CaseResult {
    let mut cut = Vec::new();
    let mut settlements = Vec::new();
    for one in leased {
        let id = one.message.id().to_string();
        let key = one.message.ordering_key().cloned();
        let outcome = if cut.contains(&key) {
            Outcome::Release
        } else if one.attempts.started == 1 && id.ends_with('7') {
            cut.push(key);
            retry(Duration::ZERO)
        } else {
            // Before settling: afterwards another worker may already be on the next.
            if let Ok(mut order) = finished.lock() {
                order.push(id);
            }
            processed()
        };
        settlements.push(Settlement {
            lease: one.lease,
            outcome,
        });
    }
    let settled = persist(|| connection.settle(&settlements)).await?;
    same(
        "settling held leases",
        &settled,
        &vec![Settled::Done; settlements.len()],
    )
}

pub(crate) async fn a_run_is_settled_in_a_transaction(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    if !inbox.capabilities().runs {
        return Err(Unmet::NotChecked(Need::Runs));
    }
    inbox.accept_all(&sequence(4, "k")?).await?;
    let leased = claim_runs(&*inbox.store, MANY, 3, LONG).await?;
    let processed: Vec<_> = leased
        .iter()
        .map(|one| Settlement {
            lease: one.lease.clone(),
            outcome: processed(),
        })
        .collect();
    let rolled_back = &processed[..2];
    let mut transaction = transactions.open().await?;
    same(
        "settlements in a transaction",
        &transaction.settle(rolled_back).await?,
        &vec![Settled::Done; 2],
    )?;
    transaction.roll_back().await?;
    inbox.nothing_due("the run is still under way").await?;
    has_attempts(&inbox, "2", attempts(0, 0)).await?;
    let mut transaction = transactions.open().await?;
    same(
        "settlements in a transaction",
        &transaction.settle(&processed).await?,
        &vec![Settled::Done; 3],
    )?;
    transaction.commit().await?;
    for id in ["1", "2", "3"] {
        inbox
            .has_state(message(id)?.key(), State::Processed)
            .await?;
        has_attempts(&inbox, id, attempts(1, 1)).await?;
    }
    expect(&inbox, &["4"]).await?;
    Ok(())
}
