//! A caller's transaction that holds one row of what an operation is about.

use inbox_api::{Extended, Lease, Settled, State};

use super::holding::{end, in_time, transactional};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    harness::Need,
    place::{Context, LONG, Place, message},
};

/// The leases of three messages.
async fn leased(place: &Place, name: &str) -> CaseResult<Vec<Lease>> {
    for n in 1..=3 {
        place.accept(&message(&format!("{name}-{n}"))?).await?;
    }
    let leased = place.claim_up_to(3, LONG).await?;
    same("claimed", &leased.len(), &3)?;
    Ok(leased.into_iter().map(|leased| leased.lease).collect())
}

/// Defect: a heartbeat that waits for the row of one lease, fails, and throws the others' ends away.
pub(crate) async fn a_held_lease_costs_the_others_of_its_batch_no_renewal(
    cx: Context,
) -> CaseResult {
    let (place, transactions) = transactional(&cx).await?;
    if place.capabilities().exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    let leases = leased(&place, "renewed").await?;
    let held = &leases[1];
    let mut transaction = transactions.open().await?;
    same(
        "settled",
        &transaction.settle(&[end(held)]).await?,
        &vec![Settled::Done],
    )?;
    let extended = in_time("extend", async {
        Ok(place.extend(&leases, 2 * LONG).await?)
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
        place.has_state(&lease.key, State::Leased).await?;
    }
    Ok(())
}
