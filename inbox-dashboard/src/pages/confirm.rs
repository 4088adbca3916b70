//! Before a change of many messages: how many it would be.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use inbox::Due;
use maud::{Markup, html};

use super::{found, token_field, visited};
use crate::{
    dashboard::Shared,
    fault::Fault,
    form::{Form, key_text},
    guard::Visit,
    jobs::{Action, Target},
    pages::change::{also_processed_field, take_target},
    query::{Parameters, Wanted, link},
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
    let more = parameters.has("more")?;
    let target = take_target(&mut parameters)?;
    parameters.end()?;
    let (matching, number) = match &target {
        Target::Keys { keys, .. } => {
            let matching = Matching::exactly(keys.len() as u64);
            (matching, told(&action, matching, &target))
        }
        Target::All(wanted) => count(shared, &action, &target, wanted, more).await?,
    };
    let content = html! {
        (number)
        @if let Target::All(wanted) = &target {
            p { a href=(link("messages", wanted.pairs())) { "Look at them first" } }
        }
        @if matching.number > 0 || !matching.is_exact { (form(visit, &action, &target)) }
    };
    let title = format!("{}?", capitalized(action.verb().name()));
    Ok(visited(shared, visit, "", &title, &content))
}

/// How many there are, from what the store keeps, or from looking at them step by step.
async fn count(
    shared: &Shared,
    action: &Action,
    target: &Target,
    wanted: &Wanted,
    more: bool,
) -> Result<(Matching, Markup), Fault> {
    let store = shared.store.as_ref();
    let selection = work::selection(action, wanted.selection()?)?;
    if let Some(number) = within(reading::count_kept(store, &selection)).await? {
        let matching = Matching::exactly(number);
        return Ok((matching, told(action, matching, target)));
    }
    let tally = shared.tallies.read(store, &selection, more).await?;
    let matching = Matching::of(&tally);
    let mut pairs = wanted.pairs();
    pairs.push(("action", action.verb().name().to_owned()));
    pairs.push(("more", "true".to_owned()));
    let told = told(action, matching, target);
    let more = link("confirm", pairs);
    let found = found(&tally, tally.is_growing(), &more, "of its state", &told);
    Ok((matching, found))
}

fn told(action: &Action, matching: Matching, target: &Target) -> Markup {
    let least = if matching.is_exact { "" } else { "At least " };
    let number = text::messages(matching.number);
    html! { p { (least) (number) " would be " (action.verb().done()) ": " (target) } }
}

fn capitalized(verb: &str) -> String {
    let mut letters = verb.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn form(visit: &Visit, action: &Action, target: &Target) -> Markup {
    let is_harmful = matches!(action, Action::Discard);
    html! {
        form method="post" action=(action.verb().name()) {
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
            button class=(if is_harmful { "harmful" } else { "" }) { (capitalized(action.verb().name())) }
        }
    }
}
