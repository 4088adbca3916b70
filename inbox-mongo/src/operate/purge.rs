//! Retention: what a purge deletes, and what it drops of what stays.

use std::time::Instant;

use inbox_api::{Key, Listing, PurgeRequest, Result, State, duration_micros};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use super::{
    intervention::{change, ids_of, numbers_of},
    records::read_listing,
};
use crate::{
    connection::Connection,
    layout::STANDING_INDEX,
    ordering::promote_key_heads,
    pipelines,
    rows::{code, identifier, marks_of, number, those},
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

pub(super) async fn purge(connection: &mut Connection<'_>, request: &PurgeRequest) -> Result<u64> {
    let handlers = handlers(connection, request).await?;
    let mut purged = 0;
    let mut left = request.limit();
    let mut beyond = 0;
    while left > 0 {
        let limit = left.min(PURGE_SLICE);
        let started = Instant::now();
        let fields = doc! { "seq": 1, "finishedAt": 1, "now": 1, "lane": 1, "mark": 1 };
        let found = longest_finished(
            connection,
            request,
            &handlers,
            Content::Any,
            limit,
            beyond,
            Some(fields),
        )
        .await?;
        let Some(last) = found.last() else {
            break;
        };
        let cutoff = number(last, "finishedAt").unwrap_or(0);
        let ids = ids_of(found.iter());
        connection
            .open(numbers_of(&found), number(last, "now").unwrap_or(0))
            .await?;
        promote_marked(connection, &found).await?;
        let deleted = delete(connection, request, &ids, cutoff).await?;
        purged += deleted;
        left -= limit;
        if found.len() < limit as usize {
            break;
        }
        if deleted == 0 {
            // Others keep changing these, or have deleted them.
            beyond = cutoff;
        }
        // Rests as long as it worked, so that the server is never busy with it alone; also after
        // the last, since a caller that reaches the limit asks for more.
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(purged)
}

pub(super) async fn purge_archived(
    connection: &mut Connection<'_>,
    request: &PurgeRequest,
    keys: &[Key],
) -> Result<u64> {
    let mut purged = 0;
    let selected = |key: &&Key| request.handler().is_none_or(|only| *only == key.handler);
    let ids: Vec<String> = keys.iter().filter(selected).map(identifier).collect();
    for ids in ids.chunks(PURGE_SLICE as usize) {
        let found = connection
            .look(vec![
                doc! { "$match": those(ids.iter().map(String::as_str)) },
                doc! { "$project": { "seq": 1, "lane": 1, "mark": 1, "now": connection.database.now() } },
            ])
            .await?;
        let Some(now) = found.first().and_then(|found| number(found, "now")) else {
            continue;
        };
        connection.open(numbers_of(&found), now).await?;
        promote_marked(connection, &found).await?;
        let cutoff = now.saturating_sub(duration_micros(request.older_than()));
        purged += delete(connection, request, ids, cutoff).await?;
    }
    Ok(purged)
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

pub(super) async fn drop_payloads(
    connection: &mut Connection<'_>,
    request: &PurgeRequest,
) -> Result<u64> {
    let handlers = handlers(connection, request).await?;
    let mut dropped = 0;
    let mut left = request.limit();
    while left > 0 {
        let limit = left.min(PURGE_SLICE);
        let started = Instant::now();
        let fields = doc! { "finishedAt": 1, "now": 1 };
        let found = longest_finished(
            connection,
            request,
            &handlers,
            Content::Some,
            limit,
            0,
            Some(fields),
        )
        .await?;
        let Some(last) = found.last() else {
            break;
        };
        let cutoff = number(last, "finishedAt").unwrap_or(0);
        let ids = ids_of(found.iter());
        let mut filter = those(ids.iter().map(String::as_str));
        filter.extend(still_finished(request, cutoff));
        filter.insert("emptied", false);
        let statement = doc! { "q": filter, "u": pipelines::empty(), "multi": true };
        dropped += connection.update(vec![statement]).await?;
        left -= limit;
        if found.len() < limit as usize {
            break;
        }
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(dropped)
}
