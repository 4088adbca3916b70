//! The tally, to which every operation adds rows, is summed up now and then. It is exact either way, so
//! that a failure does not matter.

use std::sync::{Arc, atomic::Ordering};

use crate::{
    connection::{Connection, Inner},
    multi_statement::Access,
};

/// One of so many operations sums up the tally.
const ONE_IN: u32 = 200;

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
    let mut script = connection.script(Access::Write);
    script.all(&connection.context.sql.compact_counters);
    script.commit();
    if let Err(error) = connection.run_once(Access::Write, &script).await {
        tracing::debug!(%error, "the tally was not summed up; it will be later");
    }
}
