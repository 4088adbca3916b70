//! Counts and lag of each handler.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use inbox_api::{HandlerName, HandlerStatistics, Result, State, Statistics};
use mongodb::bson::{Bson, Document, doc};

use super::pauses::paused;
use crate::{
    connection::Connection,
    count_cache,
    layout::STANDING_INDEX,
    rows::{CLAIMABLE, code, number},
};

/// How many messages each handler has in each stored state, by the state's code.
type ByHandler = BTreeMap<String, BTreeMap<i64, u64>>;

/// Messages are counted by [`count_cache`]; the first messages of each handler, and leases that have
/// run out, are read from indexes.
pub(super) async fn statistics(connection: &mut Connection<'_>) -> Result<Statistics> {
    let mut by_handler = ByHandler::new();
    for ((handler, state), count) in count_cache::count(connection).await? {
        by_handler.entry(handler).or_default().insert(state, count);
    }
    let run_out = connection
        .aggregate(
            Some(STANDING_INDEX),
            vec![
                doc! { "$match": { "state": code(State::Leased) } },
                doc! { "$set": { "now": connection.database.now() } },
                doc! { "$match": { "$expr": { "$lte": ["$visibleAt", "$now"] } } },
                doc! { "$group": { "_id": "$handler", "count": { "$sum": 1 } } },
            ],
        )
        .await?;
    let waiting: Vec<&str> = by_handler
        .iter()
        .filter(|(_, states)| {
            let open = [State::Pending, State::Leased];
            open.iter()
                .any(|state| states.contains_key(&i64::from(code(*state))))
        })
        .map(|(handler, _)| handler.as_str())
        .collect();
    // FerretDB fails a look that is about none.
    let due = if waiting.is_empty() {
        Vec::new()
    } else {
        first_due(connection, &waiting).await?
    };
    let paused = paused(connection).await?;
    let (run_out, due) = (by_name(&run_out, "_id"), by_name(&due, "handler"));
    let nothing = Document::new();
    // In order of name. One that breaks the rules is of a corrupt message, which claim and list
    // report.
    let handlers = by_handler.iter().filter_map(|(name, states)| {
        let handler = HandlerName::new(name.as_str()).ok()?;
        let run_out = run_out.get(name.as_str()).map_or(0, |found| counter(found));
        let due = due.get(name.as_str()).copied().unwrap_or(&nothing);
        let mut statistics = handler_statistics(handler, states, run_out, due);
        statistics.paused = paused.binary_search(&statistics.handler).is_ok();
        Some(statistics)
    });
    Ok(Statistics {
        handlers: handlers.collect(),
    })
}

/// Documents about handlers, by the name in this field.
fn by_name<'d>(found: &'d [Document], field: &str) -> HashMap<&'d str, &'d Document> {
    found
        .iter()
        .filter_map(|found| Some((found.get_str(field).ok()?, found)))
        .collect()
}

/// Of each handler the first messages that may be claimed once they are visible, with the time.
async fn first_due(connection: &mut Connection<'_>, handlers: &[&str]) -> Result<Vec<Document>> {
    connection
        .read_meta([
            doc! { "$match": { "_id": "sequence" } },
            doc! { "$project": {
                "handler": { "$literal": handlers }, "now": connection.database.now(),
            } },
            doc! { "$unwind": "$handler" },
            doc! { "$lookup": {
                "from": connection.database.message_collection(),
                "let": { "handler": "$handler" },
                "pipeline": [
                    { "$match": {
                        "lane": { "$gt": 0 }, "$expr": { "$eq": ["$handler", "$$handler"] },
                    } },
                    { "$sort": { "visibleAt": 1, "seq": 1 } },
                    // FerretDB would carry payloads along.
                    { "$project": { "lane": 1, "visibleAt": 1, "acceptedAt": 1 } },
                    { "$match": { "lane": CLAIMABLE } },
                    { "$limit": HandlerStatistics::DUE_COUNTED as i64 },
                    { "$set": { "now": connection.database.now() } },
                    { "$group": {
                        "_id": Bson::Null,
                        "visibleAt": { "$first": "$visibleAt" },
                        "acceptedAt": { "$first": "$acceptedAt" },
                        "count": { "$sum": { "$cond": [
                            { "$lte": ["$visibleAt", "$now"] }, 1, 0,
                        ] } },
                    } },
                ],
                "as": "first",
            } },
        ])
        .await
}

fn counter(document: &Document) -> u64 {
    number(document, "count")
        .and_then(|count| u64::try_from(count).ok())
        .unwrap_or(0)
}

/// `due` has the time and, if any, the first message that may be claimed once it is visible, with how many
/// are.
fn handler_statistics(
    handler: HandlerName,
    states: &BTreeMap<i64, u64>,
    run_out: u64,
    due: &Document,
) -> HandlerStatistics {
    let mut statistics = HandlerStatistics::empty(handler);
    let count = |state: State| states.get(&i64::from(code(state))).copied().unwrap_or(0);
    let leased = count(State::Leased);
    let run_out = run_out.min(leased);
    statistics.pending = count(State::Pending) + run_out;
    statistics.leased = leased - run_out;
    statistics.processed = count(State::Processed);
    statistics.blocking = states
        .get(&i64::from(count_cache::BLOCKING))
        .copied()
        .unwrap_or(0);
    statistics.dead = count(State::Dead) + statistics.blocking;
    statistics.discarded = count(State::Discarded);
    let first = due.get_array("first").ok();
    let first = first.and_then(|first| first.first()?.as_document());
    let now = number(due, "now").unwrap_or(0);
    let since = |field: &str| {
        let first = first.filter(|first| number(first, "visibleAt").is_some_and(|at| at <= now))?;
        let waited = now.saturating_sub(number(first, field)?);
        Some(Duration::from_micros(u64::try_from(waited).unwrap_or(0)))
    };
    statistics.due = first.map_or(0, counter);
    statistics.lag = since("visibleAt");
    statistics.oldest_due_age = since("acceptedAt");
    statistics
}
