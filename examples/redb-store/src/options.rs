//! Where the inbox is, and what can be chosen about it.

use std::path::{Path, PathBuf};

use inbox_api::{Clock, DEFAULT_PAYLOAD_LIMIT};
use redb::{Database, DatabaseError};

/// Options of a [`RedbStore`](crate::RedbStore).
///
/// ```
/// use redb_store::RedbOptions;
///
/// let options = RedbOptions {
///     payload_limit: 64 * 1024,
///     ..RedbOptions::new("orders.redb")
/// };
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct RedbOptions {
    /// The database file. It belongs to the inbox alone.
    pub path: PathBuf,
    /// The largest payload and the largest result, in bytes.
    pub payload_limit: usize,
    /// Whether a payload is deleted as soon as its message is processed. Such a message still
    /// refuses duplicates, but can be replayed only with a new payload.
    pub drop_processed_payloads: bool,
    /// The store's clock. redb has no server whose clock could judge, and only one process at a
    /// time has the file open, so that process's clock is the store's. A test that keeps a clone
    /// can move it forward.
    pub clock: Clock,
    /// How the file is opened, at first and again after the disk has failed:
    /// [`Database::create`] unless you want another cache size, say, or another storage.
    pub open: fn(&Path) -> Result<Database, DatabaseError>,
}

impl RedbOptions {
    /// An inbox in the file at `path`, with payloads up to [`DEFAULT_PAYLOAD_LIMIT`] that are kept
    /// after processing.
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
}
