//! Pauses that commands of `inbox` make while they work, and that are not an operator's to end.
//!
//! Each has a mark: a handler without messages, whose pause says by which command the other one is paused, also when
//! that command was cut short. Where an operator wants the handler paused, too, a mark of that says so, and the command
//! leaves the handler paused at its end. [`pause()`] leaves that mark. [`Operate::pause`](inbox::Operate::pause) alone
//! does not: called while a command is at work, its pause is over with the command's. A mark means something only while
//! its handler is paused, so that it does no harm when a command is killed before it removes it.

use std::collections::BTreeSet;

use inbox::{HandlerName, Inbox, Invalid, Result};
use sha2::{Digest as _, Sha256};

use crate::text;

/// What the marks of operators' pauses are named by.
const KEPT: &str = "kept";

/// How many digits of a digest a mark has.
const DIGITS: usize = 16;

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
        mark_named(self.name(), handler)
    }

    /// Those of all `paused` handlers that this command has paused, also where another command or an operator has
    /// paused them, too.
    #[must_use]
    pub fn handlers(self, paused: &[HandlerName]) -> Vec<HandlerName> {
        let is_its = |handler: &&HandlerName| self.has_marked(paused, handler);
        paused.iter().filter(is_its).cloned().collect()
    }

    /// Pauses `handler` for this command, whether it is paused already or not. A command that is killed at any moment
    /// leaves the handler as it was, or paused by the command.
    ///
    /// # Errors
    /// As [`Operate::pause`](inbox::Operate::pause).
    pub async fn begin(self, store: &dyn Inbox, handler: &HandlerName) -> Result<()> {
        let before = store.paused().await?;
        let is_again = before.contains(handler) && self.has_marked(&before, handler);
        if !before.contains(handler) {
            remove_stale_marks(store, &before, handler).await?;
        } else if of_command(&before, handler).is_none() {
            // Before the command's mark, which alone would make the pause the command's if it is killed here.
            store.pause(&operators_mark(handler)?).await?;
        }
        // First, so that the pause of a command that is killed behind it is known as the command's.
        store.pause(&self.mark(handler)?).await?;
        let now = store.paused().await?;
        if now.contains(handler) && !is_again && !self.is_shared(&now, handler) {
            // No command's, so that an operator may have made it before the mark was there to be seen.
            store.pause(&operators_mark(handler)?).await?;
        }
        store.pause(handler).await
    }

    /// Ends this command's pause of `handler`, which works again unless another command or an operator has paused it,
    /// too. A pause whose mark was removed is an operator's by now, and is left as it is.
    ///
    /// # Errors
    /// As [`Operate::resume`](inbox::Operate::resume).
    pub async fn end(self, store: &dyn Inbox, handler: &HandlerName) -> Result<()> {
        let (own, kept) = (self.mark(handler)?, operators_mark(handler)?);
        let paused = store.paused().await?;
        if !paused.contains(&own) {
            return Ok(());
        }
        if self.is_shared(&paused, handler) {
            return store.resume(&own).await;
        }
        if paused.contains(&kept) {
            store.resume(&own).await?;
            return store.resume(&kept).await;
        }
        // Before its mark, which means nothing when it is left alone. A mark without it would make the next pause of
        // an operator the command's.
        store.resume(handler).await?;
        store.resume(&own).await?;
        // An operator or another command may have paused it since it was looked at.
        let paused = store.paused().await?;
        if paused.contains(&kept) || self.is_shared(&paused, handler) {
            store.pause(handler).await?;
        }
        Ok(())
    }

    /// Whether another command has paused `handler`, too.
    fn is_shared(self, paused: &[HandlerName], handler: &HandlerName) -> bool {
        let mut others = Self::ALL.into_iter().filter(|other| *other != self);
        others.any(|other| other.has_marked(paused, handler))
    }

    fn has_marked(self, paused: &[HandlerName], handler: &HandlerName) -> bool {
        self.mark(handler).is_ok_and(|mark| paused.contains(&mark))
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
             was handled before runs again. To give it up, `inbox resume {mark}` first"
        )
    }
}

/// A command's pause of this handler, where these handlers are paused. `None`: the handler is not paused, or only an
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

