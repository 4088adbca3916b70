//! Runs whose leases have run out.

use inbox_api::{
    Begun, Due, Edit, Extended, Filter, Intervention, Leased, Settled, Slice, State, Store,
    StoreExt,
};

use super::{MANY, accepted, attempts, claim_runs, expect, has_attempts, process_all, texts};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{Context, LONG, TestInbox, ids, message, ordered, processed, retry, terms},
};

/// Defect: a worker that died leaves messages that are never handed out.
pub(crate) async fn a_run_that_ran_out_comes_one_by_one(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let first = ran_out(&inbox).await?;
    for (id, expected) in [
        ("1", attempts(2, 0)),
        ("2", attempts(1, 0)),
        ("3", attempts(1, 0)),
    ] {
        let leased = expect(&inbox, &[id]).await?;
        same("attempts", &leased[0].attempts, &expected)?;
        inbox.finish(&leased[0], processed()).await?;
    }
    // The worker was only slow.
    for one in &first {
        same(
            "settling with a stale token",
            &inbox.settle_one(&one.lease, processed()).await?,
            &Settled::LeaseLost,
        )?;
    }
    Ok(())
}

/// Claims all in one run, and lets its leases run out.
async fn ran_out(inbox: &TestInbox) -> CaseResult<Vec<Leased>> {
    let leased = claim_runs(&*inbox.store, MANY, MANY, inbox.brief()).await?;
    same("claimed", &ids(&leased), &texts(&["1", "2", "3"]))?;
    inbox.pass(inbox.brief()).await?;
    Ok(leased)
}

/// Defect: the second message of a run that ran out keeps its turn when the first one is taken by another
/// worker, and comes before that one is tried again.
pub(crate) async fn a_claim_of_its_first_ends_a_run(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let before = ran_out(&inbox).await?;
    let first = inbox.claim_single(LONG).await?;
    same(
        "claimed",
        &ids(std::slice::from_ref(&first)),
        &texts(&["1"]),
    )?;
    inbox.finish(&first, retry(inbox.brief())).await?;
    is_over(&inbox, &before).await
}

/// As [`a_claim_of_its_first_ends_a_run`].
pub(crate) async fn a_beginning_of_its_first_ends_a_run(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let before = ran_out(&inbox).await?;
    let begun = inbox.begin(&ordered("1", "k")?, &terms(LONG)?).await?;
    let Begun::Run(first) = begun else {
        return Err(Unmet::Failed(format!(
            "begin of the first one, whose lease has run out: expected Run, saw {begun:?}"
        )));
    };
    inbox.finish(&first, retry(inbox.brief())).await?;
    is_over(&inbox, &before).await
}

/// As [`a_claim_of_its_first_ends_a_run`].
pub(crate) async fn another_due_time_of_its_first_ends_a_run(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let before = ran_out(&inbox).await?;
    same(
        "reschedule",
        &inbox
            .reschedule(message("1")?.key(), Due::After(inbox.brief()))
            .await?,
        &Intervention::Done,
    )?;
    is_over(&inbox, &before).await
}

/// Defect: the last of a run that ran out comes before the one in the middle that was put off.
pub(crate) async fn another_due_time_within_a_run_ends_it_from_there(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let before = ran_out(&inbox).await?;
    same(
        "reschedule",
        &inbox
            .reschedule(message("2")?.key(), Due::After(inbox.brief()))
            .await?,
        &Intervention::Done,
    )?;
    // The worker was only slow.
    inbox.finish(&before[0], processed()).await?;
    inbox
        .nothing_due("the first of its ordering key is not due")
        .await?;
    inbox.pass(inbox.brief()).await?;
    for id in ["2", "3"] {
        let leased = expect(&inbox, &[id]).await?;
        inbox.finish(&leased[0], processed()).await?;
    }
    Ok(())
}

/// As [`a_claim_of_its_first_ends_a_run`], all at once.
pub(crate) async fn another_due_time_of_all_ends_a_run(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let before = ran_out(&inbox).await?;
    let slice = Slice {
        after: None,
        limit: MANY,
    };
    let due = Due::After(inbox.brief());
    let progress = inbox
        .reschedule_slice(&Filter::default(), &slice, due)
        .await?;
    same("rescheduled", &progress.changed, &3)?;
    are_pending(&inbox, 3).await?;
    inbox.nothing_due("none of the key is due").await?;
    are_lost(&inbox, &before).await?;
    inbox.pass(inbox.brief()).await?;
    let leased = expect(&inbox, &["1"]).await?;
    inbox.finish(&leased[0], processed()).await?;
    let leased = expect(&inbox, &["2", "3"]).await?;
    process_all(&inbox, &leased).await
}

/// Defect: a claim takes leases of a run away whose first message it has no room for.
pub(crate) async fn a_claim_that_has_no_room_leaves_a_run_alone(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let before = claim_runs(&*inbox.store, MANY, MANY, inbox.brief()).await?;
    same("claimed", &ids(&before), &texts(&["1", "2", "3"]))?;
    // All of these are due before the leases end. The first claim has room for them and for no more, and
    // cannot know how long their runs are.
    for id in ["free1", "free2"] {
        inbox.accept(&message(id)?).await?;
    }
    for id in ["a1", "a2", "a3", "a4", "b1", "b2"] {
        inbox.accept(&ordered(id, &id[..1])?).await?;
    }
    inbox.pass(inbox.brief()).await?;
    let leased = claim_runs(&*inbox.store, 8, 4, LONG).await?;
    same(
        "claimed",
        &ids(&leased),
        &texts(&["free1", "free2", "a1", "a2", "a3", "a4", "b1", "b2"]),
    )?;
    process_all(&inbox, &before).await
}

