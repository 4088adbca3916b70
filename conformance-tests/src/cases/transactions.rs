//! Recording and completing in the caller's own transaction.

use std::{sync::Arc, time::Duration};

use inbox_api::{Bytes, Leased, Message, Receipt, Recorded, Settled, Settlement, State};

pub(crate) use super::last_settlements::{
    a_cancelled_settlement_and_commit_is_all_or_nothing, a_lost_lease_is_not_committed,
    settling_with_the_commit_is_all_or_nothing,
};
pub(crate) use super::transaction_contents::{
    a_new_message_waits_its_turn, a_settlement_in_a_transaction_is_the_same,
    what_breaks_a_rule_is_refused,
};
use crate::{
    cancel::drop_after,
    check::{CaseResult, Unmet, ensure, same},
    needs::{Need, Settings, Unable},
    test_inbox::{
        Context, LONG, TestInbox, dead, defer, ids, message, numbered, ordered, processed, retry,
    },
    transactions::{AnyTransaction, AnyTransactions},
};

pub(super) async fn transactional(
    cx: &Context,
) -> CaseResult<(TestInbox, Arc<dyn AnyTransactions>)> {
    transactional_with(cx, &Settings::default()).await
}

pub(super) async fn transactional_with(
    cx: &Context,
    settings: &Settings,
) -> CaseResult<(TestInbox, Arc<dyn AnyTransactions>)> {
    let inbox = cx.fresh_with(settings).await?;
    if !inbox.capabilities().transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    let transactions = inbox.fixture.transactions()?;
    Ok((inbox, transactions))
}

/// Records a message that has to be the first of its key.
pub(super) async fn record_first(
    transaction: &mut dyn AnyTransaction,
    sent: &Message,
) -> CaseResult {
    let recorded = transaction.record(sent, None).await?;
    same("record", &recorded, &Recorded::First)
}

/// Writes where the harness offers it.
pub(super) async fn write(transaction: &mut dyn AnyTransaction, note: &str) -> CaseResult {
    match transaction.write(note).await {
        Ok(()) | Err(Unable::NotOffered(_)) => Ok(()),
        Err(failed) => Err(failed.into()),
    }
}

/// Compares where the harness offers it.
pub(super) async fn written(transactions: &dyn AnyTransactions, expected: &[&str]) -> CaseResult {
    match transactions.written().await {
        Ok(mut notes) => {
            notes.sort();
            let expected: Vec<String> = expected.iter().map(|n| (*n).into()).collect();
            same("the handler's committed writes", &notes, &expected)
        }
        Err(Unable::NotOffered(_)) => Ok(()),
        Err(failed) => Err(failed.into()),
    }
}

pub(crate) async fn a_commit_makes_it_visible(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let sent = message("1")?;
    let result = Some(Bytes::from_static(b"receipt"));
    let mut transaction = transactions.open().await?;
    same(
        "record",
        &transaction.record(&sent, result.clone()).await?,
        &Recorded::First,
    )?;
    write(&mut *transaction, "1").await?;
    same(
        "seen by others before the commit",
        &inbox.get(sent.key()).await?.is_some(),
        &false,
    )?;
    transaction.commit().await?;
    let record = inbox.record(sent.key()).await?;
    same("state", &record.state, &State::Processed)?;
    same("result", &record.result, &result)?;
    same(
        "started and finished",
        &(record.attempts.started, record.attempts.finished),
        &(1, 1),
    )?;
    written(&*transactions, &["1"]).await?;
    inbox
        .refuses_copy(&sent, "after it was recorded in a transaction")
        .await?;
    inbox.nothing_due("it is processed").await
}

pub(crate) async fn a_roll_back_leaves_nothing(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let sent = message("1")?;
    let mut transaction = transactions.open().await?;
    record_first(&mut *transaction, &sent).await?;
    write(&mut *transaction, "1").await?;
    transaction.roll_back().await?;
    same("found", &inbox.get(sent.key()).await?.is_some(), &false)?;
    same(
        "handlers in the statistics",
        &inbox.statistics().await?.count(State::Processed),
        &0,
    )?;
    written(&*transactions, &[]).await?;
    inbox.accept(&sent).await
}

pub(crate) async fn a_dropped_transaction_leaves_nothing(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let sent = message("1")?;
    // More often than any pool has connections.
    for _ in 0..30 {
        let mut transaction = transactions.open().await?;
        record_first(&mut *transaction, &sent).await?;
        write(&mut *transaction, "1").await?;
        drop(transaction);
    }
    same("found", &inbox.get(sent.key()).await?.is_some(), &false)?;
    written(&*transactions, &[]).await?;
    inbox.accept(&sent).await
}

