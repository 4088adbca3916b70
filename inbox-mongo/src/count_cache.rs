//! Exact counts without counting every message again.
//!
//! Sequence numbers fall into segments of [`SIZE`]. A message stays in its segment for life, so the
//! counts of an inbox are the sums over its segments, and those of a segment in which nothing
//! changes have to be taken only once. The collection `meta` keeps them, in a document a segment.
//!
//! A process that is about to change states in a segment opens it first: drops its counts, and says until
//! when it may be changed. That is a request per process and segment every half a minute at most,
//! not one per batch. The counts of a segment are kept when it has not been open for [`GRACE`], in
//! which the last change has ended, and only if nobody has opened it since they were taken.
//!
//! A process that finds after a change that it took too long, because it or its machine was asleep,
//! opens the segments once more, so that they are counted again. A transaction changes something when it is
//! committed, which may be long after it has opened segments or drawn numbers: they are opened once more
//! before that. Counts stay wrong only if it was
//! asleep between opening and changing for longer than [`GRACE`], and is killed between the change
//! and this; the next change in the segment puts them right.
//!
//! A segment without a document is open. It gets one once all its numbers are drawn, and is open
//! for a while from then, so that what was drawn last is inserted by then.
//!
//! The server deletes expired messages without opening segments, so counts are kept until the first
//! of their messages expires.

pub(crate) mod opened;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use inbox_api::Result;
use mongodb::{
    bson::{Bson, Document, doc},
    options::{Hint, ReadConcern, ReadPreference},
};

use self::opened::{GRACE, OPEN, Opening, SIZE, segment};
use crate::{
    connection::Connection,
    error::{failed, only_duplicates},
    layout::{ID_INDEX, SEQUENCE_INDEX},
    rows::number,
    sessions::{read_all, write_concern},
};

/// What a dead message that holds up its ordering key is counted as, in the place of its state.
pub(crate) const BLOCKING: i32 = 5;
impl Connection<'_> {
    /// Opens the segments of the messages with these numbers for the changes that follow, at a
    /// time just read from the server.
    pub(crate) async fn open(
        &mut self,
        seqs: impl IntoIterator<Item = i64>,
        now: i64,
    ) -> Result<()> {
        let ahead = self.database.ahead();
        let segments: BTreeSet<i64> = seqs.into_iter().map(segment).collect();
        let opened = &self.database.opened;
        opened.note(now.saturating_sub(ahead));
        let closing = opened.closing(&segments, now);
        let opening = Opening::new(segments, ahead);
        if !closing.is_empty() {
            self.open_segments(&closing, now).await?;
        }
        self.opening = Some(opening);
        Ok(())
    }

    /// The same of numbers that were just drawn for what follows: their segments are open for as long.
    pub(crate) fn open_by_drawing(&mut self, seqs: impl IntoIterator<Item = i64>) {
        let segments = seqs.into_iter().map(segment).collect();
        self.opening = Some(Opening::new(segments, self.database.ahead()));
    }

    async fn open_segments(&self, segments: &[i64], now: i64) -> Result<()> {
        let end = now.saturating_add(OPEN);
        self.update_meta(vec![doc! {
            "q": { "_id": { "$in": segments } },
            "u": { "$max": { "openUntil": end }, "$unset": { "counts": "", "expires": "" } },
            "multi": true,
        }])
        .await?;
        self.database.opened.remember(segments, end, now);
        Ok(())
    }

    /// The same where no time was read for another reason.
    pub(crate) async fn open_now(&mut self, seqs: impl IntoIterator<Item = i64>) -> Result<()> {
        let now = match self.database.opened.time() {
            Some(time) => time.saturating_add(self.database.ahead()),
            None => self.last_drawn().await?.1,
        };
        self.open(seqs, now).await
    }

    /// After a change, since it may have been made when its segments were open no more; and where a transaction is
    /// committed, both before and after that, since its changes are made then.
    pub(crate) async fn open_again_if_late(&mut self) -> Result<()> {
        let ahead = self.database.ahead();
        let late = self
            .opening
            .as_ref()
            .filter(|opening| opening.is_late(ahead));
        let Some(segments) = late.map(Opening::segments) else {
            return Ok(());
        };
        let opening = Opening::new(segments.iter().copied().collect(), ahead);
        let now = self.last_drawn().await?.1;
        self.open_segments(&segments, now).await?;
        self.opening = Some(opening);
        Ok(())
    }

    /// The last sequence number, and the time.
    async fn last_drawn(&self) -> Result<(i64, i64)> {
        let pipeline = [
            doc! { "$match": { "_id": "sequence" } },
            doc! { "$project": { "last": 1, "now": self.database.now() } },
        ];
        let found = self.read_meta(pipeline).await?;
        found
            .first()
            .and_then(|found| Some((number(found, "last")?, number(found, "now")?)))
            .ok_or_else(|| self.no_inbox())
    }

    /// Looks at documents of the inbox's own. Never part of a transaction.
    pub(crate) async fn read_meta(
        &self,
        pipeline: impl IntoIterator<Item = Document>,
    ) -> Result<Vec<Document>> {
        let read = self
            .database
            .meta()
            .aggregate(pipeline)
            .hint(Hint::Name(ID_INDEX.into()))
            .read_concern(ReadConcern::majority())
            .selection_criteria(ReadPreference::Primary.into())
            .await;
        read_all(read)
            .await
            .map_err(|error| self.failed_to_read(error))
    }
}

