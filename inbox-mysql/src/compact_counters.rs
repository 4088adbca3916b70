//! The tally, to which every operation adds rows, is summed up now and then. It is exact either way, so
//! that a failure does not matter.

use std::sync::{Arc, atomic::Ordering};

use inbox_api::Result;

use crate::{
    connection::{Connection, Inner},
    error::failed,
    multi_statement::Access,
    statement::Statement,
};

/// One of so many operations sums up the tally.
const ONE_IN: u32 = 200;
/// The most rows that one transaction sums up.
const SLICE: i64 = 5000;
/// The most transactions at a time. Each operation adds a row for each handler that it touches, so that more than one
/// slice may have come together.
const ROUNDS: u32 = 20;

/// Sums up the tally, now and then.
pub(crate) async fn compact_sometimes(connection: Connection<'_>) {
    if is_due(connection.inner) {
        compact(connection).await;
    }
}

/// The same behind an operation in a caller's transaction, which may commit without the store. On
/// another connection, since a transaction of the caller's may lock more than it reads; and not
/// waited for, since that may be the only connection there is.
pub(crate) fn compact_in_background(inner: &Arc<Inner>) {
    if is_due(inner) {
        let inner = Arc::clone(inner);
        tokio::spawn(async move { compact(Connection::new(&inner)).await });
    }
}

fn is_due(inner: &Inner) -> bool {
    inner.tallied.fetch_add(1, Ordering::Relaxed) % ONE_IN == ONE_IN - 1
}

async fn compact(connection: Connection<'_>) {
    for _ in 0..ROUNDS {
        match compact_slice(connection).await {
            Ok(SLICE) => {}
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%error, "the tally was not summed up; it will be later");
                return;
            }
        }
    }
}

/// Answers with how many rows it has summed up.
async fn compact_slice(connection: Connection<'_>) -> Result<i64> {
    let mut script = connection.script(Access::Write);
    let slice = [("slice", Statement::of_number(SLICE))];
    script.fill(&connection.context.sql.compact_counters, &slice);
    let summed_up = script.changed();
    script.commit();
    let answers = connection.run_once(Access::Write, &script).await?;
    answers.number(summed_up).map_err(failed)
}
