//! Keeping partitions up, and dropping them whole: a part of every purge of an inbox in partitions.

use std::time::Duration;

use inbox_api::{Error, ErrorKind, PurgeRequest, Result};
use sqlx::{Row as _, SqlStr, postgres::PgRow};

use crate::{
    arguments::Arguments,
    connection::{Database, On},
    error::failed,
    options::Partitions,
    time::micros,
};

/// A partition with no more messages left than this is not worth a moment in which nobody may use
/// the tables: they are deleted row by row, and then the empty partition is dropped.
pub(crate) const FEW: u32 = 1000;

/// Drops empty partitions only.
pub(crate) const ANY: u32 = i32::MAX as u32;

/// The most keys that one statement deletes.
const SLICE: u32 = 1000;

/// Enough to make two partitions and move on, whatever a second purger does meanwhile.
const UPKEEP_STEPS: usize = 6;

async fn step(database: &Database, text: &SqlStr, arguments: Arguments) -> Result<PgRow> {
    let answer = database
        .run(On::Pool, text, arguments.finish()?)
        .await
        .map_err(explain_denial)?;
    let nothing = || failed(sqlx::Error::RowNotFound);
    answer.into_iter().next().ok_or_else(nothing)
}

/// Makes partitions ahead, and begins a new one when the current one's time is over.
pub(crate) async fn keep_partitions(database: &Database, partitions: &Partitions) -> Result<()> {
    let text = &database.statements.partition_upkeep;
    for _ in 0..UPKEEP_STEPS {
        let arguments = Arguments::new().with(micros(partitions.period));
        let answer = step(database, text, arguments).await?;
        if !answer.try_get(0).map_err(failed)? {
            break;
        }
    }
    Ok(())
}

/// Drops the partitions whose messages are all as `expired` says, its handler's if it names one, and more than `few`, or none,
/// and deletes up to `limit` of their keys. Returns how many messages that was, and whether anything was changed.
///
/// A partition is first taken out of its tables. Its messages are gone then, but their keys go
/// on refusing duplicates until they are deleted, in slices, with the dropped table as the
/// list of what to delete. Each step is a transaction; where one purge ends, the next goes on.
pub(crate) async fn drop_partitions(
    database: &Database,
    expired: &PurgeRequest,
    few: u32,
    limit: u32,
) -> Result<(u64, bool)> {
    let statements = &database.statements;
    let (mut left, mut changed) = (limit, false);
    while left > 0 {
        let slice = left.min(SLICE);
        let arguments = Arguments::new().with(i32::try_from(slice).unwrap_or(i32::MAX));
        let answer = step(database, &statements.forget, arguments).await;
        let answer = answer.map_err(|error| error.after_changes(changed))?;
        let forgotten: i64 = answer.try_get(0).map_err(failed)?;
        left = left.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX));
        changed |= forgotten > 0;
        if answer.try_get(2).map_err(failed)? {
            break;
        }
        if !answer.try_get::<bool, _>(1).map_err(failed)? {
            let arguments = Arguments::new()
                .with(i16::from(expired.state().code()))
                .with(micros(expired.older_than()))
                .with(expired.handler().map(AsRef::<str>::as_ref))
                .with(i32::try_from(few).unwrap_or(i32::MAX));
            let answer = step(database, &statements.drop_partition, arguments).await;
            let answer = answer.map_err(|error| error.after_changes(changed))?;
            if !answer.try_get(0).map_err(failed)? {
                break;
            }
            changed = true;
        }
    }
    Ok((u64::from(limit - left), changed))
}

/// How long messages must have been overdue to be deleted by themselves.
pub(crate) fn deletion_age(partitions: Option<&Partitions>, expired: &PurgeRequest) -> Duration {
    let patience = partitions.map_or(Duration::ZERO, |p| p.patience);
    expired.older_than().saturating_add(patience)
}

fn explain_denial(error: Error) -> Error {
    if error.kind() != ErrorKind::Denied {
        return error;
    }
    Error::new(
        ErrorKind::Denied,
        "purging an inbox in partitions makes and drops tables: it takes the role that owns them",
    )
    .with_source(error)
}
