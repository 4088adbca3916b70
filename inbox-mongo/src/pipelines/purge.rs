//! What a purge writes before it deletes.

use mongodb::bson::{Document, doc, oid::ObjectId};

use super::mark_ordered;
use crate::connection::Database;

/// Stops a dead message from blocking its ordering key, before it is deleted.
pub(crate) fn unblock(database: &Database, mark: ObjectId) -> Vec<Document> {
    let mut set = doc! { "open": "$$REMOVE", "blocks": "$$REMOVE" };
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}
