//! Pauses that a command makes while it works, and ends without ending those of operators.

use anyhow::Result;
use inbox::{HandlerName, Inbox};
use sha2::{Digest as _, Sha256};

/// The commands that pause handlers for themselves.
const COMMANDS: [&str; 2] = ["import-keys", "copy"];

/// The handlers that a command has paused.
///
/// Each has a mark: a handler without messages, whose pause says by which command the other one is paused, also to
/// the next run of a command that was cut short. Commands have different marks, since none may end what another has
/// left paused.
#[derive(Debug)]
pub(super) struct OwnPauses<'a> {
    command: &'static str,
    handlers: Vec<&'a HandlerName>,
}

impl<'a> OwnPauses<'a> {
    /// Pauses these handlers for the command. Not its own are the pauses that are there already, unless they were
    /// left by a run of the same command that was cut short.
    pub(super) async fn begin(
        store: &dyn Inbox,
        command: &'static str,
        handlers: &'a [HandlerName],
    ) -> Result<Self> {
        let paused = store.paused().await?;
        let mut own = Self {
            command,
            handlers: Vec::new(),
        };
        for handler in handlers {
            let mark = mark(command, handler)?;
            if paused.contains(handler) && !paused.contains(&mark) {
                continue;
            }
            // First, so that the pause of a command that is killed behind it is known as its own.
            store.pause(&mark).await?;
            store.pause(handler).await?;
            own.handlers.push(handler);
        }
        Ok(own)
    }

    /// Ends its own pauses. The handlers in `stay` remain paused, as an operator would have paused them.
    pub(super) async fn end(self, store: &dyn Inbox, stay: &[HandlerName]) -> Result<()> {
        for &handler in &self.handlers {
            if !stay.contains(handler) {
                store.resume(handler).await?;
            }
            store.resume(&mark(self.command, handler)?).await?;
        }
        Ok(())
    }
}

/// A digest, as a name that is made longer may be too long.
fn mark(command: &str, handler: &HandlerName) -> Result<HandlerName> {
    let digest = hex::encode(Sha256::digest(handler.as_str()));
    let digest = digest.get(..16).unwrap_or_default();
    Ok(HandlerName::new(format!("inbox-{command}-{digest}"))?)
}

/// A pause that is not an operator's.
#[derive(Debug)]
pub(super) struct CommandPause {
    /// Which command has made it, and works on the handler still or was cut short.
    pub(super) command: &'static str,
    pub(super) mark: HandlerName,
}

/// By which command this handler is paused, where these are.
pub(super) fn of_command(paused: &[HandlerName], handler: &HandlerName) -> Option<CommandPause> {
    COMMANDS.into_iter().find_map(|command| {
        let mark = mark(command, handler).ok()?;
        paused
            .contains(&mark)
            .then_some(CommandPause { command, mark })
    })
}
