//! Making what is pending due at another time.

use inbox_api::{Due, State};
use mongodb::bson::{Document, doc, oid::ObjectId};

use crate::{connection::Database, pipelines, rows::code};

pub(super) const WAITING: &[State] = &[State::Pending];

/// Which messages are rescheduled at a time of the server's, and how. One whose lease has run out counts
/// as pending.
pub(super) fn change(
    database: &Database,
    due: Due,
    now: i64,
    mark: ObjectId,
) -> (Document, Vec<Document>) {
    let condition = doc! { "$or": [
        { "state": code(State::Pending) },
        { "state": code(State::Leased), "visibleAt": { "$lte": now } },
    ] };
    let pipeline = pipelines::reschedule(database, due.resolve(now), mark);
    (condition, pipeline)
}
