//! All about one message.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use inbox::{ErrorType, Key, PastAttempt, PastIntervention, Record, State as MessageState};
use maud::{Markup, html};

use super::{button, content, message_link, moment, state, token_field, visited};
use crate::{
    dashboard::Shared,
    fault::Fault,
    form::key_text,
    guard::Visit,
    query::{Parameters, link, link_to},
    reading::{self, Place, within},
    text,
    trace_link::trace_id,
};

/// The longest header value and error on the page, in characters.
const LONG: usize = 4096;

pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let key = parameters.key()?;
    parameters.end()?;
    let store = shared.store.as_ref();
    let record = within(store.get(&key)).await?;
    let record = record.ok_or_else(Fault::no_such_message)?;
    let place = reading::place(store, &record).await;
    let title = format!("Message {}", text::one_line(record.key.id.as_str(), 80));
    let page = html! {
        (facts(&shared, &record, place.as_ref()))
        @if !shared.options.is_read_only { (changes(&shared, &visit, &record)) }
        (history(&record.history))
        (interventions(&record.interventions))
        (headers(&shared, &record))
        (content::section(&shared, &record))
    };
    Ok(visited(&shared, &visit, "messages", &title, &page))
}

fn facts(shared: &Shared, record: &Record, place: Option<&Place>) -> Markup {
    let attempts = record.attempts;
    let crashed = attempts.crashed(record.state == MessageState::Leased);
    let of_handler = link("messages", [("handler", record.key.handler.as_str())]);
    html! {
        dl {
            dt { "State" }
            dd {
                (state(record.state))
                @if record.blocks_ordering_key { " " span.warn { "blocks its ordering key" } }
                @if let Some(until) = record.lease_until { ", until " (moment(until)) }
            }
            dt { "Handler" } dd { a href=(of_handler) { (text::one_line(record.key.handler.as_str(), 200)) } }
            dt { "Id" } dd { code { (text::one_line(record.key.id.as_str(), 400)) } }
            dt { "Kind" } dd { (text::one_line(record.kind.as_str(), 400)) }
            dt { "Accepted" } dd { (moment(record.accepted_at)) }
            @if !record.state.is_final() { dt { "Due" } dd { (moment(record.due_at)) } }
            @if let Some(finished) = record.finished_at { dt { "Finished" } dd { (moment(finished)) } }
            dt { "Attempts" }
            dd {
                (attempts.started)
                @if crashed > 0 { ", of which " (text::crashes(crashed)) }
            }
            @if record.replays > 0 { dt { "Replays" } dd { (record.replays) } }
            @if let Some(leased) = record.leased_at { dt { "Last leased" } dd { (moment(leased)) } }
            @if let Some(worker) = &record.worker {
                dt { "Worker" } dd { (text::one_line(worker.as_str(), 200)) }
            }
            @if let Some(ordering_key) = &record.ordering_key {
                dt { "Ordering key" }
                dd {
                    a href=(link("messages", [
                        ("handler", record.key.handler.as_str()),
                        ("ordering_key", ordering_key.as_str()),
                        ("order", "oldest"),
                    ])) { (text::one_line(ordering_key.as_str(), 400)) }
                    (position(place))
                }
            }
            @if let Some(error) = &record.last_error {
                dt { "Last error" } dd { pre { (chain(error)) } }
            }
            // It is no secret hash: of a short payload it tells, by trying, what that is.
            @if !shared.options.hides_payloads {
                dt { "Fingerprint" } dd { code { (record.fingerprint) } }
            }
        }
    }
}

/// An error with its causes, each on its own line: they are joined by a colon and a space. A text without a
/// type is no such chain.
fn chain(error: &str) -> String {
    let shown = text::written_out(error, |c| c == '\n');
    if ErrorType::of(error).is_none() {
        return shown.chars().take(LONG).collect();
    }
    let mut lines = String::new();
    for (number, part) in shown.split(": ").enumerate() {
        if number > 0 {
            lines.push_str(":\n  ");
        }
        lines.push_str(part);
    }
    lines.chars().take(LONG).collect()
}

