//! Setting up: the collections, their validator and their indexes. The mark of the version is written
//! first, and says that the inbox is complete only at the end. In between it carries the lock of the
//! one process that does the work, with a lease by the server's clock, so that another one takes
//! over from a process that died. Each step may be done twice, also by two at once, so a process
//! that is slower than its lease does no harm.

use std::{fmt::Write as _, time::Duration};

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, InboxName, Migration, Result, Schema};
use mongodb::{
    bson::{Bson, Document, doc, oid::ObjectId},
    error::{Error as DriverError, ErrorKind as Driver, WriteFailure},
    options::{ReadConcern, ReadPreference, ReturnDocument},
};

use tokio::time::sleep;

use crate::{
    database::{Database, number, write_concern, write_concern_document},
    error::{DUPLICATE_KEY, code, in_operation, reading},
    ordering::check_shards,
    store::MongoStore,
};

const VERSION: u32 = 1;
const MARKER: &str = "inbox.mongo";
const SCHEMA: &str = "schema";
/// The index that every collection has.
pub(crate) const ID_INDEX: &str = "_id_";
/// The index that claims read.
pub(crate) const CLAIM_INDEX: &str = "claim";
pub(crate) const SEQUENCE_INDEX: &str = "sequence";
pub(crate) const STANDING_INDEX: &str = "standing";
pub(crate) const ORDERING_INDEX: &str = "ordering";

/// For how long a process may set up before others take over, in microseconds.
const LOCK_LEASE: i64 = 30_000_000;
/// How often the others look.
const LOCK_POLL: Duration = Duration::from_millis(200);

const NAMESPACE_EXISTS: i32 = 48;
/// An index of that name or of those keys is there with other options.
const INDEX_CONFLICTS: [i32; 3] = [67, 85, 86];

fn messages(inbox: &InboxName) -> String {
    format!("{inbox}_message")
}

fn meta(inbox: &InboxName) -> String {
    format!("{inbox}_meta")
}

/// What every message has. The store reads more closely; this is for other writers.
fn validator() -> Document {
    let text = doc! { "bsonType": "string" };
    let whole = doc! { "bsonType": ["int", "long"] };
    doc! { "$jsonSchema": {
        "bsonType": "object",
        "required": [
            "_id", "seq", "handler", "id", "kind", "headers", "acceptedAt", "dueAt", "visibleAt",
            "state", "token", "started", "finished", "replays",
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
            "acceptedAt": whole.clone(),
            "dueAt": whole.clone(),
            "visibleAt": whole.clone(),
            "finishedAt": whole.clone(),
            "token": whole.clone(),
            "started": whole.clone(),
            "finished": whole.clone(),
            "replays": whole.clone(),
            "payloadBytes": whole,
            "state": { "bsonType": ["int", "long"], "minimum": 0, "maximum": 4 },
            "lane": { "bsonType": ["int", "long"], "minimum": 1, "maximum": 2 },
            "payload": { "bsonType": "binData" },
            "result": { "bsonType": "binData" },
            "expireAt": { "bsonType": "date" },
        },
    } }
}

fn create_messages(inbox: &InboxName) -> Document {
    doc! {
        "create": messages(inbox),
        "validator": validator(),
        "validationLevel": "strict",
        "validationAction": "error",
    }
}

