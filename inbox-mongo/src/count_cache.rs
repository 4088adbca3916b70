//! Exact counts without counting every message again.
//!
//! Sequence numbers fall into segments of [`SIZE`]. A message stays in its segment for life, so the
//! counts of an inbox are the sums over its segments, and those of a segment in which nothing
//! changes have to be taken only once. The collection `meta` keeps them, in a document a segment.
//!
//! A process that is about to change states in a segment opens it first: drops its counts, and says until
//! when it may be changed, and which opening this is. That is a request per process and segment every half a minute at
//! most, not one per batch. The counts of a segment are kept when it has not been open for [`GRACE`], in
//! which the last change has ended, and only if nobody has opened it since they were taken.
//!
//! The server's clock alone does not say so: it may be set forward, and be another node's, while a change is under way.
//! So a process keeps the counts of what it has itself seen unopened for as long, by its own clock. One that has not
//! looked for so long keeps those of what has not been open for [`UNSEEN`], by the server's. They are wrong only if that
//! is ahead by as much; where it was set forward, the processes that were at work open again what they had opened, as
//! soon as they read the time.
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
//!
//! So that the documents do not grow with the numbers that were ever drawn, a hundred of them whose messages have gone
//! but for a segment's worth become one, of a [`Run`], and a hundred of these again. It begins as an open one, and is
//! counted, so nothing is taken over that may be wrong by then: who has opened one of its segments before that has
//! opened it for no longer than the run is open, and who does it later opens the documents of all runs that have the
//! segment. As soon as a run has its document, those of its parts mean nothing any more, and are deleted by the next
//! look. Each of these steps may be the last one of a process, and two processes may do them at the same time.

pub(crate) mod opened;
mod runs;
pub(crate) mod sightings;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use inbox_api::{ErrorKind, Result};
use mongodb::{
    bson::{Bson, Document, doc, oid::ObjectId},
    options::{Hint, ReadConcern, ReadPreference},
};

use self::{
    opened::{GRACE, OPEN, OpenedAt, Opening, SIZE, UNSEEN, segment},
    runs::{Run, TOGETHER, documents_of},
    sightings::opening,
};
use crate::{
    connection::Connection,
    error::{failed, only_duplicates},
    layout::{ID_INDEX, SEQUENCE_INDEX},
    rows::number,
    sessions::{read_all, write_concern},
};

/// What a dead message that holds up its ordering key is counted as, in the place of its state.
pub(crate) const BLOCKING: i32 = 5;

/// How many runs of several segments are open at a time before no others are made: each is counted with every look.
const MOST_OPEN_RUNS: usize = 10;

/// The documents with counts, among the others of the inbox's own: those of segments and of longer runs.
fn documents_with_counts() -> Document {
    doc! { "_id": { "$gte": i64::MIN } }
}

