//! Builds the newest NATS server, which Debian does not package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Failure, run};

const MODULE: &str = "github.com/nats-io/nats-server/v2";
const VERSION: &str = "v2.15.2";

pub(super) fn is_there(directory: &Path) -> bool {
    place(directory).is_file()
}

/// Builds it with the `go` of the machine.
pub(super) fn build(directory: &Path) -> Result<(), Failure> {
    let partial = directory.join("nats-server.partial");
    run(Command::new("go")
        .arg("install")
        .arg(format!("{MODULE}@{VERSION}"))
        .env("GOBIN", &partial)
        .env("CGO_ENABLED", "0"))?;
    fs::rename(partial.join("nats-server"), place(directory))?;
    fs::remove_dir_all(partial)?;
    Ok(())
}

fn place(directory: &Path) -> PathBuf {
    directory.join(format!("nats-server-{VERSION}"))
}
