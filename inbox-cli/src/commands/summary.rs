//! What `inbox dead` and `inbox scheduled` print of many messages: groups.

use anyhow::Result;
use clap::Args;
use inbox::{Filter, HandlerName, Inbox, MessageGroup, OperateExt as _};
use inbox_dashboard::view::GroupView;

use crate::{
    args::{FilterArgs, Global, wrong_usage},
    commands::list::PageArgs,
    exit::Exit,
    output, store,
};

/// Which messages, and how they are shown.
#[derive(Debug, Args)]
pub(crate) struct SummaryArgs {
    /// Only messages of this handler
    #[arg(long, value_name = "NAME")]
    pub(crate) handler: Option<HandlerName>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Look at no more than this many for the summary, those accepted last
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        conflicts_with = "list"
    )]
    pub(crate) most: u64,
    /// Print the messages one by one, a page of them: --limit, --after, --newest and --total are for this
    #[arg(long)]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

impl SummaryArgs {
    /// Ends the program when options of a list come without one: a summary that ignores them would look as if it were
    /// of those few messages. (Clap cannot require an option that `inbox list` has not.)
    pub(crate) fn check(&self) {
        if !self.list && self.page.is_given() {
            wrong_usage(
                "--limit, --after, --newest and --total go with --list; of a summary, see --most",
            );
        }
    }
}

/// When the messages of a group are of interest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Finished,
    Due,
}

/// Prints the groups of what the filter means, the largest first.
pub(crate) async fn summarize(
    global: &Global,
    inbox: &dyn Inbox,
    filter: &Filter,
    most: u64,
    when: When,
) -> Result<Exit> {
    let mut summary = store::waiting(&global.store, inbox.summarize(filter, most)).await?;
    summary
        .groups
        .sort_by_key(|group| std::cmp::Reverse(group.messages));
    if global.json {
        for group in &summary.groups {
            output::json(&GroupView::from(group))?;
        }
    } else if !summary.groups.is_empty() {
        print(&summary.groups, when)?;
    }
    if !summary.is_complete {
        let seen = output::messages(summary.messages);
        output::note(format_args!(
            "these are the {seen} accepted last; there are more (see --most)"
        ));
    }
    if summary.corrupt > 0 {
        let corrupt = output::count(summary.corrupt);
        output::note(format_args!("{corrupt} corrupt rows are in no group"));
    }
    if !global.json && !global.quiet && summary.is_complete {
        output::note(output::messages(summary.messages));
    }
    Ok(Exit::Ok)
}

fn print(groups: &[MessageGroup], when: When) -> Result<()> {
    let (first, last) = match when {
        When::Finished => ("first died", "last died"),
        When::Due => ("first due", "last due"),
    };
    let mut table = output::table(&[
        "handler", "kind", "error", "messages", first, last, "sample",
    ]);
    for group in groups {
        let span = match when {
            When::Finished => group.finished,
            When::Due => Some(group.due),
        };
        let shown = |time| match when {
            When::Finished => output::ago(time),
            When::Due => output::time(time),
        };
        let [first, last] = span.map_or_else(
            || ["-".to_owned(), "-".to_owned()],
            |span| [shown(span.first), shown(span.last)],
        );
        table.add_row([
            output::cell(group.handler.as_str(), 40),
            output::cell(group.kind.as_str(), 60),
            error(group),
            output::count(group.messages),
            first,
            last,
            output::cell(&group.sample.to_string(), usize::MAX),
        ]);
    }
    output::print(table)
}

/// How much is printed of the text of an error behind its type, in characters.
const SAMPLE_TEXT: usize = 60;

/// The type of the group's errors in front of the text of one, or what their texts have in common.
fn error(group: &MessageGroup) -> String {
    match &group.error_type {
        // The type is whole: --error-type takes it.
        Some(error_type) => {
            let sample = group.sample_error.as_deref().unwrap_or_default();
            let most = error_type.prefix().chars().count() + SAMPLE_TEXT;
            output::cell(sample, most)
        }
        None => output::cell(group.error_shape.as_deref().unwrap_or("-"), 80),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use inbox::{ErrorType, Key, Kind, MessageId, Span};

    use super::*;

    fn group(error: &str) -> MessageGroup {
        let handler = HandlerName::new("h").unwrap();
        let now = SystemTime::now();
        let span = Span {
            first: now,
            last: now,
        };
        MessageGroup {
            handler: handler.clone(),
            kind: Kind::new("k").unwrap(),
            error_type: ErrorType::of(error),
            error_shape: Some("shape".into()),
            messages: 1,
            accepted: span,
            due: span,
            finished: None,
            sample: Key::new(handler, MessageId::new("a").unwrap()),
            sample_error: Some(error.into()),
        }
    }

    #[test]
    fn an_error_type_comes_with_the_text_of_a_sample() {
        let sample = "serde_json::error::Error: expected value\nat line 1";
        let printed = "serde_json::error::Error: expected value at line 1";
        assert_eq!(error(&group(sample)), printed);
        let long = format!("a::B: {}", "x".repeat(100));
        assert_eq!(error(&group(&long)), format!("a::B: {}…", "x".repeat(60)));
        assert_eq!(error(&group("timeout: no answer")), "shape");
    }
}
