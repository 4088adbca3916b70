//! Replaying what is final.

use inbox_api::{Edit, State};
use mongodb::bson::{Document, doc, oid::ObjectId};

use crate::{connection::Database, pipelines, rows::code};

pub(super) const FINAL: &[State] = &[State::Processed, State::Dead, State::Discarded];

/// What a message needs to be replayed as it is.
pub(super) const CONTENT: &str = "payload";

/// Which messages are replayed, and how. One without a payload needs a new one.
pub(super) fn change(
    database: &Database,
    edit: &Edit,
    mark: ObjectId,
) -> (Document, Vec<Document>) {
    let states: Vec<i32> = FINAL.iter().map(|state| code(*state)).collect();
    let mut condition = doc! { "state": { "$in": states } };
    if edit.payload.is_none() {
        condition.insert(CONTENT, doc! { "$exists": true });
    }
    (condition, pipelines::replay(database, edit, mark))
}
