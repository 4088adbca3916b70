//! Update pipelines: what each step of a message's life writes. They run within the server, on one
//! document at a time, so each is atomic and takes its time from the server.
//!
//! Whatever comes from outside is wrapped in `$literal`, or a text that begins with a `$` would be
//! read as the name of a field.

use std::time::Duration;

use inbox_api::{AfterDead, Bytes, LeaseTerms, Outcome, State, duration_micros, error_text};
use mongodb::bson::{Binary, Bson, Document, doc, oid::ObjectId, spec::BinarySubtype};

use crate::database::Database;

/// `lane` of a message that may be claimed once it is visible: one without ordering key, or the
/// first of its ordering key.
pub(crate) const CLAIMABLE: i32 = 1;
/// `lane` of a message after whose change its ordering key must be looked at again. Messages that
/// are neither have no `lane`.
pub(crate) const MARKED: i32 = 2;

pub(crate) fn code(state: State) -> i32 {
    i32::from(state.code())
}

fn literal(value: impl Into<Bson>) -> Document {
    doc! { "$literal": value.into() }
}

pub(crate) fn binary(bytes: &Bytes) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: bytes.to_vec(),
    }
}

/// `then` for a message with an ordering key, `otherwise` for one without.
fn if_ordered(then: impl Into<Bson>, otherwise: impl Into<Bson>) -> Document {
    doc! { "$cond": [{ "$gt": ["$orderingKey", null] }, then.into(), otherwise.into()] }
}

fn add(what: &str, number: i64) -> Document {
    doc! { "$add": [format!("${what}"), number] }
}

/// A token that is greater than the last, and not below the clock.
fn next_token(now: &Document) -> Document {
    doc! { "$max": [add("token", 1), now.clone()] }
}

/// Leases a message.
pub(crate) fn lease(database: &Database, terms: &LeaseTerms, claim: ObjectId) -> Vec<Document> {
    let now = database.now();
    let length = duration_micros(terms.length());
    vec![doc! { "$set": {
        "state": code(State::Leased),
        "token": next_token(&now),
        "started": add("started", 1),
        "worker": literal(terms.worker().as_str()),
        "claim": claim,
        // Whether this takes over from a lease that ran out.
        "again": { "$eq": ["$state", code(State::Leased)] },
        "visibleAt": { "$add": [now, length] },
    } }]
}

/// What a settlement writes besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    pub(crate) drop_payload: bool,
    pub(crate) expire_after: Option<Duration>,
}

/// Ends a lease. A message with an ordering key is left marked with `mark`.
pub(crate) fn settle(
    database: &Database,
    outcome: &Outcome,
    keeping: Keeping,
    mark: ObjectId,
) -> Vec<Document> {
    let now = database.now();
    let mut set = match outcome {
        Outcome::Processed { result } => {
            let mut set = finish(&now, State::Processed);
            set.insert("finished", add("finished", 1));
            set.insert("open", "$$REMOVE");
            if let Some(result) = result {
                set.insert("result", literal(binary(result)));
            }
            if keeping.drop_payload {
                set.insert("payload", "$$REMOVE");
                set.insert("payloadBytes", "$$REMOVE");
            }
            if let Some(age) = keeping.expire_after {
                let millis = duration_micros(age).div_euclid(1000);
                let at = doc! { "$add": ["$$NOW", millis] };
                // The server must not delete a mark: what it stands for would never be done.
                set.insert("expireAt", if_ordered("$$REMOVE", at.clone()));
                set.insert("expireUnmarked", if_ordered(at, "$$REMOVE"));
            }
            set
        }
        Outcome::Dead { reason, after } => {
            let mut set = dead(&now, reason);
            if *after == AfterDead::Block {
                set.insert("blocks", if_ordered(true, "$$REMOVE"));
                set.remove("open");
            }
            set
        }
        Outcome::Retry { after, error } => {
            let due = doc! { "$add": [now, duration_micros(*after)] };
            doc! {
                "state": code(State::Pending),
                "dueAt": due.clone(),
                "visibleAt": due,
                "finished": add("finished", 1),
                "error": literal(&*error_text(error)),
                "lane": CLAIMABLE,
            }
        }
        Outcome::Release => release(),
    };
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}

/// What becoming final writes, `lane` included: none.
fn finish(now: &Document, state: State) -> Document {
    doc! {
        "state": code(state),
        "finishedAt": now.clone(),
        "visibleAt": now.clone(),
        "lane": "$$REMOVE",
    }
}

fn dead(now: &Document, reason: &str) -> Document {
    let mut set = finish(now, State::Dead);
    set.insert("finished", add("finished", 1));
    set.insert("error", literal(&*error_text(reason)));
    set.insert("open", "$$REMOVE");
    set
}

fn release() -> Document {
    doc! {
        "state": code(State::Pending),
        "visibleAt": "$dueAt",
        "started": add("started", -1),
        "lane": CLAIMABLE,
    }
}

