//! How a batch goes into one statement: rows as a JSON array, and the bytes that JSON cannot carry as
//! one blob.

use inbox_api::{Error, ErrorKind, Result};
use serde::{Serialize, Serializer};

/// What one statement takes at most. SQLite holds no value over 1 GB.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024 * 1024;
pub(crate) const CHUNK_ROWS: usize = 1000;

/// Rows for one statement: JSON arrays, and the bytes that JSON cannot carry one after the
/// other.
pub(crate) struct Chunk<R> {
    pub(crate) rows: Vec<R>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) text_bytes: usize,
}

impl<R> Chunk<R> {
    pub(crate) fn new() -> Self {
        // Never empty: SQLite's substr of an empty blob is NULL rather than an empty blob.
        let bytes = vec![0];
        Self {
            rows: Vec::new(),
            bytes,
            text_bytes: 0,
        }
    }

    /// Where `more` begins, counted from 1.
    pub(crate) fn append(&mut self, more: &[u8]) -> usize {
        let at = self.bytes.len() + 1;
        self.bytes.extend_from_slice(more);
        at
    }

    pub(crate) fn is_full_for(&self, more: usize) -> bool {
        !self.rows.is_empty()
            && (self.rows.len() >= CHUNK_ROWS
                || self.bytes.len() + self.text_bytes + more > CHUNK_BYTES)
    }
}

/// `value` as a statement takes it.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorKind::Other, "cannot write JSON").with_source(error))
}

/// Rows and their tokens as a JSON object: in an array, each pair would be a text of its own, to be parsed for
/// each of its two values.
pub(crate) struct ByRow<'a>(pub(crate) &'a [(i64, i64)]);

impl Serialize for ByRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}
