//! The operator's side: looking and intervening.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    Bytes, Cursor, Filter, HandlerName, HandlerStatistics, Intervention, Key, Listing, Operate,
    Page, Progress, PurgeRequest, Record, Result, Slice, State, Statistics, check_size,
    duration_micros,
};
use mongodb::bson::{Document, doc, oid::ObjectId};

use crate::{
    begin::find,
    claim::marks_of,
    database::{On, number},
    filters::Meaning,
    ordering::rehead,
    rows::{corrupt_row, id_of, identifier, record, those},
    schema::STANDING_INDEX,
    segments,
    stages::{self, CLAIMABLE, code},
    store::{Inner, MongoStore},
};

/// One request of a purge deletes this many messages.
const PURGE_SLICE: u32 = 1000;

const FINAL: [State; 3] = [State::Processed, State::Dead, State::Discarded];

fn codes(states: &[State]) -> Vec<i32> {
    states.iter().map(|state| code(*state)).collect()
}

fn after(operation: &'static str, cursor: Option<&Cursor>) -> Result<Option<i64>> {
    cursor
        .map(|cursor| cursor.sequence().map_err(|e| e.in_operation(operation)))
        .transpose()
}

/// Sorts documents into those that can be read and the others.
fn listing(on: &On<'_>, found: Vec<Document>) -> Listing {
    let mut listing = Listing::default();
    for mut document in found {
        match record(&mut document) {
            Ok(record) => listing.records.push(record),
            Err(reason) => listing
                .corrupt
                .push(corrupt_row(&on.database.inbox, &document, reason)),
        }
    }
    listing
}

async fn get(on: &mut On<'_>, key: &Key) -> Result<Option<Record>> {
    let Some(mut document) = find(on, &identifier(key)).await? else {
        return Ok(None);
    };
    record(&mut document).map(Some).map_err(|reason| {
        let place = corrupt_row(&on.database.inbox, &document, String::new()).place;
        on.error(inbox_api::ErrorKind::Corrupt, format!("{place}: {reason}"))
    })
}

async fn list(on: &mut On<'_>, mut meaning: Meaning, page: &Page) -> Result<Listing> {
    let limit = page.limit.min(Page::MAX);
    let beyond = after(on.operation, page.after.as_ref())?;
    if limit == 0 {
        return Ok(Listing::default());
    }
    let (order, operator) = if page.newest_first {
        (-1, "$lt")
    } else {
        (1, "$gt")
    };
    if let Some(beyond) = beyond {
        meaning.filter.insert("seq", doc! { operator: beyond });
    }
    let mut pipeline = meaning.stages(on.database, Some(doc! { "seq": order }));
    // One more than asked for tells whether there is a next page.
    pipeline.push(doc! { "$limit": i64::from(limit) + 1 });
    if !page.with_payload {
        pipeline.push(doc! { "$unset": ["payload", "result"] });
    }
    // Which index is best depends on the filter; the server has the numbers for that.
    let mut found = on.aggregate(None, pipeline).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let last = found.last().and_then(|last| number(last, "seq"));
    let mut listing = listing(on, found);
    listing.next = last.filter(|_| more).map(Cursor::from);
    Ok(listing)
}

async fn count(on: &mut On<'_>, meaning: &Meaning) -> Result<u64> {
    let mut pipeline = meaning.stages(on.database, None);
    pipeline.push(doc! { "$count": "count" });
    let found = on.aggregate(None, pipeline).await?;
    let count = found.first().and_then(|found| number(found, "count"));
    Ok(count.and_then(|n| u64::try_from(n).ok()).unwrap_or(0))
}

fn seqs(found: &[Document]) -> Vec<i64> {
    found
        .iter()
        .filter_map(|document| number(document, "seq"))
        .collect()
}

/// How many messages each handler has in each stored state, by the state's code.
type ByHandler = BTreeMap<String, BTreeMap<i64, u64>>;

