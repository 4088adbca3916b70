//! Keeping partitions up, and dropping them whole: a part of every purge of an inbox in partitions.

use std::time::Duration;

use inbox_api::{Error, ErrorKind, PurgeRequest, Result};
use sqlx::{Row as _, SqlStr, postgres::PgRow};

use crate::{
    error::in_operation,
    options::Partitions,
    store::{On, PostgresStore},
    time::micros,
    work::Arguments,
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

impl PostgresStore {
    async fn partition_step(
        &self,
        operation: &'static str,
        text: &SqlStr,
        arguments: Arguments,
    ) -> Result<PgRow> {
        let answer = self
            .run(operation, On::Pool, text, arguments.finish()?)
            .await
            .map_err(|error| denied(operation, error))?;
        let nothing = || in_operation(operation)(sqlx::Error::RowNotFound);
        answer.into_iter().next().ok_or_else(nothing)
    }

    /// Makes partitions ahead, and begins a new one when the current one's time is over.
    pub(crate) async fn keep_partitions(
        &self,
        operation: &'static str,
        partitions: &Partitions,
    ) -> Result<()> {
        let text = &self.inner.work.statements.partition_upkeep;
        for _ in 0..UPKEEP_STEPS {
            let arguments = Arguments::new(operation).with(micros(partitions.period));
            let answer = self.partition_step(operation, text, arguments).await?;
            if !answer.try_get(0).map_err(in_operation(operation))? {
                break;
            }
        }
        Ok(())
    }

    /// Drops the partitions whose messages are all as `expired` says and more than `few`, or none,
    /// and deletes up to `limit` of their keys. Returns how many messages that was.
    ///
    /// A partition is first taken out of its tables. Its messages are gone then, but their keys go
    /// on refusing duplicates until they are deleted, in slices, with the dropped table as the
    /// list of what to delete. Each step is a transaction; where one purge ends, the next goes on.
    pub(crate) async fn drop_partitions(
        &self,
        operation: &'static str,
        expired: &PurgeRequest,
        few: u32,
        limit: u32,
    ) -> Result<u64> {
        let statements = &self.inner.work.statements;
        let mapped = in_operation(operation);
        let mut left = limit;
        while left > 0 {
            let slice = left.min(SLICE);
            let arguments =
                Arguments::new(operation).with(i32::try_from(slice).unwrap_or(i32::MAX));
            let answer = self
                .partition_step(operation, &statements.forget, arguments)
                .await?;
            let forgotten: i64 = answer.try_get(0).map_err(mapped)?;
            left = left.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX));
            if answer.try_get(2).map_err(mapped)? {
                break;
            }
            if !answer.try_get::<bool, _>(1).map_err(mapped)? {
                let arguments = Arguments::new(operation)
                    .with(i16::from(expired.state().code()))
                    .with(micros(expired.older_than()))
                    .with(i32::try_from(few).unwrap_or(i32::MAX));
                let answer = self
                    .partition_step(operation, &statements.drop_partition, arguments)
                    .await?;
                if !answer.try_get(0).map_err(mapped)? {
                    break;
                }
            }
        }
        Ok(u64::from(limit - left))
    }
}

/// How long messages must have been overdue to be deleted by themselves.
pub(crate) fn overdue(partitions: Option<&Partitions>, expired: &PurgeRequest) -> Duration {
    let patience = partitions.map_or(Duration::ZERO, |p| p.patience);
    expired.older_than().saturating_add(patience)
}

fn denied(operation: &'static str, error: Error) -> Error {
    if error.kind() != ErrorKind::Denied {
        return error;
    }
    Error::new(
        ErrorKind::Denied,
        operation,
        "purging an inbox in partitions makes and drops tables: it takes the role that owns them",
    )
    .with_source(error)
}
