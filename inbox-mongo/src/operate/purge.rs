//! Retention: what a purge deletes, and what it drops of what stays.

use std::{sync::Arc, time::Instant};

use inbox_api::{Key, Listing, PurgeRequest, Result, State, duration_micros};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use super::{
    intervention::{change, ids_of, numbers_of},
    records::read_listing,
};
use crate::{
    connection::{Connection, Database},
    layout::STANDING_INDEX,
    ordering::promote_key_heads,
    pipelines,
    rows::{code, identifier, marks_of, number, those},
    schema::version::checked_task,
};

/// One request of a purge deletes this many messages.
const PURGE_SLICE: u32 = 1000;

/// The index has the messages of a state by handler. A request names this many handlers, whose entries
/// the server merges: without names it would sort all of them.
const HANDLERS_AT_ONCE: usize = 50;

/// Which of the messages of a state are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
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

/// The handler of `request`, or all that have messages in its state: a step along the index for each.
async fn handlers(connection: &mut Connection<'_>, request: &PurgeRequest) -> Result<Vec<String>> {
    if let Some(handler) = request.handler() {
        return Ok(vec![handler.to_string()]);
    }
    let mut handlers: Vec<String> = Vec::new();
    loop {
        let beyond = handlers.last().map_or("", String::as_str);
        let pipeline = vec![
            doc! { "$match": { "state": code(request.state()), "handler": { "$gt": beyond } } },
            doc! { "$sort": { "handler": 1 } },
            doc! { "$limit": 1 },
            doc! { "$project": { "handler": 1 } },
        ];
        let found = connection.aggregate(Some(STANDING_INDEX), pipeline).await?;
        let next = found.first().and_then(|next| next.get_str("handler").ok());
        match next {
            Some(next) => handlers.push(next.to_owned()),
            None => return Ok(handlers),
        }
    }
}

/// The messages of these handlers that `request` selects and that were finished after `beyond`, with the
/// time. The condition on the time is not part of the query: the order is by it.
async fn longest_finished(
    connection: &mut Connection<'_>,
    request: &PurgeRequest,
    handlers: &[String],
    content: Content,
    limit: u32,
    beyond: i64,
    fields: Option<Document>,
) -> Result<Vec<Document>> {
    let mut found = Vec::new();
    for some in handlers.chunks(HANDLERS_AT_ONCE) {
        let mut pipeline = vec![
            doc! { "$match": {
                "state": code(request.state()),
                "handler": { "$in": some },
                "emptied": content.condition(),
                "finishedAt": { "$gt": beyond },
            } },
            doc! { "$sort": { "finishedAt": 1 } },
            doc! { "$limit": i64::from(limit) },
            doc! { "$set": { "now": connection.database.now() } },
        ];
        pipeline.extend(fields.clone().map(|fields| doc! { "$project": fields }));
        found.append(&mut connection.aggregate(Some(STANDING_INDEX), pipeline).await?);
    }
    let age = duration_micros(request.older_than());
    found.retain(|document| {
        let times = number(document, "finishedAt").zip(number(document, "now"));
        times.is_some_and(|(finished, now)| finished <= now.saturating_sub(age))
    });
    found.sort_by_key(|document| number(document, "finishedAt"));
    found.truncate(limit as usize);
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

/// What a purge is for, and the handlers that have such messages.
struct Purge {
    request: PurgeRequest,
    handlers: Vec<String>,
    content: Content,
}

/// What became of one slice.
#[derive(Default)]
struct Taken {
    changed: u64,
    /// Whether there may be more.
    is_full: bool,
    /// When its last message was finished.
    end: i64,
}

pub(super) async fn purge(database: &Arc<Database>, request: &PurgeRequest) -> Result<u64> {
    take_in_slices(database, request, Content::Any).await
}

pub(super) async fn drop_payloads(database: &Arc<Database>, request: &PurgeRequest) -> Result<u64> {
    take_in_slices(database, request, Content::Some).await
}

/// Each slice has its own task, and all the time that an operation has.
async fn take_in_slices(
    database: &Arc<Database>,
    request: &PurgeRequest,
    content: Content,
) -> Result<u64> {
    let purge = Purge::begin(database, request.clone(), content).await?;
    let mut changed = 0;
    let mut left = request.limit();
    let mut beyond = 0;
    while left > 0 {
        let limit = left.min(PURGE_SLICE);
        let started = Instant::now();
        let purge = Arc::clone(&purge);
        let taken = checked_task(database, move |database| async move {
            let taken = purge.take(&mut database.connection(), limit, beyond).await;
            if content == Content::Any {
                wake_after_purge(&database, &purge.request);
            }
            taken
        });
        let taken = taken
            .await
            .map_err(|error| error.after_changes(changed > 0))?;
        changed += taken.changed;
        left -= limit;
        if !taken.is_full {
            break;
        }
        if taken.changed == 0 {
            // Others keep changing these, or have deleted them.
            beyond = taken.end;
        }
        // Rests as long as it worked, so that the server is never busy with it alone; also after
        // the last, since a caller that reaches the limit asks for more.
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(changed)
}

impl Purge {
    async fn begin(
        database: &Arc<Database>,
        request: PurgeRequest,
        content: Content,
    ) -> Result<Arc<Self>> {
        let begun = checked_task(database, move |database| async move {
            let handlers = handlers(&mut database.connection(), &request).await?;
            Ok(Arc::new(Self {
                request,
                handlers,
                content,
            }))
        });
        begun.await
    }

    /// Takes what it is for from up to `limit` messages that were finished after `beyond`.
    async fn take(
        &self,
        connection: &mut Connection<'_>,
        limit: u32,
        beyond: i64,
    ) -> Result<Taken> {
        let (request, content) = (&self.request, self.content);
        let fields = doc! { "seq": 1, "finishedAt": 1, "now": 1, "lane": 1, "mark": 1 };
        let found = longest_finished(
            connection,
            request,
            &self.handlers,
            content,
            limit,
            beyond,
            Some(fields),
        )
        .await?;
        let Some(last) = found.last() else {
            return Ok(Taken::default());
        };
        let end = number(last, "finishedAt").unwrap_or(0);
        let ids = ids_of(found.iter());
        let changed = match content {
            Content::Any => {
                let now = number(last, "now").unwrap_or(0);
                connection.open(numbers_of(&found), now).await?;
                promote_marked(connection, &found).await?;
                delete(connection, request, &ids, end).await?
            }
            Content::Some => empty(connection, request, &ids, end).await?,
        };
        Ok(Taken {
            changed,
            is_full: found.len() >= limit as usize,
            end,
        })
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

pub(super) async fn expired(
    connection: &mut Connection<'_>,
    request: &PurgeRequest,
) -> Result<Listing> {
    if request.limit() == 0 {
        return Ok(Listing::default());
    }
    let handlers = handlers(connection, request).await?;
    let limit = request.limit();
    let found =
        longest_finished(connection, request, &handlers, Content::Any, limit, 0, None).await?;
    Ok(read_listing(connection, found))
}
