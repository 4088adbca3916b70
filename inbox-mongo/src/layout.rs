//! What an inbox looks like in its database: names, indexes, the validator, and the commands that make
//! them.

use std::fmt::Write as _;

use inbox_api::InboxName;
use mongodb::bson::{Document, doc};

use crate::sessions::write_concern_document;

/// The commands that bring an inbox from version n to n + 1, which must do no harm when repeated. What is only
/// new (an index, a document) needs no step: it is made as in an inbox that is not there. Never changed once
/// released.
pub(crate) type Step = fn(&InboxName) -> Vec<Document>;
pub(crate) const STEPS: &[Step] = &[];
/// Of this layout, which a new inbox has from the start.
pub(crate) const VERSION: u32 = version_of(STEPS);
/// The oldest version whose builds work with this layout. Raised by a step that they would not work with.
pub(crate) const WORKS_FROM: u32 = 1;
pub(crate) const MARKER: &str = "inbox.mongo";
/// The `_id` of the document with the version.
pub(crate) const SCHEMA: &str = "schema";
/// The `_id` of the document with the handlers that are paused.
pub(crate) const PAUSED: &str = "paused";
/// The index that every collection has.
pub(crate) const ID_INDEX: &str = "_id_";
/// The index that claims read.
pub(crate) const CLAIM_INDEX: &str = "claim";
pub(crate) const SEQUENCE_INDEX: &str = "sequence";
pub(crate) const STANDING_INDEX: &str = "standing";
pub(crate) const ORDERING_INDEX: &str = "ordering";

/// The version that `steps` make.
pub(crate) const fn version_of(steps: &[Step]) -> u32 {
    1 + steps.len() as u32
}

pub(crate) fn messages(inbox: &InboxName) -> String {
    format!("{inbox}_message")
}

pub(crate) fn meta(inbox: &InboxName) -> String {
    format!("{inbox}_meta")
}

/// What every message has. The store reads more closely; this is for other writers.
pub(crate) fn validator() -> Document {
    let text = doc! { "bsonType": "string" };
    let whole = doc! { "bsonType": ["int", "long"] };
    doc! { "$jsonSchema": {
        "bsonType": "object",
        "required": [
            "_id", "seq", "handler", "id", "kind", "headers", "fingerprint", "acceptedAt", "dueAt",
            "visibleAt", "state", "token", "started", "finished", "replays",
        ],
        "properties": {
            "_id": text.clone(),
            "handler": text.clone(),
            "id": text.clone(),
            "kind": text.clone(),
            "contentType": text.clone(),
            "orderingKey": text.clone(),
            "headers": text.clone(),
            "worker": text.clone(),
            "error": text,
            "seq": whole.clone(),
            "fingerprint": whole.clone(),
            "acceptedAt": whole.clone(),
            "dueAt": whole.clone(),
            "visibleAt": whole.clone(),
            "finishedAt": whole.clone(),
            "leasedAt": whole.clone(),
            "token": whole.clone(),
            "started": whole.clone(),
            "finished": whole.clone(),
            "replays": whole.clone(),
            "payloadBytes": whole,
            "state": { "bsonType": ["int", "long"], "minimum": 0, "maximum": 4 },
            "lane": { "bsonType": ["int", "long"], "minimum": 1, "maximum": 2 },
            "payload": { "bsonType": "binData" },
            "result": { "bsonType": "binData" },
            "emptied": { "bsonType": "bool" },
            "history": { "bsonType": "array" },
            "expireAt": { "bsonType": "date" },
        },
    } }
}

pub(crate) fn create_messages(inbox: &InboxName) -> Document {
    doc! {
        "create": messages(inbox),
        "validator": validator(),
        "validationLevel": "strict",
        "validationAction": "error",
    }
}

