//! What a transaction writes that gives a message it has recorded its result.

use inbox_api::Bytes;
use mongodb::bson::{Document, doc};

use super::{binary, literal};

pub(crate) fn keep_result(result: &Bytes) -> Vec<Document> {
    vec![doc! { "$set": { "result": literal(binary(result)), "emptied": false } }]
}
