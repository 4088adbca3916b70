//! Pauses that a command makes while it works, and ends without ending those of operators.

use anyhow::Result;
use inbox::{HandlerName, Inbox};
use inbox_dashboard::command_pauses::PausingCommand;

/// The handlers that a command has paused.
///
/// The mark of each tells also the next run of a command that was cut short. Commands have different marks, since none
/// may end what another has left paused.
#[derive(Debug)]
pub(super) struct OwnPauses<'a> {
    command: PausingCommand,
    handlers: Vec<&'a HandlerName>,
}

impl<'a> OwnPauses<'a> {
    /// Pauses these handlers for the command. Not its own are the pauses that are there already, unless they were
    /// left by a run of the same command that was cut short.
    pub(super) async fn begin(
        store: &dyn Inbox,
        command: PausingCommand,
        handlers: &'a [HandlerName],
    ) -> Result<Self> {
        let paused = store.paused().await?;
        let mut own = Self {
            command,
            handlers: Vec::new(),
        };
        for handler in handlers {
            let mark = command.mark(handler)?;
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
            store.resume(&self.command.mark(handler)?).await?;
        }
        Ok(())
    }
}
