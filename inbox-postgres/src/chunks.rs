//! How much goes into one statement.

/// The bytes that one statement takes, before escapes. PostgreSQL takes no message over 1 GB.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024 * 1024;

/// What an element of a batch takes in addition to its texts: numbers, times, and a length for each.
pub(crate) const ELEMENT_BYTES: usize = 128;

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
