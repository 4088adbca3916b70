//! What is left behind of an inbox that was removed while workers were still at it: a server makes a collection by
//! itself for what is inserted.

use inbox_api::Result;
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
    options::{ReadConcern, ReadPreference},
};

use crate::{
    connection::Database,
    error::before,
    layout::{PAUSED, messages, meta},
    rows::{is_untouched, number},
};

/// The collections of an inbox without a mark that hold nothing but what was under way when it was removed, in the
/// order in which they are to be dropped; none if there is anything else in one of them.
pub(super) async fn left_behind(database: &Database) -> Result<Vec<String>> {
    let inbox = &database.options.inbox;
    let fields = doc! { "handler": 1, "id": 1, "seq": 1, "token": 1 };
    let stored = contents(database.messages(), Some(fields), is_untouched).await?;
    // Behind the other: an inbox that is set up meanwhile has its mark before it has messages.
    let own = contents(&database.meta(), None, is_own).await?;
    if stored == Contents::Foreign || own == Contents::Foreign {
        return Ok(Vec::new());
    }
    let found = [(own, meta(inbox)), (stored, messages(inbox))];
    let ours = found
        .into_iter()
        .filter(|(found, _)| *found == Contents::Ours);
    Ok(ours.map(|(_, name)| name).collect())
}

/// What is in a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Nothing,
    Ours,
    Foreign,
}

/// Reads no further than to the first document that is not ours.
async fn contents(
    collection: &Collection<Document>,
    fields: Option<Document>,
    is_ours: fn(&Document) -> bool,
) -> Result<Contents> {
    let mut find = collection
        .find(doc! {})
        .read_concern(ReadConcern::majority())
        .selection_criteria(ReadPreference::Primary.into());
    if let Some(fields) = fields {
        find = find.projection(fields);
    }
    let mut cursor = find.await.map_err(before)?;
    let mut contents = Contents::Nothing;
    while cursor.advance().await.map_err(before)? {
        let document = cursor.deserialize_current().map_err(before)?;
        if !is_ours(&document) {
            return Ok(Contents::Foreign);
        }
        contents = Contents::Ours;
    }
    Ok(contents)
}

/// Whether this is a document of the inbox's own, but its mark.
fn is_own(document: &Document) -> bool {
    let fields: &[&str] = match document.get("_id") {
        Some(Bson::String(id)) if id == "sequence" => &["last", "now"],
        Some(Bson::String(id)) if id == PAUSED => &["handlers"],
        Some(Bson::String(id)) if id.starts_with("guard ") => &["held"],
        Some(_) if number(document, "_id").is_some() => {
            &["openUntil", "opening", "counts", "expires"]
        }
        _ => return false,
    };
    let mut others = document.keys().filter(|key| *key != "_id");
    document.len() > 1 && others.all(|key| fields.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::oid::ObjectId;

    use super::*;
    use crate::layout::{mark, paused, sequence};

    #[test]
    fn documents_of_the_inboxs_own_are_told_from_others() {
        for own in [
            sequence(),
            paused(),
            doc! { "_id": "guard 7", "held": 3_i64 },
            doc! { "_id": 7_i64, "openUntil": 5_i64, "opening": ObjectId::new() },
            doc! { "_id": -1_i64, "openUntil": 5_i64, "counts": [], "expires": 9_i64 },
        ] {
            assert!(is_own(&own), "{own}");
        }
        for other in [
            mark(),
            doc! { "_id": 7_i64 },
            doc! { "_id": 7_i64, "openUntil": 5_i64, "note": "not an inbox" },
            doc! { "_id": "sequence", "next": 1 },
            doc! { "_id": "x", "last": 1 },
        ] {
            assert!(!is_own(&other), "{other}");
        }
    }
}
