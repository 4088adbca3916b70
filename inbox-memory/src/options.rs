//! What can be chosen about a store in memory.

use inbox_api::{Clock, DEFAULT_PAYLOAD_LIMIT};

/// Options of a [`MemoryStore`](crate::MemoryStore).
///
/// ```
/// use inbox_memory::{MemoryOptions, MemoryStore};
///
/// let store = MemoryStore::with(MemoryOptions {
///     payload_limit: 64 * 1024,
///     ..MemoryOptions::default()
/// });
/// # let _ = store;
/// ```
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// The largest payload and the largest result, in bytes.
    pub payload_limit: usize,
    /// Whether a payload is freed as soon as its message is processed. Such a message still
    /// refuses duplicates, but can be replayed only with a new payload.
    pub drop_processed_payloads: bool,
    /// The store's clock. A test that keeps a clone can move it forward.
    pub clock: Clock,
}

impl Default for MemoryOptions {
    /// Payloads up to [`DEFAULT_PAYLOAD_LIMIT`], kept after processing; the host's clock.
    fn default() -> Self {
        Self {
            payload_limit: DEFAULT_PAYLOAD_LIMIT,
            drop_processed_payloads: false,
            clock: Clock::system(),
        }
    }
}
