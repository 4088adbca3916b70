//! `inbox list`: messages that a filter means, page by page.

use anyhow::Result;
use clap::Args;
use inbox::{Cursor, ErrorKind, Filter, HandlerName, Inbox, Page, Record, State, Statistics};
use inbox_dashboard::{total_of, view::RecordView};

use crate::{
    args::{FilterArgs, Global, StateArg, wrong_usage},
    exit::Exit,
    output, store,
};

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only messages of this handler
    #[arg(long, value_name = "NAME")]
    pub(crate) handler: Option<HandlerName>,
    /// Only messages in this state; repeat it for several
    #[arg(long = "state", value_name = "STATE")]
    pub(crate) states: Vec<StateArg>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Which page of a list.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Print at most this many [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: Option<u32>,
    /// Continue after this place, as printed at the end of an earlier list
    #[arg(long, value_name = "PLACE")]
    pub(crate) after: Option<String>,
    /// Latest accepted first
    #[arg(long)]
    pub(crate) newest: bool,
    /// Say on standard error how many match in all, even if every message has to be looked at for it
    #[arg(long)]
    pub(crate) total: bool,
}

impl PageArgs {
    /// Whether the command line says anything of it.
    pub(crate) fn is_given(&self) -> bool {
        self.limit.is_some() || self.after.is_some() || self.newest || self.total
    }
}

/// How many are printed unless it is said.
const USUAL_LIMIT: u32 = 50;

/// What the last column of a list tells.
#[derive(Clone, Copy)]
pub(crate) enum Told {
    /// What an operator wants to know next about a message in its state.
    Note,
    /// When it is due.
    Due,
}

pub(crate) async fn run(global: &Global, args: ListArgs) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let filter = args.filter.filter(args.handler, args.states);
    list(global, store.as_ref(), &filter, args.page, Told::Note).await
}

/// Prints a page of what the filter means.
pub(crate) async fn list(
    global: &Global,
    store: &dyn Inbox,
    filter: &Filter,
    args: PageArgs,
    told: Told,
) -> Result<Exit> {
    let page = Page {
        after: args.after.map(Cursor::new),
        limit: args.limit.unwrap_or(USUAL_LIMIT),
        newest_first: args.newest,
        with_payload: false,
    };
    let is_first = page.after.is_none();
    let url = &global.store;
    let listed = store::waiting(url, store.list(filter, &page)).await;
    let listing = listed.inspect_err(|error| {
        if !is_first && error.kind() == ErrorKind::Invalid {
            let reason = output::cell(error.context(), usize::MAX);
            wrong_usage(format_args!("--after: {reason}"));
        }
    })?;
    let is_whole = is_first && listing.next.is_none();
    if global.json {
        for record in &listing.records {
            output::json(&RecordView::from(record))?;
        }
    } else if !listing.records.is_empty() {
        print(&listing.records, told)?;
    }
    for row in &listing.corrupt {
        output::note(format_args!("corrupt row {}: {}", row.place, row.reason));
    }
    if global.quiet {
        return Ok(Exit::Ok);
    }
    let more = listing
        .next
        .as_ref()
        .map(|next| format!("more with --after {next}"));
    if global.json && !args.total {
        if let Some(more) = more {
            output::note(more);
        }
        return Ok(Exit::Ok);
    }
    let shown = listing.records.len() as u64;
    let total = if args.total {
        Some(store::waiting(url, store.count(filter)).await?)
    } else if is_whole {
        Some(shown + listing.corrupt.len() as u64)
    } else if total_of(&Statistics::default(), filter).is_some() {
        total_of(&store::waiting(url, store.statistics()).await?, filter)
    } else {
        None
    };
    let mut footer = match total {
        Some(total) => format!("{} of {}", output::count(shown), output::messages(total)),
        None => output::messages(shown),
    };
    if let Some(more) = more {
        footer.push_str("; ");
        footer.push_str(&more);
    }
    output::note(footer);
    Ok(Exit::Ok)
}

fn print(records: &[Record], told: Told) -> Result<()> {
    let last = match told {
        Told::Note => "note",
        Told::Due => "due",
    };
    let mut table = output::table(&[
        "handler", "id", "kind", "state", "attempts", "accepted", last,
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
            match told {
                Told::Note => note(record),
                Told::Due => output::time(record.due_at),
            },
        ]);
    }
    output::print(table)
}

fn note(record: &Record) -> String {
    let worker = record.worker.as_ref().map_or("?", AsRef::as_ref);
    let error = record.last_error.as_deref().unwrap_or_default();
    match record.state {
        State::Leased => format!("held by {}", output::cell(worker, 40)),
        State::Pending | State::Dead => output::cell(error, 80),
        State::Processed | State::Discarded => String::new(),
    }
}
