//! Servers whose clocks are not the machine's, by `libfaketime`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Pid;

use crate::error::Skipped;
use crate::kind::Kind;

const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The library, in the server's directory: a server with another root directory finds it there, too.
const COPY: &str = "libfaketime.so.1";
/// How far ahead the clock is, in the server's directory.
const OFFSET: &str = "clock";

/// The processes of the server, in the server's directory.
const PROCESSES: &str = "clocked";

/// A shell script for the server's directory that removes what the library leaves of processes that were killed.
pub(crate) const SWEEP: &str = r#"
[ ! -f clocked ] || while read -r process; do
    rm -f "/dev/shm/faketime_shm_$process" "/dev/shm/sem.faketime_sem_$process"
done <clocked
"#;

/// Those on which a moved clock was tried, and works. Redis 8.0 and Valkey 9.1 end with a segmentation fault: they call
/// functions of their own allocator, `nallocx` and `sdallocx`, for memory that the system's has handed out. With theirs
/// before it, the library calls itself until it gives up.
const MOVABLE: [Kind; 6] = [
    Kind::Postgres,
    Kind::Postgres18,
    Kind::Mysql,
    Kind::Mariadb,
    Kind::Redis,
    // The clock of the PostgreSQL server behind it.
    Kind::Ferretdb,
];

pub(crate) struct Clocks {
    library: PathBuf,
    times: Times,
}

enum Times {
    /// Ahead by so many seconds, by node.
    Apart(Vec<i32>),
    /// As a file says, which is read whenever a clock is.
    Movable,
}

impl Clocks {
    pub(crate) fn ahead(ahead: &[i32]) -> Result<Self, Skipped> {
        Self::with(Times::Apart(ahead.to_vec()))
    }

    /// Clocks that show the true time until they are moved.
    pub(crate) fn movable(kind: Kind) -> Result<Self, Skipped> {
        if !MOVABLE.contains(&kind) {
            let reason =
                "such a server does not work with libfaketime, or it was not tried".to_owned();
            return Err(Skipped { reason });
        }
        Self::with(Times::Movable)
    }

    fn with(times: Times) -> Result<Self, Skipped> {
        let library = library().ok_or_else(|| Skipped {
            reason: "libfaketime is not installed".to_owned(),
        })?;
        Ok(Self { library, times })
    }

    pub(crate) fn is_movable(&self) -> bool {
        matches!(self.times, Times::Movable)
    }

    /// Puts what a server's clock needs into its new directory.
    pub(crate) fn prepare(&self, home: &Path) -> io::Result<()> {
        fs::copy(&self.library, home.join(COPY))?;
        move_clock(home, 0)
    }

    /// The same command, run below `root`, for a node with its own clock. Timers go by a clock that is not changed.
    pub(crate) fn around(
        &self,
        home: &Path,
        root: &Path,
        node: usize,
        server: &Command,
    ) -> io::Result<Command> {
        // By the loader's own argument, as in the environment it would be for the programs that start the server, too.
        let mut command = Command::new(loader(root)?);
        command
            .arg("--preload")
            // An allocator that looks at the clock before this library is ready would be its end, so
            // the system's own comes before any other.
            .arg(format!("{}:libc.so.6", home.join(COPY).display()))
            .arg("--argv0")
            .arg(server.get_program())
            .arg(server.get_program())
            .args(server.get_args())
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1");
        match &self.times {
            Times::Apart(ahead) => {
                let ahead = ahead.get(node % ahead.len().max(1));
                let ahead = ahead.copied().unwrap_or(0);
                command.env("FAKETIME", format!("{ahead:+}s"));
            }
            Times::Movable => {
                command
                    .env("FAKETIME_TIMESTAMP_FILE", home.join(OFFSET))
                    // All processes of a server have to see a move at once: they have one clock.
                    .env("FAKETIME_NO_CACHE", "1");
            }
        }
        Ok(command)
    }

    /// Notes a server's process, for [`SWEEP`].
    pub(crate) fn note(home: &Path, process: Pid) -> io::Result<()> {
        let options = || {
            File::options()
                .create(true)
                .append(true)
                .open(home.join(PROCESSES))
        };
        writeln!(options()?, "{process}")
    }
}

/// The program that loads programs.
fn loader(root: &Path) -> io::Result<PathBuf> {
    let directories = [root.join("lib64"), root.join("lib")];
    let entries = directories
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok());
    entries
        .flatten()
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with("ld-linux"))
        .map(|entry| entry.path())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no dynamic loader"))
}

/// Lets the clock of a server be ahead of the true time by so many microseconds from now on, or behind it by a
/// negative number.
pub(crate) fn move_clock(home: &Path, ahead: i64) -> io::Result<()> {
    // In one step: the server may be reading it.
    let next = home.join(format!("{OFFSET}.next"));
    let seconds = ahead as f64 / 1e6;
    fs::write(&next, format!("{seconds:+.6}s\n"))?;
    fs::rename(next, home.join(OFFSET))
}

/// Whether there is what servers with other clocks need ([`find_own_with_clocks`](crate::find_own_with_clocks)):
/// `libfaketime`.
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