/// A count by handler and state.
pub(crate) type Counts = BTreeMap<(String, i64), u64>;

/// The counts of one segment, with the handler's name and the state as they are stored.
type Parts = Vec<(String, i64, u64)>;

fn parts(document: &Document) -> Option<Parts> {
    let parts = document.get_array("counts").ok()?.iter().map(|part| {
        let part = part.as_document()?;
        let count = u64::try_from(number(part, "count")?).ok()?;
        let handler = part.get_str("handler").ok()?.to_owned();
        Some((handler, number(part, "state")?, count))
    });
    parts.collect()
}

/// Consecutive segments as conditions on sequence numbers; the last has no end, for what is
/// inserted meanwhile.
fn ranges(segments: &[i64], last: Option<i64>) -> Vec<Document> {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for segment in segments {
        match ranges.last_mut() {
            Some((_, end)) if *end == *segment => *end += 1,
            _ => ranges.push((*segment, *segment + 1)),
        }
    }
    ranges
        .into_iter()
        .map(|(from, end)| {
            let mut range = doc! { "$gte": from * SIZE };
            if last.is_none_or(|last| end <= last) {
                range.insert("$lt", end * SIZE);
            }
            doc! { "seq": range }
        })
        .collect()
}

/// How the segments of an inbox stand.
struct Standing {
    /// The sum of what is kept.
    kept: Vec<Parts>,
    /// To be counted. The last one is still being filled.
    open: Vec<i64>,
    /// To be counted, and kept, with the end of their being open.
    closed: Vec<(i64, i64)>,
    /// Without a document, though all their numbers are drawn.
    unknown: Vec<i64>,
}

impl Standing {
    fn read(documents: &[Document], last: i64, now: i64) -> Self {
        let known: HashMap<i64, &Document> = documents
            .iter()
            .filter_map(|document| Some((number(document, "_id")?, document)))
            .collect();
        let filling = segment(last.saturating_add(1));
        let mut standing = Self {
            kept: Vec::new(),
            open: Vec::new(),
            closed: Vec::new(),
            unknown: Vec::new(),
        };
        for segment in 0..filling {
            let Some(document) = known.get(&segment) else {
                standing.unknown.push(segment);
                standing.open.push(segment);
                continue;
            };
            let lasts = number(document, "expires").is_none_or(|expires| now < expires);
            match (parts(document), number(document, "openUntil")) {
                (Some(parts), _) if lasts => standing.kept.push(parts),
                (_, Some(until)) if until.saturating_add(GRACE) < now => {
                    standing.closed.push((segment, until));
                }
                _ => standing.open.push(segment),
            }
        }
        standing.open.push(filling);
        standing
    }
}

/// The counts of all messages by handler and stored state.
pub(crate) async fn count(connection: &mut Connection<'_>) -> Result<Counts> {
    let (last, now) = connection.last_drawn().await?;
    let documents = connection
        .read_meta([doc! { "$match": { "_id": { "$gte": 0_i64 } } }])
        .await?;
    let standing = Standing::read(&documents, last, now);
    let mut counts = Counts::new();
    let mut add = |parts: &Parts| {
        for (handler, state, count) in parts {
            *counts.entry((handler.clone(), *state)).or_default() += count;
        }
    };
    standing.kept.iter().for_each(&mut add);
    let filling = standing.open.last().copied();
    let open = connection
        .aggregate(
            Some(SEQUENCE_INDEX),
            counting(ranges(&standing.open, filling), false),
        )
        .await?;
    by_segment(&open).values().for_each(|(parts, _)| add(parts));
    if !standing.closed.is_empty() {
        let numbers: Vec<i64> = standing
            .closed
            .iter()
            .map(|(segment, _)| *segment)
            .collect();
        let found = connection
            .aggregate(Some(SEQUENCE_INDEX), counting(ranges(&numbers, None), true))
            .await?;
        let found = by_segment(&found);
        found.values().for_each(|(parts, _)| add(parts));
        keep(connection, &standing.closed, &found, now).await?;
    }
    if !standing.unknown.is_empty() {
        let documents: Vec<Document> = standing
            .unknown
            .iter()
            .map(|segment| doc! { "_id": segment })
            .collect();
        begin(connection, documents).await?;
    }
    Ok(counts)
}

