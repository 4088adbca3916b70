//! Extending leases, all in one statement.

use std::{collections::HashSet, time::Duration};

use inbox_api::{Extended, Lease, LeaseTerms, Result, duration_micros, from_micros};
use tokio::time::Instant;

use crate::{
    batch::{ByRow, json},
    connection::Database,
    error::failed,
    rows::{lease_row, seq_and_token},
};

pub(crate) async fn extend(
    database: &Database,
    leases: &[Lease],
    length: Duration,
) -> Result<Vec<Extended>> {
    LeaseTerms::check_length(length)?;
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    database
        .run(|until| attempt(database, leases, length, until))
        .await
}

async fn attempt(
    database: &Database,
    leases: &[Lease],
    length: Duration,
    until: Instant,
) -> Result<Vec<Extended>> {
    let mut writer = database.writer(until).await?;
    let lease_end = database.now().saturating_add(duration_micros(length));
    let named: Vec<_> = leases.iter().map(lease_row).collect();
    let returned = sqlx::query(database.statements.extend.clone())
        .bind(json(&ByRow(&named))?)
        .bind(lease_end)
        .fetch_all(&mut *writer)
        .await
        .map_err(failed)?;
    database.keep(writer);
    let mut extended = HashSet::with_capacity(returned.len());
    for row in &returned {
        extended.insert(seq_and_token(row).map_err(failed)?);
    }
    Ok(named
        .iter()
        .map(|lease| {
            if extended.contains(lease) {
                Extended::Until(from_micros(lease_end))
            } else {
                Extended::LeaseLost
            }
        })
        .collect())
}
