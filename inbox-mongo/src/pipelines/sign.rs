//! What a signed intervention writes behind its change.

use inbox_api::{InterventionKind, OperatorName};
use mongodb::bson::{Document, doc};

use super::{literal, with_entry};
use crate::connection::Database;

/// Notes who did what.
pub(crate) fn sign_intervention(
    database: &Database,
    kind: InterventionKind,
    by: &OperatorName,
) -> Document {
    let entry = doc! {
        "intervention": kind.as_str(),
        "at": database.now(),
        "by": literal(by.as_str()),
    };
    doc! { "$set": { "history": with_entry(entry) } }
}
