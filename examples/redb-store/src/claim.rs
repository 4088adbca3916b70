//! Claiming what has been due for longest.

use std::collections::BTreeSet;

use inbox_api::{ClaimRequest, Claims};

use crate::{error::Failure, transaction::Transaction};

pub(crate) fn claim(
    transaction: &mut Transaction<'_>,
    request: &ClaimRequest,
) -> Result<Claims, Failure> {
    let limit = request.limit as usize;
    // A handler named twice must not have its messages taken twice.
    let handlers: BTreeSet<&str> = request.handlers.iter().map(AsRef::as_ref).collect();
    let mut claims = Claims::default();
    // Usually one round. Setting a row aside may let the next of its ordering key come
    // due, so it goes on until the batch is full or nothing is left.
    while claims.leased.len() < limit {
        let wanted = limit - claims.leased.len();
        let candidates = transaction.candidates(handlers.iter().copied(), wanted)?;
        if candidates.is_empty() {
            break;
        }
        for candidate in candidates {
            match transaction.lease(candidate.seq, &request.terms)? {
                Ok(leased) => claims.leased.push(leased),
                Err(reason) => claims
                    .corrupt
                    .push(transaction.set_aside(&candidate, reason)?),
            }
        }
    }
    Ok(claims)
}
