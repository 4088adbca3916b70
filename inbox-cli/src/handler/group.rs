//! The process groups of running commands. A command is often a shell that starts others; when it
//! is given up, all of them must end, or they would go on during the next attempt.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::process::Child;

static RUNNING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn running() -> MutexGuard<'static, BTreeSet<i32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The group of one command. Dropping it kills the whole group.
pub(super) struct Group(i32);

impl Group {
    /// The group that `child` leads, if it still runs.
    pub(super) fn led_by(child: &Child) -> Option<Self> {
        let leader = i32::try_from(child.id()?).ok()?;
        running().insert(leader);
        Some(Self(leader))
    }

    /// The command has ended by itself. What it has left running on purpose is its own affair,
    /// and its number may soon be another's.
    pub(super) fn has_ended(self) {
        running().remove(&self.0);
        std::mem::forget(self);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        running().remove(&self.0);
        kill(self.0);
    }
}

/// Kills every running command, for a process that is about to end without waiting.
pub(crate) fn kill_all() {
    for leader in std::mem::take(&mut *running()) {
        kill(leader);
    }
}

fn kill(leader: i32) {
    // A group that has just ended by itself is no problem.
    let _ = killpg(Pid::from_raw(leader), Signal::SIGKILL);
}
