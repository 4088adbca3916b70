//! Looking.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use inbox::HandlerName;
use serde_json::{Value, json as value};

use super::json;
use crate::{
    dashboard::Shared,
    fault::Fault,
    pages::{
        groups::{Of, narrow},
        messages::PageWanted,
    },
    query::Parameters,
    reading::{self, within},
    tally::{self, Tally},
    text::time,
    view::{GroupView, RecordView, StatisticsView, WholeView},
};

/// The most records of one page of the API.
const MOST: u32 = 1000;

pub(super) async fn statistics(
    State(shared): State<Arc<Shared>>,
    parameters: Parameters,
) -> Result<Response, Fault> {
    parameters.end()?;
    let snapshot = shared.watch.snapshot(shared.store.as_ref()).await?;
    let handlers = snapshot
        .statistics
        .handlers
        .iter()
        .map(StatisticsView::from);
    json(&value!({
        "handlers": handlers.collect::<Vec<_>>(),
        "paused": snapshot.paused,
        "schema_version": snapshot.version,
        "expected_schema_version": shared.store.expected_version(),
    }))
}

pub(super) async fn messages(
    State(shared): State<Arc<Shared>>,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let wanted = parameters.wanted()?;
    let asked = PageWanted::take(&mut parameters, MOST)?;
    parameters.end()?;
    let selection = wanted.selection()?;
    let reading = reading::list(shared.store.as_ref(), &selection, &asked.page);
    let listing = within(reading).await?;
    let view = |record| {
        let view = RecordView::from(record);
        if shared.options.hides_payloads {
            view.without_headers()
        } else {
            view
        }
    };
    let messages: Vec<_> = listing.records.iter().map(view).collect();
    let corrupt = listing.corrupt.iter();
    let corrupt = corrupt.map(|row| value!({ "place": row.place, "reason": row.reason }));
    json(&value!({
        "messages": messages,
        "corrupt": corrupt.collect::<Vec<_>>(),
        "next": listing.next.as_ref().map(inbox::Cursor::as_str),
    }))
}

pub(super) async fn message(
    State(shared): State<Arc<Shared>>,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let key = parameters.key()?;
    parameters.end()?;
    let record = within(shared.store.get(&key)).await?;
    let record = record.ok_or_else(Fault::no_such_message)?;
    let view = WholeView::from(&record);
    if shared.options.hides_payloads {
        json(&view.without_content())
    } else {
        json(&view)
    }
}

pub(super) async fn dead(
    State(shared): State<Arc<Shared>>,
    parameters: Parameters,
) -> Result<Response, Fault> {
    groups(&shared, parameters, Of::Dead).await
}

pub(super) async fn scheduled(
    State(shared): State<Arc<Shared>>,
    parameters: Parameters,
) -> Result<Response, Fault> {
    groups(&shared, parameters, Of::Scheduled).await
}

async fn groups(shared: &Shared, mut parameters: Parameters, of: Of) -> Result<Response, Fault> {
    let wanted = narrow(parameters.wanted()?, of);
    parameters.end()?;
    let selection = wanted.selection()?;
    let tally = within(Tally::of(shared.store.as_ref(), &selection, tally::MOST)).await?;
    let summary = &tally.summary;
    let groups = summary.groups.iter().map(GroupView::from);
    json(&value!({
        "groups": groups.collect::<Vec<_>>(),
        "messages": summary.messages,
        "corrupt": summary.corrupt,
        "is_complete": summary.is_complete,
    }))
}

pub(super) async fn keys(
    State(shared): State<Arc<Shared>>,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let handler = parameters.read::<HandlerName>("handler")?;
    parameters.end()?;
    let selection = reading::blocking(handler);
    let tally = within(Tally::of(shared.store.as_ref(), &selection, tally::MOST)).await?;
    let keys = tally.keys().into_iter().map(|row| {
        value!({
            "handler": row.handler,
            "ordering_key": row.ordering_key,
            "dead": row.dead,
            "since": row.since.map(time),
            "error": row.error,
        })
    });
    json(&value!({ "keys": keys.collect::<Vec<_>>(), "is_complete": tally.is_complete() }))
}

pub(super) async fn workers(
    State(shared): State<Arc<Shared>>,
    parameters: Parameters,
) -> Result<Response, Fault> {
    parameters.end()?;
    let selection = reading::leased();
    let tally = within(Tally::of(shared.store.as_ref(), &selection, tally::MOST)).await?;
    let workers = tally.workers().into_iter().map(|row| -> Value {
        value!({
            "worker": row.worker,
            "handlers": row.handlers,
            "leases": row.leases,
            "oldest_leased_at": row.oldest.map(time),
            "oldest_message": { "handler": row.oldest_key.handler, "id": row.oldest_key.id },
            "next_lease_until": row.until.map(time),
        })
    });
    json(&value!({ "workers": workers.collect::<Vec<_>>(), "is_complete": tally.is_complete() }))
}
