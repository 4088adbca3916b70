//! How each handler does, and the store.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    extract::{OriginalUri, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use inbox::{HandlerName, HandlerStatistics};
use maud::{Markup, html};

use super::{button, visited};
use crate::{
    dashboard::Shared,
    fault::Fault,
    guard::Visit,
    query::{Parameters, link},
    text,
    watch::{Snapshot, latest_rate},
};

/// Work that has been due for so long, without a lease, is worked on by nobody, as far as the store can tell.
const UNSERVED: Duration = Duration::from_secs(60);

/// Width and height of a curve.
const CURVE: (f64, f64) = (120.0, 24.0);

/// `GET /`: to the overview, wherever this is mounted, be it with a slash at its end or without.
pub(crate) async fn entrance(OriginalUri(uri): OriginalUri) -> Response {
    let own = uri.path().rsplit('/').next().unwrap_or_default();
    let place = match own {
        "" => "overview".to_owned(),
        own => format!("{own}/overview"),
    };
    (StatusCode::SEE_OTHER, [(header::LOCATION, place)]).into_response()
}

pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let is_still = parameters.has("still")?;
    parameters.end()?;
    let snapshot = shared.watch.snapshot(shared.store.as_ref()).await?;
    let content = html! {
        @if is_still {
            p.quiet { "This page stays as it is. " a href="overview" { "Renew it every five seconds" } }
        } @else {
            p.quiet { "This page renews itself. " a href="overview?still=1" { "Stop that" } }
        }
        @if is_still {
            div #live { (live(&shared, &visit, &snapshot)) }
        } @else {
            div #live hx-get="overview" hx-trigger="every 5s" hx-select="#live" hx-swap="outerHTML" {
                (live(&shared, &visit, &snapshot))
            }
        }
    };
    Ok(visited(&shared, &visit, "overview", "Overview", &content))
}

fn live(shared: &Shared, visit: &Visit, snapshot: &Snapshot) -> Markup {
    html! {
        p.quiet { "As of " (text::time(SystemTime::now())) }
        (totals(snapshot))
        (handlers(shared, visit, snapshot))
        (store(shared, snapshot))
        (service(shared))
    }
}

fn totals(snapshot: &Snapshot) -> Markup {
    let statistics = &snapshot.statistics;
    let dead = statistics.count(inbox::State::Dead);
    let blocking = statistics.blocking();
    let backlog: u64 = statistics
        .handlers
        .iter()
        .map(HandlerStatistics::backlog)
        .sum();
    let lag = statistics
        .lag()
        .map_or_else(|| "none".to_owned(), text::duration);
    let figures = [
        (
            "Waiting and leased",
            text::count(backlog),
            "messages?state=pending&state=leased",
            false,
        ),
        ("Dead", text::count(dead), "dead", dead > 0),
        (
            "Blocking an ordering key",
            text::count(blocking),
            "keys",
            blocking > 0,
        ),
        (
            "Longest behind",
            lag,
            "messages?state=pending&due_within=0s&order=oldest",
            false,
        ),
    ];
    html! {
        ul.figures {
            @for (name, value, href, is_bad) in figures {
                li {
                    a href=(href) class=(if is_bad { "bad" } else { "" }) {
                        strong { (value) } " " span { (name) }
                    }
                }
            }
        }
    }
}

fn handlers(shared: &Shared, visit: &Visit, snapshot: &Snapshot) -> Markup {
    let counted = &snapshot.statistics.handlers;
    let uncounted = snapshot.paused.iter();
    let uncounted = uncounted.filter(|name| counted.iter().all(|own| own.handler != **name));
    let mut all = counted.clone();
    all.extend(uncounted.map(|name| HandlerStatistics {
        paused: true,
        ..HandlerStatistics::empty(name.clone())
    }));
    html! {
        h2 { "Handlers" }
        @if all.is_empty() {
            p { "The inbox is empty." }
        } @else {
            div.wide tabindex="0" role="region" aria-label="Handlers" {
                table {
                    thead { tr {
                        th scope="col" { "Handler" }
                        @for name in ["Pending", "Due", "Leased", "Processed", "Per minute", "Dead", "Blocking"] {
                            th.number scope="col" { (name) }
                        }
                        th scope="col" { "Behind" }
                        th scope="col" { "Oldest due" }
                        th scope="col" { "Last hour" }
                        th scope="col" { "Notes" }
                        @if !shared.options.is_read_only {
                            th scope="col" { span.hidden { "Changes" } }
                        }
                    } }
                    tbody { @for counts in &all { (row(shared, visit, counts)) } }
                }
            }
        }
    }
}

