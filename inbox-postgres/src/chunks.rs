//! How much goes into one statement.

use inbox_api::{Bytes, Message, Outcome, error_text};

/// The bytes that one statement takes, before escapes. PostgreSQL takes no message over 1 GB.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024 * 1024;

/// What an element of a batch takes in addition to its texts: numbers, times, and a length for each.
const ELEMENT_BYTES: usize = 128;

/// Splits a batch where its bytes come to more than `limit`. Each chunk has at least one element.
#[derive(Debug)]
pub(crate) struct Filling {
    limit: usize,
    bytes: usize,
}

impl Filling {
    pub(crate) fn within(limit: usize) -> Self {
        Self {
            limit,
            // The first element begins the first chunk.
            bytes: usize::MAX,
        }
    }

    /// Whether an element of so many bytes begins another chunk.
    pub(crate) fn overflows(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let overflows = self.bytes > self.limit;
        if overflows {
            self.bytes = bytes;
        }
        overflows
    }
}

/// About as many as are sent for it; never fewer but for what JSON escapes.
pub(crate) fn bytes_of(message: &Message) -> usize {
    let headers = message.headers();
    let texts = headers
        .iter()
        .map(|(name, value)| name.len() + value.len() + 6);
    let optional = [
        message.content_type().map(|text| text.as_str().len()),
        message.ordering_key().map(|text| text.as_str().len()),
    ];
    ELEMENT_BYTES
        + message.payload().len()
        + message.handler().as_str().len()
        + message.id().as_str().len()
        + message.kind().as_str().len()
        + texts.sum::<usize>()
        + optional.into_iter().flatten().sum::<usize>()
}

pub(crate) fn bytes_of_outcome(outcome: &Outcome) -> usize {
    ELEMENT_BYTES
        + match outcome {
            Outcome::Processed { result } => result.as_ref().map_or(0, Bytes::len),
            Outcome::Retry { error: text, .. } | Outcome::Dead { reason: text, .. } => {
                error_text(text).len()
            }
            Outcome::Release => 0,
        }
}
