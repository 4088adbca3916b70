//! Server programs installed on the machine.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A server program and what it says its version is.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
}

impl Program {
    /// `None` if the program cannot be asked for its version, and so not be run either.
    pub(crate) fn at(path: PathBuf) -> Option<Self> {
        let answer = Command::new(&path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .ok()
            .filter(|answer| answer.status.success())?;
        let text = String::from_utf8_lossy(&answer.stdout);
        let version = text.lines().next()?.trim().to_owned();
        Some(Self { path, version })
    }

    /// Every program of this name, in the order of the search path.
    pub(crate) fn named(name: &str) -> impl Iterator<Item = Self> {
        which::which_in_all(name, Some(search_path()), "/")
            .into_iter()
            .flatten()
            .filter_map(Self::at)
    }

    /// Another program that comes with this one, next to it or on the search path.
    pub(crate) fn companion(&self, name: &str) -> Option<PathBuf> {
        let beside = self.path.with_file_name(name);
        if beside.is_file() {
            return Some(beside);
        }
        which::which_in(name, Some(search_path()), "/").ok()
    }
}

/// `PATH`, and the places where distributions put servers that ordinary users do not search.
pub(crate) fn search_path() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/libexec"];
    let all = env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .chain(places.map(PathBuf::from));
    // Parts of a joined path join again, so this cannot fail.
    env::join_paths(all).unwrap_or(path)
}
