//! A caller's transaction that holds a message while the others go on.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_api::{Begun, Extended, Lease, Recorded, Settled, Settlement, State, StoreExt as _};

pub(crate) use super::held_rows::{
    a_begin_that_waited_for_a_lease_measures_from_its_end,
    a_held_lease_costs_the_others_of_its_batch_no_renewal,
    a_held_lease_keeps_the_others_of_its_batch_from_nothing,
};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::{Need, Unable},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, ids, message, numbered, ordered, processed, terms,
    },
    times::TOLERANCE,
    transactions::{AnyTransaction, AnyTransactions},
};

/// No operation waits for so long, however slow the machine.
const HUNG: Duration = Duration::from_secs(60);

pub(super) async fn transactional(
    cx: &Context,
) -> CaseResult<(TestInbox, Arc<dyn AnyTransactions>)> {
    let inbox = cx.fresh().await?;
    if !inbox.capabilities().transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    let transactions = inbox.fixture.transactions()?;
    Ok((inbox, transactions))
}

/// A lease that had its whole length before it when it was handed out, give or take the time that
/// this took.
async fn is_whole(
    inbox: &TestInbox,
    what: &str,
    lease: &Lease,
    length: Duration,
    handed_out: Instant,
) -> CaseResult {
    let now = inbox.now().await?;
    let left = lease.until.duration_since(now).unwrap_or_default();
    let passed = handed_out.elapsed();
    ensure!(
        left + passed + TOLERANCE >= length,
        "{what}: expected a lease of {length:?} from when it was handed out, saw {left:?} left after \
         {passed:?}"
    );
    Ok(())
}

pub(super) async fn in_time<T>(
    what: &str,
    doing: impl Future<Output = CaseResult<T>>,
) -> CaseResult<T> {
    tokio::time::timeout(HUNG, doing).await.unwrap_or_else(|_| {
        Err(Unmet::Failed(format!(
            "{what}: it waited for an open transaction that holds another message"
        )))
    })
}

/// What the others do meanwhile: every operation that a worker needs, on other messages. Through the
/// store that opened the transaction: the nodes of a cluster may know of locks only at the commit.
async fn others_go_on(inbox: &TestInbox, round: &str) -> CaseResult {
    let leased = in_time("claim", claim(&*inbox.store, HANDLER, 100, LONG)).await?;
    let handed_out = Instant::now();
    let mut claimed = ids(&leased);
    claimed.sort();
    let expected: Vec<String> = (1..=4).map(|n| format!("{round}-{n}")).collect();
    same("claimed while a transaction is open", &claimed, &expected)?;
    for leased in &leased {
        is_whole(inbox, "claim", &leased.lease, LONG, handed_out).await?;
    }
    let leases: Vec<Lease> = leased.iter().map(|leased| leased.lease.clone()).collect();
    let extended = in_time("extend", async {
        Ok(inbox.extend(&leases, 2 * LONG).await?)
    })
    .await?;
    ensure!(
        extended.iter().all(|e| matches!(e, Extended::Until(_))),
        "extend while a transaction is open: expected new ends, saw {extended:?}"
    );
    let settlements: Vec<Settlement> = leases
        .into_iter()
        .map(|lease| Settlement {
            lease,
            outcome: processed(),
        })
        .collect();
    let settled = in_time("settle", async { Ok(inbox.settle(&settlements).await?) }).await?;
    same(
        "settled while a transaction is open",
        &settled,
        &vec![Settled::Done; 4],
    )
}

/// Four messages, one of them with an ordering key, which nobody holds.
async fn accept_others(inbox: &TestInbox, round: &str) -> CaseResult {
    for n in 1..=3 {
        inbox.accept(&message(&format!("{round}-{n}"))?).await?;
    }
    inbox
        .accept(&if inbox.capabilities().ordering {
            ordered(&format!("{round}-4"), round)?
        } else {
            message(&format!("{round}-4"))?
        })
        .await
}

