//! Retention: what a purge deletes, and what it drops of what stays.

mod handler_walk;

use std::{collections::HashSet, sync::Arc, time::Instant};

use inbox_api::{Key, Listing, PurgeRequest, Result, State, duration_micros};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

pub(crate) use self::handler_walk::Places;
use self::handler_walk::{Group, Walk};
use super::{
    intervention::{change, ids_of, numbers_of},
    records::read_listing,
};
use crate::{
    connection::{Connection, Database},
    layout::STANDING_INDEX,
    ordering::promote_key_heads,
    pipelines,
    rows::{code, id_of, identifier, marks_of, number, those},
    schema::version::checked_task,
};

/// One request of a purge deletes this many messages.
const PURGE_SLICE: u32 = 1000;

/// Which of the messages of a state are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Content {
    Any,
    /// With a payload or a result.
    Some,
}

impl Content {
    fn condition(self) -> Bson {
        match self {
            // Both are named, so that the index has all entries in order.
            Self::Any => doc! { "$in": [false, true] }.into(),
            Self::Some => false.into(),
        }
    }
}

/// Messages that are looked past: others keep changing them, or have deleted them.
#[derive(Clone, Debug, Default)]
struct Passed {
    /// Those that were finished before this, in microseconds.
    before: i64,
    /// And these of those that were finished at that moment.
    ids: Vec<String>,
}

impl Passed {
    /// Adds messages, in the order in which they were finished.
    fn add(&mut self, found: &[Document]) {
        let finished = |document: &Document| number(document, "finishedAt");
        let Some(last) = found.last().and_then(finished) else {
            return;
        };
        if last > self.before {
            self.before = last;
            self.ids.clear();
        }
        let same = found.iter().filter(|found| finished(found) == Some(last));
        self.ids.extend(same.filter_map(id_of).map(str::to_owned));
    }
}

/// The messages of these handlers that `request` selects and that are not `passed`, with the
/// time. The condition on the time is not part of the query: the order is by it.
async fn longest_finished(
    connection: &mut Connection<'_>,
    request: &PurgeRequest,
    handlers: &[String],
    content: Content,
    limit: u32,
    passed: &Passed,
    fields: Option<Document>,
) -> Result<Vec<Document>> {
    if handlers.is_empty() {
        return Ok(Vec::new());
    }
    let mut selected = doc! {
        "state": code(request.state()),
        "handler": { "$in": handlers },
        "emptied": content.condition(),
        "finishedAt": { "$gte": passed.before },
    };
    if !passed.ids.is_empty() {
        selected.insert("_id", doc! { "$nin": passed.ids.as_slice() });
    }
    let mut pipeline = vec![
        doc! { "$match": selected },
        doc! { "$sort": { "finishedAt": 1 } },
        doc! { "$limit": i64::from(limit) },
        doc! { "$set": { "now": connection.database.now() } },
    ];
    pipeline.extend(fields.map(|fields| doc! { "$project": fields }));
    let mut found = connection.aggregate(Some(STANDING_INDEX), pipeline).await?;
    let age = duration_micros(request.older_than());
    found.retain(|document| {
        let times = number(document, "finishedAt").zip(number(document, "now"));
        times.is_some_and(|(finished, now)| finished <= now.saturating_sub(age))
    });
    Ok(found)
}

/// What is asked again of messages that are known to have been in the state of `request` since `cutoff`.
fn still_finished(request: &PurgeRequest, cutoff: i64) -> Document {
    doc! { "state": code(request.state()), "finishedAt": { "$lte": cutoff } }
}

/// Deletes those of `ids` that have been in the state of `request` since `cutoff` at the latest.
async fn delete(
    connection: &mut Connection<'_>,
    request: &PurgeRequest,
    ids: &[String],
    cutoff: i64,
) -> Result<u64> {
    let condition = || still_finished(request, cutoff);
    if request.state() == State::Dead {
        // A deleted message cannot be marked, so those that block go on first.
        let mark = ObjectId::new();
        let mut blocking = condition();
        blocking.insert("open", true);
        let unblock = pipelines::unblock(connection.database, mark);
        change(connection, ids, blocking, unblock, ids, mark).await?;
    }
    let mut filter = those(ids.iter().map(String::as_str));
    filter.extend(condition());
    // A marked one goes once its ordering key has been looked at.
    filter.insert("lane", doc! { "$exists": false });
    connection.delete(filter).await
}

