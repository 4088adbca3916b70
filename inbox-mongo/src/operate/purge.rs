//! Retention: what a purge deletes.

use std::time::Instant;

use inbox_api::{Key, Listing, PurgeRequest, Result, State, duration_micros};
use mongodb::bson::{Document, doc, oid::ObjectId};

use super::{
    intervention::{change, numbers_of},
    records::read_listing,
};
use crate::{
    connection::Connection,
    layout::STANDING_INDEX,
    ordering::promote_key_heads,
    pipelines,
    rows::{code, id_of, identifier, marks_of, number, those},
};

/// One request of a purge deletes this many messages.
const PURGE_SLICE: u32 = 1000;

/// The messages that `request` selects and that were finished after `beyond`, with the time. The condition
/// on the time is not part of the query: the order is by it.
async fn longest_finished(
    connection: &mut Connection<'_>,
    request: &PurgeRequest,
    limit: u32,
    beyond: i64,
    fields: Option<Document>,
) -> Result<Vec<Document>> {
    let mut pipeline = vec![
        doc! { "$match": { "state": code(request.state()), "finishedAt": { "$gt": beyond } } },
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

/// Deletes those of `ids` that have been in the state of `request` since `cutoff` at the latest.
async fn delete(
    connection: &mut Connection<'_>,
    request: &PurgeRequest,
    ids: &[String],
    cutoff: i64,
) -> Result<u64> {
    let condition = || {
        doc! { "state": code(request.state()), "finishedAt": { "$lte": cutoff } }
    };
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
async fn promote_marked(connection: &mut Connection<'_>, found: &[Document]) -> Result<()> {
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
    let mut purged = 0;
    let mut left = request.limit();
    let mut beyond = 0;
    while left > 0 {
        let limit = left.min(PURGE_SLICE);
        let started = Instant::now();
        let fields = doc! { "seq": 1, "finishedAt": 1, "now": 1, "lane": 1, "mark": 1 };
        let found = longest_finished(connection, request, limit, beyond, Some(fields)).await?;
        let Some(last) = found.last() else {
            break;
        };
        let cutoff = number(last, "finishedAt").unwrap_or(0);
        let ids: Vec<String> = found
            .iter()
            .filter_map(|document| id_of(document).map(str::to_owned))
            .collect();
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
    for some in keys.chunks(PURGE_SLICE as usize) {
        let ids: Vec<String> = some.iter().map(identifier).collect();
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
        purged += delete(connection, request, &ids, cutoff).await?;
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
    let found = longest_finished(connection, request, request.limit(), 0, None).await?;
    Ok(read_listing(connection, found))
}