/// The handler's effect happens once, whatever the number of copies.
pub(crate) async fn the_business_writes_commit_once(cx: Context) -> CaseResult {
    let (_inbox, transactions) = transactional(&cx).await?;
    transactions.written().await?;
    let sent = message("1")?;
    for _ in 0..3 {
        let mut transaction = transactions.open().await?;
        if transaction.record(&sent, None).await? == Recorded::First {
            transaction.write("effect").await?;
        }
        transaction.commit().await?;
    }
    same(
        "effects",
        &transactions.written().await?,
        &vec!["effect".into()],
    )
}

pub(crate) async fn a_second_record_sees_the_first(cx: Context) -> CaseResult {
    let (_inbox, transactions) = transactional(&cx).await?;
    let sent = message("1")?;
    let result = Some(Bytes::from_static(b"receipt"));
    let seen = Recorded::Processed {
        result: result.clone(),
    };
    let mut transaction = transactions.open().await?;
    same(
        "record",
        &transaction.record(&sent, result).await?,
        &Recorded::First,
    )?;
    same(
        "record again in the transaction",
        &transaction.record(&sent, None).await?,
        &seen,
    )?;
    // A duplicate leaves its transaction usable.
    same(
        "record of another",
        &transaction.record(&message("2")?, None).await?,
        &Recorded::First,
    )?;
    transaction.commit().await?;
    let mut transaction = transactions.open().await?;
    same(
        "record in the next transaction",
        &transaction.record(&sent, None).await?,
        &seen,
    )?;
    transaction.roll_back().await?;
    Ok(())
}

/// Defect: two racing transactions both do the work.
pub(crate) async fn of_two_racing_transactions_one_wins(cx: Context) -> CaseResult {
    let (_inbox, transactions) = transactional(&cx).await?;
    for round in 0..5 {
        let sent = message(&format!("{round}"))?;
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let (transactions, sent) = (Arc::clone(&transactions), sent.clone());
            tasks.push(tokio::spawn(
                async move { race(&*transactions, &sent).await },
            ));
        }
        let mut wins = 0;
        for task in tasks {
            wins += usize::from(task.await??);
        }
        same("transactions that won", &wins, &1)?;
    }
    written(&*transactions, &["0", "1", "2", "3", "4"]).await
}

/// Whether this transaction was the first to record `message`; retries conflicts.
async fn race(transactions: &dyn AnyTransactions, message: &Message) -> CaseResult<bool> {
    for tries in 0..100 {
        let attempt = async {
            let mut transaction = transactions.open().await?;
            let recorded = match transaction.record(message, None).await {
                Ok(recorded) => recorded,
                Err(error) => {
                    transaction.roll_back().await?;
                    return Err(error.into());
                }
            };
            let first = recorded == Recorded::First;
            if first {
                write(&mut *transaction, message.id().as_str()).await?;
            }
            transaction.commit().await.map_err(Tried::Store)?;
            Ok(first)
        };
        match attempt.await {
            Ok(first) => return Ok(first),
            Err(Tried::Store(error)) if error.is_retryable() => {
                tokio::time::sleep(Duration::from_millis(tries)).await;
            }
            Err(Tried::Store(error)) => return Err(error.into()),
            Err(Tried::Unmet(unmet)) => return Err(unmet),
        }
    }
    Err(Unmet::Failed(
        "a transaction conflicted a hundred times".into(),
    ))
}

enum Tried {
    Store(inbox_api::Error),
    Unmet(Unmet),
}

impl From<inbox_api::Error> for Tried {
    fn from(error: inbox_api::Error) -> Self {
        Self::Store(error)
    }
}

impl From<Unmet> for Tried {
    fn from(unmet: Unmet) -> Self {
        Self::Unmet(unmet)
    }
}

pub(crate) async fn receiving_commits_or_not(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let batch = numbered(3)?;
    inbox.accept(&batch[1]).await?;
    let expected = vec![
        Receipt::Accepted,
        Receipt::Duplicate { differs: false },
        Receipt::Accepted,
    ];
    let mut transaction = transactions.open().await?;
    same("receipts", &transaction.receive(&batch).await?, &expected)?;
    transaction.roll_back().await?;
    same(
        "found after a roll-back",
        &inbox.get(batch[0].key()).await?.is_some(),
        &false,
    )?;
    let mut transaction = transactions.open().await?;
    same("receipts", &transaction.receive(&batch).await?, &expected)?;
    write(&mut *transaction, "received").await?;
    transaction.commit().await?;
    same("claimable", &inbox.claim_up_to(10, LONG).await?.len(), &3)?;
    written(&*transactions, &["received"]).await
}

