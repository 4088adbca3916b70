//! Beginning inline: stores the message if it is new, and leases it if its handler may run now.

use inbox_api::{Begun, Bytes, LeaseTerms, Message, from_micros};
use redb::ReadableTable;

use crate::{
    error::Failure,
    rows::{Stage, StateRow},
    transaction::Transaction,
};

pub(crate) fn begin(
    transaction: &mut Transaction<'_>,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Begun, Failure> {
    let row = match transaction.seq_of(message.key())? {
        None => transaction.insert(message)?,
        Some(seq) => transaction
            .state(seq)?
            .map_err(|reason| Failure::corrupt(seq, &reason))?,
    };
    begin_stored(transaction, &row, terms)
}

fn begin_stored(
    transaction: &mut Transaction<'_>,
    row: &StateRow,
    terms: &LeaseTerms,
) -> Result<Begun, Failure> {
    let now = transaction.now;
    let busy = |until| Begun::Busy {
        until: from_micros(until),
    };
    match row.stage {
        Stage::Processed { .. } => {
            let result = transaction.tables.result.get(row.seq)?;
            let result = result.map(|bytes| Bytes::copy_from_slice(bytes.value()));
            return Ok(Begun::Processed { result });
        }
        Stage::Dead { .. } => {
            let reason = row.last_error.clone().unwrap_or_default();
            return Ok(Begun::Dead { reason });
        }
        Stage::Discarded { .. } => return Ok(Begun::Discarded),
        Stage::Leased { until } if until > now => return Ok(busy(until)),
        Stage::Pending if row.due_at > now => return Ok(busy(row.due_at)),
        // A lease that has run out, or a message that is due: free to take, if it is its turn.
        Stage::Leased { .. } | Stage::Pending => {}
    }
    if !transaction.is_head(row)? {
        return Ok(Begun::Blocked);
    }
    let leased = transaction
        .lease(row.seq, terms)?
        .map_err(|reason| Failure::corrupt(row.seq, &reason))?;
    Ok(Begun::Run(Box::new(leased)))
}