/// Pauses `handler` for an operator: it stays paused when a command that has paused it, too, has come to its end.
///
/// # Errors
/// As [`Operate::pause`](inbox::Operate::pause).
pub async fn pause(store: &dyn Inbox, handler: &HandlerName) -> Result<()> {
    let mut paused = store.paused().await?;
    if !paused.contains(handler) {
        remove_stale_marks(store, &paused, handler).await?;
        store.pause(handler).await?;
        // A command may have begun since, or have ended, and the pause with it.
        paused = store.paused().await?;
    }
    if paused.contains(handler) && of_command(&paused, handler).is_none() {
        return Ok(());
    }
    // First the mark: a command that ends meanwhile looks for it behind its end.
    store.pause(&operators_mark(handler)?).await?;
    store.pause(handler).await
}

/// Ends the pause of `handler` for an operator. Whether that is the operator's to do, [`of_command`] says before.
///
/// # Errors
/// As [`Operate::resume`](inbox::Operate::resume).
pub async fn resume(store: &dyn Inbox, handler: &HandlerName) -> Result<()> {
    store.resume(&operators_mark(handler)?).await?;
    store.resume(handler).await
}

/// All `paused` handlers without the marks that mean nothing, as their handlers are not paused. Commands that were
/// killed leave such.
#[must_use]
pub fn without_stale_marks(paused: &[HandlerName]) -> Vec<HandlerName> {
    let meant: BTreeSet<HandlerName> = paused.iter().flat_map(marks).collect();
    let is_stale = |handler: &HandlerName| is_mark(handler) && !meant.contains(handler);
    let rest = paused.iter().filter(|handler| !is_stale(handler));
    rest.cloned().collect()
}

/// All `paused` handlers that are no marks.
#[must_use]
pub fn without_marks(paused: &[HandlerName]) -> Vec<HandlerName> {
    let handlers = paused.iter().filter(|handler| !is_mark(handler));
    handlers.cloned().collect()
}

/// What an operator is shown of all `paused` handlers: of marks only those by which a command's pause is given up.
#[must_use]
pub fn shown(paused: &[HandlerName]) -> Vec<HandlerName> {
    let mut shown = without_stale_marks(paused);
    shown.retain(|handler| !is_mark_named(KEPT, handler));
    shown
}

/// The handler that is paused as the mark of an operator's pause of `handler`, which a command has paused, too.
fn operators_mark(handler: &HandlerName) -> Result<HandlerName, Invalid> {
    mark_named(KEPT, handler)
}

/// All marks that a handler can have.
fn marks(handler: &HandlerName) -> impl Iterator<Item = HandlerName> {
    names().filter_map(move |name| mark_named(name, handler).ok())
}

/// What marks are named by.
fn names() -> impl Iterator<Item = &'static str> {
    let commands = PausingCommand::ALL.into_iter();
    commands.map(PausingCommand::name).chain([KEPT])
}

fn mark_named(name: &str, handler: &HandlerName) -> Result<HandlerName, Invalid> {
    // A digest, as a name that is made longer may be too long.
    let digest = hex::encode(Sha256::digest(handler.as_str()));
    let digest = digest.get(..DIGITS).unwrap_or_default();
    HandlerName::new(format!("inbox-{name}-{digest}"))
}

fn is_mark(handler: &HandlerName) -> bool {
    names().any(|name| is_mark_named(name, handler))
}