fn indexes() -> Vec<Document> {
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
        // Counts, and what a purge deletes next.
        doc! { "name": STANDING_INDEX, "key": { "state": 1, "finishedAt": 1, "handler": 1 } },
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

fn create_indexes(inbox: &InboxName) -> Document {
    doc! { "createIndexes": messages(inbox), "indexes": indexes() }
}

fn sequence() -> Document {
    doc! { "_id": "sequence", "last": 0_i64 }
}

/// Of an inbox that is being set up.
fn mark() -> Document {
    doc! { "_id": SCHEMA, "marker": MARKER, "version": i64::from(VERSION), "complete": false }
}

/// The mark comes first and says only at the end that the inbox is complete, as in [`apply`], so
/// that what breaks off in the middle is completed by `create`.
pub(crate) fn ddl(database: &str, inbox: &InboxName) -> String {
    let insert = |document: Document| doc! { "insert": meta(inbox), "documents": [document] };
    let complete = doc! { "q": { "_id": SCHEMA }, "u": { "$set": { "complete": true } } };
    let commands = [
        insert(mark()),
        create_messages(inbox),
        create_indexes(inbox),
        insert(sequence()),
        doc! { "update": meta(inbox), "updates": [complete] },
    ];
    let mut text = format!("// For mongosh.\ndb = db.getSiblingDB({database:?});\n");
    for mut command in commands {
        command.insert("writeConcern", write_concern_document());
        let json = serde_json::to_string_pretty(&command).unwrap_or_default();
        let _ = writeln!(text, "db.runCommand({json});");
    }
    text
}

/// What stands in the database under the inbox's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Version { version: u32, complete: bool },
    Foreign,
}

/// A document of the inbox's own, or of whoever else has a collection of that name.
async fn find_meta(
    operation: &'static str,
    database: &Database,
    filter: Document,
) -> Result<Option<Document>> {
    database
        .meta()
        .find_one(filter)
        .read_concern(ReadConcern::majority())
        .selection_criteria(ReadPreference::Primary.into())
        .await
        .map_err(reading(operation))
}

async fn read_mark(operation: &'static str, database: &Database) -> Result<Option<Document>> {
    find_meta(operation, database, doc! { "_id": SCHEMA }).await
}

fn read_version(mark: &Document) -> Found {
    let version = number(mark, "version").and_then(|version| version.try_into().ok());
    match version {
        Some(version) if mark.get_str("marker").is_ok_and(|found| found == MARKER) => {
            Found::Version {
                version,
                complete: mark.get_bool("complete").unwrap_or(false),
            }
        }
        _ => Found::Foreign,
    }
}

async fn find(operation: &'static str, database: &Database) -> Result<Found> {
    let mapped = reading(operation);
    if let Some(mark) = read_mark(operation, database).await? {
        return Ok(read_version(&mark));
    }
    let names = [messages(&database.inbox), meta(&database.inbox)];
    let present = database
        .handle()
        .list_collection_names()
        .filter(doc! { "name": { "$in": names.as_slice() } })
        .await
        .map_err(mapped)?;
    let used = present.contains(&names[0])
        || (present.contains(&names[1])
            && find_meta(operation, database, doc! {}).await?.is_some());
    if !used {
        return Ok(Found::Nothing);
    }
    // Somebody may have begun to set it up between the two looks.
    Ok(match read_mark(operation, database).await? {
        Some(mark) => read_version(&mark),
        None => Found::Foreign,
    })
}

/// `1`, `1_i64` and `1.0` are the same to the server.
fn plain(value: &Bson) -> Bson {
    match value {
        Bson::Double(number) => Bson::Int64(*number as i64),
        Bson::Int32(number) => Bson::Int64(i64::from(*number)),
        Bson::Document(document) => plain_document(document).into(),
        Bson::Array(values) => values.iter().map(plain).collect::<Vec<_>>().into(),
        other => other.clone(),
    }
}

fn plain_document(document: &Document) -> Document {
    document
        .iter()
        .map(|(name, value)| (name.clone(), plain(value)))
        .collect()
}

/// Options that change what an index holds or finds, and that none of ours has.
const NO_INDEX_HAS: &[&str] = &["unique", "sparse", "collation", "hidden", "prepareUnique"];

/// Whether an index that is there is as `wanted`.
fn same_index(wanted: &Document, present: &Document) -> bool {
    // As text, since documents that differ in the order of their fields are equal.
    let text = |value: &Bson| plain(value).to_string();
    let same = |field: &str| present.get(field).map(text) == wanted.get(field).map(text);
    let off = |field: &&str| matches!(present.get(field), None | Some(Bson::Boolean(false)));
    ["key", "partialFilterExpression", "expireAfterSeconds"]
        .into_iter()
        .all(same)
        && NO_INDEX_HAS.iter().all(off)
}

