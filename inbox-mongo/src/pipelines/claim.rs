//! What a claim writes.

use std::time::Duration;

use inbox_api::{LeaseTerms, State, duration_micros};
use mongodb::bson::{Document, doc, oid::ObjectId};

use super::{add, dead, literal, mark_ordered, next_token, release};
use crate::{connection::Database, rows::code};

/// Leases a message, for so long.
pub(crate) fn lease(
    database: &Database,
    terms: &LeaseTerms,
    length: Duration,
    claim: ObjectId,
) -> Vec<Document> {
    let now = database.now();
    let length = duration_micros(length);
    vec![doc! { "$set": {
        "state": code(State::Leased),
        "token": next_token(&now),
        "started": add("started", 1),
        "leasedAt": now.clone(),
        "worker": literal(terms.worker().as_str()),
        "claim": claim,
        // Whether this takes over from a lease that ran out.
        "again": { "$eq": ["$state", code(State::Leased)] },
        "visibleAt": { "$add": [now, length] },
    } }]
}

/// Hands back what was leased although it is not the first of its ordering key.
pub(crate) fn hand_back(database: &Database, mark: ObjectId) -> Vec<Document> {
    let mut set = release();
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}

/// Sets a message aside that cannot be read. It may be of any form.
pub(crate) fn set_aside(database: &Database, reason: &str, mark: ObjectId) -> Vec<Document> {
    let mut set = dead(&database.now(), reason);
    set.remove("finished");
    set.insert("blocks", "$$REMOVE");
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}