/// Counts by segment, handler and state, [`BLOCKING`] among them; with the earliest expiry if that is wanted. Sequence
/// numbers never change, so a scan by them meets each message once.
fn counting(ranges: Vec<Document>, with_expiry: bool) -> Vec<Document> {
    let segment = doc! { "$floor": { "$divide": ["$seq", SIZE] } };
    let state = doc! { "$cond": [{ "$eq": ["$blocks", true] }, BLOCKING, "$state"] };
    let mut group = doc! {
        "_id": { "segment": segment, "handler": "$handler", "state": state },
        "count": { "$sum": 1 },
    };
    if with_expiry {
        group.insert(
            "expires",
            doc! { "$min": { "$toLong": {
                "$ifNull": ["$expireAt", "$expireUnmarked"],
            } } },
        );
    }
    let chosen = match ranges.as_slice() {
        [only] => only.clone(),
        _ => doc! { "$or": ranges },
    };
    vec![doc! { "$match": chosen }, doc! { "$group": group }]
}

/// Counts with the earliest expiry in microseconds, by segment.
fn by_segment(found: &[Document]) -> BTreeMap<i64, (Parts, Option<i64>)> {
    let mut segments: BTreeMap<i64, (Parts, Option<i64>)> = BTreeMap::new();
    for group in found {
        let Ok(id) = group.get_document("_id") else {
            continue;
        };
        // What is not of these types is a corrupt message, which claims and listings report.
        let part = (|| {
            let count = u64::try_from(number(group, "count")?).ok()?;
            let handler = id.get_str("handler").ok()?.to_owned();
            Some((handler, number(id, "state")?, count))
        })();
        let Some(segment) = number(id, "segment") else {
            continue;
        };
        let (parts, expires) = segments.entry(segment).or_default();
        parts.extend(part);
        let here = number(group, "expires").map(|millis| millis.saturating_mul(1000));
        *expires = match (*expires, here) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    segments
}

/// Keeps the counts of segments that nobody has opened since.
async fn keep(
    connection: &Connection<'_>,
    closed: &[(i64, i64)],
    found: &BTreeMap<i64, (Parts, Option<i64>)>,
    now: i64,
) -> Result<()> {
    let statements = closed.iter().filter_map(|(segment, until)| {
        let (parts, expires) = found.get(segment).cloned().unwrap_or_default();
        if expires.is_some_and(|expires| expires <= now) {
            return None;
        }
        let counts: Vec<Bson> = parts
            .into_iter()
            .map(|(handler, state, count)| {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                doc! { "handler": handler, "state": state, "count": count }.into()
            })
            .collect();
        let mut kept = doc! { "counts": counts };
        if let Some(expires) = expires {
            kept.insert("expires", expires);
        }
        let filter = doc! { "_id": segment, "openUntil": until };
        Some(doc! { "q": filter, "u": { "$set": kept } })
    });
    connection.update_meta(statements.collect()).await?;
    Ok(())
}

/// Gives segments their documents, unless another process has done so just now. They are open for a
/// while from then, by the server's clock.
async fn begin(connection: &Connection<'_>, documents: Vec<Document>) -> Result<()> {
    let meta = connection.database.meta();
    let inserted = meta
        .insert_many(documents)
        .ordered(false)
        .write_concern(write_concern())
        .await;
    if let Err(error) = inserted
        && !only_duplicates(&error)
    {
        return Err(failed(error));
    }
    connection
        .update_meta(vec![doc! {
            "q": { "_id": { "$gte": 0_i64 }, "openUntil": { "$exists": false } },
            "u": [{ "$set": { "openUntil": { "$add": [connection.database.now(), OPEN] } } }],
            "multi": true,
        }])
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_segments_are_one_range() {
        let size = |n: i64| n * SIZE;
        assert_eq!(
            ranges(&[0, 1, 4, 5], Some(5)),
            [
                doc! { "seq": { "$gte": size(0), "$lt": size(2) } },
                doc! { "seq": { "$gte": size(4) } },
            ]
        );
        assert_eq!(
            ranges(&[3], None),
            [doc! { "seq": { "$gte": size(3), "$lt": size(4) } }]
        );
    }

    #[test]
    fn segments_are_counted_until_they_are_closed() {
        let kept = doc! { "handler": "a", "state": 2, "count": 7_i64 };
        let documents = [
            doc! { "_id": 0_i64, "openUntil": 5_i64, "counts": [kept.clone()] },
            doc! { "_id": 1_i64, "openUntil": 5_i64, "counts": [kept.clone()], "expires": 9_i64 },
            doc! { "_id": 2_i64, "openUntil": 1_000_i64 + GRACE },
            doc! { "_id": 3_i64 },
        ];
        let standing = Standing::read(&documents, SIZE * 5 - 1, 10 + GRACE);
        assert_eq!(standing.kept, [vec![("a".to_owned(), 2, 7)]]);
        assert_eq!(standing.closed, [(1, 5)]);
        assert_eq!(standing.unknown, [4]);
        assert_eq!(standing.open, [2, 3, 4, 5]);
    }
}