/// The first part that is missing or not as this build makes it.
async fn missing_part(
    operation: &'static str,
    database: &Database,
) -> Result<Option<&'static str>> {
    let mapped = reading(operation);
    let name = messages(&database.inbox);
    let mut collections = database
        .handle()
        .list_collections()
        .filter(doc! { "name": &name })
        .await
        .map_err(mapped)?;
    if !collections.advance().await.map_err(mapped)? {
        return Ok(Some("the collection of messages"));
    }
    let present: Document = collections
        .current()
        .try_into()
        .map_err(|_| Error::new(ErrorKind::Other, operation, "a reply cannot be read"))?;
    let options = present.get_document("options").cloned().unwrap_or_default();
    let odd = ["collation", "capped", "timeseries", "viewOn"];
    if odd.iter().any(|option| options.contains_key(option)) {
        return Ok(Some("a plain collection of messages"));
    }
    let same_validator =
        options.get("validator").map(plain) == Some(Bson::from(validator())).as_ref().map(plain);
    if !database.server.is_ferretdb && !same_validator {
        return Ok(Some("the validator of the messages"));
    }
    let mut present = Vec::new();
    let mut cursor = database
        .handle()
        .run_cursor_command(doc! { "listIndexes": &name })
        .await
        .map_err(mapped)?;
    while cursor.advance().await.map_err(mapped)? {
        present.push(cursor.deserialize_current().map_err(mapped)?);
    }
    let names = [
        ("claim", "the index claim"),
        ("sequence", "the index sequence"),
        ("standing", "the index standing"),
        ("ordering", "the index ordering"),
        ("front", "the index front"),
        ("expiry", "the index expiry"),
    ];
    for (wanted, (name, part)) in indexes().iter().zip(names) {
        let named = present
            .iter()
            .find(|index: &&Document| index.get_str("name").is_ok_and(|found| found == name));
        if !named.is_some_and(|index| same_index(wanted, index)) {
            return Ok(Some(part));
        }
    }
    let drawn = find_meta(operation, database, doc! { "_id": "sequence" }).await?;
    if drawn
        .and_then(|sequence| number(&sequence, "last"))
        .is_none()
    {
        return Ok(Some("the document of sequence numbers"));
    }
    Ok(None)
}

fn wrong_version(operation: &'static str, database: &Database, found: u32) -> Error {
    let what = if found > VERSION {
        "use a newer build"
    } else {
        "migrate it"
    };
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "the inbox {} has schema version {found}, this build works with {VERSION}: {what}",
            database.inbox
        ),
    )
}

fn foreign(operation: &'static str, database: &Database) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "there are collections of the names of the inbox {0} without the mark of an inbox, the \
             document {SCHEMA:?} in {0}_meta (version unknown, this build works with {VERSION}); \
             choose another inbox name or database, or drop them if nobody needs them",
            database.inbox
        ),
    )
}

fn incomplete(operation: &'static str, database: &Database, part: &str) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "the inbox {} says version {VERSION}, but this is missing or not as this build's \
             version {VERSION} makes it: {part}; ddl shows it, for putting it right by hand",
            database.inbox
        ),
    )
}

fn unfinished(operation: &'static str, database: &Database) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "setting up the inbox {} in version {VERSION} was begun and not finished; create or \
             migrate finishes it",
            database.inbox
        ),
    )
}

/// Fails unless an inbox of the expected version is there. Looks at its mark only, so that it is
/// cheap enough for the first use of every store.
pub(crate) async fn check_version(operation: &'static str, database: &Database) -> Result<()> {
    match find(operation, database).await? {
        Found::Version { version, complete } if version == VERSION => {
            if !complete {
                return Err(unfinished(operation, database));
            }
            check_shards(operation, database).await
        }
        Found::Version { version, .. } => Err(wrong_version(operation, database, version)),
        Found::Foreign => Err(foreign(operation, database)),
        Found::Nothing => Err(Error::new(
            ErrorKind::SchemaMissing,
            operation,
            format!(
                "there is no inbox {}; create or migrate sets one up",
                database.inbox
            ),
        )),
    }
}

