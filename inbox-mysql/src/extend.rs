//! Extending leases, past rows that other transactions hold.

use std::{collections::HashMap, time::Duration};

use inbox_api::{Extended, Lease, LeaseTerms, Result, duration_micros, from_micros};
use sqlx::Row as _;
use tokio::time::Instant;

use crate::{
    connection::Connection,
    context::Context,
    error::failed,
    list_variables::{most_numbers, set_pairs},
    multi_statement::{Access, Answers, Script},
    rows::{LeasedRow, pair},
};

/// How often an extension looks again when it could not have a row.
const LOOKS: u64 = 6;

pub(crate) async fn extend(
    connection: Connection<'_>,
    leases: &[Lease],
    length: Duration,
) -> Result<Vec<Extended>> {
    LeaseTerms::check_length(length)?;
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let row = |lease| LeasedRow::of(lease).seq_and_token();
    let mut rows: Vec<_> = leases.iter().map(row).collect();
    rows.sort_unstable();
    rows.dedup();
    let ends = extend_rows(connection, rows, length).await?;
    let extended = leases.iter().map(|lease| match ends.get(&row(lease)) {
        Some(end) => Extended::Until(from_micros(*end)),
        None => Extended::LeaseLost,
    });
    Ok(extended.collect())
}

/// Extends these leases; the ends of those that stand. A transaction that holds the row of one,
/// because it settles the message, must not keep the others from being extended: that one keeps
/// the end that it has. A claim for another handler holds it for a moment only (see there).
async fn extend_rows(
    connection: Connection<'_>,
    mut rows: Vec<(i64, i64)>,
    length: Duration,
) -> Result<HashMap<(i64, i64), i64>> {
    let mut ends = HashMap::with_capacity(rows.len());
    for look in 1..=LOOKS {
        let mut script = connection.script(Access::Write);
        let places = add_extend(connection.context, &mut script, &rows, length);
        let answers = match connection.run(Access::Write, script).await {
            Ok(answers) => answers,
            // What is known of them holds.
            Err(_) if look > 1 => break,
            Err(error) => return Err(error),
        };
        let now = answers.now().map_err(failed)?;
        let end = now.saturating_add(duration_micros(length));
        let seen = read_ends(&answers, &places).map_err(failed)?;
        for row in &rows {
            ends.remove(row);
        }
        rows.retain(|row| seen.get(row).is_some_and(|seen| *seen != end));
        ends.extend(seen);
        let again = Instant::now() + Duration::from_millis(look).mul_f64(fastrand::f64());
        if rows.is_empty() || again >= connection.until {
            break;
        }
        tokio::time::sleep_until(again).await;
    }
    Ok(ends)
}

/// Adds an extension of these leases to `script`, past those whose rows others hold. Answers there
/// with the ends of those that stand.
fn add_extend(
    context: &Context,
    script: &mut Script,
    rows: &[(i64, i64)],
    length: Duration,
) -> Vec<usize> {
    let lists = rows.chunks(most_numbers(context)).map(|some| {
        let mut set = set_pairs("@inbox_held", some.iter().copied());
        set.push(", @inbox_length = ")
            .number(duration_micros(length));
        script.add(set);
        script.all(&context.sql.extend);
        script.all(&context.sql.extend_ends)
    });
    lists.collect()
}

/// The ends of leases that a script answered with, by row and token.
fn read_ends(answers: &Answers, places: &[usize]) -> sqlx::Result<HashMap<(i64, i64), i64>> {
    let rows = places.iter().flat_map(|place| answers.rows(*place));
    rows.map(|row| Ok((pair(row)?, row.try_get_unchecked(2)?)))
        .collect()
}