/// Looks at the ordering keys of those that a crash has left marked, since a mark is never deleted.
pub(super) async fn promote_marked(
    connection: &mut Connection<'_>,
    found: &[Document],
) -> Result<()> {
    let marked: Vec<&Document> = found
        .iter()
        .filter(|document| document.contains_key("mark"))
        .collect();
    if marked.is_empty() {
        return Ok(());
    }
    let (ids, marks) = marks_of(&marked);
    promote_key_heads(connection, &ids, &marks).await
}

pub(super) async fn purge(database: &Arc<Database>, request: &PurgeRequest) -> Result<u64> {
    take_in_slices(database, request, Content::Any).await
}

pub(super) async fn drop_payloads(database: &Arc<Database>, request: &PurgeRequest) -> Result<u64> {
    take_in_slices(database, request, Content::Some).await
}

/// One slice of a purge.
struct Step {
    request: PurgeRequest,
    content: Content,
    limit: u32,
    walk: Walk,
    passed: Passed,
}

/// What became of one slice.
struct Taken {
    group: Group,
    /// What was found, in the order in which it was finished.
    found: Vec<Document>,
    changed: u64,
}

/// Each slice has its own task, and all the time that an operation has.
async fn take_in_slices(
    database: &Arc<Database>,
    request: &PurgeRequest,
    content: Content,
) -> Result<u64> {
    let mut walk = Walk::begin(&database.purge_places, request, content);
    let mut passed = Passed::default();
    let mut changed = 0;
    loop {
        let left = u64::from(request.limit()).saturating_sub(changed);
        let limit = u32::try_from(left).map_or(PURGE_SLICE, |left| left.min(PURGE_SLICE));
        if limit == 0 {
            return Ok(changed);
        }
        let started = Instant::now();
        let step = Step {
            request: request.clone(),
            content,
            limit,
            walk: walk.clone(),
            passed: passed.clone(),
        };
        let taken = checked_task(database, move |database| async move {
            let taken = step.take(&mut database.connection()).await;
            let found_nothing = matches!(&taken, Ok(taken) if taken.found.is_empty());
            if content == Content::Any && !found_nothing {
                wake_after_purge(&database, &step.request);
            }
            taken
        });
        let taken = taken
            .await
            .map_err(|error| error.after_changes(changed > 0))?;
        changed += taken.changed;
        walk.stand_in(taken.group);
        walk.leave(&database.purge_places);
        let is_full = taken.found.len() >= limit as usize;
        if !is_full && !walk.go_on(&database.purge_places) {
            return Ok(changed);
        }
        if !is_full {
            passed = Passed::default();
        } else if taken.changed < u64::from(limit) {
            passed.add(&taken.found);
        }
        // Rests as long as it worked, so that the server is never busy with it alone; also after
        // the last, since a caller that reaches the limit asks for more.
        tokio::time::sleep(started.elapsed()).await;
    }
}

impl Step {
    async fn take(&self, connection: &mut Connection<'_>) -> Result<Taken> {
        let request = &self.request;
        let group = self.walk.group(connection, request.state()).await?;
        let fields = doc! { "seq": 1, "finishedAt": 1, "now": 1, "lane": 1, "mark": 1 };
        let found = longest_finished(
            connection,
            request,
            &group.handlers,
            self.content,
            self.limit,
            &self.passed,
            Some(fields),
        )
        .await?;
        let changed = self.change(connection, &found).await?;
        Ok(Taken {
            group,
            found,
            changed,
        })
    }

    /// Takes what the purge is for from the messages that were found.
    async fn change(&self, connection: &mut Connection<'_>, found: &[Document]) -> Result<u64> {
        let Some(last) = found.last() else {
            return Ok(0);
        };
        let end = number(last, "finishedAt").unwrap_or(0);
        let ids = ids_of(found.iter());
        match self.content {
            Content::Any => {
                let now = number(last, "now").unwrap_or(0);
                connection.open(numbers_of(found), now).await?;
                promote_marked(connection, found).await?;
                delete(connection, &self.request, &ids, end).await
            }
            Content::Some => empty(connection, &self.request, &ids, end).await,
        }
    }
}

