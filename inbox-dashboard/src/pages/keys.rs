//! Ordering keys that dead messages hold up.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use inbox::HandlerName;
use maud::{Markup, html};

use super::{found, optional_moment, visited};
use crate::{
    dashboard::Shared,
    fault::Fault,
    guard::Visit,
    query::{Parameters, link},
    reading,
    tally::BlockedKey,
    text,
};

pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let handler = parameters.read::<HandlerName>("handler")?;
    let more = parameters.has("more")?;
    parameters.end()?;
    let store = shared.store.as_ref();
    let snapshot = shared.watch.snapshot(store).await?;
    let expected = reading::holding(&snapshot.statistics, handler.as_ref());
    let selection = reading::blocking(handler.clone());
    let tally = shared.tallies.read(store, &selection, more).await?;
    let keys = tally.keys();
    let held: u64 = keys.iter().map(|row| row.dead).sum();
    let is_growing = tally.is_growing() && held < expected;
    let mut pairs = vec![("more", "true")];
    pairs.extend(handler.as_ref().map(|name| ("handler", name.as_str())));
    let content = html! {
        p { "The later messages of such a key wait until the dead one is replayed, discarded or purged." }
        (found(&tally, is_growing, &link("keys", pairs), "dead messages", &table(&keys, expected)))
    };
    Ok(visited(
        &shared,
        &visit,
        "keys",
        "Ordering keys held up",
        &content,
    ))
}

fn table(keys: &[&BlockedKey], expected: u64) -> Markup {
    html! {
        @if keys.is_empty() && expected == 0 {
            p { "No ordering key is held up." }
        } @else {
            div.wide tabindex="0" role="region" aria-label="Ordering keys" {
                table {
                    thead { tr {
                        @for name in ["Ordering key", "Handler", "Dead", "For", "Last error"] {
                            th scope="col" { (name) }
                        }
                    } }
                    tbody {
                        @for row in keys {
                            tr {
                                th scope="row" {
                                    a href=(link("messages", [
                                        ("handler", row.handler.as_str()),
                                        ("ordering_key", row.ordering_key.as_str()),
                                        ("order", "oldest"),
                                    ])) { (text::one_line(row.ordering_key.as_str(), 100)) }
                                }
                                td { (text::one_line(row.handler.as_str(), 40)) }
                                td.number {
                                    a href=(link("messages", [
                                        ("handler", row.handler.as_str()),
                                        ("ordering_key", row.ordering_key.as_str()),
                                        ("blocking", "true"),
                                    ])) { (text::count(row.dead)) }
                                }
                                td { (optional_moment(row.since)) }
                                td { (row.error.as_deref().map(|e| text::one_line(e, 160)).unwrap_or_default()) }
                            }
                        }
                    }
                }
            }
        }
    }
}