/// Defect: an open transaction on a stored message stops every claim, and what is claimed in the
/// end is leased from before the wait.
pub(crate) async fn a_held_message_costs_the_others_nothing(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    if inbox.capabilities().exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    // A new key; one that was stored; one that is leased.
    let new = message("new")?;
    let mut transaction = transactions.open().await?;
    accept_others(&inbox, "record-new").await?;
    same(
        "record of a new key",
        &transaction.record(&new, None).await?,
        &Recorded::First,
    )?;
    others_go_on(&inbox, "record-new").await?;
    transaction.commit().await?;

    let stored = message("stored")?;
    inbox.accept(&stored).await?;
    let mut transaction = transactions.open().await?;
    same(
        "record of a stored message",
        &transaction.record(&stored, None).await?,
        &Recorded::First,
    )?;
    accept_others(&inbox, "record-stored").await?;
    others_go_on(&inbox, "record-stored").await?;
    transaction.commit().await?;

    inbox.accept(&message("leased")?).await?;
    let leased = inbox.claim_one().await?;
    let mut transaction = transactions.open().await?;
    same(
        "settled",
        &transaction.settle(&[end(&leased.lease)]).await?,
        &vec![Settled::Done],
    )?;
    accept_others(&inbox, "settle").await?;
    others_go_on(&inbox, "settle").await?;
    transaction.commit().await?;

    let batch = numbered(3)?;
    let mut transaction = transactions.open().await?;
    let _ = transaction.receive(&batch).await?;
    accept_others(&inbox, "receive").await?;
    others_go_on(&inbox, "receive").await?;
    transaction.commit().await?;
    for key in [new.key(), stored.key(), &leased.lease.key] {
        inbox.has_state(key, State::Processed).await?;
    }
    let mut claimed = ids(&inbox.claim_up_to(10, LONG).await?);
    claimed.sort();
    same(
        "claimable after the transactions",
        &claimed,
        &batch.iter().map(|m| m.id().to_string()).collect(),
    )
}

pub(super) fn end(lease: &Lease) -> Settlement {
    Settlement {
        lease: lease.clone(),
        outcome: processed(),
    }
}

/// After so long, an operation that has not answered waits for the transaction. In real time: not
/// every store sees its clock moved in the middle of an operation.
const WAITING: Duration = Duration::from_secs(2);

/// Lets an operation wait for an open transaction. Whether it does.
pub(super) async fn waits<T>(operation: &tokio::task::JoinHandle<T>) -> bool {
    // In steps, in which a machine that was away for a while lets the operation go on.
    for _ in 0..20 {
        tokio::time::sleep(WAITING / 20).await;
    }
    tokio::time::sleep(WAITING / 4).await;
    !operation.is_finished()
}

/// Fails unless `lease` runs from `released`, when what it waited for ended, or later.
pub(super) async fn runs_from(
    inbox: &TestInbox,
    what: &str,
    lease: &Lease,
    released: Instant,
) -> CaseResult {
    let now = inbox.now().await?;
    let left = lease.until.duration_since(now).unwrap_or_default();
    let passed = released.elapsed();
    ensure!(
        left + passed + WAITING / 4 >= LONG,
        "{what}: expected a lease of {LONG:?} from after the wait, saw {left:?} left after {passed:?}"
    );
    Ok(())
}

/// Defect: a lease that is measured from when a claim or a begin was asked for has run out, or
/// nearly so, when the lock is free and it is handed out.
pub(crate) async fn a_lease_is_measured_from_when_it_is_handed_out(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let (held, other) = (message("held")?, message("other")?);
    inbox.accept_all(&[held.clone(), other.clone()]).await?;
    let mut transaction = transactions.open().await?;
    let _ = transaction.record(&held, None).await?;
    let connection = Arc::clone(&inbox.store);
    let claiming = tokio::spawn(async move { claim(&*connection, HANDLER, 1, LONG).await });
    let waited = waits(&claiming).await;
    let released = Instant::now();
    transaction.commit().await?;
    let leased = claiming.await??;
    same("claimed", &ids(&leased), &vec!["other".into()])?;
    for leased in leased.iter().filter(|_| waited) {
        let what = "a claim that waited for a transaction";
        runs_from(&inbox, what, &leased.lease, released).await?;
    }

    let new = message("new")?;
    let mut transaction = transactions.open().await?;
    let _ = transaction.record(&new, None).await?;
    let (connection, terms) = (Arc::clone(&inbox.store), terms(LONG)?);
    let beginning = tokio::spawn(async move { connection.begin(&new, &terms).await });
    let waited = waits(&beginning).await;
    let released = Instant::now();
    transaction.roll_back().await?;
    match beginning.await? {
        Ok(Begun::Run(leased)) if waited => {
            let what = "a begin that waited for a transaction";
            runs_from(&inbox, what, &leased.lease, released).await
        }
        // It may have given up in favour of the transaction.
        Ok(Begun::Run(_) | Begun::Busy { .. }) => Ok(()),
        Err(error) if error.is_retryable() => Ok(()),
        answer => Err(Unmet::Failed(format!(
            "begin of a message whose record was rolled back: saw {answer:?}"
        ))),
    }
}