pub(crate) fn indexes() -> Vec<Document> {
    vec![
        // What claims read: messages that may be claimed, and those whose ordering key must be
        // looked at.
        doc! {
            "name": CLAIM_INDEX,
            "key": { "handler": 1, "visibleAt": 1, "seq": 1 },
            "partialFilterExpression": { "lane": { "$gt": 0 } },
        },
        // Listings.
        doc! { "name": SEQUENCE_INDEX, "key": { "seq": 1 } },
        // Leases that have run out, and which messages are the next to be purged or emptied.
        doc! {
            "name": STANDING_INDEX,
            "key": { "state": 1, "handler": 1, "emptied": 1, "finishedAt": 1 },
        },
        // The earliest open message of an ordering key.
        doc! {
            "name": ORDERING_INDEX,
            "key": { "handler": 1, "orderingKey": 1, "seq": 1 },
            "partialFilterExpression": { "open": true },
        },
        // Those of an ordering key that are in front.
        doc! {
            "name": "front",
            "key": { "handler": 1, "orderingKey": 1, "lane": 1 },
            "partialFilterExpression": { "lane": { "$gt": 0 }, "orderingKey": { "$gt": "" } },
        },
        // Messages that the server is to delete by itself.
        doc! {
            "name": "expiry",
            "key": { "expireAt": 1 },
            "expireAfterSeconds": 0,
            "partialFilterExpression": { "expireAt": { "$exists": true } },
        },
    ]
}

pub(crate) fn create_indexes(inbox: &InboxName) -> Document {
    doc! { "createIndexes": messages(inbox), "indexes": indexes() }
}

pub(crate) fn sequence() -> Document {
    doc! { "_id": "sequence", "last": 0_i64 }
}

pub(crate) fn paused() -> Document {
    let nobody: [&str; 0] = [];
    doc! { "_id": PAUSED, "handlers": nobody.as_slice() }
}

/// Of an inbox that is being set up.
pub(crate) fn mark() -> Document {
    doc! {
        "_id": SCHEMA,
        "marker": MARKER,
        "version": i64::from(VERSION),
        "worksFrom": i64::from(WORKS_FROM),
        "complete": false,
    }
}

/// The mark comes first and says only at the end that the inbox is complete, as `create` does it, so
/// that what breaks off in the middle is completed by `create`.
pub(crate) fn ddl(database: &str, inbox: &InboxName) -> String {
    let insert = |documents: Vec<Document>| doc! { "insert": meta(inbox), "documents": documents };
    let complete = doc! { "q": { "_id": SCHEMA }, "u": { "$set": { "complete": true } } };
    let commands = [
        insert(vec![mark()]),
        create_messages(inbox),
        create_indexes(inbox),
        insert(vec![sequence(), paused()]),
        doc! { "update": meta(inbox), "updates": [complete] },
    ];
    let confirmed = |mut command: Document| {
        command.insert("writeConcern", write_concern_document());
        command
    };
    let mut text = String::from("// For mongosh.\n");
    write_commands(&mut text, database, commands.into_iter().map(confirmed));
    text
}

fn write_commands(text: &mut String, database: &str, commands: impl Iterator<Item = Document>) {
    let _ = writeln!(text, "db = db.getSiblingDB({database:?});");
    for command in commands {
        let json = serde_json::to_string_pretty(&command).unwrap_or_default();
        let _ = writeln!(text, "db.runCommand({json});");
    }
}

/// What is looked at to see whether an inbox is complete: no one command does.
pub(crate) fn exists_query(database: &str, inbox: &InboxName) -> String {
    let version = i64::from(VERSION);
    let complete = doc! {
        "_id": SCHEMA,
        "marker": MARKER,
        "version": { "$gte": version },
        "worksFrom": { "$lte": version },
        "complete": true,
    };
    let own = doc! { "_id": { "$in": [sequence().get("_id"), paused().get("_id")] } };
    let commands = [
        doc! { "find": meta(inbox), "filter": complete },
        doc! { "find": meta(inbox), "filter": own },
        doc! { "listCollections": 1, "filter": { "name": messages(inbox) } },
        doc! { "listIndexes": messages(inbox) },
    ];
    let mut text = format!(
        "// For mongosh. A complete inbox of version {VERSION}, or one that it works with, is there if the first\n\
         // command finds one document and the second one two, and if the third one finds the collection with the\n\
         // validator, and the fourth one each index, as the DDL makes them.\n"
    );
    write_commands(&mut text, database, commands.into_iter());
    text
}
