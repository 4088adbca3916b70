//! What is said of a handler that has no messages: its name may be mistyped.

use inbox::{HandlerName, Inbox, Statistics};

use super::own_pauses::listed;
use crate::{args::Global, output};

/// How many names of others are told.
const MOST: usize = 5;

/// Says on standard error if no message of `handler` is known.
pub(super) async fn note_unknown(global: &Global, store: &dyn Inbox, handler: &HandlerName) {
    if global.quiet {
        return;
    }
    // What the command was for is done, and does not fail for want of a note.
    let statistics = store.statistics().await.ok();
    if let Some(note) = statistics.and_then(|statistics| unknown(&statistics, handler)) {
        output::note(note);
    }
}

/// That no message of `handler` is known, and of which handlers there are some; `None` if there is one.
pub(super) fn unknown(statistics: &Statistics, handler: &HandlerName) -> Option<String> {
    let handlers = statistics.handlers.iter();
    let known: Vec<HandlerName> = handlers.map(|counts| counts.handler.clone()).collect();
    if known.contains(handler) {
        return None;
    }
    let shown = known.get(..MOST).unwrap_or(&known);
    let others = match known.len() - shown.len() {
        _ if known.is_empty() => "the inbox is empty".to_owned(),
        0 => format!("there are some of {}", listed(shown)),
        more => format!(
            "there are some of {} and {more} more: see `inbox stats`",
            listed(shown)
        ),
    };
    let name = output::cell(handler.as_str(), usize::MAX);
    Some(format!("no messages of `{name}` are known; {others}"))
}

#[cfg(test)]
mod tests {
    use inbox::HandlerStatistics;

    use super::*;

    #[test]
    fn a_few_of_those_that_are_known_are_named() {
        let name = |name: &str| HandlerName::new(name).unwrap();
        let told = |known: &[&str]| {
            let handlers = known
                .iter()
                .map(|known| HandlerStatistics::empty(name(known)));
            let handlers = handlers.collect();
            unknown(&Statistics { handlers }, &name("typo"))
        };
        let is = |others: &str| Some(format!("no messages of `typo` are known; {others}"));
        assert_eq!(told(&[]), is("the inbox is empty"));
        assert_eq!(told(&["a", "typo"]), None);
        assert_eq!(told(&["a", "b"]), is("there are some of a, b"));
        assert_eq!(
            told(&["a", "b", "c", "d", "e", "f"]),
            is("there are some of a, b, c, d, e and 1 more: see `inbox stats`")
        );
    }
}
