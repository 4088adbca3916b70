//! A command run once per message.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use async_trait::async_trait;
use inbox::{Completion, Context, Failure, Handler};
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::Command,
    task::JoinHandle,
    time::timeout,
};

use super::{
    group::Group,
    starts::{PAUSE, Starts},
};

/// The exit code that means *never try again*: `EX_DATAERR` of sysexits.h.
const DEAD: i32 = 65;

/// How much of the end of a command's standard error is kept as the message's error, in bytes.
const KEPT_ERROR: usize = 1024;

/// How long to wait for the end of standard error once the command itself has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs a command for each message.
#[derive(Debug)]
pub(super) struct Run {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// Variables that are not for it.
    secrets: Vec<String>,
    starts: Arc<Starts>,
}

impl Run {
    pub(super) fn new(
        program: &str,
        arguments: &[String],
        secrets: &[String],
        starts: Arc<Starts>,
    ) -> Result<Self> {
        Ok(Self {
            program: find(program)?,
            arguments: arguments.iter().map(OsString::from).collect(),
            secrets: secrets.to_vec(),
            starts,
        })
    }

    /// A program that is being replaced, or a lack of files or memory, is this process's trouble and costs no message
    /// an attempt. Arguments and variables are the message's own: too many of them (E2BIG), or such as cannot be
    /// (EINVAL).
    fn not_started(&self, error: &io::Error) -> Failure {
        let reason = format!("cannot run the command: {error}");
        match error.kind() {
            io::ErrorKind::ArgumentListTooLong | io::ErrorKind::InvalidInput => {
                Failure::retry(reason)
            }
            _ => {
                self.starts
                    .not_started(&self.program, error, Instant::now());
                Failure::pause(PAUSE, reason)
            }
        }
    }
}

/// Looks the program up as the shell would, so that a mistyped name is an error before the first
/// message is claimed rather than a failed attempt of every message.
fn find(program: &str) -> Result<PathBuf> {
    match which::which(program) {
        Ok(path) => Ok(path),
        Err(which::Error::CannotFindBinaryPath) => {
            bail!("cannot run {program}: no such command, or not executable")
        }
        Err(e) => bail!("cannot run {program}: {e}"),
    }
}

#[async_trait]
impl Handler for Run {
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // Its own group: Ctrl-C is for us, who let running commands finish.
            .process_group(0);
        for secret in &self.secrets {
            command.env_remove(secret);
        }
        for name in std::env::vars_os().map(|(name, _)| name) {
            if name.to_str().is_some_and(is_fact) {
                command.env_remove(name);
            }
        }
        command.envs(variables(super::facts(context.leased())));
        let mut child = command.spawn().map_err(|e| self.not_started(&e))?;
        self.starts.succeeded();
        // Dropped with this future, at a time-out for one.
        let group = Group::led_by(&child);
        let payload = context.message().payload().clone();
        let stdin = child.stdin.take();
        let writing = Background(tokio::spawn(async move {
            // A command that does not read its input closes it early; its exit code decides.
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(&payload).await;
            }
        }));
        let stderr = child.stderr.take();
        let last_words = LastWords::default();
        let kept = last_words.clone();
        let mut reading = Background(tokio::spawn(async move {
            if let Some(stderr) = stderr {
                kept.read(stderr).await;
            }
        }));
        let status = child
            .wait()
            .await
            .map_err(|e| Failure::retry(format!("cannot wait for the command: {e}")))?;
        if let Some(group) = group {
            group.has_ended();
        }
        drop(writing);
        if status.success() {
            // What it has left running may write for a moment more, and is not waited for.
            tokio::spawn(async move {
                let _ = timeout(LAST_WORDS, &mut reading.0).await;
            });
            return Ok(Completion::default());
        }
        // What it has left running may hold its standard error open for ever.
        let _ = timeout(LAST_WORDS, &mut reading.0).await;
        let error = last_words.text();
        let reason = if error.is_empty() {
            status.to_string()
        } else {
            format!("{status}: {error}")
        };
        Err(if status.code() == Some(DEAD) {
            Failure::dead(reason)
        } else if was_told_to_end(status) {
            Failure::interrupted(reason)
        } else {
            Failure::retry(reason)
        })
    }
}

