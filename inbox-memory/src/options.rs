//! What can be chosen about a store in memory.

use inbox_api::{Clock, DEFAULT_PAYLOAD_LIMIT, Error, ErrorKind, Result};

/// The schemes of the URLs that [`MemoryOptions::from_url`] reads.
pub const SCHEMES: &[&str] = &["memory"];

/// The settings of a [`MemoryStore`](crate::MemoryStore).
///
/// ```
/// use inbox_memory::{MemoryOptions, MemoryStore};
///
/// let store = MemoryStore::with(MemoryOptions::new().payload_limit(64 * 1024));
/// # let _ = store;
/// ```
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    pub(crate) payload_limit: usize,
    pub(crate) drop_processed_payloads: bool,
    pub(crate) clock: Clock,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryOptions {
    /// Payloads up to [`DEFAULT_PAYLOAD_LIMIT`], kept after processing; the host's clock.
    #[must_use]
    pub fn new() -> Self {
        Self {
            payload_limit: DEFAULT_PAYLOAD_LIMIT,
            drop_processed_payloads: false,
            clock: Clock::system(),
        }
    }

    /// Reads `memory://`, which takes no settings.
    ///
    /// # Errors
    /// `Invalid` for another scheme, or when something follows.
    pub fn from_url(url: &str) -> Result<Self> {
        let refusal = |why| Err(Error::new(ErrorKind::Invalid, why).in_operation("from_url"));
        match url.split_once("://") {
            Some(("memory", "")) => Ok(Self::new()),
            Some(("memory", _)) => {
                refusal("nothing may follow memory://; every connection is a new, empty inbox")
            }
            _ => refusal("the URL must start with memory://"),
        }
    }

    /// The largest payload and the largest result, in bytes.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = bytes;
        self
    }

    /// Whether a payload is freed as soon as its message is processed. Such a message still
    /// refuses duplicates, but can be replayed only with a new payload.
    #[must_use]
    pub fn drop_processed_payloads(mut self, drop: bool) -> Self {
        self.drop_processed_payloads = drop;
        self
    }

    /// The clock. A test that keeps a clone can move it forward.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}