/// How long handlers take, in tenths of their lease.
const TENTHS: [u32; 4] = [2, 5, 15, 30];

/// The handler's transaction, from its first write to its commit, in ten steps.
async fn handle(
    inbox: &TestInbox,
    transaction: &mut dyn AnyTransaction,
    lease: &Lease,
    tenths: u32,
    renew: bool,
) -> CaseResult {
    // The transaction has seen the database before the lease is renewed.
    match transaction.write(&format!("{tenths} tenths")).await {
        Ok(()) | Err(Unable::NotOffered(_)) => {}
        Err(failed) => return Err(failed.into()),
    }
    for step in 0..tenths {
        inbox.pass(inbox.brief() / 10).await?;
        // As a processor does, a few times in each lease.
        if renew && step % 3 == 2 {
            let extended = in_time("extend", async {
                Ok(inbox.store.extend_one(lease, inbox.brief()).await?)
            })
            .await?;
            ensure!(
                matches!(extended, Extended::Until(_)),
                "renewing the lease of an open transaction: expected a new end, saw {extended:?}"
            );
        }
    }
    Ok(())
}

async fn outlasts(cx: &Context, renew: bool) -> CaseResult {
    let (inbox, transactions) = transactional(cx).await?;
    inbox.need_clock()?;
    if renew && inbox.capabilities().exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    for tenths in TENTHS {
        let sent = message(&format!("{tenths}"))?;
        inbox.accept(&sent).await?;
        let leased = inbox.claim_single(inbox.brief()).await?;
        let mut transaction = if renew {
            let leases = std::slice::from_ref(&leased.lease);
            transactions.open_for(leases).await?
        } else {
            transactions.open().await?
        };
        handle(&inbox, &mut *transaction, &leased.lease, tenths, renew).await?;
        let settled = transaction.settle(&[end(&leased.lease)]).await.map_err(|error| {
            Unmet::Failed(format!(
                "settling in a transaction that lasted {tenths} tenths of its lease: saw {error}"
            ))
        })?;
        same(
            &format!("settled in a transaction that lasted {tenths} tenths of its lease"),
            &settled,
            &vec![Settled::Done],
        )?;
        transaction.commit().await?;
        inbox.has_state(sent.key(), State::Processed).await?;
        inbox.nothing_due("it is processed").await?;
    }
    match transactions.written().await {
        Ok(mut notes) => {
            notes.sort();
            let mut expected: Vec<_> = TENTHS.map(|tenths| format!("{tenths} tenths")).into();
            expected.sort();
            same("the handlers' committed writes", &notes, &expected)
        }
        Err(Unable::NotOffered(_)) => Ok(()),
        Err(failed) => Err(failed.into()),
    }
}

/// Defect: the renewal changes the row that the transaction has seen, which can then never settle.
pub(crate) async fn a_transaction_whose_lease_is_renewed_commits_once(cx: Context) -> CaseResult {
    outlasts(&cx, true).await
}

pub(crate) async fn a_transaction_may_outlast_an_unclaimed_lease(cx: Context) -> CaseResult {
    outlasts(&cx, false).await
}

/// Of a transaction that outlasts its lease and a worker that has claimed meanwhile, the worker
/// wins.
pub(crate) async fn a_transaction_that_lost_its_lease_is_told(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    inbox.need_clock()?;
    if inbox.capabilities().exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    inbox.accept(&message("1")?).await?;
    let late = inbox.claim_single(inbox.brief()).await?;
    let mut transaction = transactions.open().await?;
    handle(&inbox, &mut *transaction, &late.lease, 1, false).await?;
    inbox.pass(inbox.brief()).await?;
    let next = inbox.claim_one().await?;
    // Some databases end the transaction instead: what it has seen is older than the claim.
    match transaction.settle(&[end(&late.lease)]).await {
        Ok(settled) => same("settled", &settled, &vec![Settled::LeaseLost])?,
        Err(error) => ensure!(
            error.is_retryable(),
            "settling a lost lease in a transaction: saw {error}"
        ),
    }
    transaction.roll_back().await?;
    inbox.has_state(&next.lease.key, State::Leased).await?;
    inbox.finish(&next, processed()).await
}
