//! Filters of the operator's side as stages of a pipeline.

use std::time::Duration;

use inbox_api::{Filter, State, duration_micros};
use mongodb::bson::{Bson, Document, doc};

use crate::{connection::Database, rows::code};

/// The messages that a filter selects.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    /// What can be looked up in an index.
    pub(super) filter: Document,
    /// Expressions, some of which compare with the time.
    expressions: Vec<Bson>,
    /// The one about the error, which may change as the state may.
    error: Option<Bson>,
}

impl Query {
    /// Of any state unless the filter says otherwise.
    pub(super) fn of(filter: &Filter) -> Self {
        Self::with_states(filter, &filter.states)
    }

    /// Of those states of the filter that are `eligible`; dead when it has none. `None` when
    /// nothing is selected.
    pub(super) fn eligible(filter: &Filter, eligible: &[State]) -> Option<Self> {
        let states: Vec<State> = if filter.states.is_empty() {
            vec![State::Dead]
        } else {
            let wanted = filter.states.iter().copied();
            wanted.filter(|state| eligible.contains(state)).collect()
        };
        (!states.is_empty()).then(|| Self::with_states(filter, &states))
    }

    fn with_states(filter: &Filter, states: &[State]) -> Self {
        let mut query = Self::default();
        if let Some(handler) = &filter.handler {
            query.filter.insert("handler", handler.as_str());
        }
        if let Some(kind) = &filter.kind {
            query.filter.insert("kind", kind.as_str());
        }
        if let Some(ordering_key) = &filter.ordering_key {
            query.filter.insert("orderingKey", ordering_key.as_str());
        }
        if let Some(older_than) = filter.older_than {
            query.accepted("$lte", older_than);
        }
        if let Some(newer_than) = filter.newer_than {
            query.accepted("$gt", newer_than);
        }
        if let Some(text) = &filter.error_contains {
            // Byte for byte; a message without an error has no position.
            let position = doc! { "$indexOfBytes": ["$error", { "$literal": text }] };
            let contains = Bson::from(doc! { "$gte": [position, 0] });
            query.error = Some(contains.clone());
            query.expressions.push(contains);
        }
        query.narrow_states(states);
        query
    }

    fn accepted(&mut self, operator: &str, age: Duration) {
        let limit = doc! { "$subtract": ["$now", duration_micros(age)] };
        self.expressions
            .push(doc! { operator: ["$acceptedAt", limit] }.into());
    }

    /// A message whose lease has run out is shown as pending.
    fn narrow_states(&mut self, states: &[State]) {
        if states.is_empty() {
            return;
        }
        let mut stored: Vec<i32> = states.iter().map(|state| code(*state)).collect();
        let pending = states.contains(&State::Pending);
        let leased = states.contains(&State::Leased);
        if pending != leased {
            let of_leases = if pending { "$lte" } else { "$gt" };
            self.expressions.push(
                doc! { "$or": [
                    { "$ne": ["$state", code(State::Leased)] },
                    { of_leases: ["$visibleAt", "$now"] },
                ] }
                .into(),
            );
        }
        if pending {
            stored.push(code(State::Leased));
        }
        stored.sort_unstable();
        stored.dedup();
        self.filter.insert("state", doc! { "$in": stored });
    }

    /// What of it may have changed since a look: to be asked again in the change itself. The
    /// state as stored; whether a lease has run out is not part of it.
    pub(super) fn still(&self) -> Document {
        let mut still = Document::new();
        if let Some(state) = self.filter.get("state") {
            still.insert("state", state.clone());
        }
        if let Some(error) = &self.error {
            still.insert("$expr", error.clone());
        }
        still
    }

    /// Those messages, each with the time as `now`. In the order of `sort`, which an index gives.
    pub(super) fn stages(&self, database: &Database, sort: Option<Document>) -> Vec<Document> {
        let mut stages = vec![doc! { "$match": self.filter.clone() }];
        stages.extend(sort.map(|sort| doc! { "$sort": sort }));
        stages.push(doc! { "$set": { "now": database.now() } });
        if !self.expressions.is_empty() {
            let all = self.expressions.clone();
            stages.push(doc! { "$match": { "$expr": { "$and": all } } });
        }
        stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_that_ran_out_count_as_pending() {
        let of = |states: &[State]| {
            Query::of(&Filter {
                states: states.to_vec(),
                ..Filter::default()
            })
        };
        let stored = |query: &Query| query.filter.get_document("state").cloned().ok();
        let pending = of(&[State::Pending]);
        assert_eq!(stored(&pending), Some(doc! { "$in": [0, 1] }));
        assert_eq!(pending.expressions.len(), 1);
        let both = of(&[State::Pending, State::Leased]);
        assert_eq!(stored(&both), Some(doc! { "$in": [0, 1] }));
        assert!(both.expressions.is_empty());
        let dead = of(&[State::Dead]);
        assert_eq!(stored(&dead), Some(doc! { "$in": [3] }));
        assert!(dead.expressions.is_empty());
        assert_eq!(stored(&of(&[])), None);
    }

    #[test]
    fn what_may_change_is_asked_again() {
        let filter = Filter {
            states: vec![State::Dead, State::Processed],
            handler: Some(inbox_api::HandlerName::new("a").unwrap()),
            ..Filter::default()
        };
        let still = |filter: &Filter| Query::eligible(filter, &[State::Dead]).map(|m| m.still());
        assert_eq!(still(&filter), Some(doc! { "state": { "$in": [3] } }));
        let filter = Filter {
            error_contains: Some("x".into()),
            ..Filter::default()
        };
        let still = still(&filter).unwrap();
        assert!(still.contains_key("state") && still.contains_key("$expr"));
    }

    #[test]
    fn only_eligible_states_are_selected() {
        let filter = Filter {
            states: vec![State::Leased],
            ..Filter::default()
        };
        assert!(Query::eligible(&filter, &[State::Dead]).is_none());
        assert!(Query::eligible(&Filter::default(), &[State::Dead]).is_some());
    }
}
