//! What servers that are directories of jars have in common.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::command;
use crate::debian::ADDED;
use crate::program::Program;

/// A small Java that starts quickly rather than runs fast.
const JAVA: [&str; 4] = [
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
];

/// The machine's Java, where the jars of `server` are there.
pub(super) fn program(server: &str) -> Result<Program, String> {
    let jars = jars(server)?;
    let mut java = Program::named("java").next().ok_or("no java on PATH")?;
    let version = jars.file_name().unwrap_or_default().to_string_lossy();
    java.version = format!("{version}, {}", java.version);
    Ok(java)
}

/// Runs `class` of the jars of `server`, with further options of Java.
pub(super) fn run(program: &Path, server: &str, options: &[&str], class: &str) -> Command {
    let mut java = command(program, JAVA);
    // Where there are none, the server's log says so.
    let jars = jars(server).unwrap_or_default();
    java.args(options).arg("-cp").arg(jars.join("*")).arg(class);
    java
}

/// The newest of this server that was added.
fn jars(server: &str) -> Result<PathBuf, String> {
    let added = fs::read_dir(ADDED).into_iter().flatten().flatten();
    let mut versions: Vec<_> = added
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let version = name.strip_prefix(server);
            let version = version.and_then(|rest| rest.strip_prefix('-'));
            // Not what is being added.
            let is_version =
                |version: &str| version.chars().all(|c| c == '.' || c.is_ascii_digit());
            version.is_some_and(is_version)
        })
        .collect();
    versions.sort();
    versions
        .pop()
        .ok_or_else(|| format!("no {server} in {ADDED}"))
}
