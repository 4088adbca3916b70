//! Which handlers an operator has paused.
//!
//! What is due of a paused handler is left out where a claim begins to look, or all of it would be read by
//! each claim. So a claim looks with the handlers that it knows to be paused, is told in the same reply
//! which are, and looks again if these are others.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use mongodb::bson::{Bson, Document, doc};

use crate::layout::PAUSED;

/// Names of handlers.
pub(crate) type Names = BTreeSet<String>;

#[derive(Debug, Default)]
pub(crate) struct PausedHandlers(Mutex<Names>);

impl PausedHandlers {
    /// Those that were paused when it was looked last.
    pub(crate) fn known(&self) -> Names {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn note(&self, paused: Names) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = paused;
    }
}

/// The stage that adds the document of paused handlers, in the collection `meta`, to what a pipeline
/// gives, with the time.
pub(crate) fn with_paused(meta: String, now: Document) -> Document {
    doc! { "$unionWith": { "coll": meta, "pipeline": [
        { "$match": { "_id": PAUSED } },
        { "$project": { "handlers": 1, "now": now } },
    ] } }
}

/// Takes that document out of what was found.
pub(crate) fn take_paused(found: &mut Vec<Document>) -> Option<Document> {
    let is_it = |document: &Document| document.get_str("_id").is_ok_and(|id| id == PAUSED);
    let place = found.iter().position(is_it)?;
    Some(found.remove(place))
}

/// The names in it.
pub(crate) fn read_names(paused: &Document) -> Names {
    let names = paused.get_array("handlers").into_iter().flatten();
    names.filter_map(Bson::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_of_paused_handlers_is_told_from_messages() {
        let mut found = vec![
            doc! { "_id": "a\u{1f}1" },
            doc! { "_id": PAUSED, "handlers": ["b", 7, "a"] },
        ];
        let paused = take_paused(&mut found).unwrap();
        assert_eq!(read_names(&paused), ["a", "b"].map(str::to_owned).into());
        assert_eq!(found.len(), 1);
        assert_eq!(take_paused(&mut found), None);
    }
}
