//! Extending a lease.

use std::time::Duration;

use inbox_api::{Extended, Lease, duration_micros, from_micros};

use crate::{
    error::Failure,
    rows::{Stage, StateRow},
    transaction::Transaction,
};

pub(crate) fn extend(
    transaction: &mut Transaction<'_>,
    lease: &Lease,
    length: Duration,
) -> Result<Extended, Failure> {
    let Some(before) = transaction.leased_row(lease)? else {
        return Ok(Extended::LeaseLost);
    };
    if !matches!(before.stage, Stage::Leased { .. }) {
        return Ok(Extended::LeaseLost);
    }
    let until = transaction.now.saturating_add(duration_micros(length));
    let after = StateRow {
        stage: Stage::Leased { until },
        ..before.clone()
    };
    transaction.replace(&before, &after)?;
    Ok(Extended::Until(from_micros(until)))
}
