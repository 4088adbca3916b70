//! What a replay writes.

use inbox_api::{Edit, State};
use mongodb::bson::{Document, doc, oid::ObjectId};

use super::{add, binary, if_ordered, literal, mark_ordered};
use crate::{
    connection::Database,
    rows::{CLAIMABLE, code},
};

/// Makes a final message pending again.
pub(crate) fn replay(database: &Database, edit: &Edit, mark: ObjectId) -> Vec<Document> {
    let now = database.now();
    let mut set = doc! {
        "state": code(State::Pending),
        "dueAt": now.clone(),
        "visibleAt": now,
        "started": 0,
        "finished": 0,
        "replays": add("replays", 1),
        "lane": CLAIMABLE,
        "open": if_ordered(true, "$$REMOVE"),
    };
    for gone in [
        "error",
        "finishedAt",
        "result",
        "blocks",
        "emptied",
        "expireAt",
        "expireUnmarked",
    ] {
        set.insert(gone, "$$REMOVE");
    }
    if let Some(payload) = &edit.payload {
        set.insert("payload", literal(binary(payload)));
        set.insert(
            "payloadBytes",
            i64::try_from(payload.len()).unwrap_or(i64::MAX),
        );
    }
    if let Some(headers) = &edit.headers {
        set.insert("headers", literal(headers.to_json()));
    }
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}
