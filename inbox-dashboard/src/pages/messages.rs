//! Messages that a filter means, page by page.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use inbox::{Cursor, Listing, Page, Record, State as MessageState};
use maud::{Markup, html};

use super::{filter_form::filter_form, message_link, moment, state, token_field, visited};
use crate::{
    dashboard::Shared,
    fault::Fault,
    form::key_text,
    guard::Visit,
    query::{Parameters, Wanted, link},
    reading::{self, within},
    text,
};

/// How many a page shows unless it is told, and at most.
const USUAL: u32 = 50;
const MOST: u32 = 500;

/// Which page is meant, and how it is called in links.
#[derive(Debug)]
pub(crate) struct PageWanted {
    pub(crate) page: Page,
    limit: Option<u32>,
}

impl PageWanted {
    /// Takes `limit`, `after` and `order`.
    pub(crate) fn take(parameters: &mut Parameters, most: u32) -> Result<Self, Fault> {
        let limit = parameters.read::<u32>("limit")?;
        if limit.is_some_and(|limit| limit == 0 || limit > most) {
            let reason = format!("limit: expected a number from 1 to {most}");
            return Err(Fault::invalid(reason));
        }
        let newest_first = match parameters.take("order")?.as_deref() {
            None | Some("newest") => true,
            Some("oldest") => false,
            Some(_) => return Err(Fault::invalid("order: expected newest or oldest")),
        };
        let page = Page {
            after: parameters.take("after")?.map(Cursor::new),
            limit: limit.unwrap_or(USUAL),
            newest_first,
            with_payload: false,
        };
        Ok(Self { page, limit })
    }

    /// The link to the same with another place.
    fn link(&self, wanted: &Wanted, after: Option<&Cursor>) -> String {
        let mut pairs = wanted.pairs();
        if !self.page.newest_first {
            pairs.push(("order", "oldest".to_owned()));
        }
        pairs.extend(self.limit.map(|limit| ("limit", limit.to_string())));
        pairs.extend(after.map(|after| ("after", after.to_string())));
        link("messages", pairs)
    }
}

pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let wanted = parameters.wanted()?;
    let asked = PageWanted::take(&mut parameters, MOST)?;
    parameters.end()?;
    let selection = wanted.selection()?;
    let store = shared.store.as_ref();
    let listing = within(reading::list(store, &selection, &asked.page)).await?;
    let snapshot = shared.watch.snapshot(store).await?;
    let total = selection
        .beyond
        .is_none()
        .then(|| reading::total_of(&snapshot.statistics, &selection.filter))
        .flatten();
    let content = html! {
        (filter_form(&wanted, "messages", true, !asked.page.newest_first))
        (found(&shared, &visit, &listing, total))
        (below(&wanted, &asked, &listing))
        @if !shared.options.is_read_only { (all_of_them(&wanted)) }
    };
    Ok(visited(&shared, &visit, "messages", "Messages", &content))
}

fn found(shared: &Shared, visit: &Visit, listing: &Listing, total: Option<u64>) -> Markup {
    let shown = listing.records.len() as u64;
    html! {
        p {
            (text::count(shown)) " shown"
            @if let Some(total) = total { " of " (text::messages(total)) }
        }
        @for row in &listing.corrupt {
            p.fault role="alert" { "corrupt row " (text::one_line(&row.place, 100)) ": " (text::one_line(&row.reason, 200)) }
        }
        @if !listing.records.is_empty() {
            @if shared.options.is_read_only {
                (table(&listing.records, false))
            } @else {
                form method="post" action="confirm" {
                    (token_field(visit))
                    (table(&listing.records, true))
                    fieldset.actions {
                        legend { "What is ticked" }
                        label { input type="checkbox" name="page" value="true"; " or all on this page" }
                        @for record in &listing.records {
                            input type="hidden" name="page_key" value=(key_text(&record.key));
                        }
                        button name="action" value="replay" { "Replay…" }
                        button.harmful name="action" value="discard" { "Discard…" }
                        button name="action" value="reschedule" { "Reschedule…" }
                    }
                }
            }
        }
    }
}

/// The records as a table. Each may be ticked.
fn table(records: &[Record], with_ticks: bool) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Messages" {
            table {
                thead { tr {
                    @if with_ticks { th scope="col" { span.hidden { "Tick" } } }
                    @for name in ["Id", "Handler", "Kind", "State", "Attempts", "Accepted", "Note"] {
                        th scope="col" { (name) }
                    }
                } }
                tbody {
                    @for record in records {
                        tr {
                            @if with_ticks {
                                td {
                                    input type="checkbox" name="key" value=(key_text(&record.key))
                                        aria-label={ "Tick " (text::one_line(&record.key.to_string(), 100)) };
                                }
                            }
                            th scope="row" { (message_link(&record.key)) }
                            td { (text::one_line(record.key.handler.as_str(), 40)) }
                            td { (text::one_line(record.kind.as_str(), 60)) }
                            td { (state(record.state)) }
                            td.number { (record.attempts.started) }
                            td { (moment(record.accepted_at)) }
                            td.text { (note(record)) }
                        }
                    }
                }
            }
        }
    }
}

/// What an operator wants to know next about a message in its state.
fn note(record: &Record) -> Markup {
    let error = record
        .last_error
        .as_deref()
        .map(|error| text::one_line(error, 120));
    html! {
        @match record.state {
            MessageState::Leased => {
                "held by " (record.worker.as_ref().map_or_else(|| "?".to_owned(), |w| text::one_line(w.as_str(), 40)))
            }
            MessageState::Pending | MessageState::Dead => {
                @if record.state == MessageState::Pending && record.due_at > std::time::SystemTime::now() {
                    "due " (moment(record.due_at)) " "
                }
                @if record.blocks_ordering_key { span.warn { "blocks its ordering key" } " " }
                (error.unwrap_or_default())
            }
            MessageState::Processed | MessageState::Discarded => {}
        }
    }
}

fn below(wanted: &Wanted, asked: &PageWanted, listing: &Listing) -> Markup {
    let export = link("export", wanted.pairs());
    html! {
        nav.pages aria-label="Pages of this list" {
            @if asked.page.after.is_some() { a href=(asked.link(wanted, None)) rel="first" { "First page" } }
            @if let Some(next) = &listing.next {
                a href=(asked.link(wanted, Some(next))) rel="next" { "Next page" }
            }
            a href=(export) download { "Export as NDJSON" }
        }
    }
}

/// What can be done to all that the filter means, not only to this page.
fn all_of_them(wanted: &Wanted) -> Markup {
    let to = |action: &str| {
        let mut pairs = wanted.pairs();
        pairs.push(("action", action.to_owned()));
        link("confirm", pairs)
    };
    html! {
        p.actions {
            "All that this filter means, on every page: "
            a href=(to("replay")) { "Replay…" } " "
            a href=(to("discard")) { "Discard…" } " "
            a href=(to("reschedule")) { "Reschedule…" }
        }
    }
}