/// Drops payload and result of those of `ids` that have been in the state of `request` since `cutoff` at the latest.
async fn empty(
    connection: &mut Connection<'_>,
    request: &PurgeRequest,
    ids: &[String],
    cutoff: i64,
) -> Result<u64> {
    let mut filter = those(ids.iter().map(String::as_str));
    filter.extend(still_finished(request, cutoff));
    filter.insert("emptied", false);
    let statement = doc! { "q": filter, "u": pipelines::empty(), "multi": true };
    connection.update(vec![statement]).await
}

/// In slices, too.
pub(super) async fn purge_archived(
    database: &Arc<Database>,
    request: &PurgeRequest,
    keys: &[Key],
) -> Result<u64> {
    let mut purged = 0;
    let selected = |key: &&Key| request.handler().is_none_or(|only| *only == key.handler);
    let ids: Vec<String> = keys.iter().filter(selected).map(identifier).collect();
    for ids in ids.chunks(PURGE_SLICE as usize) {
        let (request, ids) = (request.clone(), ids.to_vec());
        let slice = checked_task(database, move |database| async move {
            let slice = delete_archived(&mut database.connection(), &request, &ids).await;
            wake_after_purge(&database, &request);
            slice
        });
        let slice = slice.await;
        purged += slice.map_err(|error| error.after_changes(purged > 0))?;
    }
    Ok(purged)
}

async fn delete_archived(
    connection: &mut Connection<'_>,
    request: &PurgeRequest,
    ids: &[String],
) -> Result<u64> {
    let found = connection
        .look(vec![
            doc! { "$match": those(ids.iter().map(String::as_str)) },
            doc! { "$project": { "seq": 1, "lane": 1, "mark": 1, "now": connection.database.now() } },
        ])
        .await?;
    let Some(now) = found.first().and_then(|found| number(found, "now")) else {
        return Ok(0);
    };
    connection.open(numbers_of(&found), now).await?;
    promote_marked(connection, &found).await?;
    let cutoff = now.saturating_sub(duration_micros(request.older_than()));
    delete(connection, request, ids, cutoff).await
}

/// A blocking dead letter that is purged lets its ordering key move on; also in a slice that failed later on.
fn wake_after_purge(database: &Database, request: &PurgeRequest) {
    if request.state() == State::Dead {
        database.wakers.raise();
    }
}

/// Each group of handlers has its own task, and all the time that an operation has.
pub(super) async fn expired(database: &Arc<Database>, request: &PurgeRequest) -> Result<Listing> {
    let mut walk = Walk::begin(&database.purge_places, request, Content::Any);
    let mut listing = Listing::default();
    // A walk that has been around comes to the group with which it began once more.
    let mut seen: HashSet<String> = HashSet::new();
    loop {
        let listed = listing.records.len() + listing.corrupt.len();
        let limit =
            u32::try_from(listed).map_or(0, |listed| request.limit().saturating_sub(listed));
        if limit == 0 {
            return Ok(listing);
        }
        let (request, standing, known) = (request.clone(), walk.clone(), seen.clone());
        let found = checked_task(database, move |database| async move {
            let mut connection = database.connection();
            let group = standing.group(&mut connection, request.state()).await?;
            let others = group.handlers.iter().filter(|name| !known.contains(*name));
            let (handlers, passed) = (others.cloned().collect::<Vec<_>>(), Passed::default());
            let found = longest_finished(
                &mut connection,
                &request,
                &handlers,
                Content::Any,
                limit,
                &passed,
                None,
            )
            .await?;
            Ok((group, read_listing(&connection, found)))
        });
        let (group, mut found) = found.await?;
        seen.extend(group.handlers.iter().cloned());
        walk.stand_in(group);
        if listed == 0 {
            // What is listed first is the first to be purged, once it is archived.
            walk.leave(&database.purge_places);
        }
        let is_full = found.records.len() + found.corrupt.len() >= limit as usize;
        listing.records.append(&mut found.records);
        listing.corrupt.append(&mut found.corrupt);
        if is_full || !walk.go_on(&database.purge_places) {
            return Ok(listing);
        }
    }
}
