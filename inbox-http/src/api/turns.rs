//! The claims that wait, and whose turn it is to look.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use inbox::{HandlerName, Store, Subscription, Wakeups};
use tokio::sync::Mutex as Turn;

/// A line for each set of handlers that a caller has waited for.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<BTreeSet<HandlerName>, Line>>);

/// The caller that has the turn looks for messages, in the order of arrival. The wake-ups are handed on with
/// it, so that none is missed between two claims.
pub(super) type Line = Arc<Turn<Watch>>;

/// How many lines are remembered while nobody stands in them.
const IDLE_LINES: usize = 64;

impl Turns {
    /// The line for these handlers, in whatever order they are named.
    pub(super) fn line(&self, handlers: &[HandlerName]) -> Line {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let set: BTreeSet<_> = handlers.iter().cloned().collect();
        if !lines.contains_key(&set) && lines.len() >= IDLE_LINES {
            lines.retain(|_, line| Arc::strong_count(line) > 1);
        }
        Arc::clone(lines.entry(set).or_default())
    }
}

/// The wake-ups of a line, if the store has any.
#[derive(Default)]
pub(super) struct Watch(Option<Box<dyn Subscription>>);

impl Watch {
    /// Subscribes, unless that was done before. Without wake-ups a claim polls, so that a failure
    /// costs some delay only, and the next turn tries again.
    pub(super) async fn begin(&mut self, store: &dyn Store, handlers: &[HandlerName]) {
        if self.0.is_none() && store.capabilities().wakeups != Wakeups::None {
            match store.subscribe(handlers).await {
                Ok(subscription) => self.0 = Some(subscription),
                Err(error) => tracing::debug!(%error, "no wake-ups; polling"),
            }
        }
    }

    /// Returns when messages may have become due; never without wake-ups.
    pub(super) async fn woken(&mut self) {
        match &mut self.0 {
            Some(subscription) => subscription.woken().await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<HandlerName> {
        let names = names.iter().map(|name| HandlerName::new(name).unwrap());
        names.collect()
    }

    #[test]
    fn a_line_is_for_a_set_of_handlers() {
        let turns = Turns::default();
        let line = turns.line(&names(&["a", "b"]));
        assert!(Arc::ptr_eq(&line, &turns.line(&names(&["b", "a", "b"]))));
        assert!(!Arc::ptr_eq(&line, &turns.line(&names(&["a"]))));
    }

    #[test]
    fn lines_that_nobody_stands_in_do_not_pile_up() {
        let turns = Turns::default();
        let kept = turns.line(&names(&["kept"]));
        for number in 0..1000 {
            let _ = turns.line(&names(&[&format!("h{number}")]));
        }
        let lines = turns.0.lock().unwrap().len();
        assert!(lines <= IDLE_LINES, "{lines}");
        assert!(Arc::ptr_eq(&kept, &turns.line(&names(&["kept"]))));
    }
}
