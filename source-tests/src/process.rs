//! Parts of a run that are processes of their own: this program once more, to be killed.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use inbox::CancellationToken;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
    runtime::Runtime,
    time::timeout,
};

use crate::{Broker, Failure, chaos, outbox};

/// In the environment of such a process: its part, and what it works on, by line.
const ASSIGNMENT: &str = "INBOX_CHAOS_ASSIGNMENT";

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Receives into a store.
    Consumer,
    /// Writes orders and messages in transactions, and publishes the messages.
    Sender,
    /// Receives, and works in transactions.
    Recipient,
}

impl Part {
    const ALL: [Self; 3] = [Self::Consumer, Self::Sender, Self::Recipient];

    fn name(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Sender => "sender",
            Self::Recipient => "recipient",
        }
    }
}

/// Starts a process for the test at `path`. It ends when its standard input does, and so with this process.
pub(crate) fn start(path: &str, part: Part, assignment: &[&str]) -> Result<Child, Failure> {
    // The test runner's names begin within the crate.
    let test = path.split_once("::").map_or(path, |(_, test)| test);
    let child = Command::new(std::env::current_exe()?)
        .args([test, "--exact", "--nocapture", "--include-ignored"])
        .env(
            ASSIGNMENT,
            format!("{}\n{}", part.name(), assignment.join("\n")),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

/// Kills a process that has not ended by itself.
pub(crate) async fn kill(child: &mut Child) -> Result<(), Failure> {
    if let Some(status) = child.try_wait()? {
        return Err(format!("a process of the run ended by itself: {status}").into());
    }
    Ok(child.kill().await?)
}

/// Lets it end in order.
pub(crate) async fn finish(mut child: Child) -> Result<(), Failure> {
    drop(child.stdin.take());
    let status: ExitStatus = match timeout(Duration::from_secs(60), child.wait()).await {
        Ok(status) => status?,
        Err(_) => return Err("a process of the run did not end".into()),
    };
    if status.success() {
        Ok(())
    } else {
        Err(format!("a process of the run failed: {status}").into())
    }
}

/// In such a process: does its part, and never returns.
pub(crate) fn be_one<B: Broker>(runtime: &Runtime) {
    let Ok(assignment) = std::env::var(ASSIGNMENT) else {
        return;
    };
    let worked = runtime.block_on(work::<B>(&assignment));
    if let Err(failure) = &worked {
        eprintln!("source-tests: a process of a run failed: {failure}");
    }
    std::process::exit(i32::from(worked.is_err()));
}

async fn work<B: Broker>(assignment: &str) -> Result<(), Failure> {
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    tokio::spawn(async move {
        let mut rest = Vec::new();
        let _ = tokio::io::stdin().read_to_end(&mut rest).await;
        token.cancel();
    });
    let (part, rest) = assignment.split_once('\n').ok_or("no assignment")?;
    let part = Part::ALL.into_iter().find(|one| one.name() == part);
    let words: Vec<&str> = rest.split('\n').collect();
    match (part, words.as_slice()) {
        (Some(Part::Consumer), [address, channel, store]) => {
            chaos::consume::<B>(address, channel, store, shutdown).await
        }
        (Some(Part::Sender), [address, channel, store, orders]) => {
            outbox::send::<B>(address, channel, store, orders.parse()?, shutdown).await
        }
        (Some(Part::Recipient), [address, channel, store]) => {
            outbox::receive::<B>(address, channel, store, shutdown).await
        }
        _ => Err("the assignment is not whole".into()),
    }
}
