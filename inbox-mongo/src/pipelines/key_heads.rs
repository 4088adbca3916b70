//! What moves the lane within an ordering key.

use mongodb::bson::{Document, doc, oid::ObjectId};

use crate::{
    connection::Database,
    rows::{CLAIMABLE, MARKED},
};

/// Takes the lane from a pending message, to be looked at again.
pub(crate) fn unclaim_heads(database: &Database, mark: ObjectId) -> Vec<Document> {
    vec![doc! { "$set": { "lane": MARKED, "mark": mark, "visibleAt": database.now() } }]
}

/// Lets a pending message be claimed.
pub(crate) fn promote() -> Vec<Document> {
    vec![doc! { "$set": { "lane": CLAIMABLE, "mark": "$$REMOVE", "visibleAt": "$dueAt" } }]
}

/// Takes the mark from a message whose ordering key was looked at. From now on it may expire.
pub(crate) fn unmark() -> Vec<Document> {
    let either = doc! { "$ifNull": ["$expireUnmarked", "$expireAt"] };
    vec![doc! { "$set": {
        "expireAt": { "$cond": [{ "$gt": [either.clone(), null] }, either, "$$REMOVE"] },
        "expireUnmarked": "$$REMOVE",
        "lane": "$$REMOVE",
        "mark": "$$REMOVE",
    } }]
}