/// Messages are counted by [`segments`]; the first message of each handler, and leases that have
/// run out, are read from indexes.
async fn statistics(on: &mut On<'_>) -> Result<Statistics> {
    let mut by_handler = ByHandler::new();
    for ((handler, state), count) in segments::count(on).await? {
        by_handler.entry(handler).or_default().insert(state, count);
    }
    let run_out = on
        .aggregate(
            Some(STANDING_INDEX),
            vec![
                doc! { "$match": { "state": code(State::Leased) } },
                doc! { "$set": { "now": on.database.now() } },
                doc! { "$match": { "$expr": { "$lte": ["$visibleAt", "$now"] } } },
                doc! { "$group": { "_id": "$handler", "count": { "$sum": 1 } } },
            ],
        )
        .await?;
    let waiting: Vec<&str> = by_handler
        .iter()
        .filter(|(_, states)| {
            let open = [State::Pending, State::Leased];
            open.iter()
                .any(|state| states.contains_key(&i64::from(code(*state))))
        })
        .map(|(handler, _)| handler.as_str())
        .collect();
    let oldest = on
        .read_meta([
            doc! { "$match": { "_id": "sequence" } },
            doc! { "$project": {
                "handler": { "$literal": waiting }, "now": on.database.now(),
            } },
            doc! { "$unwind": "$handler" },
            doc! { "$lookup": {
                "from": on.database.message_collection(),
                "let": { "handler": "$handler" },
                "pipeline": [
                    { "$match": {
                        "lane": { "$gt": 0 }, "$expr": { "$eq": ["$handler", "$$handler"] },
                    } },
                    { "$sort": { "visibleAt": 1, "seq": 1 } },
                    { "$match": { "lane": CLAIMABLE } },
                    { "$limit": 1 },
                    { "$project": { "visibleAt": 1, "acceptedAt": 1 } },
                ],
                "as": "oldest",
            } },
        ])
        .await?;
    let of = |found: &[Document], field: &str, name: &str| {
        found
            .iter()
            .find(|found| found.get_str(field).is_ok_and(|found| found == name))
            .cloned()
            .unwrap_or_default()
    };
    // In order of name. One that breaks the rules is of a corrupt message, which claim and list
    // report.
    let handlers = by_handler.iter().filter_map(|(name, states)| {
        let handler = HandlerName::new(name.as_str()).ok()?;
        let run_out = counter(&of(&run_out, "_id", name));
        let oldest = of(&oldest, "handler", name);
        Some(handler_statistics(handler, states, run_out, &oldest))
    });
    Ok(Statistics {
        handlers: handlers.collect(),
    })
}

fn counter(document: &Document) -> u64 {
    number(document, "count")
        .and_then(|count| u64::try_from(count).ok())
        .unwrap_or(0)
}

/// `oldest` has the first message that may be claimed once it is visible, if any, and the time.
fn handler_statistics(
    handler: HandlerName,
    states: &BTreeMap<i64, u64>,
    run_out: u64,
    oldest: &Document,
) -> HandlerStatistics {
    let mut statistics = HandlerStatistics::empty(handler);
    let count = |state: State| states.get(&i64::from(code(state))).copied().unwrap_or(0);
    let leased = count(State::Leased);
    let run_out = run_out.min(leased);
    statistics.pending = count(State::Pending) + run_out;
    statistics.leased = leased - run_out;
    statistics.processed = count(State::Processed);
    statistics.blocking = states
        .get(&i64::from(segments::BLOCKING))
        .copied()
        .unwrap_or(0);
    statistics.dead = count(State::Dead) + statistics.blocking;
    statistics.discarded = count(State::Discarded);
    let first = oldest.get_array("oldest").ok();
    let first = first.and_then(|oldest| oldest.first()?.as_document());
    let now = number(oldest, "now").unwrap_or(0);
    let since = |field: &str| {
        let first = first.filter(|first| number(first, "visibleAt").is_some_and(|at| at <= now))?;
        let waited = now.saturating_sub(number(first, field)?);
        Some(Duration::from_micros(u64::try_from(waited).unwrap_or(0)))
    };
    statistics.lag = since("visibleAt");
    statistics.oldest_due_age = since("acceptedAt");
    statistics
}

/// Changes the messages `ids` where they are still as `condition` says, and looks at their
/// ordering keys. Answers how many were changed.
async fn change(
    on: &mut On<'_>,
    ids: &[String],
    condition: Document,
    pipeline: Vec<Document>,
    ordered: &[String],
    mark: ObjectId,
) -> Result<u64> {
    let mut filter = those(ids.iter().map(String::as_str));
    filter.extend(condition);
    let statement = doc! { "q": filter, "u": pipeline, "multi": true };
    let matched = on.update(vec![statement]).await?;
    if matched > 0 && !ordered.is_empty() {
        rehead(on, ordered, &[mark]).await?;
    }
    Ok(matched)
}

