//! Since when this process has seen documents with counts as they are. What has not been opened for a while is told by
//! its own clock, which nobody sets: the server's may be set forward, and another node's be ahead, while a change is
//! under way.

use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
    time::Instant,
};

use mongodb::bson::{Document, oid::ObjectId};

use super::opened::{GRACE, OPEN, lock};
use crate::rows::number;

/// What each opening writes in a document, another one each time.
pub(super) fn opening(document: &Document) -> Option<ObjectId> {
    document.get_object_id("opening").ok()
}

/// A document as it was seen first since it was opened last.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    opening: Option<ObjectId>,
    since: Instant,
    /// How far the store's clock was ahead of the server's then.
    ahead: i64,
}

impl Sighting {
    fn now(opening: Option<ObjectId>, ahead: i64) -> Self {
        Self {
            opening,
            since: Instant::now(),
            ahead,
        }
    }

    /// Microseconds since.
    fn elapsed(&self, ahead: i64) -> i64 {
        let elapsed = i64::try_from(self.since.elapsed().as_micros()).unwrap_or(i64::MAX);
        elapsed.saturating_add(ahead.saturating_sub(self.ahead))
    }
}

/// How the documents with counts were when this process looked at them last.
#[derive(Debug, Default)]
pub(crate) struct Sightings(Mutex<HashMap<i64, Sighting>>);

impl Sightings {
    /// Notes documents that were just read; answers which of them have not been opened for longer than what is done in
    /// an open one takes, by `_id`.
    pub(super) fn compare(&self, documents: &[Document], ahead: i64) -> HashSet<i64> {
        let mut seen = lock(&self.0);
        let earlier = std::mem::take(&mut *seen);
        for document in documents {
            let Some(id) = number(document, "_id") else {
                continue;
            };
            let opening = opening(document);
            let known = earlier.get(&id).copied();
            let unchanged = known.filter(|sighting| sighting.opening == opening);
            let now = Sighting::now(opening, ahead);
            seen.insert(id, unchanged.unwrap_or(now));
        }
        let unopened = seen
            .iter()
            .filter(|(_, sighting)| sighting.elapsed(ahead) > OPEN + GRACE);
        unopened.map(|(id, _)| *id).collect()
    }

    /// Notes documents that were just made, unless others have made them.
    pub(super) fn note(&self, ids: Vec<i64>, opening: ObjectId, ahead: i64) {
        let sighting = Sighting::now(Some(opening), ahead);
        lock(&self.0).extend(ids.into_iter().map(|id| (id, sighting)));
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    const LONG: i64 = OPEN + GRACE + 1;

    fn segment(id: i64, opening: ObjectId) -> Document {
        doc! { "_id": id, "openUntil": 5_i64, "opening": opening }
    }

    #[test]
    fn a_document_counts_as_unopened_once_it_was_seen_so_for_long() {
        let (first, second) = (ObjectId::new(), ObjectId::new());
        let sightings = Sightings::default();
        let compare = |opening, ahead| {
            let old = doc! { "_id": 8_i64, "openUntil": 5_i64 };
            sightings.compare(&[segment(7, opening), old], ahead)
        };
        // Whatever time it is when it is seen for the first time.
        assert_eq!(compare(first, LONG), HashSet::new());
        assert_eq!(compare(first, LONG + OPEN), HashSet::new());
        assert_eq!(compare(first, LONG * 2), HashSet::from([7, 8]));
        assert_eq!(compare(second, LONG * 2), HashSet::from([8]));
        assert_eq!(compare(second, LONG * 3), HashSet::from([7, 8]));
    }

    #[test]
    fn documents_are_seen_since_they_were_made_here() {
        let (own, others) = (ObjectId::new(), ObjectId::new());
        let sightings = Sightings::default();
        sightings.note(vec![7, 8], own, 0);
        let found = [segment(7, own), segment(8, others)];
        assert_eq!(sightings.compare(&found, LONG), HashSet::from([7]));
    }
}