fn is_mark_named(name: &str, handler: &HandlerName) -> bool {
    let rest = handler.as_str().strip_prefix("inbox-");
    let digest = rest.and_then(|rest| rest.strip_prefix(name)?.strip_prefix('-'));
    digest.is_some_and(|digest| {
        digest.len() == DIGITS && digest.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

async fn remove_stale_marks(
    store: &dyn Inbox,
    paused: &[HandlerName],
    handler: &HandlerName,
) -> Result<()> {
    let stale: Vec<_> = marks(handler)
        .filter(|mark| paused.contains(mark))
        .collect();
    for mark in &stale {
        store.resume(mark).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn handler() -> HandlerName {
        HandlerName::new("h").unwrap()
    }

    async fn memory() -> Arc<dyn Inbox> {
        let store = inbox::connect("memory://").await.unwrap();
        store.create().await.unwrap();
        store
    }

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

    #[test]
    fn marks_are_shown_where_they_mean_something() {
        let (handler, other) = (handler(), HandlerName::new("inbox-copy-of-mine").unwrap());
        let copy = PausingCommand::Copy.mark(&handler).unwrap();
        let kept = operators_mark(&handler).unwrap();
        let alone = [copy.clone(), kept.clone(), other.clone()];
        assert_eq!(without_stale_marks(&alone), std::slice::from_ref(&other));
        let all = [handler.clone(), copy.clone(), kept, other.clone()];
        assert_eq!(without_stale_marks(&all), all);
        assert_eq!(without_marks(&all), [handler.clone(), other.clone()]);
        assert_eq!(shown(&all), [handler.clone(), copy, other]);
        assert_eq!(PausingCommand::Copy.handlers(&all), [handler]);
        assert!(PausingCommand::ImportKeys.handlers(&all).is_empty());
    }

    /// Defect: a command left no mark where the handler was paused already, so that another one ended the pause.
    #[tokio::test]
    async fn each_command_s_pause_lasts_until_its_own_end() {
        let (store, h) = (memory().await, handler());
        for (first, second) in [
            (PausingCommand::ImportKeys, PausingCommand::Copy),
            (PausingCommand::Copy, PausingCommand::ImportKeys),
        ] {
            first.begin(&*store, &h).await.unwrap();
            second.begin(&*store, &h).await.unwrap();
            // It was cut short, and is made again.
            first.begin(&*store, &h).await.unwrap();
            first.end(&*store, &h).await.unwrap();
            let paused = store.paused().await.unwrap();
            assert_eq!(of_command(&paused, &h).unwrap().command, second);
            second.end(&*store, &h).await.unwrap();
            assert!(store.paused().await.unwrap().is_empty());
        }
    }

    /// Defect: the end of a command ended the pause that an operator had made meanwhile, and one that was made before
    /// did not keep the handler from being resumed while the command was at work.
    #[tokio::test]
    async fn an_operator_s_pause_is_there_behind_the_command_s_whenever_it_was_made() {
        let (store, h) = (memory().await, handler());
        let command = PausingCommand::ImportKeys;
        for is_before in [true, false] {
            if is_before {
                pause(&*store, &h).await.unwrap();
            }
            command.begin(&*store, &h).await.unwrap();
            if !is_before {
                pause(&*store, &h).await.unwrap();
            }
            let paused = store.paused().await.unwrap();
            assert!(of_command(&paused, &h).is_some(), "{paused:?}");
            // It was cut short, and is made again.
            command.begin(&*store, &h).await.unwrap();
            command.end(&*store, &h).await.unwrap();
            assert_eq!(store.paused().await.unwrap(), std::slice::from_ref(&h));
            resume(&*store, &h).await.unwrap();
            assert!(store.paused().await.unwrap().is_empty());
        }
    }

    /// Defect: the mark of a command that was killed at its end made an operator's pause the command's.
    #[tokio::test]
    async fn a_mark_that_was_left_alone_means_nothing_later() {
        let (store, h) = (memory().await, handler());
        let (copy, import) = (PausingCommand::Copy, PausingCommand::ImportKeys);
        let left = [copy.mark(&h).unwrap(), operators_mark(&h).unwrap()];
        for mark in &left {
            store.pause(mark).await.unwrap();
        }
        pause(&*store, &h).await.unwrap();
        assert_eq!(store.paused().await.unwrap(), std::slice::from_ref(&h));
        resume(&*store, &h).await.unwrap();
        for mark in &left {
            store.pause(mark).await.unwrap();
        }
        import.begin(&*store, &h).await.unwrap();
        import.end(&*store, &h).await.unwrap();
        assert!(store.paused().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_pause_that_was_given_up_is_the_operator_s() {
        let (store, h) = (memory().await, handler());
        let copy = PausingCommand::Copy;
        copy.begin(&*store, &h).await.unwrap();
        resume(&*store, &copy.mark(&h).unwrap()).await.unwrap();
        resume(&*store, &h).await.unwrap();
        pause(&*store, &h).await.unwrap();
        copy.end(&*store, &h).await.unwrap();
        assert_eq!(store.paused().await.unwrap(), [h]);
    }
}
