//! Pauses that commands of `inbox` make while they work, and that are not an operator's to end.
//!
//! Each has a mark: a handler without messages, whose pause says by which command the other one is paused, also when
//! that command was cut short.

use inbox::{HandlerName, Invalid};
use sha2::{Digest as _, Sha256};

use crate::text;

/// A command that pauses handlers for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PausingCommand {
    /// `inbox import-keys`.
    ImportKeys,
    /// `inbox copy`, in its target.
    Copy,
}

impl PausingCommand {
    const ALL: [Self; 2] = [Self::ImportKeys, Self::Copy];

    /// Its name, as behind `inbox` on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ImportKeys => "import-keys",
            Self::Copy => "copy",
        }
    }

    /// The handler that is paused as the mark of this command's pause of `handler`. It is the same in each run, and
    /// another one for each command.
    ///
    /// # Errors
    /// [`Invalid`] when that is no name that a handler can have.
    pub fn mark(self, handler: &HandlerName) -> Result<HandlerName, Invalid> {
        // A digest, as a name that is made longer may be too long.
        let digest = hex::encode(Sha256::digest(handler.as_str()));
        let digest = digest.get(..16).unwrap_or_default();
        HandlerName::new(format!("inbox-{}-{digest}", self.name()))
    }
}

/// A pause that is not an operator's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandPause {
    /// Which command has made it, and works on the handler still or was cut short.
    pub command: PausingCommand,
    /// The handler that is paused by it.
    pub handler: HandlerName,
    /// The handler whose pause says so. When that one is resumed, the pause is an operator's.
    pub mark: HandlerName,
}

impl CommandPause {
    /// Why it is not ended, and what to do instead, in one line.
    #[must_use]
    pub fn refusal(&self) -> String {
        let (command, mark) = (self.command.name(), &self.mark);
        let handler = text::one_line(self.handler.as_str(), usize::MAX);
        format!(
            "`inbox {command}` has paused `{handler}`, and is at work or was cut short: run it again first, or what \
             was handled before runs again. To give it up, `inbox resume {mark}` before this"
        )
    }
}

/// The command's pause of this handler, where these handlers are paused. `None`: the handler is not paused, or an
/// operator has paused it.
#[must_use]
pub fn of_command(paused: &[HandlerName], handler: &HandlerName) -> Option<CommandPause> {
    if !paused.contains(handler) {
        return None;
    }
    PausingCommand::ALL.into_iter().find_map(|command| {
        let mark = command.mark(handler).ok()?;
        let handler = handler.clone();
        paused.contains(&mark).then_some(CommandPause {
            command,
            handler,
            mark,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_a_command_s_while_the_handler_and_its_mark_are_paused() {
        let handler = HandlerName::new("h".repeat(128)).unwrap();
        for command in PausingCommand::ALL {
            let mark = command.mark(&handler).unwrap();
            let both = [mark.clone(), handler.clone()];
            let found = of_command(&both, &handler).unwrap();
            assert_eq!((found.command, &found.mark), (command, &mark));
            for (paused, of) in [
                (&both[..1], &handler),
                (&both[1..], &handler),
                (&both[..], &mark),
            ] {
                assert_eq!(of_command(paused, of), None, "{of} of {paused:?}");
            }
        }
    }
}
