//! What is the same on all servers.

use std::future::Future;

use anyhow::{Result, bail};
use peer_common::{Handled, Message, Run, until};

/// The job's arguments, stored as JSON.
pub(crate) type Event = String;

/// The arguments of a batch of jobs.
pub(crate) fn events(messages: Vec<Message>) -> Vec<Event> {
    messages
        .into_iter()
        .map(|message| message.payload)
        .collect()
}

/// Runs the worker until as many jobs are stored as done as were sent.
pub(crate) async fn drain<W, E, F, Fut>(
    run: &Run,
    handled: &Handled,
    worker: W,
    done: F,
) -> Result<()>
where
    W: Future<Output = Result<(), E>>,
    E: std::fmt::Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<u64>>,
{
    let all_done = async {
        handled.all(run.messages()).await?;
        until(run.messages(), done).await
    };
    run.drain(async {
        tokio::select! {
            ended = worker => match ended {
                Ok(()) => bail!("the worker ended before all jobs were done"),
                Err(error) => bail!("the worker failed: {error}"),
            },
            done = all_done => done,
        }
    })
    .await
}
