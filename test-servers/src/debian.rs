//! Programs of newer Debian releases, each release in its own directory.
//!
//! `test-servers install` unpacks their packages there, with the libraries they need and without
//! installing anything on the machine. They run with that directory as their root directory. A
//! link in it makes every path below it mean the same inside and outside.

use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use crate::program::Program;

/// The directory below which `test-servers install` puts what it does not install as packages of
/// the machine. To renew it, remove it.
pub const ADDED: &str = "/var/lib/inbox-test-servers";

/// Debian's next release.
pub(crate) const TESTING: &str = "testing";
/// Where Debian has what is not to be released, or not yet.
pub(crate) const UNSTABLE: &str = "unstable";

/// The root directory of the programs of a release.
pub(crate) fn root(release: &str) -> PathBuf {
    Path::new(ADDED).join(release)
}

/// The root directory of the programs of a release, or why they cannot be run from there.
pub(crate) fn runnable_root(release: &str) -> Result<PathBuf, String> {
    if Uid::effective().is_root() {
        Ok(root(release))
    } else {
        Err(format!("only root can run what is of Debian {release}"))
    }
}

/// The program of this path below a release's root directory, or why there is none.
pub(crate) fn program(release: &str, path: &str) -> Result<Program, String> {
    let root = runnable_root(release)?;
    let path = root.join(path);
    let name = path.display();
    if !path.is_file() {
        return Err(format!("no {name}"));
    }
    Program::within(&root, path.clone()).ok_or_else(|| format!("{name} does not run"))
}