/// What can be replayed.
fn replayable(with_payload: bool) -> Document {
    let mut condition = doc! { "state": { "$in": codes(&FINAL) } };
    if !with_payload {
        condition.insert("payload", doc! { "$exists": true });
    }
    condition
}

/// What can be discarded, at a time of the server's.
fn discardable(now: i64) -> Document {
    doc! { "$or": [
        { "state": { "$in": codes(&[State::Pending, State::Dead]) } },
        { "state": code(State::Leased), "visibleAt": { "$lte": now } },
    ] }
}

/// One of the two interventions in a single message.
enum Act {
    Replay(Option<Bytes>),
    Discard,
}

async fn intervene(on: &mut On<'_>, key: &Key, act: &Act) -> Result<Intervention> {
    let id = identifier(key);
    loop {
        let Some(mut found) = find(on, &id).await? else {
            return Ok(Intervention::NotFound);
        };
        let now = number(&found, "now").unwrap_or(0);
        let ordered = found.contains_key("orderingKey");
        on.open(number(&found, "seq"), now).await?;
        let mark = ObjectId::new();
        let (condition, pipeline) = match act {
            Act::Replay(payload) => (
                replayable(payload.is_some()),
                stages::replay(on.database, payload.as_ref(), mark),
            ),
            Act::Discard => (discardable(now), stages::discard(on.database, mark)),
        };
        let ids = [id.clone()];
        let ordered = if ordered { ids.as_slice() } else { &[] };
        if change(on, &ids, condition, pipeline, ordered, mark).await? > 0 {
            return Ok(Intervention::Done);
        }
        let state = match record(&mut found) {
            Ok(record) => record.state,
            Err(reason) => return Err(on.error(inbox_api::ErrorKind::Corrupt, reason)),
        };
        match act {
            Act::Replay(_) if !state.is_final() => return Ok(Intervention::WrongState(state)),
            Act::Replay(None) if !found.contains_key("payloadBytes") => {
                return Ok(Intervention::PayloadDropped);
            }
            Act::Discard if !matches!(state, State::Pending | State::Dead) => {
                return Ok(Intervention::WrongState(state));
            }
            // It has changed just now.
            _ => {}
        }
    }
}

/// Finds one slice of messages and changes them.
async fn change_slice(
    on: &mut On<'_>,
    meaning: Option<Meaning>,
    slice: &Slice,
    act: &Act,
) -> Result<Progress> {
    let nothing = Progress {
        changed: 0,
        next: None,
    };
    let beyond = after(on.operation, slice.after.as_ref())?;
    let (Some(mut meaning), 1..) = (meaning, slice.limit) else {
        return Ok(nothing);
    };
    if let Some(beyond) = beyond {
        meaning.filter.insert("seq", doc! { "$gt": beyond });
    }
    if matches!(act, Act::Replay(_)) {
        meaning.filter.insert("payload", doc! { "$exists": true });
    }
    // Others may replay what is found here and see it through before it is changed.
    let still = meaning.still();
    let mut pipeline = meaning.stages(on.database, Some(doc! { "seq": 1 }));
    pipeline.push(doc! { "$limit": i64::from(slice.limit) });
    pipeline.push(doc! { "$project": { "seq": 1, "orderingKey": 1, "now": 1 } });
    let found = on.aggregate(None, pipeline).await?;
    let Some(last) = found.last() else {
        return Ok(nothing);
    };
    let now = number(last, "now").unwrap_or(0);
    on.open(seqs(&found), now).await?;
    // All that were found, also if others change some of them first: those behind are left to
    // the next slice all the same.
    let full = found.len() >= slice.limit as usize;
    let next = number(last, "seq").filter(|_| full).map(Cursor::from);
    let ids = |found: &mut dyn Iterator<Item = &Document>| -> Vec<String> {
        found.filter_map(|d| id_of(d).map(str::to_owned)).collect()
    };
    let all = ids(&mut found.iter());
    let ordered = ids(&mut found.iter().filter(|d| d.contains_key("orderingKey")));
    let mark = ObjectId::new();
    let (condition, pipeline) = match act {
        Act::Replay(payload) => (
            replayable(false),
            stages::replay(on.database, payload.as_ref(), mark),
        ),
        Act::Discard => (discardable(now), stages::discard(on.database, mark)),
    };
    let condition = doc! { "$and": [condition, still] };
    let changed = change(on, &all, condition, pipeline, &ordered, mark).await?;
    Ok(Progress { changed, next })
}

