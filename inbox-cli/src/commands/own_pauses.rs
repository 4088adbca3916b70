//! Pauses that a command makes while it works, and ends without ending those of operators or other commands.

use anyhow::Result;
use inbox::{HandlerName, Inbox};
use inbox_dashboard::command_pauses::PausingCommand;

use crate::output;

/// The handlers that a command has paused, and that it has not let go yet.
#[derive(Debug)]
pub(super) struct OwnPauses {
    command: PausingCommand,
    handlers: Vec<HandlerName>,
}

impl OwnPauses {
    /// None yet, of this command.
    pub(super) fn of(command: PausingCommand) -> Self {
        Self {
            command,
            handlers: Vec::new(),
        }
    }

    /// Pauses these handlers for the command, also where an operator or another command has paused them already.
    pub(super) async fn begin(
        &mut self,
        store: &dyn Inbox,
        handlers: &[HandlerName],
    ) -> Result<()> {
        for handler in handlers {
            self.command.begin(store, handler).await?;
            self.handlers.push(handler.clone());
        }
        Ok(())
    }

    /// Leaves its pauses of these handlers to a later run of the command.
    pub(super) fn leave(&mut self, handlers: &[HandlerName]) {
        self.handlers.retain(|handler| !handlers.contains(handler));
    }

    /// Ends its pauses.
    pub(super) async fn end(&mut self, store: &dyn Inbox) -> Result<()> {
        while let Some(handler) = self.handlers.last() {
            self.command.end(store, handler).await?;
            self.handlers.pop();
        }
        Ok(())
    }

    /// The names of the handlers that it still has paused; `None` if there are none.
    pub(super) fn left(&self) -> Option<String> {
        (!self.handlers.is_empty()).then(|| listed(&self.handlers))
    }
}

/// The names of these handlers, in one line.
pub(super) fn listed(handlers: &[HandlerName]) -> String {
    let cell = |handler: &HandlerName| output::cell(handler.as_str(), usize::MAX);
    let names: Vec<_> = handlers.iter().map(cell).collect();
    names.join(", ")
}
