//! Whether a handler's command can be started, or its server reached, at all. Work that has an end does not wait for ever
//! for one that cannot.

use std::{
    io,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use nix::errno::Errno;
use tokio::sync::SetOnce;

/// How long no message is tried after one could not be started.
pub(super) const PAUSE: Duration = Duration::from_secs(2);

/// So many failures in a row, with none that succeeds in between, are for good.
const MOST_FAILED: u32 = 10;

/// Failures within this time count as one: of as many messages as are started at once.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The starts of a handler's commands, or the connections to its server.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    failed: Mutex<Failed>,
    /// Why none is expected to succeed any more.
    given_up: SetOnce<String>,
}

/// Those that have failed since the last one that succeeded.
#[derive(Debug, Default)]
struct Failed {
    number: u32,
    last: Option<Instant>,
}

impl Starts {
    /// Waits until none is expected to succeed any more; never ends before. Answers why, in one line.
    pub(crate) async fn given_up(&self) -> String {
        self.given_up.wait().await.clone()
    }

    pub(super) fn succeeded(&self) {
        self.count(|failed| *failed = Failed::default());
    }

    /// A command could not be started.
    pub(super) fn not_started(&self, program: &Path, error: &io::Error, now: Instant) {
        if !is_passing(error) {
            self.fail(now, || not_started(program, error));
        }
    }

    /// A server could not be reached.
    pub(super) fn not_reached(&self, server: &str, error: &str, now: Instant) {
        self.fail(now, || {
            format!("{server} could not be reached {MOST_FAILED} times in a row: {error}; {LEFT}")
        });
    }

    fn fail(&self, now: Instant, reason: impl FnOnce() -> String) {
        let number = self.count(|failed| {
            let is_another = |last| now.saturating_duration_since(last) >= AT_ONCE;
            if failed.last.is_none_or(is_another) {
                failed.number = failed.number.saturating_add(1);
                failed.last = Some(now);
            }
            failed.number
        });
        if number >= MOST_FAILED {
            // The first reason stays.
            let _ = self.given_up.set(reason());
        }
    }

    fn count<T>(&self, change: impl FnOnce(&mut Failed) -> T) -> T {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut failed)
    }
}

/// What becomes of the messages.
const LEFT: &str = "what it has not handled is pending, with no attempt counted";

fn not_started(program: &Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => {
            " (if it is there, look at its first line: the interpreter may be missing, or the line end in CR LF)"
        }
        _ => "",
    };
    format!(
        "{} could not be started {MOST_FAILED} times in a row: {error}{hint}; {LEFT}",
        program.display()
    )
}

/// Whether it is for want of what others use at present: memory, processes, files, or the program while it is written.
fn is_passing(error: &io::Error) -> bool {
    let passing = [
        Errno::EAGAIN,
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOMEM,
        Errno::ETXTBSY,
    ];
    let code = error.raw_os_error();
    code.is_some_and(|code| passing.map(|errno| errno as i32).contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failures of these kinds, so many seconds after the first.
    fn fail(starts: &Starts, errno: Errno, seconds: impl IntoIterator<Item = u64>) {
        let begin = Instant::now();
        for second in seconds {
            let error = io::Error::from_raw_os_error(errno as i32);
            let now = begin + Duration::from_secs(second);
            starts.not_started(Path::new("./handler"), &error, now);
        }
    }

    #[test]
    fn a_command_is_given_up_when_it_fails_to_start_again_and_again() {
        let starts = Starts::default();
        fail(&starts, Errno::ENOENT, 0..9);
        starts.succeeded();
        fail(&starts, Errno::ENOENT, 0..9);
        assert!(!starts.given_up.initialized());
        fail(&starts, Errno::ENOENT, [9]);
        let reason = starts.given_up.get().unwrap();
        assert!(
            reason.contains("./handler could not be started 10 times"),
            "{reason}"
        );
        assert!(reason.contains("look at its first line"), "{reason}");
    }

    #[test]
    fn what_fails_at_once_or_for_want_of_memory_or_files_is_not_for_good() {
        let starts = Starts::default();
        fail(&starts, Errno::ENOENT, [0; 60]);
        for errno in [Errno::EMFILE, Errno::EAGAIN, Errno::ENOMEM, Errno::ETXTBSY] {
            fail(&starts, errno, 1..100);
        }
        assert!(!starts.given_up.initialized());
    }
}
