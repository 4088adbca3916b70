//! `inbox list`: messages that a filter means, page by page.

use anyhow::Result;
use inbox::{Cursor, Filter, HandlerName, Page, Record, State};

use crate::{
    args::{FilterArgs, Global, ListArgs},
    exit::Exit,
    output::{self, RecordView},
    store,
};

pub(crate) async fn run(global: &Global, args: ListArgs) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let filter = filter(args.handler, args.states, args.filter);
    let page = Page {
        after: args.after.map(Cursor::new),
        limit: args.limit,
        newest_first: args.newest,
        with_payload: false,
    };
    let listing = store.list(&filter, &page).await?;
    if global.json {
        for record in &listing.records {
            output::json(&RecordView::from(record))?;
        }
    } else if !listing.records.is_empty() {
        print(&listing.records)?;
    }
    for row in &listing.corrupt {
        output::note(format_args!("corrupt row {}: {}", row.place, row.reason));
    }
    if !global.quiet && !global.json {
        let total = store.count(&filter).await?;
        let more = listing
            .next
            .map(|next| format!("; more with --after {next}"))
            .unwrap_or_default();
        let shown = listing.records.len() as u64;
        output::note(format_args!(
            "{} of {}{more}",
            output::count(shown),
            output::messages(total)
        ));
    } else if let Some(next) = listing.next {
        output::note(format_args!("more with --after {next}"));
    }
    Ok(Exit::Ok)
}

fn print(records: &[Record]) -> Result<()> {
    let mut table = output::table(&[
        "handler", "id", "kind", "state", "attempts", "accepted", "note",
    ]);
    for record in records {
        table.add_row([
            output::cell(record.key.handler.as_str(), 40),
            // Whole: it is what the other commands want.
            output::cell(record.key.id.as_str(), usize::MAX),
            output::cell(record.kind.as_str(), 60),
            record.state.to_string(),
            record.attempts.started.to_string(),
            output::ago(record.accepted_at),
            note(record),
        ]);
    }
    output::print(table)
}

/// What an operator wants to know next about a message in this state.
fn note(record: &Record) -> String {
    let worker = record.worker.as_ref().map_or("?", AsRef::as_ref);
    let error = record.last_error.as_deref().unwrap_or_default();
    match record.state {
        State::Leased => format!("held by {}", output::cell(worker, 40)),
        State::Pending | State::Dead => output::cell(error, 80),
        State::Processed | State::Discarded => String::new(),
    }
}

/// The filter of the command line.
pub(crate) fn filter(
    handler: Option<HandlerName>,
    states: Vec<impl Into<State>>,
    args: FilterArgs,
) -> Filter {
    Filter {
        states: states.into_iter().map(Into::into).collect(),
        handler,
        kind: args.kind,
        ordering_key: args.ordering_key,
        older_than: args.older_than,
        newer_than: args.newer_than,
        error_contains: args.error,
    }
}