fn row(shared: &Shared, visit: &Visit, counts: &HandlerStatistics) -> Markup {
    let name = counts.handler.as_str();
    let rates = shared.watch.rates(&counts.handler);
    let to = |state: &str, count: u64| {
        let href = link("messages", [("handler", name), ("state", state)]);
        html! {
            td.number {
                @if count == 0 { "0" } @else { a href=(href) { (text::count(count)) } }
            }
        }
    };
    let age = |age: Option<Duration>| age.map_or_else(|| "–".to_owned(), text::duration);
    html! {
        tr {
            th scope="row" { a href=(link("messages", [("handler", name)])) { (text::one_line(name, 60)) } }
            (to("pending", counts.pending))
            (due(counts))
            (to("leased", counts.leased))
            (to("processed", counts.processed))
            td.number {
                @match latest_rate(&rates) {
                    Some(rate) => (format!("{rate:.0}")),
                    None => "–",
                }
            }
            td.number {
                @if counts.dead == 0 { "0" } @else {
                    a.bad href=(link("dead", [("handler", name)])) { (text::count(counts.dead)) }
                }
            }
            td.number {
                @if counts.blocking == 0 { "0" } @else {
                    a.bad href=(link("keys", [("handler", name)])) { (text::count(counts.blocking)) }
                }
            }
            td { (age(counts.lag)) }
            td { (age(counts.oldest_due_age)) }
            td { (curve(&rates)) }
            td { (notes(counts)) }
            @if !shared.options.is_read_only {
                td { (pause_button(visit, &counts.handler, counts.paused)) }
            }
        }
    }
}

fn due(counts: &HandlerStatistics) -> Markup {
    let name = counts.handler.as_str();
    let href = link(
        "messages",
        [
            ("handler", name),
            ("state", "pending"),
            ("due_within", "0s"),
            ("order", "oldest"),
        ],
    );
    html! {
        td.number {
            @if counts.due == 0 { "0" } @else { a href=(href) { (text::due(counts)) } }
        }
    }
}

fn notes(counts: &HandlerStatistics) -> Markup {
    let unserved = counts
        .lag
        .filter(|lag| *lag >= UNSERVED && counts.leased == 0);
    html! {
        @if counts.paused {
            span.warn { "paused" }
        } @else if unserved.is_some() {
            span.warn { "due for more than a minute, and none is leased: it seems that no worker serves it" }
        }
    }
}

fn pause_button(visit: &Visit, handler: &HandlerName, is_paused: bool) -> Markup {
    let (action, label) = if is_paused {
        ("resume", "Resume")
    } else {
        ("pause", "Pause")
    };
    let label = format!("{label} {}", text::one_line(handler.as_str(), 30));
    button(
        visit,
        action,
        &label,
        false,
        &[("handler", handler.as_str().to_owned())],
    )
}

/// Messages processed per minute, as a line.
fn curve(rates: &[f64]) -> Markup {
    let (width, height) = CURVE;
    let highest = rates.iter().copied().fold(0.0, f64::max);
    if rates.len() < 2 {
        return html! { span.quiet { "not yet" } };
    }
    let step = width / (rates.len() - 1) as f64;
    let scale = if highest > 0.0 {
        (height - 2.0) / highest
    } else {
        0.0
    };
    let points = rates
        .iter()
        .enumerate()
        .map(|(n, rate)| format!("{:.1},{:.1}", n as f64 * step, height - 1.0 - rate * scale));
    let points = points.collect::<Vec<_>>().join(" ");
    let told = format!("processed per minute, {highest:.0} at most");
    html! {
        svg.curve role="img" aria-label=(told) width="120" height="24" viewBox="0 0 120 24" {
            title { (told) }
            polyline points=(points) fill="none" stroke="currentColor" stroke-width="1.5" {}
        }
    }
}

fn store(shared: &Shared, snapshot: &Snapshot) -> Markup {
    let expected = shared.store.expected_version();
    let schema = match snapshot.version {
        None => "not set up".to_owned(),
        Some(version) if version == expected => format!("version {version}, as this build expects"),
        Some(version) => format!("version {version}; this build expects {expected}"),
    };
    let capabilities = shared.store.capabilities();
    html! {
        h2 { "Store" }
        dl {
            @if let Some(place) = &shared.options.place { dt { "Place" } dd { (place) } }
            dt { "Schema" } dd { (schema) }
            dt { "Durability" } dd { (capabilities.durability) }
            dt { "Largest payload" } dd { (text::count(capabilities.payload_limit as u64)) " bytes" }
            dt { "Ordering keys" } dd { (if capabilities.ordering { "yes" } else { "no" }) }
        }
    }
}

/// How the service of this process does, if the application has told of one.
fn service(shared: &Shared) -> Markup {
    let Some(health) = &shared.options.health else {
        return html! {};
    };
    let report = health.report();
    html! {
        h2 { "This process" }
        @if let Some(unready) = &report.unready { p.warn { "not ready: " (unready) } }
        table {
            thead { tr {
                @for name in ["Part", "Stage", "Last round", "Trouble"] { th scope="col" { (name) } }
            } }
            tbody {
                @for part in &report.parts {
                    tr {
                        th scope="row" { (part.name) }
                        td {
                            (format!("{:?}", part.stage).to_lowercase())
                            @if !part.is_live { " " span.warn { "its loop does not turn" } }
                        }
                        td { (part.last_success.map(|age| text::duration(age) + " ago").unwrap_or_default()) }
                        td { (part.degraded.join("; ")) }
                    }
                }
            }
        }
    }
}
