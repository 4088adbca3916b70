//! Extending leases.

use std::{collections::HashMap, time::Duration};

use inbox_api::{Extended, Lease, LeaseTerms, Result, from_micros};
use sqlx::{Row as _, postgres::PgRow};

use crate::{
    arguments::Arguments,
    connection::{Database, On},
    error::failed,
    rows::{only, row_and_token},
    time::{Instant, micros},
};

pub(crate) async fn extend(
    database: &Database,
    leases: &[Lease],
    length: Duration,
) -> Result<Vec<Extended>> {
    database.check_open()?;
    LeaseTerms::check_length(length)?;
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let mut sorted: Vec<(i64, i64)> = leases.iter().map(row_and_token).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let arguments = Arguments::new()
        .with(sorted.iter().map(|(seq, _)| *seq).collect::<Vec<_>>())
        .with(sorted.iter().map(|(_, token)| *token).collect::<Vec<_>>())
        .with(micros(length))
        .finish()?;
    let text = &database.statements.extend;
    let answer = database.run(On::PoolOrSpare, text, arguments).await?;
    let ends = read(only(&answer)?, &sorted).map_err(failed)?;
    Ok(leases
        .iter()
        .map(|lease| match ends.get(&row_and_token(lease)) {
            Some(until) => Extended::Until(from_micros(until.0)),
            None => Extended::LeaseLost,
        })
        .collect())
}

/// The ends of the leases that stand: those that were renewed, and those that were passed over.
fn read(row: &PgRow, sorted: &[(i64, i64)]) -> sqlx::Result<HashMap<(i64, i64), Instant>> {
    let renewed: Option<Vec<i64>> = row.try_get(0)?;
    let until: Instant = row.try_get(1)?;
    let kept: Option<Vec<i64>> = row.try_get(2)?;
    let kept_until: Option<Vec<Instant>> = row.try_get(3)?;
    let renewed = renewed.into_iter().flatten().map(|place| (place, until));
    let kept = kept
        .into_iter()
        .flatten()
        .zip(kept_until.into_iter().flatten());
    Ok(renewed
        .chain(kept)
        .filter_map(|(place, until)| {
            // Places count from 1.
            let lease = sorted.get(usize::try_from(place - 1).ok()?)?;
            Some((*lease, until))
        })
        .collect())
}
