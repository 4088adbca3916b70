//! Purging: deleting what finished long enough ago.

use inbox_api::{Key, Listing, PurgeRequest, duration_micros};
use redb::ReadTransaction;

use super::records::Snapshot;
use crate::{
    error::Failure,
    tables::{FINISHED, finished_by},
    transaction::Transaction,
};

/// The latest moment at which a message must have become final to be expired now.
fn cutoff(request: &PurgeRequest, now: i64) -> i64 {
    now.saturating_sub(duration_micros(request.older_than()))
}

pub(crate) fn purge(
    transaction: &mut Transaction<'_>,
    request: &PurgeRequest,
) -> Result<u64, Failure> {
    let cutoff = cutoff(request, transaction.now);
    let mut rows = Vec::new();
    for seq in finished_by(&transaction.tables.finished, request.state(), cutoff)? {
        if rows.len() == request.limit() as usize {
            break;
        }
        // A row that does not read cannot tell its key, so it stays until it is mended.
        rows.extend(transaction.state(seq?)?);
    }
    for row in &rows {
        transaction.remove(row)?;
    }
    Ok(rows.len() as u64)
}

pub(crate) fn expired(
    transaction: &ReadTransaction,
    request: &PurgeRequest,
    now: i64,
) -> Result<Listing, Failure> {
    let snapshot = Snapshot::open(transaction, now)?;
    let finished = transaction.open_table(FINISHED)?;
    let found = finished_by(&finished, request.state(), cutoff(request, now))?;
    let mut listing = Listing::default();
    for seq in found.take(request.limit() as usize) {
        let seq = seq?;
        snapshot.add(&mut listing, (seq, snapshot.state(seq)?), true)?;
    }
    Ok(listing)
}

pub(crate) fn purge_archived(
    transaction: &mut Transaction<'_>,
    request: &PurgeRequest,
    keys: &[Key],
) -> Result<u64, Failure> {
    let cutoff = cutoff(request, transaction.now);
    let mut purged = 0;
    for key in keys {
        // Judged again: since it was archived, an operator may have replayed it.
        let found = transaction.seq_of(key)?;
        let Some(Ok(row)) = found.map(|seq| transaction.state(seq)).transpose()? else {
            continue;
        };
        let is_expired = row.stage.state() == request.state()
            && row.stage.finished_at().is_some_and(|at| at <= cutoff);
        if is_expired {
            transaction.remove(&row)?;
            purged += 1;
        }
    }
    Ok(purged)
}
