//! Filters of the operator's side as query documents.

use inbox_api::{Filter, State, duration_micros};
use mongodb::bson::{Bson, Document, doc};

use crate::{database::Database, stages::code};

/// Of any state unless the filter says otherwise.
pub(crate) fn of(database: &Database, filter: &Filter) -> Document {
    with_states(database, filter, &filter.states)
}

/// Of those states of the filter that are `eligible`; dead when it has none. `None` when nothing
/// is meant.
pub(crate) fn eligible(
    database: &Database,
    filter: &Filter,
    eligible: &[State],
) -> Option<Document> {
    let states: Vec<State> = if filter.states.is_empty() {
        vec![State::Dead]
    } else {
        let wanted = filter.states.iter().copied();
        wanted.filter(|state| eligible.contains(state)).collect()
    };
    (!states.is_empty()).then(|| with_states(database, filter, &states))
}

fn with_states(database: &Database, filter: &Filter, states: &[State]) -> Document {
    let now = database.now();
    let mut meaning = Document::new();
    if let Some(handler) = &filter.handler {
        meaning.insert("handler", handler.as_str());
    }
    if let Some(kind) = &filter.kind {
        meaning.insert("kind", kind.as_str());
    }
    if let Some(ordering_key) = &filter.ordering_key {
        meaning.insert("orderingKey", ordering_key.as_str());
    }
    let mut conditions = Vec::new();
    let mut age = |operator: &str, age: std::time::Duration| {
        let limit = doc! { "$subtract": [now.clone(), duration_micros(age)] };
        conditions.push(Bson::from(doc! { operator: ["$acceptedAt", limit] }));
    };
    if let Some(older_than) = filter.older_than {
        age("$lte", older_than);
    }
    if let Some(newer_than) = filter.newer_than {
        age("$gt", newer_than);
    }
    if let Some(text) = &filter.error_contains {
        // Byte for byte; a message without an error has no position.
        let position = doc! { "$indexOfBytes": ["$error", { "$literal": text }] };
        conditions.push(doc! { "$gte": [position, 0] }.into());
    }
    if !conditions.is_empty() {
        meaning.insert("$expr", doc! { "$and": conditions });
    }
    if let Some(states) = any_of(&now, states) {
        meaning.extend(states);
    }
    meaning
}

/// A message whose lease has run out is shown as pending.
fn any_of(now: &Document, states: &[State]) -> Option<Document> {
    if states.is_empty() {
        return None;
    }
    let shown = |state: State| {
        let running = |operator: &str| doc! { operator: ["$visibleAt", now.clone()] };
        match state {
            State::Pending => vec![
                doc! { "state": code(State::Pending) },
                doc! { "state": code(State::Leased), "$expr": running("$lte") },
            ],
            State::Leased => {
                vec![doc! { "state": code(State::Leased), "$expr": running("$gt") }]
            }
            other => vec![doc! { "state": code(other) }],
        }
    };
    let alternatives: Vec<Document> = states.iter().flat_map(|state| shown(*state)).collect();
    Some(match <[Document; 1]>::try_from(alternatives) {
        Ok([only]) if !only.contains_key("$expr") => only,
        Ok([only]) => doc! { "$or": [only] },
        Err(several) => doc! { "$or": several },
    })
}
