//! What a settlement writes.

use std::time::Duration;

use inbox_api::{AfterDead, AttemptEnd, Outcome, PastAttempt, State, duration_micros, error_text};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use super::{add, binary, dead, finish, if_ordered, literal, mark_ordered, release, with_entry};
use crate::{
    connection::Database,
    options::MongoOptions,
    rows::{CLAIMABLE, code},
};

/// A settlement finds itself among so many newest ones of a message: others may claim and settle it,
/// many times, before a settlement that takes seconds looks what it has done.
const SIGNED: i32 = 16;

/// What becomes of a processed message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    pub(crate) drop_payload: bool,
    pub(crate) expire_after: Option<Duration>,
}

impl Keeping {
    pub(crate) fn of(options: &MongoOptions) -> Self {
        Self {
            drop_payload: options.drop_processed_payloads,
            expire_after: options.expire_processed_after,
        }
    }
}

/// What became of the newest attempts, this one included, in the form of [`PastAttempt`]'s JSON.
fn with_attempt(now: &Document, end: AttemptEnd, error: &str) -> Document {
    let attempt = doc! {
        "attempt": "$started",
        "replays": "$replays",
        "worker": "$worker",
        "leased_at": "$leasedAt",
        "ended_at": now.clone(),
        "end": end.as_str(),
        "error": literal(&*PastAttempt::error_text(error)),
    };
    with_entry(attempt)
}

/// Ends a lease, and signs that with `mark`. A message with an ordering key is left marked with it, too.
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
                set.insert("emptied", result.is_none());
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
            let due = doc! { "$add": [now.clone(), duration_micros(*after)] };
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
        Outcome::Defer { after, error } => {
            let due = doc! { "$add": [now.clone(), duration_micros(*after)] };
            let mut set = release();
            set.insert("dueAt", due.clone());
            set.insert("visibleAt", due);
            if let Some(error) = error {
                set.insert("error", literal(&*error_text(error)));
            }
            set
        }
    };
    if let Some((end, error)) = AttemptEnd::of(outcome) {
        set.insert("history", with_attempt(&now, end, error));
    }
    mark_ordered(database, &mut set, mark);
    vec![doc! { "$set": set }, sign(mark)]
}

/// Signs the settlement: it is found by `mark` although others have settled the message after it.
fn sign(mark: ObjectId) -> Document {
    let nothing: [Bson; 0] = [];
    let before = doc! { "$ifNull": ["$settledBy", nothing.as_slice()] };
    let newest = doc! { "$slice": [{ "$concatArrays": [before, [mark]] }, -SIGNED] };
    doc! { "$set": { "settledBy": newest } }
}