pub(crate) async fn settling_commits_or_not(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    let settlement = [Settlement {
        lease: leased.lease.clone(),
        outcome: processed(),
    }];
    let mut transaction = transactions.open().await?;
    same(
        "settled",
        &transaction.settle(&settlement).await?,
        &vec![Settled::Done],
    )?;
    write(&mut *transaction, "1").await?;
    transaction.roll_back().await?;
    inbox.has_state(&leased.lease.key, State::Leased).await?;
    written(&*transactions, &[]).await?;
    let mut transaction = transactions.open().await?;
    same(
        "settled",
        &transaction.settle(&settlement).await?,
        &vec![Settled::Done],
    )?;
    write(&mut *transaction, "1").await?;
    transaction.commit().await?;
    inbox.has_state(&leased.lease.key, State::Processed).await?;
    written(&*transactions, &["1"]).await
}

pub(crate) async fn a_deferral_commits_or_not(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let settlement = [Settlement {
        lease: leased.lease.clone(),
        outcome: defer(LONG),
    }];
    let before = inbox.record(sent.key()).await?;
    for commits in [false, true] {
        let mut transaction = transactions.open().await?;
        same(
            "settled",
            &transaction.settle(&settlement).await?,
            &vec![Settled::Done],
        )?;
        if commits {
            transaction.commit().await?;
            break;
        }
        transaction.roll_back().await?;
        let after = inbox.record(sent.key()).await?;
        same(
            "the record after a deferral that was rolled back",
            &after,
            &before,
        )?;
    }
    let record = inbox.record(sent.key()).await?;
    same("state", &record.state, &State::Pending)?;
    same(
        "started and finished",
        &(record.attempts.started, record.attempts.finished),
        &(0, 0),
    )?;
    same(
        "last error",
        &record.last_error.as_deref(),
        &Some("not now"),
    )?;
    let errors: Vec<_> = record.history.iter().map(|past| &*past.error).collect();
    same("errors of past attempts", &errors, &vec!["not now"])?;
    inbox.nothing_due("it was deferred in a transaction").await
}

pub(crate) async fn a_stale_lease_is_lost_in_a_transaction(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    inbox.accept(&message("1")?).await?;
    let stale = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let current = inbox.claim_one().await?;
    let settlement = [Settlement {
        lease: stale.lease,
        outcome: processed(),
    }];
    let mut transaction = transactions.open().await?;
    same(
        "settled",
        &transaction.settle(&settlement).await?,
        &vec![Settled::LeaseLost],
    )?;
    transaction.roll_back().await?;
    inbox.has_state(&current.lease.key, State::Leased).await?;
    inbox.finish(&current, processed()).await
}

/// Defect: a transaction whose commit got no reply is repeated, and its writes commit twice.
pub(crate) async fn a_settled_lease_is_lost_in_another_transaction(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    let settlement = [Settlement {
        lease: leased.lease.clone(),
        outcome: processed(),
    }];
    for answer in [Settled::Done, Settled::LeaseLost] {
        let mut transaction = transactions.open().await?;
        same(
            "settled in a transaction",
            &transaction.settle(&settlement).await?,
            &vec![answer.clone()],
        )?;
        if answer == Settled::Done {
            transaction.commit().await?;
        } else {
            transaction.roll_back().await?;
        }
    }
    // Outside of a transaction there is nothing to commit twice.
    inbox.finish(&leased, processed()).await?;
    inbox.has_state(&leased.lease.key, State::Processed).await
}

