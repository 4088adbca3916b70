//! What is left of a message whose content is dropped.

use mongodb::bson::{Document, doc};

/// Drops payload and result of a final message.
pub(crate) fn empty() -> Vec<Document> {
    vec![
        doc! { "$unset": ["payload", "payloadBytes", "result"] },
        doc! { "$set": { "emptied": true } },
    ]
}
