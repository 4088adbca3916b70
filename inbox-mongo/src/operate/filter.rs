//! Filters of the operator's side as stages of a pipeline.

use std::time::Duration;

use inbox_api::{Filter, Headers, Key, MessageId, State, duration_micros, headers::CORRELATION_ID};
use mongodb::bson::{Bson, Document, doc};

use crate::{
    connection::Database,
    rows::{code, identifier},
};

/// The messages that a filter selects.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    /// What can be looked up in an index.
    pub(super) filter: Document,
    /// The rest is in expressions, some of which compare with the time.
    given: Filter,
}

impl Query {
    /// Of any state unless the filter says otherwise.
    pub(super) fn of(filter: &Filter) -> Self {
        let mut query = Self {
            filter: Document::new(),
            given: filter.clone(),
        };
        let by_text = [
            ("handler", filter.handler.as_ref().map(AsRef::as_ref)),
            ("kind", filter.kind.as_ref().map(AsRef::as_ref)),
            (
                "orderingKey",
                filter.ordering_key.as_ref().map(AsRef::as_ref),
            ),
        ];
        for (field, text) in by_text {
            if let Some(text) = text {
                query.filter.insert::<_, &str>(field, text);
            }
        }
        let mut started = Document::new();
        for (bound, number) in [("$gte", filter.min_started), ("$lte", filter.max_started)] {
            started.extend(number.map(|number| (bound.to_owned(), i64::from(number).into())));
        }
        if !started.is_empty() {
            query.filter.insert("started", started);
        }
        if filter.blocking {
            query.filter.insert("blocks", true);
        }
        if !filter.ids.is_empty() {
            query.narrow_ids(&filter.ids);
        }
        query.narrow_states();
        query
    }

    /// Of those states of the filter that are `eligible`; of the `usual` one when it has none. `None`
    /// when nothing is selected.
    pub(super) fn eligible(filter: &Filter, eligible: &[State], usual: State) -> Option<Self> {
        let states: Vec<State> = if filter.states.is_empty() {
            vec![usual]
        } else {
            let wanted = filter.states.iter().copied();
            wanted.filter(|state| eligible.contains(state)).collect()
        };
        let filter = Filter {
            states,
            ..filter.clone()
        };
        (!filter.states.is_empty()).then(|| Self::of(&filter))
    }

    /// With a handler they are found in an index.
    fn narrow_ids(&mut self, ids: &[MessageId]) {
        let mut ids: Vec<&MessageId> = ids.iter().collect();
        ids.sort_unstable();
        ids.dedup();
        if let Some(handler) = &self.given.handler {
            let key = |id: &&MessageId| Key::new(handler.clone(), (*id).clone());
            let ids: Vec<String> = ids.iter().map(|id| identifier(&key(id))).collect();
            self.filter.insert("_id", doc! { "$in": ids });
        } else {
            let ids: Vec<&str> = ids.iter().map(|id| id.as_str()).collect();
            self.filter.insert("id", doc! { "$in": ids });
        }
    }

    /// A message whose lease has run out is shown as pending.
    fn narrow_states(&mut self) {
        let states = self.given.possible_states();
        if states.is_empty() {
            return;
        }
        let mut stored: Vec<i32> = states.iter().map(|state| code(*state)).collect();
        if states.contains(&State::Pending) {
            stored.push(code(State::Leased));
        }
        stored.sort_unstable();
        stored.dedup();
        self.filter.insert("state", doc! { "$in": stored });
    }

    /// What the filter asks for that is not looked up, at a time.
    fn conditions(&self, now: &Bson) -> Vec<Bson> {
        let given = &self.given;
        let ago = |age: Duration| doc! { "$subtract": [now.clone(), duration_micros(age)] };
        let ahead = |time: Duration| doc! { "$add": [now.clone(), duration_micros(time)] };
        let mut conditions = Vec::new();
        let mut compare = |field: &str, operator: &str, time: Option<Document>| {
            if let Some(time) = time {
                conditions.push(doc! { operator: [field, time] });
            }
        };
        compare("$acceptedAt", "$lte", given.older_than.map(ago));
        compare("$acceptedAt", "$gt", given.newer_than.map(ago));
        compare("$finishedAt", "$lte", given.finished_longer_ago.map(ago));
        compare("$finishedAt", "$gt", given.finished_within.map(ago));
        compare("$dueAt", "$gt", given.due_later_than.map(ahead));
        compare("$dueAt", "$lte", given.due_within.map(ahead));
        if given.finished_longer_ago.is_some() {
            // What is not there is less than any time.
            conditions.push(doc! { "$gt": ["$finishedAt", Bson::Null] });
        }
        // Byte for byte; a message without an error has no position.
        if let Some(text) = &given.error_contains {
            conditions.push(doc! { "$gte": [position("$error", text), 0] });
        }
        if let Some(error_type) = &given.error_type {
            conditions.push(doc! { "$eq": [position("$error", &error_type.prefix()), 0] });
        }
        if let Some(value) = &given.correlation_id {
            conditions.push(has_header(CORRELATION_ID, value));
        }
        conditions.extend(self.lease_condition(now));
        conditions.into_iter().map(Bson::from).collect()
    }