/// Marks a message with an ordering key, instead of the `lane` that `set` has. Claims come to marks
/// by the time at which they were set; [`promote`] puts the due time back.
fn mark_ordered(database: &Database, set: &mut Document, mark: ObjectId) {
    for (field, marked) in [
        ("lane", Bson::from(MARKED)),
        ("visibleAt", database.now().into()),
    ] {
        let unmarked = set.remove(field).unwrap_or_else(|| "$$REMOVE".into());
        set.insert(field, if_ordered(marked, unmarked));
    }
    set.insert("mark", if_ordered(mark, "$$REMOVE"));
}

/// Takes the lane from a pending message, to be looked at again.
pub(crate) fn demote(database: &Database, mark: ObjectId) -> Vec<Document> {
    vec![doc! { "$set": { "lane": MARKED, "mark": mark, "visibleAt": database.now() } }]
}

/// Lets a pending message be claimed.
pub(crate) fn promote() -> Vec<Document> {
    vec![doc! { "$set": { "lane": CLAIMABLE, "mark": "$$REMOVE", "visibleAt": "$dueAt" } }]
}

/// Takes the mark from a message whose ordering key was looked at. From now on it may expire.
pub(crate) fn unmark() -> Vec<Document> {
    let either = doc! { "$ifNull": ["$expireUnmarked", "$expireAt"] };
    vec![doc! { "$set": {
        "expireAt": { "$cond": [{ "$gt": [either.clone(), null] }, either, "$$REMOVE"] },
        "expireUnmarked": "$$REMOVE",
        "lane": "$$REMOVE",
        "mark": "$$REMOVE",
    } }]
}

/// Hands back what was leased although it is not the first of its ordering key.
pub(crate) fn hand_back(database: &Database, mark: ObjectId) -> Vec<Document> {
    let mut set = release();
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}

/// Sets a message aside that cannot be read. It may be of any form.
pub(crate) fn set_aside(database: &Database, reason: &str, mark: ObjectId) -> Vec<Document> {
    let mut set = dead(&database.now(), reason);
    set.remove("finished");
    set.insert("blocks", "$$REMOVE");
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}

/// Makes a final message pending again.
pub(crate) fn replay(
    database: &Database,
    payload: Option<&Bytes>,
    mark: ObjectId,
) -> Vec<Document> {
    let now = database.now();
    let mut set = doc! {
        "state": code(State::Pending),
        "dueAt": now.clone(),
        "visibleAt": now,
        "started": 0,
        "finished": 0,
        "replays": add("replays", 1),
        "lane": CLAIMABLE,
        "open": if_ordered(true, "$$REMOVE"),
    };
    for gone in [
        "error",
        "finishedAt",
        "result",
        "blocks",
        "expireAt",
        "expireUnmarked",
    ] {
        set.insert(gone, "$$REMOVE");
    }
    if let Some(payload) = payload {
        set.insert("payload", literal(binary(payload)));
        set.insert(
            "payloadBytes",
            i64::try_from(payload.len()).unwrap_or(i64::MAX),
        );
    }
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}

/// Gives a message up. One whose lease has run out also gets a new token, so that its old holder
/// is told.
pub(crate) fn discard(database: &Database, mark: ObjectId) -> Vec<Document> {
    let now = database.now();
    let mut set = finish(&now, State::Discarded);
    set.insert(
        "token",
        doc! { "$cond": [
            { "$eq": ["$state", code(State::Leased)] }, next_token(&now), "$token",
        ] },
    );
    set.insert("open", "$$REMOVE");
    set.insert("blocks", "$$REMOVE");
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}

/// Stops a dead message from blocking its ordering key, before it is deleted.
pub(crate) fn unblock(database: &Database, mark: ObjectId) -> Vec<Document> {
    let mut set = doc! { "open": "$$REMOVE", "blocks": "$$REMOVE" };
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }]
}

/// Makes a lease run for `length` from now.
pub(crate) fn extend(database: &Database, length: Duration) -> Vec<Document> {
    let until = doc! { "$add": [database.now(), duration_micros(length)] };
    vec![doc! { "$set": { "visibleAt": until } }]
}

/// Makes a lease run for `length` from now, unless it does so for longer.
pub(crate) fn prolong(database: &Database, length: Duration) -> Vec<Document> {
    let until = doc! { "$add": [database.now(), duration_micros(length)] };
    vec![doc! { "$set": { "visibleAt": { "$max": ["$visibleAt", until] } } }]
}

/// Completes, within a transaction, a message that nobody holds. A new token tells a worker whose
/// lease ran out.
pub(crate) fn record(
    database: &Database,
    result: Option<&Bytes>,
    keeping: Keeping,
    mark: ObjectId,
) -> Vec<Document> {
    let mut pipeline = vec![doc! { "$set": {
        "token": next_token(&database.now()),
        "started": add("started", 1),
    } }];
    let outcome = Outcome::Processed {
        result: result.cloned(),
    };
    pipeline.extend(settle(database, &outcome, keeping, mark));
    pipeline
}
