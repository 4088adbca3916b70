//! Runs the built command in a folder of its own.

// Each test file uses a part of this.
#![allow(dead_code, reason = "shared by several test binaries")]
#![allow(
    clippy::unwrap_used,
    reason = "a failure here fails the test that asked"
)]

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

pub(crate) const WEBHOOKS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/data/github-webhooks.ndjson");

/// A folder with an inbox in it.
pub(crate) struct Place {
    folder: TempDir,
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Asserts that standard output contains `text`.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.stdout.contains(text), "no {text:?} in {self:#?}");
        self
    }

    /// Asserts that standard error contains `text`.
    #[track_caller]
    pub(crate) fn complains(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "no {text:?} in {self:#?}");
        self
    }

    /// Standard output as JSON lines.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The command, in this folder.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inbox"));
        command
            .args(args)
            .current_dir(self.folder.path())
            .env_remove("INBOX_STORE")
            .env_remove("INBOX_LOG")
            .stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    pub(crate) fn inbox(&self, args: &[&str]) -> Output {
        finish(self.command(args).output().unwrap())
    }

    /// Runs the command with `input` on its standard input.
    pub(crate) fn inbox_with(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that refuses its arguments closes the pipe early.
        let _ = child.stdin.take().unwrap().write_all(input);
        finish(child.wait_with_output().unwrap())
    }

    /// Starts the command without waiting for it.
    pub(crate) fn start(&self, args: &[&str]) -> Child {
        self.command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// The counts of handler `default`.
    pub(crate) fn stats(&self) -> Counts {
        let output = self.inbox(&["stats", "--json"]).exits(0);
        let Some(line) = output.json().into_iter().next() else {
            return Counts::default();
        };
        let number = |name: &str| line[name].as_u64().unwrap();
        Counts {
            pending: number("pending"),
            leased: number("leased"),
            processed: number("processed"),
            dead: number("dead"),
            discarded: number("discarded"),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) pending: u64,
    pub(crate) leased: u64,
    pub(crate) processed: u64,
    pub(crate) dead: u64,
    pub(crate) discarded: u64,
}

pub(crate) fn finish(output: std::process::Output) -> Output {
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A CloudEvent line.
pub(crate) fn event(id: &str, kind: &str, data: &str) -> String {
    format!(
        "{{\"specversion\":\"1.0\",\"id\":\"{id}\",\"source\":\"/test\",\"type\":\"{kind}\",\"data\":{data}}}\n"
    )
}

/// `number` events with ids e0, e1, …
pub(crate) fn events(number: usize) -> String {
    (0..number)
        .map(|n| event(&format!("e{n}"), "t", "{}"))
        .collect()
}

/// The lines of a file.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .lines()
        .map(ToOwned::to_owned)
        .collect()
}
