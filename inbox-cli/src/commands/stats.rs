//! `inbox stats`: counts, and how far behind each handler is.

use anyhow::Result;
use inbox_dashboard::{command_pauses, text, view::StatisticsView};

use crate::{args::Global, exit::Exit, output, store};

pub(crate) const HELP: &str = "\
due       those of the pending that can be worked on now; counted up to 1,000
blocking  dead messages that hold up the later ones of their ordering key. Those wait, and are not
          behind, until the dead one is replayed, discarded or purged
behind    how long the longest-due message has been due";

pub(crate) async fn run(global: &Global) -> Result<Exit> {
    let store = store::open(&global.store).await?;
    let statistics = store::waiting(&global.store, store.statistics()).await?;
    if global.json {
        for handler in &statistics.handlers {
            output::json(&StatisticsView::from(handler))?;
        }
        return Ok(Exit::Ok);
    }
    let paused = store::waiting(&global.store, store.paused()).await?;
    for handler in command_pauses::shown(&paused) {
        let handler = output::cell(handler.as_str(), usize::MAX);
        output::note(format_args!("{handler} is paused"));
    }
    if statistics.handlers.is_empty() {
        output::line("the inbox is empty")?;
        return Ok(Exit::Ok);
    }
    let mut table = output::table(&[
        "handler",
        "pending",
        "due",
        "leased",
        "processed",
        "dead",
        "discarded",
        "blocking",
        "behind",
    ]);
    for handler in &statistics.handlers {
        table.add_row([
            output::cell(handler.handler.as_str(), 60),
            output::count(handler.pending),
            text::due(handler),
            output::count(handler.leased),
            output::count(handler.processed),
            output::count(handler.dead),
            output::count(handler.discarded),
            output::count(handler.blocking),
            handler.lag.map_or_else(|| "-".to_owned(), output::duration),
        ]);
    }
    output::print(table)?;
    Ok(Exit::Ok)
}