    fn lease_condition(&self, now: &Bson) -> Option<Document> {
        let pending = self.given.states.contains(&State::Pending);
        let leased = self.given.states.contains(&State::Leased);
        (pending != leased).then(|| {
            let of_leases = if pending { "$lte" } else { "$gt" };
            doc! { "$or": [
                { "$ne": ["$state", code(State::Leased)] },
                { of_leases: ["$visibleAt", now.clone()] },
            ] }
        })
    }

    /// What of it may have changed since a look at a time of the server's: to be asked again in the
    /// change itself.
    pub(super) fn still(&self, now: i64) -> Document {
        let mut still = Document::new();
        for field in ["state", "started", "blocks"] {
            if let Some(asked) = self.filter.get(field) {
                still.insert(field, asked.clone());
            }
        }
        let conditions = self.conditions(&now.into());
        if !conditions.is_empty() {
            still.insert("$expr", doc! { "$and": conditions });
        }
        still
    }

    /// Those messages, each with the time as `now`. In the order of `sort`, which an index gives.
    pub(super) fn stages(&self, database: &Database, sort: Option<Document>) -> Vec<Document> {
        let mut stages = vec![doc! { "$match": self.filter.clone() }];
        stages.extend(sort.map(|sort| doc! { "$sort": sort }));
        stages.push(doc! { "$set": { "now": database.now() } });
        let conditions = self.conditions(&"$now".into());
        if !conditions.is_empty() {
            stages.push(doc! { "$match": { "$expr": { "$and": conditions } } });
        }
        stages
    }
}

/// Where a text is in another, in bytes.
fn position(field: &str, text: &str) -> Document {
    doc! { "$indexOfBytes": [field, { "$literal": text }] }
}

/// Whether a message has this header. Headers are kept as a JSON object of texts, in which a quotation
/// mark that is part of a name or a value has a backslash before it: so what follows a brace or a comma
/// and begins with one is a header.
fn has_header(name: &str, value: &str) -> Document {
    let mut headers = Headers::new();
    if headers.insert(name, value).is_err() {
        // No message has it.
        return doc! { "$literal": false };
    }
    let json = headers.to_json();
    let first = json.trim_end_matches('}');
    let later = first.replacen('{', ",", 1);
    doc! { "$or": [
        { "$eq": [position("$headers", first), 0] },
        { "$gte": [position("$headers", &later), 0] },
    ] }
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
        let conditions = |query: &Query| query.conditions(&"$now".into()).len();
        let pending = of(&[State::Pending]);
        assert_eq!(stored(&pending), Some(doc! { "$in": [0, 1] }));
        assert_eq!(conditions(&pending), 1);
        let both = of(&[State::Pending, State::Leased]);
        assert_eq!(stored(&both), Some(doc! { "$in": [0, 1] }));
        assert_eq!(conditions(&both), 0);
        let dead = of(&[State::Dead]);
        assert_eq!(stored(&dead), Some(doc! { "$in": [3] }));
        assert_eq!(conditions(&dead), 0);
        assert_eq!(stored(&of(&[])), None);
    }

    #[test]
    fn what_may_change_is_asked_again() {
        let filter = Filter {
            states: vec![State::Dead, State::Processed],
            handler: Some(inbox_api::HandlerName::new("a").unwrap()),
            min_started: Some(2),
            ..Filter::default()
        };
        let still = |filter: &Filter| {
            Query::eligible(filter, &[State::Dead], State::Dead).map(|query| query.still(7))
        };
        let again = doc! { "state": { "$in": [3] }, "started": { "$gte": 2_i64 } };
        assert_eq!(still(&filter), Some(again));
        let filter = Filter {
            finished_within: Some(Duration::from_secs(1)),
            ..Filter::default()
        };
        let still = still(&filter).unwrap();
        let within = doc! { "$gt": [
            "$finishedAt", { "$subtract": [7_i64, 1_000_000_i64] },
        ] };
        assert_eq!(still.get("$expr"), Some(&doc! { "$and": [within] }.into()));
    }

    #[test]
    fn only_eligible_states_are_selected() {
        let filter = Filter {
            states: vec![State::Leased],
            ..Filter::default()
        };
        let eligible = |filter: &Filter| Query::eligible(filter, &[State::Dead], State::Dead);
        assert!(eligible(&filter).is_none());
        assert!(eligible(&Filter::default()).is_some());
    }

    #[test]
    fn a_header_is_sought_as_it_is_written() {
        let has = has_header("correlation-id", "a\"}");
        let sought = |text: &str| position("$headers", text);
        assert_eq!(
            has,
            doc! { "$or": [
                { "$eq": [sought("{\"correlation-id\":\"a\\\"}\""), 0] },
                { "$gte": [sought(",\"correlation-id\":\"a\\\"}\""), 0] },
            ] }
        );
    }
}