impl Connection<'_> {
    /// Opens the segments of the messages with these numbers for the changes that follow, at a
    /// time just read from the server.
    pub(crate) async fn open(
        &mut self,
        seqs: impl IntoIterator<Item = i64>,
        now: i64,
    ) -> Result<()> {
        let segments = seqs.into_iter().map(segment).collect();
        self.note_time(now).await?;
        self.make_sure_of(segments).await
    }

    /// Notes a time that was just read from the server. Where its clock was set forward, all that was opened here is
    /// opened again: counts may have been kept, by that clock, while something was changed.
    pub(crate) async fn note_time(&self, now: i64) -> Result<()> {
        let opened = &self.database.opened;
        let time = now.saturating_sub(self.database.ahead());
        if opened.is_behind(time) {
            self.open_segments(&opened.remembered()).await?;
        }
        opened.note(time);
        Ok(())
    }

    /// As [`open`](Self::open), where no time was read.
    pub(crate) async fn open_now(&mut self, seqs: impl IntoIterator<Item = i64>) -> Result<()> {
        let segments = seqs.into_iter().map(segment).collect();
        self.make_sure_of(segments).await
    }

    /// Opens those of the segments that will not be open for long enough.
    async fn make_sure_of(&mut self, segments: BTreeSet<i64>) -> Result<()> {
        let ahead = self.database.ahead();
        let closing = self.database.opened.closing(&segments, ahead);
        let opening = Opening::new(segments, ahead);
        self.open_segments(&closing).await?;
        self.opening = Some(opening);
        Ok(())
    }

    /// As [`open`](Self::open), of numbers that were just drawn for what follows: their segments are open for as long.
    pub(crate) fn open_by_drawing(&mut self, seqs: impl IntoIterator<Item = i64>) {
        let segments = seqs.into_iter().map(segment).collect();
        self.opening = Some(Opening::new(segments, self.database.ahead()));
    }

    async fn open_segments(&self, segments: &[i64]) -> Result<()> {
        if segments.is_empty() {
            return Ok(());
        }
        let at = OpenedAt::now(self.database.ahead());
        let end = doc! { "$add": [self.database.now(), OPEN] };
        self.update_meta(vec![doc! {
            "q": { "_id": { "$in": documents_of(segments) } },
            "u": [
                { "$set": { "openUntil": end, "opening": ObjectId::new() } },
                { "$unset": ["counts", "expires"] },
            ],
            "multi": true,
        }])
        .await?;
        self.database.opened.remember(segments, at);
        Ok(())
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
        self.open_segments(&segments).await?;
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

/// A count of one run, with the handler's name and the state as they are stored.
type Part = (String, i64, u64);
type Parts = Vec<Part>;

fn add(counts: &mut Counts, parts: &[Part]) {
    for (handler, state, count) in parts {
        *counts.entry((handler.clone(), *state)).or_default() += count;
    }
}

fn sum_of(parts: &[Part]) -> u64 {
    parts.iter().map(|(_, _, count)| count).sum()
}

fn earlier(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    one.into_iter().chain(other).min()
}

fn parts(document: &Document) -> Option<Parts> {
    let parts = document.get_array("counts").ok()?.iter().map(|part| {
        let part = part.as_document()?;
        let count = u64::try_from(number(part, "count")?).ok()?;
        let handler = part.get_str("handler").ok()?.to_owned();
        Some((handler, number(part, "state")?, count))
    });
    parts.collect()
}

/// Consecutive runs as conditions on sequence numbers; the last has no end, for what is
/// inserted meanwhile.
fn ranges(runs: &[Run], last: Option<i64>) -> Vec<Document> {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for run in runs {
        match ranges.last_mut() {
            Some((_, end)) if *end == run.first() => *end = run.end(),
            _ => ranges.push((run.first(), run.end())),
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

/// The last opening of a document, by which a later one is told from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastOpening {
    until: i64,
    id: Option<ObjectId>,
}

impl LastOpening {
    fn read(document: &Document) -> Option<Self> {
        Some(Self {
            until: number(document, "openUntil")?,
            id: opening(document),
        })
    }
}

/// When documents were read, and which of them this process has seen unopened for long.
struct Look {
    now: i64,
    unopened: HashSet<i64>,
}

impl Look {
    /// Whether what was done when the document was opened last has ended.
    fn is_over(&self, run: Run, opening: LastOpening) -> bool {
        let closed = self.now.saturating_sub(opening.until);
        closed > GRACE && (closed > UNSEEN || self.unopened.contains(&run.id()))
    }
}

/// How the segments of an inbox stand.
#[derive(Default)]
struct Standing {
    kept: Vec<(Run, Parts)>,
    /// To be counted. The last one is still being filled.
    open: Vec<Run>,
    /// To be counted, and kept unless they are opened after this.
    closed: Vec<(Run, LastOpening)>,
    /// Without a document, though all their numbers are drawn.
    unknown: Vec<Run>,
    /// Documents of parts of runs that have their own.
    leftover: Vec<i64>,
}

impl Standing {
    fn read(documents: &[Document], last: i64, look: &Look) -> Self {
        let mut known: HashMap<i64, &Document> = documents
            .iter()
            .filter_map(|document| Some((number(document, "_id")?, document)))
            .collect();
        let filling = segment(last.saturating_add(1));
        let mut standing = Self::default();
        let mut first = 0;
        while first < filling {
            let run = Run::beginning_with(first)
                .find(|run| run.end() <= filling && known.contains_key(&run.id()))
                .unwrap_or(Run::segment(first));
            standing.add(run, known.remove(&run.id()), look);
            first = run.end();
        }
        standing.open.push(Run::segment(filling));
        // Of others drawn since, the documents may be there already.
        let is_part = |id: &i64| Run::of_id(*id).is_some_and(|run| run.end() <= filling);
        standing.leftover = known.into_keys().filter(is_part).collect();
        standing.leftover.sort_unstable();
        standing
    }

    fn add(&mut self, run: Run, document: Option<&Document>, look: &Look) {
        let Some(document) = document else {
            self.unknown.push(run);
            self.open.push(run);
            return;
        };
        let lasts = number(document, "expires").is_none_or(|expires| look.now < expires);
        match (parts(document), LastOpening::read(document)) {
            (Some(parts), _) if lasts => self.kept.push((run, parts)),
            (_, Some(opening)) if look.is_over(run, opening) => {
                self.closed.push((run, opening));
            }
            _ => self.open.push(run),
        }
    }

    /// The longer runs that one document does for: the counts of all their parts are kept, and add up to no more than a
    /// segment may have.
    fn sparse(&self) -> Vec<Run> {
        let mut longer: BTreeMap<Run, (i64, u64)> = BTreeMap::new();
        for (run, parts) in &self.kept {
            if let Some(run) = run.longer() {
                let (kept, messages) = longer.entry(run).or_default();
                *kept += 1;
                *messages += sum_of(parts);
            }
        }
        let open = self.open.iter().filter(|run| !run.is_segment()).count();
        longer
            .into_iter()
            .filter(|(_, (kept, messages))| *kept == TOGETHER && *messages <= SIZE.unsigned_abs())
            .map(|(run, _)| run)
            .take(MOST_OPEN_RUNS.saturating_sub(open))
            .collect()
    }
}

/// The counts of all messages by handler and stored state.
pub(crate) async fn count(connection: &mut Connection<'_>) -> Result<Counts> {
    let (last, now) = connection.last_drawn().await?;
    let documents = connection
        .read_meta([doc! { "$match": documents_with_counts() }])
        .await?;
    let database = connection.database;
    let unopened = database.sightings.compare(&documents, database.ahead());
    let standing = Standing::read(&documents, last, &Look { now, unopened });
    let mut counts = Counts::new();
    for (_, parts) in &standing.kept {
        add(&mut counts, parts);
    }
    let filling = standing.open.last().map(|run| run.first());
    let open = connection
        .aggregate(
            Some(SEQUENCE_INDEX),
            counting(ranges(&standing.open, filling), false),
        )
        .await?;
    for (parts, _) in by_segment(&open).values() {
        add(&mut counts, parts);
    }
    if !standing.closed.is_empty() {
        let runs: Vec<Run> = standing.closed.iter().map(|(run, _)| *run).collect();
        let found = connection
            .aggregate(Some(SEQUENCE_INDEX), counting(ranges(&runs, None), true))
            .await?;
        let found = by_segment(&found);
        for (parts, _) in found.values() {
            add(&mut counts, parts);
        }
        keep(connection, &standing.closed, &found, now).await?;
    }
    let begun = [standing.unknown.clone(), standing.sparse()].concat();
    if !begun.is_empty() {
        begin(connection, &begun).await?;
    }
    if !standing.leftover.is_empty() {
        remove(connection, &standing.leftover).await?;
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
        *expires = earlier(*expires, here);
    }
    segments
}

/// The counts of a run with the earliest expiry, of those by segment.
fn of_run(found: &BTreeMap<i64, (Parts, Option<i64>)>, run: Run) -> (Counts, Option<i64>) {
    let mut counts = Counts::new();
    let mut earliest = None;
    for (_, (parts, expires)) in found.range(run.first()..run.end()) {
        add(&mut counts, parts);
        earliest = earlier(earliest, *expires);
    }
    (counts, earliest)
}

/// Keeps the counts of runs of which nobody has opened a segment since.
async fn keep(
    connection: &Connection<'_>,
    closed: &[(Run, LastOpening)],
    found: &BTreeMap<i64, (Parts, Option<i64>)>,
    now: i64,
) -> Result<()> {
    let statements = closed.iter().filter_map(|(run, opening)| {
        let (counts, expires) = of_run(found, *run);
        if expires.is_some_and(|expires| expires <= now) {
            return None;
        }
        let counts: Vec<Bson> = counts
            .into_iter()
            .map(|((handler, state), count)| {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                doc! { "handler": handler, "state": state, "count": count }.into()
            })
            .collect();
        let mut kept = doc! { "counts": counts };
        if let Some(expires) = expires {
            kept.insert("expires", expires);
        }
        let filter = doc! { "_id": run.id(), "openUntil": opening.until, "opening": opening.id };
        Some(doc! { "q": filter, "u": { "$set": kept } })
    });
    connection.update_meta(statements.collect()).await?;
    Ok(())
}

/// Gives runs their documents, unless another process has done so just now. They are open for a
/// while from then, by the server's clock.
async fn begin(connection: &Connection<'_>, runs: &[Run]) -> Result<()> {
    let database = connection.database;
    let opening = ObjectId::new();
    let ids: Vec<i64> = runs.iter().map(|run| run.id()).collect();
    let documents: Vec<Document> = ids
        .iter()
        .map(|id| doc! { "_id": id, "opening": opening })
        .collect();
    let meta = database.meta();
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
    database.sightings.note(ids, opening, database.ahead());
    let mut without_end = documents_with_counts();
    without_end.insert("openUntil", doc! { "$exists": false });
    connection
        .update_meta(vec![doc! {
            "q": without_end,
            "u": [{ "$set": { "openUntil": { "$add": [database.now(), OPEN] } } }],
            "multi": true,
        }])
        .await?;
    Ok(())
}

/// Deletes documents that mean nothing any more.
async fn remove(connection: &Connection<'_>, ids: &[i64]) -> Result<()> {
    let meta = connection.database.meta();
    let removed = meta
        .delete_many(doc! { "_id": { "$in": ids } })
        .write_concern(write_concern())
        .await;
    match removed.map_err(failed) {
        // A role that was made for an earlier build may not do this. Then there is more to read, no more.
        Err(error) if error.kind() == ErrorKind::Denied => Ok(()),
        removed => removed.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_segments_are_one_range() {
        let size = |n: i64| n * SIZE;
        let runs = |segments: &[i64]| -> Vec<Run> {
            segments
                .iter()
                .map(|segment| Run::segment(*segment))
                .collect()
        };
        assert_eq!(
            ranges(&runs(&[0, 1, 4, 5]), Some(5)),
            [
                doc! { "seq": { "$gte": size(0), "$lt": size(2) } },
                doc! { "seq": { "$gte": size(4) } },
            ]
        );
        assert_eq!(
            ranges(&runs(&[3]), None),
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
        let read = |now, unopened: &[i64]| {
            let unopened = unopened.iter().copied().collect();
            Standing::read(&documents, SIZE * 5 - 1, &Look { now, unopened })
        };
        let segment = Run::segment;
        let opening = LastOpening { until: 5, id: None };
        let standing = read(10 + GRACE, &[1, 2]);
        assert_eq!(standing.kept, [(segment(0), vec![("a".to_owned(), 2, 7)])]);
        assert_eq!(standing.closed, [(segment(1), opening)]);
        assert_eq!(standing.unknown, [segment(4)]);
        assert_eq!(standing.open, [2, 3, 4, 5].map(segment));
        // By the clock alone.
        assert!(read(5 + UNSEEN, &[]).closed.is_empty());
        assert_eq!(read(6 + UNSEEN, &[]).closed, [(segment(1), opening)]);
    }

    fn look() -> Look {
        Look {
            now: 10 + GRACE,
            unopened: HashSet::new(),
        }
    }

    /// Kept, with these messages.
    fn kept(id: i64, messages: i64) -> Document {
        let part = doc! { "handler": "a", "state": 2, "count": messages };
        doc! { "_id": id, "openUntil": 5_i64, "counts": [part] }
    }

    #[test]
    fn a_hundred_documents_of_few_messages_become_one() {
        let run = Run::segment(0).longer().unwrap();
        let read = |documents: &[Document]| Standing::read(documents, SIZE * 250, &look());
        let sparse: Vec<Document> = (0..100).map(|n| kept(n, 100)).collect();
        assert_eq!(read(&sparse).sparse(), [run]);
        let dense: Vec<Document> = (0..100).map(|n| kept(n, 101)).collect();
        assert_eq!(read(&dense).sparse(), []);
        // One is open.
        let mut open = sparse.clone();
        open[7].remove("counts");
        open[7].insert("openUntil", GRACE);
        assert_eq!(read(&open).sparse(), []);
        assert_eq!(read(&sparse[1..]).sparse(), []);
    }

    #[test]
    fn documents_of_parts_of_a_run_mean_nothing() {
        let mut documents: Vec<Document> = (0..150).map(|n| kept(n, 1)).collect();
        // Just begun: whatever its parts had is counted again.
        documents.push(doc! { "_id": -1_i64, "openUntil": GRACE });
        // Drawn since.
        documents.push(doc! { "_id": 151_i64 });
        let standing = Standing::read(&documents, SIZE * 150, &look());
        let run = Run::segment(0).longer().unwrap();
        assert_eq!(standing.open, [run, Run::segment(150)]);
        assert_eq!(standing.kept.len(), 50);
        let parts: Vec<i64> = (0..100).collect();
        assert_eq!(standing.leftover, parts);
        assert_eq!(standing.sparse(), []);
    }

    #[test]
    fn counts_of_a_run_are_those_of_its_segments() {
        let parts = |count| vec![("a".to_owned(), 2, count), ("b".to_owned(), 0, 1)];
        let found = BTreeMap::from([
            (3, (parts(1), Some(9))),
            (99, (parts(2), Some(4))),
            (100, (parts(5), Some(1))),
        ]);
        let run = Run::segment(0).longer().unwrap();
        let expected = Counts::from([(("a".to_owned(), 2), 3), (("b".to_owned(), 0), 2)]);
        assert_eq!(of_run(&found, run), (expected, Some(4)));
    }
}
