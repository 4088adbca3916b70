//! A caller's transaction that holds one row of what an operation is about.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_api::{Begun, Extended, Lease, Settled, Settlement, State, StoreExt as _};

use super::holding::{end, in_time, runs_from, transactional, waits};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::Need,
    test_inbox::{Context, LONG, TestInbox, message, terms},
};

/// How long a settlement has to go past a row that is held until the check is over.
const PATIENCE: Duration = Duration::from_secs(30);

/// The leases of three messages.
async fn leased(inbox: &TestInbox, name: &str) -> CaseResult<Vec<Lease>> {
    for n in 1..=3 {
        inbox.accept(&message(&format!("{name}-{n}"))?).await?;
    }
    let leased = inbox.claim_up_to(3, LONG).await?;
    same("claimed", &leased.len(), &3)?;
    Ok(leased.into_iter().map(|leased| leased.lease).collect())
}

/// Defect: a heartbeat that waits for the row of one lease, fails, and throws the others' ends away.
pub(crate) async fn a_held_lease_costs_the_others_of_its_batch_no_renewal(
    cx: Context,
) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    if inbox.capabilities().exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    let leases = leased(&inbox, "renewed").await?;
    let held = &leases[1];
    let mut transaction = transactions.open().await?;
    same(
        "settled",
        &transaction.settle(&[end(held)]).await?,
        &vec![Settled::Done],
    )?;
    let extended = in_time("extend", async {
        Ok(inbox.extend(&leases, 2 * LONG).await?)
    })
    .await?;
    for (lease, extended) in leases.iter().zip(&extended) {
        let Extended::Until(until) = extended else {
            return Err(Unmet::Failed(format!(
                "extend of {}, whose lease stands: saw {extended:?}",
                lease.key
            )));
        };
        ensure!(
            lease.key == held.key || *until > lease.until,
            "extend of {}, whose row nobody holds: its end is as before",
            lease.key
        );
    }
    transaction.roll_back().await?;
    for lease in &leases {
        inbox.has_state(&lease.key, State::Leased).await?;
    }
    Ok(())
}

/// Defect: the time is read before the wait for the row, and the lease that is handed out has run out
/// in part.
pub(crate) async fn a_begin_that_waited_for_a_lease_measures_from_its_end(
    cx: Context,
) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    inbox.need_clock()?;
    if inbox.capabilities().exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let late = inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    // It stands as long as nobody has claimed the message.
    let mut transaction = transactions.open().await?;
    same(
        "settled",
        &transaction.settle(&[end(&late.lease)]).await?,
        &vec![Settled::Done],
    )?;
    let (connection, terms) = (Arc::clone(&inbox.store), terms(LONG)?);
    let beginning = tokio::spawn(async move { connection.begin(&sent, &terms).await });
    let waited = waits(&beginning).await;
    let released = Instant::now();
    transaction.roll_back().await?;
    match beginning.await? {
        Ok(Begun::Run(leased)) if waited => {
            let what = "a begin that waited for a transaction";
            runs_from(&inbox, what, &leased.lease, released).await
        }
        // It may have gone before the transaction, or given up in favour of it.
        Ok(Begun::Run(_) | Begun::Busy { .. }) => Ok(()),
        Err(error) if error.is_retryable() => Ok(()),
        answer => Err(Unmet::Failed(format!(
            "begin of a message whose settlement was rolled back: saw {answer:?}"
        ))),
    }
}

/// Defect: a batch of settlements waits for one row, and with its time the others' leases run out.
pub(crate) async fn a_held_lease_keeps_the_others_of_its_batch_from_nothing(
    cx: Context,
) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    if inbox.capabilities().exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    let leases = leased(&inbox, "settled").await?;
    let held = leases[1].key.clone();
    let mut transaction = transactions.open().await?;
    same(
        "settled in the transaction",
        &transaction.settle(&[end(&leases[1])]).await?,
        &vec![Settled::Done],
    )?;
    let settlements: Vec<Settlement> = leases.iter().map(end).collect();
    let connection = Arc::clone(&inbox.store);
    let settling = tokio::spawn(async move { connection.settle(&settlements).await });
    let began = Instant::now();
    for lease in leases.iter().filter(|lease| lease.key != held) {
        while inbox.record(&lease.key).await?.state != State::Processed {
            ensure!(
                began.elapsed() < PATIENCE,
                "settling a batch, one row of which a transaction holds: {} was not settled within \
                 {PATIENCE:?}",
                lease.key
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    transaction.roll_back().await?;
    match settling.await? {
        Ok(settled) => same("settled", &settled, &vec![Settled::Done; 3])?,
        // It has given up; sending it again does no harm.
        Err(error) => ensure!(error.is_retryable(), "settle: saw {error}"),
    }
    for lease in &leases {
        same(
            "settled again",
            &inbox
                .settle_one(lease, crate::test_inbox::processed())
                .await?,
            &Settled::Done,
        )?;
        inbox.has_state(&lease.key, State::Processed).await?;
    }
    Ok(())
}