/// What recording answers about keys in each state.
pub(crate) async fn a_record_minds_the_state(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let (leased, waiting, gone) = (message("1")?, message("2")?, message("3")?);
    let (discarded, pending) = (message("4")?, message("5")?);
    inbox.accept(&leased).await?;
    let held = inbox.claim_one().await?;
    inbox.accept(&waiting).await?;
    let later = inbox.claim_one().await?;
    inbox.finish(&later, retry(LONG)).await?;
    let due = inbox.record(waiting.key()).await?.due_at;
    inbox.accept(&gone).await?;
    let last = inbox.claim_one().await?;
    inbox.finish(&last, dead("gave up")).await?;
    inbox.accept_in(&discarded, State::Discarded).await?;
    inbox.accept(&pending).await?;
    let mut transaction = transactions.open().await?;
    let expected = [
        (
            &leased,
            Recorded::Busy {
                until: held.lease.until,
            },
        ),
        (&waiting, Recorded::Busy { until: due }),
        (
            &gone,
            Recorded::Dead {
                reason: "gave up".into(),
            },
        ),
        (&discarded, Recorded::Discarded),
        (&pending, Recorded::First),
    ];
    for (message, expected) in expected {
        same(
            &format!("record of {}", message.key()),
            &transaction.record(message, None).await?,
            &expected,
        )?;
    }
    transaction.commit().await?;
    inbox.has_state(pending.key(), State::Processed).await?;
    inbox.has_state(leased.key(), State::Leased).await
}

pub(crate) async fn a_record_keeps_the_order(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    if !inbox.capabilities().ordering {
        return Err(Unmet::NotChecked(Need::Ordering));
    }
    let (first, second) = (ordered("1", "k")?, ordered("2", "k")?);
    inbox.accept_all(&[first.clone(), second.clone()]).await?;
    let mut transaction = transactions.open().await?;
    same(
        "record of the second",
        &transaction.record(&second, None).await?,
        &Recorded::Blocked,
    )?;
    same(
        "record of the first",
        &transaction.record(&first, None).await?,
        &Recorded::First,
    )?;
    same(
        "record of the second",
        &transaction.record(&second, None).await?,
        &Recorded::First,
    )?;
    transaction.commit().await?;
    inbox.nothing_due("both are processed").await
}

/// A worker whose lease ran out and whose message was recorded meanwhile is told so.
pub(crate) async fn a_record_takes_an_expired_lease_over(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let stale = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    let mut transaction = transactions.open().await?;
    record_first(&mut *transaction, &sent).await?;
    transaction.commit().await?;
    let late = inbox_api::StoreExt::settle_one(&*inbox.store, &stale.lease, dead("late")).await?;
    same(
        "settling the lease that ran out",
        &late,
        &Settled::LeaseLost,
    )?;
    inbox.has_state(sent.key(), State::Processed).await
}

/// Every step's future dropped at each await point: both the record and the handler's writes are
/// there, or neither is, and no connection is left with an open transaction.
pub(crate) async fn a_cancelled_step_leaves_all_or_nothing(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let (mut expected, mut completed, mut polls) = (Vec::new(), false, 0);
    while !completed {
        ensure!(
            polls < 300,
            "the steps did not complete within 300 polls each"
        );
        let sent = message(&format!("{polls:03}"))?;
        completed = steps(&*transactions, &sent, polls).await?;
        polls += 1;
        // A commit that was dropped may still happen; a receive waits for it or comes after it.
        let receipt = inbox_api::StoreExt::receive_one(&*inbox.store, &sent).await?;
        if matches!(receipt, Receipt::Duplicate { .. }) {
            inbox.has_state(sent.key(), State::Processed).await?;
            expected.push(sent.id().as_str().to_owned());
        } else {
            let leased = claim_after_a_dropped_step(&inbox).await?;
            same(
                "claimed",
                &ids(std::slice::from_ref(&leased)),
                &vec![sent.id().to_string()],
            )?;
            inbox.finish(&leased, processed()).await?;
        }
    }
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    written(&*transactions, &expected).await
}

/// Claims the one message that is due. A dropped step may reach the server late, find the message
/// there, and hold it until its connection turns out to be closed.
pub(super) async fn claim_after_a_dropped_step(inbox: &TestInbox) -> CaseResult<Leased> {
    for _ in 0..100 {
        if let Some(leased) = inbox.claim_up_to(1, LONG).await?.pop() {
            return Ok(leased);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    inbox.claim_one().await
}

/// Opens, records, writes and commits with `polls` polls each; whether all completed.
async fn steps(
    transactions: &dyn AnyTransactions,
    sent: &Message,
    polls: usize,
) -> CaseResult<bool> {
    let Some(transaction) = drop_after(polls, transactions.open()).await else {
        return Ok(false);
    };
    let mut transaction = transaction?;
    let Some(recorded) = drop_after(polls, transaction.record(sent, None)).await else {
        return Ok(false);
    };
    same("record", &recorded?, &Recorded::First)?;
    write(&mut *transaction, sent.id().as_str()).await?;
    match drop_after(polls, transaction.commit()).await {
        Some(committed) => Ok(committed.map(|()| true)?),
        None => Ok(false),
    }
}
