//! Whether the file behind the path is still the one that is open.
//!
//! A file that is deleted, moved away or replaced stays what it was for those who have it open: they
//! would go on in one that cannot be found any more, and a connection opened later would be to another
//! one. So the two are compared whenever a connection was opened, and once a second.

use std::{
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_api::{Error, ErrorKind, Result};

/// Between two looks at the file's name, which cost a system call each.
const INTERVAL: Duration = Duration::from_secs(1);

/// The file that a store has opened.
#[derive(Debug)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    opened: OnceLock<Number>,
    since: Instant,
    /// When to look again, in milliseconds.
    next: AtomicU64,
}

/// What tells one file from all others on a host, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number(u64, u64);

impl Number {
    #[cfg(unix)]
    fn of(path: &Path) -> std::io::Result<Option<Self>> {
        use std::os::unix::fs::MetadataExt as _;

        // Never opens it: closing it again would release the locks of SQLite's connections.
        let found = std::fs::metadata(path)?;
        Ok(Some(Self(found.dev(), found.ino())))
    }

    /// Elsewhere a file that is open can neither be deleted nor moved.
    #[cfg(not(unix))]
    fn of(_path: &Path) -> std::io::Result<Option<Self>> {
        Ok(None)
    }
}

impl FileIdentity {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            opened: OnceLock::new(),
            since: Instant::now(),
            next: AtomicU64::new(0),
        }
    }

    /// The first connection is open: this is the file from here on.
    pub(crate) fn is_opened(&self) {
        if let Ok(Some(number)) = Number::of(&self.path) {
            let _ = self.opened.set(number);
        }
    }

    /// Looks at the next opportunity.
    pub(crate) fn look_again(&self) {
        self.next.store(0, Ordering::Relaxed);
    }

    /// Fails when the path is known to lead elsewhere, or nowhere.
    pub(crate) fn check(&self) -> Result<()> {
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now < self.next.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(opened) = self.opened.get() else {
            return Ok(());
        };
        let fate = match Number::of(&self.path) {
            Ok(Some(found)) if found != *opened => "was replaced by another one",
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                "was deleted or moved away"
            }
            // What cannot be looked at may be there.
            _ => {
                let interval = u64::try_from(INTERVAL.as_millis()).unwrap_or(u64::MAX);
                let next = now.saturating_add(interval);
                self.next.store(next, Ordering::Relaxed);
                return Ok(());
            }
        };
        let context = format!(
            "{}: the file {fate} while it was open, and what was done since is not in it; connect \
             again",
            self.path.display()
        );
        Err(Error::new(ErrorKind::Other, context))
    }
}