/// The messages that `expired` means and that were finished after `beyond`, with the time. The condition on the time is not part of
/// the query: the order is by it.
async fn longest_finished(
    on: &mut On<'_>,
    expired: &PurgeRequest,
    limit: u32,
    beyond: i64,
    fields: Option<Document>,
) -> Result<Vec<Document>> {
    let mut pipeline = vec![
        doc! { "$match": { "state": code(expired.state()), "finishedAt": { "$gt": beyond } } },
        doc! { "$sort": { "finishedAt": 1 } },
        doc! { "$limit": i64::from(limit) },
        doc! { "$set": { "now": on.database.now() } },
    ];
    pipeline.extend(fields.map(|fields| doc! { "$project": fields }));
    let mut found = on.aggregate(Some(STANDING_INDEX), pipeline).await?;
    let age = duration_micros(expired.older_than());
    found.retain(|document| {
        let times = number(document, "finishedAt").zip(number(document, "now"));
        times.is_some_and(|(finished, now)| finished <= now.saturating_sub(age))
    });
    Ok(found)
}

/// Deletes those of `ids` that have been in the state of `expired` since `cutoff` at the latest.
async fn delete(
    on: &mut On<'_>,
    expired: &PurgeRequest,
    ids: &[String],
    cutoff: i64,
) -> Result<u64> {
    let condition = || {
        doc! { "state": code(expired.state()), "finishedAt": { "$lte": cutoff } }
    };
    if expired.state() == State::Dead {
        // A deleted message cannot be marked, so those that block go on first.
        let mark = ObjectId::new();
        let mut blocking = condition();
        blocking.insert("open", true);
        let unblock = stages::unblock(on.database, mark);
        change(on, ids, blocking, unblock, ids, mark).await?;
    }
    let mut filter = those(ids.iter().map(String::as_str));
    filter.extend(condition());
    // A marked one goes once its ordering key has been looked at.
    filter.insert("lane", doc! { "$exists": false });
    on.delete(filter).await
}

/// Looks at the ordering keys of those that a crash has left marked, since a mark is never deleted.
async fn see_to_marks(on: &mut On<'_>, found: &[Document]) -> Result<()> {
    let marked: Vec<&Document> = found
        .iter()
        .filter(|document| document.contains_key("mark"))
        .collect();
    if marked.is_empty() {
        return Ok(());
    }
    let (ids, marks) = marks_of(&marked);
    rehead(on, &ids, &marks).await
}

