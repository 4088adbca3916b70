//! Receiving a batch in one write transaction.

use inbox_api::{Invalid, Message, Receipt};

use crate::{error::Failure, transaction::Transaction};

/// Why each message cannot be stored, if it cannot: told before any I/O.
pub(crate) fn refusals(messages: &[Message], limit: usize) -> Vec<Option<Invalid>> {
    let check = |message: &Message| message.check_payload(limit).err();
    messages.iter().map(check).collect()
}

/// Stores what is not known yet, one message after the other.
pub(crate) fn receive(
    transaction: &mut Transaction<'_>,
    messages: &[Message],
    refusals: Vec<Option<Invalid>>,
) -> Result<Vec<Receipt>, Failure> {
    let judged = messages.iter().zip(refusals);
    judged
        .map(|(message, refusal)| match refusal {
            Some(invalid) => Ok(Receipt::Refused(invalid)),
            // The key's table knows the key from the first copy on, and until it is purged:
            // also within this batch, and whatever state the message is in.
            None => match transaction.seq_of(message.key())? {
                Some(first) => Ok(Receipt::Duplicate {
                    differs: transaction.differs(first, message)?,
                }),
                None => transaction.insert(message).map(|_| Receipt::Accepted),
            },
        })
        .collect()
}
