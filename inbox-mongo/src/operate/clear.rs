//! Deleting a handler's messages, whatever their state.

use inbox_api::{Cursor, HandlerName, Progress, Result, Slice, State};
use mongodb::bson::{Document, doc, oid::ObjectId};

use super::{
    discard,
    intervention::{change, ids_of, is_ordered, numbers_of},
    purge::promote_marked,
    records::position,
    replay,
};
use crate::{
    connection::Connection,
    layout::SEQUENCE_INDEX,
    rows::{code, number, those},
};

/// Deletes one slice of messages, but for those that are leased.
pub(super) async fn clear_slice(
    connection: &mut Connection<'_>,
    handler: &HandlerName,
    slice: &Slice,
) -> Result<Progress> {
    let nothing = Progress {
        changed: 0,
        next: None,
    };
    let beyond = position(slice.after.as_ref())?;
    if slice.limit == 0 {
        return Ok(nothing);
    }
    let found = find_unleased(connection, handler, beyond, slice.limit).await?;
    let Some(last) = found.last() else {
        return Ok(nothing);
    };
    let now = number(last, "now").unwrap_or(0);
    connection.open(numbers_of(&found), now).await?;
    let ids = ids_of(found.iter());
    let ordered = ids_of(found.iter().filter(|document| is_ordered(document)));
    if !ordered.is_empty() {
        // A deleted message cannot be marked, so those of ordering keys are given up first.
        let mark = ObjectId::new();
        let (condition, pipeline) = discard::change(connection.database, now, mark);
        change(connection, &ordered, condition, pipeline, &ordered, mark).await?;
        promote_marked(connection, &found).await?;
    }
    let finals: Vec<i32> = replay::FINAL.iter().map(|state| code(*state)).collect();
    let mut filter = those(ids.iter().map(String::as_str));
    filter.insert(
        "$or",
        vec![
            doc! { "orderingKey": { "$exists": false }, "state": { "$ne": code(State::Leased) } },
            doc! {
                "orderingKey": { "$exists": false },
                "state": code(State::Leased), "visibleAt": { "$lte": now },
            },
            // One that is marked still goes with another call.
            doc! { "state": { "$in": finals }, "lane": { "$exists": false } },
        ],
    );
    let full = found.len() >= slice.limit as usize;
    Ok(Progress {
        changed: connection.delete(filter).await?,
        next: number(last, "seq").filter(|_| full).map(Cursor::from),
    })
}

async fn find_unleased(
    connection: &mut Connection<'_>,
    handler: &HandlerName,
    beyond: Option<i64>,
    limit: u32,
) -> Result<Vec<Document>> {
    let mut of_handler = doc! { "handler": handler.as_str() };
    if let Some(beyond) = beyond {
        of_handler.insert("seq", doc! { "$gt": beyond });
    }
    let unleased = doc! { "$or": [
        { "$ne": ["$state", code(State::Leased)] },
        { "$lte": ["$visibleAt", "$now"] },
    ] };
    let pipeline = vec![
        doc! { "$match": of_handler },
        doc! { "$sort": { "seq": 1 } },
        doc! { "$set": { "now": connection.database.now() } },
        doc! { "$match": { "$expr": unleased } },
        doc! { "$limit": i64::from(limit) },
        doc! { "$project": { "seq": 1, "orderingKey": 1, "mark": 1, "now": 1 } },
    ];
    connection.aggregate(Some(SEQUENCE_INDEX), pipeline).await
}
