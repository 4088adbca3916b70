//! Servers whose clocks are not the machine's, by `libfaketime`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::error::Skipped;

const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

pub(crate) struct Clocks {
    library: PathBuf,
    /// In seconds, by node.
    ahead: Vec<i32>,
}

impl Clocks {
    pub(crate) fn ahead(ahead: &[i32]) -> Result<Self, Skipped> {
        library()
            .map(|library| Self {
                library,
                ahead: ahead.to_vec(),
            })
            .ok_or_else(|| Skipped {
                reason: "libfaketime is not installed".to_owned(),
            })
    }

    /// The same command for a node with its own clock. Timers go by a clock that is not changed.
    pub(crate) fn around(&self, node: usize, server: &Command) -> Command {
        let ahead = self.ahead.get(node % self.ahead.len().max(1));
        let ahead = ahead.copied().unwrap_or(0);
        let mut command = Command::new("/usr/bin/env");
        command
            // An allocator that looks at the clock before this library is ready would be its end, so
            // the system's own comes before any other.
            .arg(format!("LD_PRELOAD={}:libc.so.6", self.library.display()))
            .arg(format!("FAKETIME={ahead:+}s"))
            .args(["FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"])
            .arg(server.get_program())
            .args(server.get_args());
        command
    }
}

/// Whether there is what [`find_own_with_clocks`](crate::find_own_with_clocks) needs: `libfaketime`.
#[must_use]
pub fn clocks_can_be_changed() -> bool {
    library().is_some()
}

/// Where `libfaketime` is: Debian has a directory for each architecture.
fn library() -> Option<PathBuf> {
    let directories = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    directories
        .map(|entry| entry.path().join(LIBRARY))
        .find(|library| library.is_file())
}
