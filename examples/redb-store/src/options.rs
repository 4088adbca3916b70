//! Where the inbox is, and what can be chosen about it.

use std::path::{Path, PathBuf};

use inbox_api::{Clock, DEFAULT_PAYLOAD_LIMIT};
use redb::{Database, DatabaseError};

/// The settings of a [`RedbStore`](crate::RedbStore).
///
/// ```
/// use redb_store::RedbOptions;
///
/// let options = RedbOptions::new("orders.redb").payload_limit(64 * 1024);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct RedbOptions {
    pub(crate) path: PathBuf,
    pub(crate) payload_limit: usize,
    pub(crate) drop_processed_payloads: bool,
    pub(crate) clock: Clock,
    pub(crate) open: fn(&Path) -> Result<Database, DatabaseError>,
}

impl RedbOptions {
    /// An inbox in the file at `path`, which belongs to it alone, with payloads up to
    /// [`DEFAULT_PAYLOAD_LIMIT`] that are kept after processing.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_path_buf(),
            payload_limit: DEFAULT_PAYLOAD_LIMIT,
            drop_processed_payloads: false,
            clock: Clock::system(),
            open: |path| Database::create(path),
        }
    }

    /// The largest payload and the largest result, in bytes.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = bytes;
        self
    }

    /// Whether a payload is deleted as soon as its message is processed. Such a message still
    /// refuses duplicates, but can be replayed only with a new payload.
    #[must_use]
    pub fn drop_processed_payloads(mut self, drop: bool) -> Self {
        self.drop_processed_payloads = drop;
        self
    }

    /// The store's clock. redb has no server whose clock could judge, and only one process at a
    /// time has the file open, so that process's clock is the store's. A test that keeps a clone
    /// can move it forward.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// How the file is opened, at first and again after the disk has failed:
    /// [`Database::create`] unless you want another cache size, say, or another storage.
    #[must_use]
    pub fn open_with(mut self, open: fn(&Path) -> Result<Database, DatabaseError>) -> Self {
        self.open = open;
        self
    }
}
