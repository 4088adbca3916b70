//! Who holds leases.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{extract::State, response::Response};
use maud::{Markup, html};

use super::{found, message_link, optional_moment, visited};
use crate::{
    dashboard::Shared, fault::Fault, guard::Visit, query::Parameters, reading, tally::WorkerLeases,
    text,
};

/// An attempt that goes on for so long may be stuck.
const LONG: Duration = Duration::from_secs(15 * 60);

pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let more = parameters.has("more")?;
    parameters.end()?;
    let store = shared.store.as_ref();
    let tally = shared.tallies.read(store, &reading::leased(), more).await?;
    let (is_growing, table) = (tally.is_growing(), table(&tally.workers()));
    let content = html! {
        p {
            "Leases that have not run out, by who holds them. A worker that holds none is not here, and one "
            "that has died is here until its leases run out. "
            a href="messages?state=leased&order=oldest" { "All leased messages" }
        }
        (found(&tally, is_growing, "workers?more=true", "leased messages", &table))
    };
    Ok(visited(&shared, &visit, "workers", "Workers", &content))
}

fn table(workers: &[&WorkerLeases]) -> Markup {
    html! {
        @if workers.is_empty() {
            p { "Nothing is leased." }
        } @else {
            div.wide tabindex="0" role="region" aria-label="Workers" {
                table {
                    thead { tr {
                        @for name in ["Worker", "Leases", "Handlers", "Oldest attempt began", "Its message", "Next lease ends"] {
                            th scope="col" { (name) }
                        }
                    } }
                    tbody { @for row in workers { (worker(row)) } }
                }
            }
        }
    }
}

fn worker(row: &WorkerLeases) -> Markup {
    let name = row.worker.as_ref().map_or("?", AsRef::as_ref);
    let handlers: Vec<_> = row
        .handlers
        .iter()
        .map(|h| text::one_line(h.as_str(), 40))
        .collect();
    let age = row
        .oldest
        .and_then(|begun| SystemTime::now().duration_since(begun).ok());
    html! {
        tr {
            th scope="row" { (text::one_line(name, 100)) }
            td.number { (text::count(row.leases)) }
            td { (handlers.join(", ")) }
            td {
                (optional_moment(row.oldest))
                @if age.is_some_and(|age| age >= LONG) { " " span.warn { "perhaps stuck" } }
            }
            td { (message_link(&row.oldest_key)) }
            td { (optional_moment(row.until)) }
        }
    }
}