fn position(place: Option<&Place>) -> Markup {
    html! {
        @match place {
            None => {},
            Some(Place::First) => ": it has the turn",
            Some(Place::Behind(before, first)) => {
                ": behind " (text::messages(*before)) ", first " (message_link(first))
            }
            Some(Place::FarBehind(before)) => { ": behind more than " (text::messages(*before)) }
            Some(Place::Unknown) => ": its place could not be found",
        }
    }
}

fn changes(shared: &Shared, visit: &Visit, record: &Record) -> Markup {
    let key = [("key", key_text(&record.key))];
    let can_edit = !shared.options.hides_payloads;
    html! {
        div.actions role="group" aria-label="Changes" {
            @match record.state {
                MessageState::Dead | MessageState::Discarded => {
                    @if record.payload.is_some() { (button(visit, "replay", "Replay", false, &key)) }
                    @if can_edit { a.button href=(link_to("edit", &record.key)) { "Edit and replay…" } }
                }
                MessageState::Processed => { (again(&record.key)) }
                MessageState::Pending => { (reschedule(visit, &record.key)) }
                MessageState::Leased => { p.quiet { "A worker holds it: nothing can be changed until it is settled or its lease runs out." } }
            }
            @if matches!(record.state, MessageState::Dead | MessageState::Pending) {
                (button(visit, "discard", "Discard", true, &key))
            }
        }
    }
}

/// A processed message has had its effect: a second one has to be confirmed.
fn again(key: &Key) -> Markup {
    let href = link(
        "confirm",
        [
            ("action", "replay"),
            ("key", &key_text(key)),
            ("also_processed", "true"),
        ],
    );
    html! { a.button href=(href) { "Replay, for its effect to happen again…" } }
}

fn reschedule(visit: &Visit, key: &Key) -> Markup {
    html! {
        form.inline method="post" action="reschedule" {
            (token_field(visit))
            input type="hidden" name="key" value=(key_text(key));
            label { "Due in " input.short type="text" name="after" value="0s" required; }
            button { "Reschedule" }
        }
    }
}

fn history(history: &[PastAttempt]) -> Markup {
    html! {
        h2 { "Attempts that failed" }
        @if history.is_empty() {
            p { "None is kept." }
        } @else {
            div.wide tabindex="0" role="region" aria-label="Attempts that failed" {
                table {
                    thead { tr {
                        @for name in ["Attempt", "Replays", "Leased", "Took", "Worker", "End", "Error"] {
                            th scope="col" { (name) }
                        }
                    } }
                    tbody {
                        @for past in history.iter().rev() {
                            tr {
                                th scope="row" { (past.attempt) }
                                td.number { (past.replays) }
                                td { (moment(past.leased_at)) }
                                td { (text::duration(past.took())) }
                                td { (text::one_line(past.worker.as_str(), 60)) }
                                td { (past.end) }
                                td { pre { (chain(&past.error)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What operators did to it, if they signed.
fn interventions(interventions: &[PastIntervention]) -> Markup {
    html! {
        @if !interventions.is_empty() {
            h2 { "Interventions" }
            ul {
                @for done in interventions.iter().rev() {
                    li {
                        (text::intervention(done.kind)) " " (moment(done.at))
                        " by " (text::one_line(done.by.as_str(), 100))
                    }
                }
            }
        }
    }
}

fn headers(shared: &Shared, record: &Record) -> Markup {
    let trace = trace_id(&record.headers);
    let trace_link = shared.options.trace_link.as_ref();
    let trace_link = trace_link.and_then(|link| link.to(&record.headers));
    html! {
        h2 { "Headers" }
        @if record.headers.is_empty() {
            p { "None." }
        } @else {
            dl {
                @for (name, value) in record.headers.iter() {
                    dt { (text::one_line(name, 255)) }
                    dd {
                        @if shared.options.hides_payloads { span.quiet { "hidden" } }
                        @else { code { (text::one_line(value, LONG)) } }
                    }
                }
            }
        }
        @if let (Some(href), Some(trace)) = (trace_link, trace) {
            p { a href=(href) rel="noreferrer" { "Trace " (trace) } }
        }
    }
}
