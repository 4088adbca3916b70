//! Server programs installed on the machine.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A server program and what it says its version is.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    /// The root directory it runs in, if that is not the machine's own.
    pub(crate) root: Option<PathBuf>,
}

impl Program {
    /// `None` if the program cannot be asked for its version, and so not be run either.
    pub(crate) fn at(path: PathBuf) -> Option<Self> {
        let version = version(Command::new(&path))?;
        Some(Self {
            path,
            version,
            root: None,
        })
    }

    /// The program at this path of another root directory, within which the path means the same.
    pub(crate) fn within(root: &Path, path: PathBuf) -> Option<Self> {
        let mut program = Command::new("chroot");
        program.arg(root).arg(&path);
        let version = version(program)?;
        Some(Self {
            path,
            version,
            root: Some(root.to_owned()),
        })
    }

    /// Every program of this name, in the order of the search path.
    pub(crate) fn named(name: &str) -> impl Iterator<Item = Self> {
        which::which_in_all(name, Some(search_path()), "/")
            .into_iter()
            .flatten()
            .filter_map(Self::at)
    }

    /// Another program that comes with this one: next to it, be it reached by a link, or on the
    /// search path.
    pub(crate) fn companion(&self, name: &str) -> Option<PathBuf> {
        let linked = self.path.canonicalize().ok();
        [Some(&self.path), linked.as_ref()]
            .into_iter()
            .flatten()
            .map(|path| path.with_file_name(name))
            .find(|neighbour| neighbour.is_file())
            .or_else(|| which::which_in(name, Some(search_path()), "/").ok())
    }

    /// Of the users that a server may run as, those that it knows. Another root directory has
    /// only those whom every system has.
    pub(crate) fn users(&self, of_kind: &'static [&'static str]) -> &'static [&'static str] {
        match self.root {
            Some(_) => &["nobody"],
            None => of_kind,
        }
    }

    /// Where it can have its own directory.
    pub(crate) fn temporary_directory(&self) -> PathBuf {
        match &self.root {
            Some(root) => root.join("tmp"),
            None => env::temp_dir(),
        }
    }
}

fn version(mut program: Command) -> Option<String> {
    let answer = program
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok()
        .filter(|answer| answer.status.success())?;
    let text = String::from_utf8_lossy(&answer.stdout);
    Some(text.lines().next()?.trim().to_owned())
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
