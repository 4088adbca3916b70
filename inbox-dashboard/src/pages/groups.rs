//! Dead letters and scheduled messages, in groups.

use std::{cmp::Reverse, sync::Arc};

use axum::{extract::State, response::Response};
use inbox::{MessageGroup, State as MessageState};
use maud::{Markup, html};

use super::{filter_form::filter_form, found, optional_moment, visited};
use crate::{
    dashboard::Shared,
    fault::Fault,
    guard::Visit,
    query::{Parameters, Wanted, link, link_to},
    tally::Tally,
    text,
};

/// Which groups a page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Dead,
    Scheduled,
}

impl Of {
    fn state(self) -> MessageState {
        match self {
            Self::Dead => MessageState::Dead,
            Self::Scheduled => MessageState::Pending,
        }
    }

    /// The words for these messages.
    fn words(self) -> &'static str {
        match self {
            Self::Dead => "dead messages",
            Self::Scheduled => "scheduled messages",
        }
    }
}

/// What is wanted, narrowed to what the page is about.
pub(crate) fn narrow(wanted: Wanted, of: Of) -> Wanted {
    let mut wanted = wanted.in_state(of.state());
    if of == Of::Scheduled && wanted.due_later_than.is_none() {
        wanted.due_later_than = Some("0s".to_owned());
    }
    wanted
}

pub(crate) async fn dead(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    parameters: Parameters,
) -> Result<Response, Fault> {
    show(&shared, &visit, parameters, Of::Dead).await
}

pub(crate) async fn scheduled(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    parameters: Parameters,
) -> Result<Response, Fault> {
    show(&shared, &visit, parameters, Of::Scheduled).await
}

async fn show(
    shared: &Shared,
    visit: &Visit,
    mut parameters: Parameters,
    of: Of,
) -> Result<Response, Fault> {
    let asked = parameters.wanted()?;
    let more = parameters.has("more")?;
    parameters.end()?;
    let wanted = narrow(asked.clone(), of);
    let selection = wanted.selection()?;
    let reading = shared.tallies.read(shared.store.as_ref(), &selection, more);
    let tally = reading.await?;
    let (path, title) = match of {
        Of::Dead => ("dead", "Dead letters"),
        Of::Scheduled => ("scheduled", "Scheduled"),
    };
    let mut pairs = asked.pairs();
    pairs.push(("more", "true".to_owned()));
    let groups = groups(shared, &wanted, &tally, of);
    let content = html! {
        (filter_form(&asked, path, false, false))
        (found(&tally, tally.is_growing(), &link(path, pairs), of.words(), &groups))
    };
    Ok(visited(shared, visit, path, title, &content))
}

/// The groups, the largest first.
fn groups(shared: &Shared, wanted: &Wanted, tally: &Tally, of: Of) -> Markup {
    let [first, last] = match of {
        Of::Dead => ["First died", "Last died"],
        Of::Scheduled => ["First due", "Last due"],
    };
    let mut groups: Vec<_> = tally.summary.groups.iter().collect();
    groups.sort_by_key(|group| Reverse(group.messages));
    let corrupt = tally.summary.corrupt;
    html! {
        @if corrupt > 0 {
            p.fault role="alert" { (text::count(corrupt)) " corrupt rows are in no group" }
        }
        @if groups.is_empty() {
            p { "No " (of.words()) ", or none that the filter means." }
        } @else {
            div.wide tabindex="0" role="region" aria-label="Groups" {
                table {
                    thead { tr {
                        @for name in ["Handler", "Kind", "Error", "Messages", first, last] {
                            th scope="col" { (name) }
                        }
                        @if !shared.options.is_read_only { th scope="col" { "Changes" } }
                    } }
                    tbody {
                        @for group in groups { (row(shared, wanted, group, of, tally.is_complete())) }
                    }
                }
            }
        }
    }
}

fn row(
    shared: &Shared,
    wanted: &Wanted,
    group: &MessageGroup,
    of: Of,
    are_all_counted: bool,
) -> Markup {
    let own = own(wanted, group);
    let (first, last) = match of {
        Of::Dead => (
            group.finished.map(|span| span.first),
            group.finished.map(|span| span.last),
        ),
        Of::Scheduled => (Some(group.due.first), Some(group.due.last)),
    };
    html! {
        tr {
            td { (text::one_line(group.handler.as_str(), 40)) }
            td { (text::one_line(group.kind.as_str(), 60)) }
            td.text {
                @match (&group.error_type, &group.error_shape) {
                    (Some(error_type), _) => code { (text::one_line(error_type.as_str(), 80)) },
                    (None, Some(shape)) => code { (text::one_line(shape, 120)) },
                    (None, None) => span.quiet { "none" },
                }
                @if let Some(error) = &group.sample_error {
                    div.sample { "such as: " (text::one_line(error, 160)) }
                }
                div.sample { a href=(link_to("message", &group.sample)) { "the newest of them" } }
            }
            td.number {
                @if !are_all_counted { "at least " }
                a href=(link("messages", own.pairs())) { (text::count(group.messages)) }
            }
            td { (optional_moment(first)) }
            td { (optional_moment(last)) }
            @if !shared.options.is_read_only { td.actions { (links(&own, of)) } }
        }
    }
}

/// What names this group alone.
fn own(wanted: &Wanted, group: &MessageGroup) -> Wanted {
    let mut own = wanted.clone();
    own.handler = Some(group.handler.as_str().to_owned());
    own.kind = Some(group.kind.as_str().to_owned());
    own.error_type = group.error_type.as_ref().map(|own| own.as_str().to_owned());
    own.error_shape.clone_from(&group.error_shape);
    own.no_error = group.error_type.is_none() && group.error_shape.is_none();
    own
}

fn links(own: &Wanted, of: Of) -> Markup {
    let to = |action: &str| {
        let mut pairs = own.pairs();
        pairs.push(("action", action.to_owned()));
        link("confirm", pairs)
    };
    html! {
        @match of {
            Of::Dead => a href=(to("replay")) { "Replay…" },
            Of::Scheduled => a href=(to("reschedule")) { "Reschedule…" },
        }
        " " a href=(to("discard")) { "Discard…" }
    }
}
