//! Update pipelines: what each step of a message's life writes. They run within the server, on one
//! document at a time, so each is atomic and takes its time from the server.
//!
//! Whatever comes from outside is wrapped in `$literal`, or a text that begins with a `$` would be
//! read as the name of a field.

mod claim;
mod discard;
mod empty;
mod extend;
mod keep_result;
mod key_heads;
mod purge;
mod record;
mod replay;
mod reschedule;
mod settle;
mod sign;

use inbox_api::{Bytes, History, State, error_text};
use mongodb::bson::{Binary, Bson, Document, doc, oid::ObjectId, spec::BinarySubtype};

pub(crate) use self::{
    claim::{hand_back, lease, set_aside},
    discard::discard,
    empty::empty,
    extend::{extend, prolong},
    keep_result::keep_result,
    key_heads::{promote, unclaim_heads, unmark},
    purge::unblock,
    record::record,
    replay::replay,
    reschedule::reschedule,
    settle::{Keeping, settle},
    sign::sign_intervention,
};
use crate::{
    connection::Database,
    rows::{CLAIMABLE, MARKED, code},
};

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

/// The token of a message that nobody may hold any more: a new one where a lease has run out, so that
/// its old holder is told.
fn end_lease(now: &Document) -> Document {
    doc! { "$cond": [
        { "$eq": ["$state", code(State::Leased)] }, next_token(now), "$token",
    ] }
}

/// What becoming final writes, `lane` included: none.
fn finish(now: &Document, state: State) -> Document {
    doc! {
        "state": code(state),
        "finishedAt": now.clone(),
        "visibleAt": now.clone(),
        "lane": "$$REMOVE",
        // Whether neither payload nor result is left. An emptied dead letter may be discarded.
        "emptied": { "$eq": ["$emptied", true] },
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

/// The history with another entry, in the form of its JSON, and without the oldest beyond its bound.
fn with_entry(entry: Document) -> Document {
    let nothing: [Bson; 0] = [];
    let before = doc! { "$cond": [{ "$isArray": "$history" }, "$history", nothing.as_slice()] };
    let newest = -i64::try_from(History::KEPT).unwrap_or(i64::MAX);
    doc! { "$slice": [{ "$concatArrays": [before, [entry]] }, newest] }
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
