//! What moves the end of a lease.

use std::time::Duration;

use inbox_api::duration_micros;
use mongodb::bson::{Document, doc};

use crate::connection::Database;

/// Makes a lease run for `length` from now.
pub(crate) fn extend(database: &Database, length: Duration) -> Vec<Document> {
    let until = doc! { "$add": [database.now(), duration_micros(length)] };
    vec![doc! { "$set": { "visibleAt": until } }]
}

/// Makes a lease run for `length` from now, unless it does so for longer.
pub(crate) fn prolong(database: &Database, length: Duration) -> Vec<Document> {
    let until = doc! { "$add": [database.now(), duration_micros(length)] };
    vec![doc! { "$set": { "visibleAt": { "$max": ["$visibleAt", until] } } }]
}