/// Whether a signal has ended it by which this process may be ended too: service managers send
/// theirs to all processes of a service. Some programs catch it, and exit as shells do for it.
fn was_told_to_end(status: ExitStatus) -> bool {
    let ends = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM].map(|signal| signal as i32);
    let signal = status.signal().or(status.code().map(|code| code - 128));
    signal.is_some_and(|signal| ends.contains(&signal))
}

/// A task that ends with the one that waits for it.
struct Background<T>(JoinHandle<T>);

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The environment of these facts. Of several that become one variable the first counts: which one
/// must not depend on anything else.
fn variables(facts: Vec<(String, String)>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for (name, value) in facts {
        variables.entry(variable(&name)).or_insert(value);
    }
    variables
}

/// Whether a variable tells of a message. What this process has of them is another message's, where a handler's
/// command has started it.
fn is_fact(name: &str) -> bool {
    let is_header = name.starts_with(&variable("header-"));
    is_header || super::FACTS.iter().any(|fact| name == variable(fact))
}

/// `INBOX_` and the fact's name, in the form that environment variables take.
fn variable(fact: &str) -> String {
    let mut name = String::from("INBOX_");
    for c in fact.chars() {
        name.push(if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        });
    }
    name
}

/// The end of what a command says on standard error. Clones share it, so that it can be looked at while it
/// is being read.
#[derive(Clone, Default)]
struct LastWords(Arc<Mutex<Vec<u8>>>);

impl LastWords {
    fn kept(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads to the end and keeps the last part.
    async fn read(&self, mut from: impl AsyncRead + Unpin) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let mut kept = self.kept();
            kept.extend_from_slice(buffer.get(..read).unwrap_or_default());
            let surplus = kept.len().saturating_sub(KEPT_ERROR);
            kept.drain(..surplus);
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept()).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_become_variables() {
        assert_eq!(variable("fencing-token"), "INBOX_FENCING_TOKEN");
        assert_eq!(variable("header-x.y ä"), "INBOX_HEADER_X_Y__");
    }

    #[test]
    fn what_the_command_itself_is_told_is_no_fact() {
        for name in ["INBOX_ID", "INBOX_FENCING_TOKEN", "INBOX_HEADER_A"] {
            assert!(is_fact(name), "{name}");
        }
        for name in [
            "INBOX_STORE",
            "INBOX_LOG",
            "INBOX_FROM",
            "INBOX_HEADER",
            "ID",
        ] {
            assert!(!is_fact(name), "{name}");
        }
    }

    #[test]
    fn of_headers_that_share_a_variable_the_first_counts() {
        let facts = [("header-a-b", "1"), ("header-a_b", "2"), ("header-c", "3")];
        let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = variables(facts.into());
        assert_eq!(found.len(), 2);
        assert_eq!(found["INBOX_HEADER_A_B"], "1");
        assert_eq!(found["INBOX_HEADER_C"], "3");
    }

    #[tokio::test]
    async fn the_end_of_a_long_error_is_kept() {
        let long = [b"x".repeat(10_000), b"the end\n".to_vec()].concat();
        let last_words = LastWords::default();
        last_words.read(long.as_slice()).await;
        let kept = last_words.text();
        assert!(kept.ends_with("the end"));
        assert!(kept.len() <= KEPT_ERROR);
    }

    #[test]
    fn an_unknown_command_is_refused() {
        let run = |program| Run::new(program, &[], &[], Arc::default());
        assert!(run("no-such-command-anywhere").is_err());
        assert!(run("true").is_ok());
    }
}
