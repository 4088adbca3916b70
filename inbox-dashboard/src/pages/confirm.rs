//! Before a change of many messages: how many it would be.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use inbox::Due;
use maud::{Markup, html};

use super::{token_field, visited};
use crate::{
    dashboard::Shared,
    fault::Fault,
    form::{Form, key_text},
    guard::Visit,
    jobs::{Action, Target},
    pages::change::{also_processed_field, take_target},
    query::{Parameters, link},
    reading::{self, Matching, within},
    text, work,
};

pub(crate) async fn by_link(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    parameters: Parameters,
) -> Result<Response, Fault> {
    show(&shared, &visit, parameters).await
}

/// From the list of messages, whose ticks may be many.
pub(crate) async fn by_form(
    State(shared): State<Arc<Shared>>,
    Form { visit, mut fields }: Form,
) -> Result<Response, Fault> {
    let of_page = fields.take_all("page_key");
    let ticked = fields.take_all("key");
    let keys = if fields.has("page")? { of_page } else { ticked };
    if keys.is_empty() {
        return Err(Fault::invalid("no message is ticked"));
    }
    fields.put("key", keys);
    show(&shared, &visit, fields).await
}

async fn show(
    shared: &Shared,
    visit: &Visit,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    if shared.options.is_read_only {
        return Err(Fault::read_only());
    }
    let action = match parameters.take("action")?.as_deref() {
        Some("replay") => Action::Replay,
        Some("discard") => Action::Discard,
        Some("reschedule") => Action::Reschedule(Due::Now),
        _ => {
            return Err(Fault::invalid(
                "action: expected replay, discard or reschedule",
            ));
        }
    };
    let target = take_target(&mut parameters)?;
    parameters.end()?;
    let matching = match &target {
        Target::Keys { keys, .. } => Matching {
            number: keys.len() as u64,
            is_exact: true,
        },
        Target::All(wanted) => {
            let selection = work::selection(&action, wanted.selection()?)?;
            within(reading::count(shared.store.as_ref(), &selection)).await?
        }
    };
    let content = html! {
        p { (told(&action, matching)) ": " (target) }
        @if let Target::All(wanted) = &target {
            p { a href=(link("messages", wanted.pairs())) { "Look at them first" } }
        }
        @if matching.number > 0 { (form(visit, &action, &target)) }
    };
    let title = format!("{}?", capitalized(action.verb()));
    Ok(visited(shared, visit, "", &title, &content))
}

fn told(action: &Action, matching: Matching) -> String {
    let least = if matching.is_exact { "" } else { "At least " };
    let number = text::messages(matching.number);
    format!("{least}{number} would be {}", action.done())
}

fn capitalized(verb: &str) -> String {
    let mut letters = verb.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn form(visit: &Visit, action: &Action, target: &Target) -> Markup {
    let is_harmful = matches!(action, Action::Discard);
    html! {
        form method="post" action=(action.verb()) {
            (token_field(visit))
            @match target {
                Target::Keys { keys, also_processed } => {
                    @for key in keys { input type="hidden" name="key" value=(key_text(key)); }
                    @if matches!(action, Action::Replay) { (also_processed_field(*also_processed)) }
                }
                Target::All(wanted) => {
                    input type="hidden" name="all" value="true";
                    @for (name, value) in wanted.pairs() { input type="hidden" name=(name) value=(value); }
                }
            }
            @if matches!(action, Action::Reschedule(_)) {
                p { label { "Due in " input.short type="text" name="after" value="0s" required; } }
            }
            button class=(if is_harmful { "harmful" } else { "" }) { (capitalized(action.verb())) }
        }
    }
}