fn is_duplicate(error: &DriverError) -> bool {
    matches!(
        error.kind.as_ref(),
        Driver::Write(WriteFailure::WriteError(write)) if write.code == DUPLICATE_KEY
    )
}

/// Inserts a document of the inbox's own, if it is not there. Answers whether it was not.
async fn ensure(operation: &'static str, database: &Database, document: Document) -> Result<bool> {
    let inserted = database
        .meta()
        .insert_one(document)
        .write_concern(write_concern())
        .await;
    match inserted {
        Ok(_) => Ok(true),
        Err(error) if is_duplicate(&error) => Ok(false),
        Err(error) => Err(in_operation(operation)(error)),
    }
}

/// Runs a command, passing over errors of these codes.
async fn run(
    operation: &'static str,
    database: &Database,
    mut command: Document,
    harmless: &[i32],
) -> Result<()> {
    command.insert("writeConcern", write_concern_document());
    match database.handle().run_command(command).await {
        Ok(reply) => crate::error::in_reply(operation, &reply).map_or(Ok(()), Err),
        Err(error) if code(&error).is_some_and(|code| harmless.contains(&code)) => Ok(()),
        Err(error) => Err(in_operation(operation)(error)),
    }
}

/// Takes the lock if it is free and there is something left to do, by one atomic change of the mark.
async fn lock(operation: &'static str, database: &Database, holder: ObjectId) -> Result<bool> {
    let now = database.now();
    let held = doc! { "by": holder, "until": { "$add": [now.clone(), LOCK_LEASE] } };
    // A lock that is not there sorts before any time.
    let free = doc! { "$lte": ["$lock.until", now] };
    let marked = database
        .meta()
        .find_one_and_update(
            doc! { "_id": SCHEMA, "complete": false },
            vec![doc! { "$set": { "lock": { "$cond": [free, held, "$lock"] } } }],
        )
        .return_document(ReturnDocument::After)
        .write_concern(write_concern())
        .await
        .map_err(in_operation(operation))?;
    let lock = marked
        .as_ref()
        .and_then(|mark| mark.get_document("lock").ok());
    Ok(lock.and_then(|lock| lock.get_object_id("by").ok()) == Some(holder))
}

/// Changes the mark, unless the lock has been taken over.
async fn unlock(
    operation: &'static str,
    database: &Database,
    holder: ObjectId,
    mut change: Document,
) -> Result<()> {
    change.insert("$unset", doc! { "lock": "" });
    database
        .meta()
        .update_one(doc! { "_id": SCHEMA, "lock.by": holder }, change)
        .write_concern(write_concern())
        .await
        .map_err(in_operation(operation))?;
    Ok(())
}

/// Does the steps, all of which may have been done before.
async fn set_up(operation: &'static str, database: &Database) -> Result<()> {
    let inbox = &database.inbox;
    run(
        operation,
        database,
        create_messages(inbox),
        &[NAMESPACE_EXISTS],
    )
    .await?;
    run(operation, database, create_indexes(inbox), &INDEX_CONFLICTS).await?;
    ensure(operation, database, sequence()).await?;
    match missing_part(operation, database).await? {
        Some(part) => Err(incomplete(operation, database, part)),
        None => Ok(()),
    }
}

