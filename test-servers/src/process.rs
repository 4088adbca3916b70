//! A server's process, with all that belongs to it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Gid, Pid, Uid, User};

/// Waits for leave on standard input and then becomes the server. If we die before giving it, the
/// pipe ends and so does this, so there is no moment at which a server runs unguarded.
const LAUNCHER: &str = r#"read -r leave && exec "$@" </dev/null"#;

const POLL: Duration = Duration::from_millis(20);

/// A process that leads its own process group.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    group: Pid,
}

impl Process {
    /// Creates the process, which then waits for [`release`](Self::release).
    ///
    /// The server sees only the environment set here and in the command, so that variables like `PGDATA`
    /// of the caller do not reach it. It works in `home` and writes to the file `log` in it. With a
    /// `root`, it runs with that as its root directory, in which `home` and the paths of the
    /// command mean what they mean here.
    pub(crate) fn prepare(
        server: &Command,
        home: &Path,
        user: Option<&User>,
        root: Option<&Path>,
    ) -> io::Result<Self> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(log_of(home))?;
        let mut launcher = Command::new("sh");
        launcher.args(["-c", LAUNCHER, "launcher"]);
        match (root, user) {
            // Only root may change the root directory, so the user comes after it.
            (Some(root), user) => {
                launcher.arg("chroot");
                if let Some(user) = user {
                    launcher.arg(format!("--userspec=+{}:+{}", user.uid, user.gid));
                    launcher.arg("--groups=");
                }
                launcher.arg(root);
            }
            (None, Some(user)) => {
                launcher.uid(user.uid.as_raw()).gid(user.gid.as_raw());
            }
            (None, None) => {}
        }
        launcher
            .arg(server.get_program())
            .args(server.get_args())
            .env_clear()
            .env("PATH", crate::program::search_path())
            .env("HOME", home)
            .env("TMPDIR", home)
            .env("LC_ALL", "C")
            .envs(
                server
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .current_dir(home)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = launcher.spawn()?;
        let group = i32::try_from(child.id()).map_err(io::Error::other)?;
        Ok(Self {
            child,
            group: Pid::from_raw(group),
        })
    }

    /// Lets the server begin.
    pub(crate) fn release(&mut self) -> io::Result<()> {
        match self.child.stdin.take() {
            Some(mut leave) => leave.write_all(b"\n"),
            None => Ok(()),
        }
    }

    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    pub(crate) fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until it has ended. `None` if it has not after `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            match self.exited()? {
                Some(status) => return Ok(Some(status)),
                None if Instant::now() >= deadline => return Ok(None),
                None => thread::sleep(POLL),
            }
        }
    }

    /// Sends a signal to the server process alone.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        tolerate_gone(kill(self.group, signal))
    }

    /// Stops every process of the server where it is.
    pub(crate) fn pause(&self) -> io::Result<()> {
        self.freeze().map(drop)
    }

    pub(crate) fn resume(&self) -> io::Result<()> {
        for pid in descendants(self.group) {
            tolerate_gone(kill(pid, Signal::SIGCONT))?;
        }
        tolerate_gone(killpg(self.group, Signal::SIGCONT))
    }

    /// Kills every process of the server at once, and returns when they are gone.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        if self.exited()?.is_some() {
            return Ok(());
        }
        let family = self.freeze()?;
        tolerate_gone(killpg(self.group, Signal::SIGKILL))?;
        for &pid in &family {
            tolerate_gone(kill(pid, Signal::SIGKILL))?;
        }
        self.child.wait()?;
        // A server started again on the same data refuses while a process of the old one is left.
        while family.iter().any(|&pid| is_alive(pid)) {
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Stops the leader first: then nothing new is born, and its list of children is exact.
    fn freeze(&self) -> io::Result<Vec<Pid>> {
        tolerate_gone(killpg(self.group, Signal::SIGSTOP))?;
        while state(self.group).is_some_and(|state| !matches!(state, 'T' | 'Z' | 'X')) {
            thread::yield_now();
        }
        let family = descendants(self.group);
        for &pid in &family {
            tolerate_gone(kill(pid, Signal::SIGSTOP))?;
        }
        Ok(family)
    }
}

/// The user a server runs as that refuses to run as root: the first of `names` that exists.
/// `None` if we are not root ourselves, or if the server does not mind (`names` is empty).
pub(crate) fn unprivileged(names: &[&str]) -> io::Result<Option<User>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    for name in names {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some(user));
        }
    }
    if names.is_empty() {
        return Ok(None);
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("the server refuses to run as root, and of the users {names:?} none exists"),
    ))
}

/// Gives a directory to the user a server runs as.
pub(crate) fn hand_over(directory: &Path, user: Option<&User>) -> io::Result<()> {
    let Some(User { uid, gid, .. }) = user else {
        return Ok(());
    };
    let (uid, gid): (&Uid, &Gid) = (uid, gid);
    std::os::unix::fs::chown(directory, Some(uid.as_raw()), Some(gid.as_raw()))
}

/// The end of the log of a server that works in `home`.
pub(crate) fn log_tail(home: &Path) -> String {
    last_lines(&fs::read(log_of(home)).unwrap_or_default())
}

pub(crate) fn last_lines(log: &[u8]) -> String {
    const LINES: usize = 30;
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

fn log_of(home: &Path) -> PathBuf {
    home.join("log")
}

/// The children, grandchildren and so on. PostgreSQL's are not in its process group: each leads
/// one of its own. Empty where there is no `/proc`; there a signal reaches the group only.
fn descendants(pid: Pid) -> Vec<Pid> {
    let mut found: Vec<Pid> = Vec::new();
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|id| id.parse().ok()) {
            let child = Pid::from_raw(child);
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

/// Whether a process still holds anything. A zombie does not, and may stay for long where process
/// 1 does not collect orphans, as in many containers.
fn is_alive(pid: Pid) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The letter by which `/proc` gives a process's state. `None` if there is no such process.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.chars().next()
}

/// A process that is gone needs no signal.
fn tolerate_gone(sent: nix::Result<()>) -> io::Result<()> {
    match sent {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