async fn purge(on: &mut On<'_>, expired: &PurgeRequest) -> Result<u64> {
    let mut purged = 0;
    let mut left = expired.limit();
    let mut beyond = 0;
    while left > 0 {
        let limit = left.min(PURGE_SLICE);
        let started = std::time::Instant::now();
        let fields = doc! { "seq": 1, "finishedAt": 1, "now": 1, "lane": 1, "mark": 1 };
        let found = longest_finished(on, expired, limit, beyond, Some(fields)).await?;
        let Some(last) = found.last() else {
            break;
        };
        let cutoff = number(last, "finishedAt").unwrap_or(0);
        let ids: Vec<String> = found
            .iter()
            .filter_map(|document| id_of(document).map(str::to_owned))
            .collect();
        on.open(seqs(&found), number(last, "now").unwrap_or(0))
            .await?;
        see_to_marks(on, &found).await?;
        let deleted = delete(on, expired, &ids, cutoff).await?;
        purged += deleted;
        left -= limit;
        if found.len() < limit as usize {
            break;
        }
        if deleted == 0 {
            // Others keep changing these, or have deleted them.
            beyond = cutoff;
        }
        // Rests as long as it worked, so that the server is never busy with it alone; also behind
        // the last, since whoever reaches the limit asks for more.
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(purged)
}

async fn purge_archived(on: &mut On<'_>, expired: &PurgeRequest, keys: &[Key]) -> Result<u64> {
    let mut purged = 0;
    for some in keys.chunks(PURGE_SLICE as usize) {
        let ids: Vec<String> = some.iter().map(identifier).collect();
        let found = on
            .look(vec![
                doc! { "$match": those(ids.iter().map(String::as_str)) },
                doc! { "$project": { "seq": 1, "lane": 1, "mark": 1, "now": on.database.now() } },
            ])
            .await?;
        let Some(now) = found.first().and_then(|found| number(found, "now")) else {
            continue;
        };
        on.open(seqs(&found), now).await?;
        see_to_marks(on, &found).await?;
        let cutoff = now.saturating_sub(duration_micros(expired.older_than()));
        purged += delete(on, expired, &ids, cutoff).await?;
    }
    Ok(purged)
}

/// A blocking dead letter that is purged lets its ordering key move on; also in a purge that failed
/// later on.
fn wake_after_purge(inner: &Inner, expired: &PurgeRequest) {
    if expired.state() == State::Dead {
        inner.wakers.raise();
    }
}

impl MongoStore {
    async fn intervention(
        &self,
        operation: &'static str,
        key: &Key,
        act: Act,
    ) -> Result<Intervention> {
        let key = key.clone();
        self.checked_task(operation, move |inner| async move {
            let outcome = intervene(&mut inner.database.on(operation), &key, &act).await?;
            inner.wakers.raise();
            Ok(outcome)
        })
        .await
    }

    async fn intervention_slice(
        &self,
        operation: &'static str,
        filter: &Filter,
        slice: &Slice,
        act: Act,
        eligible: &'static [State],
    ) -> Result<Progress> {
        let (filter, slice) = (filter.clone(), slice.clone());
        self.checked_task(operation, move |inner: std::sync::Arc<Inner>| async move {
            let meaning = Meaning::eligible(&filter, eligible);
            let mut on = inner.database.on(operation);
            let progress = change_slice(&mut on, meaning, &slice, &act).await?;
            inner.wakers.raise();
            Ok(progress)
        })
        .await
    }
}

#[async_trait]
impl Operate for MongoStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let key = key.clone();
        self.checked_task("get", |inner| async move {
            get(&mut inner.database.on("get"), &key).await
        })
        .await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing> {
        let meaning = Meaning::of(filter);
        let page = page.clone();
        self.checked_task("list", |inner| async move {
            list(&mut inner.database.on("list"), meaning, &page).await
        })
        .await
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        let meaning = Meaning::of(filter);
        self.checked_task("count", |inner| async move {
            count(&mut inner.database.on("count"), &meaning).await
        })
        .await
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.checked_task("statistics", |inner| async move {
            statistics(&mut inner.database.on("statistics")).await
        })
        .await
    }

    async fn replay(&self, key: &Key, payload: Option<Bytes>) -> Result<Intervention> {
        if let Some(payload) = &payload {
            check_size("payload", payload.len(), self.inner.options.payload_limit)
                .map_err(|invalid| invalid.in_operation("replay"))?;
        }
        self.intervention("replay", key, Act::Replay(payload)).await
    }

    async fn replay_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let act = Act::Replay(None);
        self.intervention_slice("replay_slice", filter, slice, act, &FINAL)
            .await
    }

    async fn discard(&self, key: &Key) -> Result<Intervention> {
        self.intervention("discard", key, Act::Discard).await
    }

    async fn discard_slice(&self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let eligible = &[State::Pending, State::Dead];
        self.intervention_slice("discard_slice", filter, slice, Act::Discard, eligible)
            .await
    }

    async fn purge(&self, expired: &PurgeRequest) -> Result<u64> {
        let expired = expired.clone();
        self.checked_task("purge", |inner| async move {
            let purged = purge(&mut inner.database.on("purge"), &expired).await;
            wake_after_purge(&inner, &expired);
            purged
        })
        .await
    }

    async fn expired(&self, expired: &PurgeRequest) -> Result<Listing> {
        let expired = expired.clone();
        self.checked_task("expired", |inner| async move {
            let mut on = inner.database.on("expired");
            if expired.limit() == 0 {
                return Ok(Listing::default());
            }
            let found = longest_finished(&mut on, &expired, expired.limit(), 0, None).await?;
            Ok(listing(&on, found))
        })
        .await
    }

    async fn purge_archived(&self, expired: &PurgeRequest, keys: &[Key]) -> Result<u64> {
        let (expired, keys) = (expired.clone(), keys.to_vec());
        self.checked_task("purge_archived", |inner| async move {
            let mut on = inner.database.on("purge_archived");
            let purged = purge_archived(&mut on, &expired, &keys).await;
            wake_after_purge(&inner, &expired);
            purged
        })
        .await
    }
}
