//! What a discard writes.

use inbox_api::State;
use mongodb::bson::{Document, doc, oid::ObjectId};

use super::{finish, mark_ordered, next_token};
use crate::{connection::Database, rows::code};

/// Gives a message up. One whose lease has run out also gets a new token, so that its old holder
/// is told.
pub(crate) fn discard(database: &Database, mark: ObjectId) -> Vec<Document> {
    let now = database.now();
    let mut set = finish(&now, State::Discarded);
    set.insert(
        "token",
        doc! { "$cond": [
            { "$eq": ["$state", code(State::Leased)] }, next_token(&now), "$token",
        ] },
    );
    set.insert("open", "$$REMOVE");
    set.insert("blocks", "$$REMOVE");
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}
