//! What a transaction writes that records a message which was stored before.

use inbox_api::{Bytes, Outcome};
use mongodb::bson::{Document, doc, oid::ObjectId};

use super::{Keeping, add, next_token, settle};
use crate::connection::Database;

/// Completes, within a transaction, a message that nobody holds. A new token tells a worker whose
/// lease ran out.
pub(crate) fn record(
    database: &Database,
    result: Option<&Bytes>,
    keeping: Keeping,
    mark: ObjectId,
) -> Vec<Document> {
    let mut pipeline = vec![doc! { "$set": {
        "token": next_token(&database.now()),
        "started": add("started", 1),
    } }];
    let outcome = Outcome::Processed {
        result: result.cloned(),
    };
    pipeline.extend(settle(database, &outcome, keeping, mark));
    pipeline
}
