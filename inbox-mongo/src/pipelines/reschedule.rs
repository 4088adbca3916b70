//! What a rescheduling writes.

use inbox_api::State;
use mongodb::bson::{Document, doc, oid::ObjectId};

use super::{end_lease, mark_ordered};
use crate::{
    connection::Database,
    rows::{CLAIMABLE, code},
};

/// Makes a pending message due at another time.
pub(crate) fn reschedule(database: &Database, due: i64, mark: ObjectId) -> Vec<Document> {
    let mut set = doc! {
        "state": code(State::Pending),
        "token": end_lease(&database.now()),
        "dueAt": due,
        "visibleAt": due,
        "lane": CLAIMABLE,
    };
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}
