//! Giving up what is pending or dead.

use inbox_api::State;
use mongodb::bson::{Document, doc, oid::ObjectId};

use crate::{connection::Database, pipelines, rows::code};

pub(super) const UNWANTED: &[State] = &[State::Pending, State::Dead];

/// Which messages are discarded at a time of the server's, and how. One whose lease has run out counts
/// as pending.
pub(super) fn change(database: &Database, now: i64, mark: ObjectId) -> (Document, Vec<Document>) {
    let states: Vec<i32> = UNWANTED.iter().map(|state| code(*state)).collect();
    let condition = doc! { "$or": [
        { "state": { "$in": states } },
        { "state": code(State::Leased), "visibleAt": { "$lte": now } },
    ] };
    (condition, pipelines::discard(database, mark))
}
