//! What replays, reschedulings and discards have in common.

use inbox_api::{
    Cursor, Due, Edit, ErrorKind, Filter, Intervention, InterventionKind, Key, OperatorName,
    Progress, Result, Slice, State,
};
use mongodb::bson::{Document, doc, oid::ObjectId};

use super::{discard, filter::Query, records::position, replay, reschedule};
use crate::{
    begin::find,
    connection::{Connection, Database},
    ordering::promote_key_heads,
    pipelines::sign_intervention,
    rows::{id_of, identifier, number, record, those},
};

/// How often an intervention is tried when the message changes meanwhile.
const TRIES: u32 = 10;

/// What is done to messages, and who signs it.
pub(super) struct Act {
    pub(super) what: What,
    pub(super) by: Option<OperatorName>,
}

pub(super) enum What {
    /// With what is new of it.
    Replay(Edit),
    Reschedule(Due),
    Discard,
}

impl Act {
    /// The states in which it is done.
    fn states(&self) -> &'static [State] {
        match self.what {
            What::Replay(_) => replay::FINAL,
            What::Reschedule(_) => reschedule::WAITING,
            What::Discard => discard::UNWANTED,
        }
    }

    /// The state of those that are meant by a filter without states.
    fn usual_state(&self) -> State {
        match self.what {
            What::Replay(_) | What::Discard => State::Dead,
            What::Reschedule(_) => State::Pending,
        }
    }

    fn kind(&self) -> InterventionKind {
        match &self.what {
            What::Replay(edit) => InterventionKind::of_replay(edit),
            What::Reschedule(_) => InterventionKind::Rescheduled,
            What::Discard => InterventionKind::Discarded,
        }
    }

    /// Which messages are changed at a time of the server's, and how.
    fn change(&self, database: &Database, now: i64, mark: ObjectId) -> (Document, Vec<Document>) {
        let (condition, mut pipeline) = match &self.what {
            What::Replay(edit) => replay::change(database, edit, mark),
            What::Reschedule(due) => reschedule::change(database, *due, now, mark),
            What::Discard => discard::change(database, now, mark),
        };
        if let Some(by) = &self.by {
            pipeline.push(sign_intervention(database, self.kind(), by));
        }
        (condition, pipeline)
    }
}

pub(super) fn numbers_of(found: &[Document]) -> Vec<i64> {
    found
        .iter()
        .filter_map(|document| number(document, "seq"))
        .collect()
}

/// The identifiers of documents.
pub(super) fn ids_of<'a>(found: impl Iterator<Item = &'a Document>) -> Vec<String> {
    found.filter_map(|d| id_of(d).map(str::to_owned)).collect()
}

pub(super) fn is_ordered(document: &Document) -> bool {
    document.contains_key("orderingKey")
}

/// Changes the messages `ids` where they are still as `condition` says, and looks at their
/// ordering keys. Answers how many were changed.
pub(super) async fn change(
    connection: &mut Connection<'_>,
    ids: &[String],
    condition: Document,
    pipeline: Vec<Document>,
    ordered: &[String],
    mark: ObjectId,
) -> Result<u64> {
    let mut filter = those(ids.iter().map(String::as_str));
    filter.extend(condition);
    let statement = doc! { "q": filter, "u": pipeline, "multi": true };
    let matched = connection.update(vec![statement]).await?;
    if matched > 0 && !ordered.is_empty() {
        promote_key_heads(connection, ordered, &[mark]).await?;
    }
    Ok(matched)
}

pub(super) async fn intervene(
    connection: &mut Connection<'_>,
    key: &Key,
    act: &Act,
) -> Result<Intervention> {
    let id = identifier(key);
    for _ in 0..TRIES {
        let Some(mut found) = find(connection, &id).await? else {
            return Ok(Intervention::NotFound);
        };
        let now = number(&found, "now").unwrap_or(0);
        let ordered = is_ordered(&found);
        let lacks_payload = !found.contains_key(replay::CONTENT);
        connection.open(number(&found, "seq"), now).await?;
        let mark = ObjectId::new();
        let (condition, pipeline) = act.change(connection.database, now, mark);
        let ids = [id.clone()];
        let ordered = if ordered { ids.as_slice() } else { &[] };
        if change(connection, &ids, condition, pipeline, ordered, mark).await? > 0 {
            return Ok(Intervention::Done);
        }
        let state = match record(&mut found) {
            Ok(record) => record.state,
            Err(reason) => return Err(connection.error(ErrorKind::Corrupt, reason)),
        };
        match &act.what {
            _ if !act.states().contains(&state) => return Ok(Intervention::WrongState(state)),
            What::Replay(edit) if edit.payload.is_none() && lacks_payload => {
                return Ok(Intervention::PayloadDropped);
            }
            // It has changed just now.
            _ => {}
        }
    }
    let context = "the message changed its state again and again";
    Err(connection.error(ErrorKind::Conflict, context))
}

/// Finds one slice of messages and changes them.
pub(super) async fn intervene_in_slice(
    connection: &mut Connection<'_>,
    filter: &Filter,
    slice: &Slice,
    act: &Act,
) -> Result<Progress> {
    let nothing = Progress {
        changed: 0,
        next: None,
    };
    let beyond = position(slice.after.as_ref())?;
    let query = Query::eligible(filter, act.states(), act.usual_state());
    let (Some(mut query), 1..) = (query, slice.limit) else {
        return Ok(nothing);
    };
    if let Some(beyond) = beyond {
        query.filter.insert("seq", doc! { "$gt": beyond });
    }
    if matches!(act.what, What::Replay(_)) {
        query
            .filter
            .insert(replay::CONTENT, doc! { "$exists": true });
    }
    let mut pipeline = query.stages(connection.database, Some(doc! { "seq": 1 }));
    pipeline.push(doc! { "$limit": i64::from(slice.limit) });
    pipeline.push(doc! { "$project": { "seq": 1, "orderingKey": 1, "now": 1 } });
    let found = connection.aggregate(None, pipeline).await?;
    let Some(last) = found.last() else {
        return Ok(nothing);
    };
    let now = number(last, "now").unwrap_or(0);
    connection.open(numbers_of(&found), now).await?;
    // All that were found, also if others change some of them first: those behind are left to
    // the next slice all the same.
    let full = found.len() >= slice.limit as usize;
    let next = number(last, "seq").filter(|_| full).map(Cursor::from);
    let all = ids_of(found.iter());
    let ordered = ids_of(found.iter().filter(|document| is_ordered(document)));
    let mark = ObjectId::new();
    let (condition, pipeline) = act.change(connection.database, now, mark);
    // Others may replay what is found here and see it through before it is changed.
    let condition = doc! { "$and": [condition, query.still(now)] };
    let changed = change(connection, &all, condition, pipeline, &ordered, mark).await?;
    Ok(Progress { changed, next })
}
