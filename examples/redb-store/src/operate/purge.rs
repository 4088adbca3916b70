//! Retention: deleting, or dropping the content of, what finished long enough ago.

use inbox_api::{Key, Listing, PurgeRequest, duration_micros};
use redb::ReadTransaction;

use super::records::Snapshot;
use crate::{
    error::Failure,
    rows::StateRow,
    tables::{COUNT, Expired, FINISHED},
    transaction::Transaction,
};

/// The latest moment at which a message must have become final to be expired now.
fn cutoff(request: &PurgeRequest, now: i64) -> i64 {
    now.saturating_sub(duration_micros(request.older_than()))
}

/// The rows that `request` selects. One that does not read cannot tell its key, so it is passed over and
/// stays until it is mended.
fn expired_rows(
    transaction: &Transaction<'_>,
    request: &PurgeRequest,
    with_content: bool,
) -> Result<Vec<StateRow>, Failure> {
    let expired = Expired {
        request,
        cutoff: cutoff(request, transaction.now),
        with_content,
    };
    let tables = &transaction.tables;
    let mut rows = Vec::new();
    let reads = |seq| Ok(transaction.state(seq)?.is_ok());
    for seq in expired.find(&tables.finished, &tables.count, reads)? {
        rows.extend(transaction.state(seq)?);
    }
    Ok(rows)
}

pub(crate) fn purge(
    transaction: &mut Transaction<'_>,
    request: &PurgeRequest,
) -> Result<u64, Failure> {
    let rows = expired_rows(transaction, request, false)?;
    for row in &rows {
        transaction.remove(row)?;
    }
    Ok(rows.len() as u64)
}

/// Drops payloads and results, which moves a message to where the next call does not look.
pub(crate) fn drop_payloads(
    transaction: &mut Transaction<'_>,
    request: &PurgeRequest,
) -> Result<u64, Failure> {
    let rows = expired_rows(transaction, request, true)?;
    for before in &rows {
        transaction.tables.payload.remove(before.seq)?;
        transaction.tables.result.remove(before.seq)?;
        let after = StateRow {
            payload_bytes: None,
            has_result: false,
            ..before.clone()
        };
        transaction.replace(before, &after)?;
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
    let expired = Expired {
        request,
        cutoff: cutoff(request, now),
        with_content: false,
    };
    let mut listing = Listing::default();
    for seq in expired.find(&finished, &transaction.open_table(COUNT)?, |_| Ok(true))? {
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
            && request
                .handler()
                .is_none_or(|only| *only == row.key.handler)
            && row.stage.finished_at().is_some_and(|at| at <= cutoff);
        if is_expired {
            transaction.remove(&row)?;
            purged += 1;
        }
    }
    Ok(purged)
}
