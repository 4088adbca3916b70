//! Ordering keys that dead messages hold up.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use inbox::HandlerName;
use maud::html;

use super::{incomplete, optional_moment, visited};
use crate::{
    dashboard::Shared,
    fault::Fault,
    guard::Visit,
    query::{Parameters, link},
    reading::{MOST, blocked_keys, within},
    text,
};

pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let handler = parameters.read::<HandlerName>("handler")?;
    parameters.end()?;
    let found = within(blocked_keys(shared.store.as_ref(), handler)).await?;
    let content = html! {
        p { "The later messages of such a key wait until the dead one is replayed, discarded or purged." }
        @if !found.looked_at_all { (incomplete(MOST.into(), "dead messages")) }
        @if found.rows.is_empty() {
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
                        @for row in &found.rows {
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
                                        ("state", "dead"),
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
    };
    Ok(visited(
        &shared,
        &visit,
        "keys",
        "Ordering keys held up",
        &content,
    ))
}
