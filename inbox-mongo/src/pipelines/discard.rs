//! What a discard writes.

use inbox_api::State;
use mongodb::bson::{Document, doc, oid::ObjectId};

use super::{end_lease, finish, mark_ordered};
use crate::connection::Database;

/// Gives a message up.
pub(crate) fn discard(database: &Database, mark: ObjectId) -> Vec<Document> {
    let now = database.now();
    let mut set = finish(&now, State::Discarded);
    set.insert("token", end_lease(&now));
    set.insert("open", "$$REMOVE");
    set.insert("blocks", "$$REMOVE");
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}
