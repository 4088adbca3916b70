//! The pages, as HTML. What comes from outside is escaped by the templates, and characters that hide or turn
//! text are written out.

pub(crate) mod change;
pub(crate) mod changes;
pub(crate) mod confirm;
pub(crate) mod content;
pub(crate) mod edit;
pub(crate) mod filter_form;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod message;
pub(crate) mod messages;
pub(crate) mod overview;
pub(crate) mod workers;

use std::time::SystemTime;

use axum::response::{Html, IntoResponse as _, Response};
use inbox::{Key, State};
use maud::{DOCTYPE, Markup, html};

use crate::{
    dashboard::Shared, fault::Fault, form::TOKEN_FIELD, guard::Visit, query::link_to, tally::Tally,
    text,
};

/// The pages of the menu.
const MENU: [(&str, &str); 7] = [
    ("overview", "Overview"),
    ("messages", "Messages"),
    ("dead", "Dead letters"),
    ("scheduled", "Scheduled"),
    ("keys", "Ordering keys"),
    ("workers", "Workers"),
    ("changes", "Changes"),
];

/// No styles of htmx in the page, no code in attributes, no history of pages in the browser's storage.
const HTMX: &str = r#"{"includeIndicatorStyles":false,"allowEval":false,"allowScriptTags":false,"selfRequestsOnly":true,"historyCacheSize":0}"#;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A whole page.
fn page(
    shared: &Shared,
    visit: Option<&Visit>,
    current: &str,
    title: &str,
    content: &Markup,
) -> Response {
    let options = &shared.options;
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="htmx-config" content=(HTMX);
                title { (title) " · " (options.title) }
                link rel="icon" type="image/svg+xml" href={ "icon.svg?" (VERSION) };
                link rel="stylesheet" href={ "style.css?" (VERSION) };
                script src={ "htmx.js?" (VERSION) } defer {}
            }
            body {
                a.skip href="#content" { "Skip to the content" }
                header {
                    a.title href="overview" { (options.title) }
                    @if visit.is_some() {
                        nav aria-label="Pages" {
                            @for (path, name) in MENU {
                                @if path == current {
                                    a href=(path) aria-current="page" { (name) }
                                } @else {
                                    a href=(path) { (name) }
                                }
                            }
                        }
                    }
                }
                main #content tabindex="-1" {
                    h1 { (title) }
                    (content)
                }
                footer {
                    @if let Some(place) = &options.place { span { (place) } }
                    @if options.is_read_only { span { "read-only" } }
                    @if options.hides_payloads { span { "payloads are hidden" } }
                    @if let Some(visit) = visit { span { "you are " (visit.operator.name()) } }
                    span { "inbox-dashboard " (VERSION) }
                    a href="api/openapi.json" { "API" }
                }
            }
        }
    };
    Html(markup.into_string()).into_response()
}

/// A page of a visitor.
pub(crate) fn visited(
    shared: &Shared,
    visit: &Visit,
    current: &str,
    title: &str,
    content: &Markup,
) -> Response {
    page(shared, Some(visit), current, title, content)
}

/// A page that says what went wrong.
pub(crate) fn fault(shared: &Shared, visit: Option<&Visit>, fault: &Fault) -> Response {
    let content = html! {
        p.fault role="alert" { (fault.detail) }
        @if fault.status.is_server_error() {
            p { "Nothing is lost by trying again: " a href="" { "load this page again" } "." }
        }
        p.quiet { "Status " (fault.status.as_u16()) ", code " code { (fault.code) } }
    };
    let mut response = page(shared, visit, "", fault.title, &content);
    *response.status_mut() = fault.status;
    response
}

/// A moment, with its age for people.
fn moment(time: SystemTime) -> Markup {
    let exact = text::time(time);
    let now = SystemTime::now();
    let told = match time.duration_since(now) {
        Ok(ahead) if !ahead.is_zero() => format!("in {}", text::duration(ahead)),
        _ => text::ago(time),
    };
    html! { time datetime=(exact) title=(exact) { (told) } }
}

fn optional_moment(time: Option<SystemTime>) -> Markup {
    time.map_or_else(|| html! { "–" }, moment)
}

/// A state, told apart by more than its colour.
fn state(state: State) -> Markup {
    let class = format!("state {state}");
    html! { span class=(class) { (state) } }
}

/// A message's id as a link to it.
fn message_link(key: &Key) -> Markup {
    html! { a href=(link_to("message", key)) { (text::one_line(key.id.as_str(), 80)) } }
}

fn token_field(visit: &Visit) -> Markup {
    html! { input type="hidden" name=(TOKEN_FIELD) value=(visit.form_token.as_str()); }
}

/// A form of one button.
fn button(
    visit: &Visit,
    action: &str,
    label: &str,
    is_harmful: bool,
    fields: &[(&str, String)],
) -> Markup {
    let class = if is_harmful { "harmful" } else { "" };
    html! {
        form.inline method="post" action=(action) {
            (token_field(visit))
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            button class=(class) { (label) }
        }
    }
}

/// What a tally has shown so far. While there is more to look at, it renews itself from `more`, a link to the
/// same page a step further.
fn found(tally: &Tally, is_growing: bool, more: &str, of: &str, content: &Markup) -> Markup {
    let attribute = |value| is_growing.then_some(value);
    let number = text::count(tally.looked_at);
    html! {
        div #found hx-get=[attribute(more)] hx-trigger=[attribute("load delay:20ms")]
            hx-select=[attribute("#found")] hx-swap=[attribute("outerHTML")] {
            @if is_growing {
                p.note { "Looking: the newest " (number) " " (of) " so far. " a href=(more) { "Look further" } }
            } @else if !tally.is_complete() {
                p.note role="note" {
                    "Of the newest " (number) " " (of) ": there are more than were looked at."
                }
            }
            (content)
        }
    }
}