/// Sets up what is not there.
async fn apply(
    operation: &'static str,
    database: &Database,
    from_nothing_only: bool,
) -> Result<Migration> {
    let holder = ObjectId::new();
    loop {
        match find(operation, database).await? {
            Found::Version { version, .. }
                if version > VERSION || (version < VERSION && from_nothing_only) =>
            {
                return Err(wrong_version(operation, database, version));
            }
            Found::Version {
                version,
                complete: true,
            } => {
                return match missing_part(operation, database).await? {
                    Some(part) => Err(incomplete(operation, database, part)),
                    None => Ok(Migration {
                        from: Some(version),
                        to: VERSION,
                    }),
                };
            }
            Found::Foreign => return Err(foreign(operation, database)),
            Found::Nothing => {
                ensure(operation, database, mark()).await?;
            }
            Found::Version { .. } => {}
        }
        if lock(operation, database, holder).await? {
            break;
        }
        sleep(LOCK_POLL).await;
    }
    if let Err(error) = set_up(operation, database).await {
        // If this fails too, the lock runs out.
        let _ = unlock(operation, database, holder, Document::new()).await;
        return Err(error);
    }
    let complete = doc! { "$set": { "complete": true } };
    unlock(operation, database, holder, complete).await?;
    if find(operation, database).await?
        == (Found::Version {
            version: VERSION,
            complete: false,
        })
    {
        return Err(unfinished(operation, database));
    }
    Ok(Migration {
        from: None,
        to: VERSION,
    })
}

async fn exists(operation: &'static str, database: &Database) -> Result<bool> {
    match find(operation, database).await? {
        Found::Nothing => return Ok(false),
        Found::Foreign => return Err(foreign(operation, database)),
        Found::Version { version, .. } if version > VERSION => {
            return Err(wrong_version(operation, database, version));
        }
        Found::Version { version, complete } if version < VERSION || !complete => {
            return Ok(false);
        }
        Found::Version { .. } => {}
    }
    let Some(part) = missing_part(operation, database).await? else {
        return Ok(true);
    };
    let inbox = &database.inbox;
    tracing::warn!(%inbox, part, "a part of the inbox is missing, or not as this build makes it");
    Ok(false)
}

#[async_trait]
impl Schema for MongoStore {
    fn ddl(&self) -> String {
        let database = &self.inner.database;
        ddl(database.handle().name(), &database.inbox)
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        const OPERATION: &str = "version";
        self.task(OPERATION, |inner| async move {
            match find(OPERATION, &inner.database).await? {
                Found::Nothing => Ok(None),
                Found::Version { version, .. } => Ok(Some(version)),
                Found::Foreign => Err(foreign(OPERATION, &inner.database)),
            }
        })
        .await
    }

    async fn exists(&self) -> Result<bool> {
        const OPERATION: &str = "exists";
        self.task(OPERATION, |inner| async move {
            exists(OPERATION, &inner.database).await
        })
        .await
    }

    async fn create(&self) -> Result<()> {
        const OPERATION: &str = "create";
        self.task(OPERATION, |inner| async move {
            apply(OPERATION, &inner.database, true).await.map(drop)
        })
        .await
    }

    async fn migrate(&self) -> Result<Migration> {
        const OPERATION: &str = "migrate";
        self.task(OPERATION, |inner| async move {
            apply(OPERATION, &inner.database, false).await
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_compared_by_what_they_do() {
        let wanted = indexes();
        let claim = wanted.first().unwrap();
        let mut present = claim.clone();
        present.insert("v", 2);
        present.insert("key", doc! { "handler": 1.0, "visibleAt": 1_i64, "seq": 1 });
        assert!(same_index(claim, &present));
        for (field, value) in [
            ("unique", Bson::from(true)),
            ("collation", doc! { "locale": "de" }.into()),
            ("expireAfterSeconds", 5.into()),
            ("partialFilterExpression", doc! { "lane": 1 }.into()),
            (
                "key",
                doc! { "visibleAt": 1, "handler": 1, "seq": 1 }.into(),
            ),
        ] {
            let mut other = present.clone();
            other.insert(field, value);
            assert!(!same_index(claim, &other), "{field}");
        }
        present.remove("partialFilterExpression");
        assert!(!same_index(claim, &present));
    }

    #[test]
    fn marks_tell_versions_from_foreign_documents() {
        let found = |mark: Document| read_version(&mark);
        assert_eq!(
            found(mark()),
            Found::Version {
                version: VERSION,
                complete: false
            }
        );
        assert_eq!(
            found(doc! { "_id": "schema", "version": 1 }),
            Found::Foreign
        );
        assert_eq!(
            found(doc! { "marker": MARKER, "version": -1 }),
            Found::Foreign
        );
    }
}
