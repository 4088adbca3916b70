//! Settlements that end the transaction with its commit.

use std::time::Duration;

use inbox_api::{Bytes, Leased, Outcome, Settled, Settlement, State};

use super::transactions::{claim_after_a_dropped_step, transactional, write, written};
use crate::{
    cancel::drop_after,
    check::{CaseResult, ensure, same},
    test_inbox::{Context, LONG, dead, defer, message, ordered, processed, retry},
    transactions::AnyTransactions,
};

/// Settles in a transaction of the handler's, which it commits.
async fn settle_and_commit(
    transactions: &dyn AnyTransactions,
    note: &str,
    settlements: &[Settlement],
    expected: &[Settled],
) -> CaseResult {
    let mut transaction = transactions.open().await?;
    write(&mut *transaction, note).await?;
    same(
        &format!("settled with the commit: {note}"),
        &transaction.settle_and_commit(settlements).await?.as_slice(),
        &expected,
    )
}

pub(crate) async fn settling_with_the_commit_is_all_or_nothing(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let result = |length: usize| Outcome::Processed {
        result: Some(Bytes::from(vec![0; length])),
    };
    let too_large = inbox.capabilities().payload_limit + 1;
    let mut expected_notes = Vec::new();
    for (n, (note, outcomes)) in [
        ("one", vec![processed()]),
        ("several", vec![processed(); 20]),
        ("with a result", vec![result(3)]),
        ("a result and none", vec![result(3), processed()]),
        ("a death", vec![dead("gave up")]),
        (
            "all kinds",
            vec![
                processed(),
                retry(LONG),
                result(0),
                defer(LONG),
                dead("gave up"),
            ],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        for (place, _) in outcomes.iter().enumerate() {
            let id = format!("{n}-{place}");
            // Some have an ordering key of their own.
            let has_key = inbox.capabilities().ordering && place % 2 == 1;
            let sent = if has_key {
                ordered(&id, &id)?
            } else {
                message(&id)?
            };
            inbox.accept(&sent).await?;
        }
        let leased = inbox.claim_up_to(100, LONG).await?;
        same("claimed", &leased.len(), &outcomes.len())?;
        let each = leased.iter().zip(&outcomes);
        let settlements: Vec<Settlement> = each
            .map(|(leased, outcome)| Settlement {
                lease: leased.lease.clone(),
                outcome: outcome.clone(),
            })
            .collect();
        // One that is too large: nothing of its transaction is there.
        let mut refused = settlements.clone();
        refused[0].outcome = result(too_large);
        let mut transaction = transactions.open().await?;
        write(&mut *transaction, "refused").await?;
        let answers = transaction.settle_and_commit(&refused).await?;
        ensure!(
            matches!(answers.first(), Some(Settled::Refused(_))),
            "{note}: expected that a result over the limit is refused, saw {answers:?}"
        );
        for leased in &leased {
            inbox.has_state(&leased.lease.key, State::Leased).await?;
        }
        let done = vec![Settled::Done; settlements.len()];
        settle_and_commit(&*transactions, note, &settlements, &done).await?;
        for (leased, outcome) in leased.iter().zip(&outcomes) {
            let state = match outcome {
                Outcome::Processed { .. } => State::Processed,
                Outcome::Dead { .. } => State::Dead,
                _ => State::Pending,
            };
            inbox.has_state(&leased.lease.key, state).await?;
        }
        expected_notes.push(note);
        // Again: what was settled before is lost here.
        let lost = vec![Settled::LeaseLost; settlements.len()];
        settle_and_commit(&*transactions, "again", &settlements, &lost).await?;
    }
    settle_and_commit(&*transactions, "nothing to settle", &[], &[]).await?;
    expected_notes.push("nothing to settle");
    expected_notes.sort_unstable();
    written(&*transactions, &expected_notes).await
}

/// Defect: those whose leases stand are settled and the handler's writes committed, next to one that is lost.
pub(crate) async fn a_lost_lease_is_not_committed(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    inbox.accept(&message("lost")?).await?;
    let lost = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let current = inbox.claim_one().await?;
    inbox.accept(&message("held")?).await?;
    let held = inbox.claim_one().await?;
    let of = |leased: &Leased| Settlement {
        lease: leased.lease.clone(),
        outcome: processed(),
    };
    let (stale, standing) = (of(&lost), of(&held));
    let alone = [stale.clone()];
    settle_and_commit(&*transactions, "alone", &alone, &[Settled::LeaseLost]).await?;
    let both = [standing.clone(), stale];
    let mut transaction = transactions.open().await?;
    write(&mut *transaction, "both").await?;
    let answers = transaction.settle_and_commit(&both).await?;
    same(
        "answer for the lost lease",
        &answers.last(),
        &Some(&Settled::LeaseLost),
    )?;
    for leased in [&current, &held] {
        inbox.has_state(&leased.lease.key, State::Leased).await?;
    }
    written(&*transactions, &[]).await?;
    // One lease twice is one settlement.
    let twice = [standing.clone(), standing];
    settle_and_commit(
        &*transactions,
        "twice",
        &twice,
        &[Settled::Done, Settled::Done],
    )
    .await?;
    inbox.has_state(&held.lease.key, State::Processed).await?;
    inbox.finish(&current, processed()).await?;
    written(&*transactions, &["twice"]).await
}

/// What is settled with the commit, and dropped at each await point: settled with the handler's writes, or neither.
pub(crate) async fn a_cancelled_settlement_and_commit_is_all_or_nothing(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let (mut expected, mut completed, mut polls) = (Vec::new(), false, 0);
    while !completed {
        ensure!(polls < 300, "it did not complete within 300 polls");
        let sent = message(&format!("{polls:03}"))?;
        inbox.accept(&sent).await?;
        let leased = claim_after_a_dropped_step(&inbox).await?;
        let settlement = [Settlement {
            lease: leased.lease.clone(),
            outcome: processed(),
        }];
        let mut transaction = transactions.open().await?;
        write(&mut *transaction, sent.id().as_str()).await?;
        let ended = drop_after(polls, transaction.settle_and_commit(&settlement)).await;
        if let Some(settled) = ended {
            same("settled", &settled?, &vec![Settled::Done])?;
            completed = true;
        }
        polls += 1;
        // What was dropped may still happen; a settlement waits for it or comes after it.
        inbox.finish(&leased, retry(Duration::ZERO)).await?;
        let state = inbox.record(sent.key()).await?.state;
        ensure!(
            !completed || state == State::Processed,
            "{}: settled and committed, but {state}",
            sent.id()
        );
        if state == State::Processed {
            expected.push(sent.id().as_str().to_owned());
        } else {
            let again = claim_after_a_dropped_step(&inbox).await?;
            inbox.finish(&again, processed()).await?;
        }
    }
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    written(&*transactions, &expected).await
}