/// Defect: what has lost its lease in a run keeps its turn all the same.
pub(crate) async fn a_replay_comes_before_what_is_left_of_a_run(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    ran_out(&inbox).await?;
    let first = inbox.claim_single(LONG).await?;
    inbox.finish(&first, processed()).await?;
    same(
        "replay",
        &inbox.replay(message("1")?.key(), &Edit::default()).await?,
        &Intervention::Done,
    )?;
    for id in ["1", "2", "3"] {
        let leased = expect(&inbox, &[id]).await?;
        inbox.finish(&leased[0], processed()).await?;
    }
    Ok(())
}

/// The first of three is put off by a brief time: the others wait for it, and who held them holds them no
/// longer.
async fn is_over(inbox: &TestInbox, before: &[Leased]) -> CaseResult {
    inbox
        .nothing_due("the first of its ordering key is not due")
        .await?;
    are_pending(inbox, 3).await?;
    are_lost(inbox, &before[1..]).await?;
    inbox.pass(inbox.brief()).await?;
    for id in ["1", "2", "3"] {
        let leased = expect(inbox, &[id]).await?;
        inbox.finish(&leased[0], processed()).await?;
    }
    inbox.nothing_due("everything is settled").await
}

async fn are_pending(inbox: &TestInbox, n: u64) -> CaseResult {
    let statistics = inbox.statistics().await?;
    let counted = statistics.handlers.first();
    same(
        "pending and leased",
        &counted.map(|handler| (handler.pending, handler.leased)),
        &Some((n, 0)),
    )
}

/// Who had these leases has them no longer, and the messages' attempts do not count but that of the first one.
async fn are_lost(inbox: &TestInbox, before: &[Leased]) -> CaseResult {
    for one in before {
        let id = one.message.id();
        let started = u32::from(id.as_str() == "1");
        has_attempts(inbox, id.as_str(), attempts(started, 0)).await?;
        same(
            &format!("extending the lease of {id}"),
            &Store::extend(&*inbox.store, std::slice::from_ref(&one.lease), LONG).await?,
            &vec![Extended::LeaseLost],
        )?;
        same(
            &format!("settling {id}"),
            &inbox.settle_one(&one.lease, processed()).await?,
            &Settled::LeaseLost,
        )?;
    }
    Ok(())
}

/// Defect: the lease of a later one is lost to its holder although nobody has claimed anything of the run.
pub(crate) async fn any_of_a_run_that_ran_out_can_be_revived(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let before = ran_out(&inbox).await?;
    for later in before[1..].iter().rev() {
        let extended = inbox.extend_one(&later.lease, LONG).await?;
        ensure!(
            matches!(extended, Extended::Until(_)),
            "the lease of {} that ran out: expected it revived, saw {extended:?}",
            later.message.id()
        );
    }
    // The first has run out all the same.
    let first = expect(&inbox, &["1"]).await?;
    inbox.finish(&first[0], retry(inbox.brief())).await?;
    is_over(&inbox, &before).await
}

pub(crate) async fn a_crash_counts_where_it_happened(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let first = claim_runs(&*inbox.store, MANY, MANY, inbox.brief()).await?;
    inbox.finish(&first[0], processed()).await?;
    inbox.pass(inbox.brief()).await?;
    has_attempts(&inbox, "2", attempts(1, 0)).await?;
    has_attempts(&inbox, "3", attempts(0, 0)).await?;
    let leased = expect(&inbox, &["2"]).await?;
    same("attempts of 2", &leased[0].attempts, &attempts(2, 0))?;
    inbox.finish(&leased[0], processed()).await?;
    let leased = expect(&inbox, &["3"]).await?;
    same("attempts of 3", &leased[0].attempts, &attempts(1, 0))
}

pub(crate) async fn what_has_crashed_is_alone(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let leased = expect(&inbox, &["1"]).await?;
    inbox.finish(&leased[0], processed()).await?;
    expect(&inbox, &["2", "3"]).await?;
    Ok(())
}

pub(crate) async fn a_run_that_ran_out_can_be_settled(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let leased = claim_runs(&*inbox.store, MANY, MANY, inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    process_all(&inbox, &leased).await?;
    for id in ["1", "2", "3"] {
        inbox
            .has_state(message(id)?.key(), State::Processed)
            .await?;
        has_attempts(&inbox, id, attempts(1, 1)).await?;
    }
    inbox.nothing_due("everything is settled").await
}

pub(crate) async fn a_run_that_ran_out_can_be_discarded(cx: Context) -> CaseResult {
    let inbox = accepted(&cx, 3).await?;
    let leased = claim_runs(&*inbox.store, MANY, MANY, inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    same(
        "discard",
        &inbox.discard(message("2")?.key()).await?,
        &Intervention::Done,
    )?;
    let first = expect(&inbox, &["1"]).await?;
    inbox.finish(&first[0], processed()).await?;
    same(
        "settling what was discarded",
        &inbox.settle_one(&leased[1].lease, processed()).await?,
        &Settled::LeaseLost,
    )?;
    expect(&inbox, &["3"]).await?;
    Ok(())
}
