//! Setting up: the collections, their validator and their indexes. The mark of the version is written
//! first, and says that the inbox is complete only at the end. In between it carries the lock of the
//! one process that does the work, with a lease by the server's clock, so that another one takes
//! over from a process that died. Each step may be done twice, also by two at once, so a process
//! that is slower than its lease does no harm.

mod left_behind;
pub(crate) mod version;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, Migration, Result, Schema};
use mongodb::{
    bson::{Bson, Document, doc, oid::ObjectId},
    error::{Error as DriverError, ErrorKind as Driver, WriteFailure},
    options::ReturnDocument,
};
use tokio::time::sleep;

use self::{
    left_behind::left_behind,
    version::{
        Found, Marked, find, find_meta, foreign, incomplete, read_mark, unfinished, wrong_version,
    },
};
use crate::{
    connection::Database,
    error::{DUPLICATE_KEY, before, code, failed, in_reply, is_internal},
    layout::{
        self, PAUSED, SCHEMA, STEPS, Step, VERSION, WORKS_FROM, create_indexes, create_messages,
        indexes, mark, messages, meta, paused, sequence, validator, version_of,
    },
    rows::number,
    sessions::{write_concern, write_concern_document},
    store::MongoStore,
};

/// For how long a process may set up before others take over.
const LOCK_LEASE: Duration = Duration::from_secs(10);
/// Which part of an operation's time that is at most: those that wait for a process that died have to have time left.
const LOCK_LEASE_PART: u32 = 3;
/// How often the others look.
const LOCK_POLL: Duration = Duration::from_millis(200);

/// How often a process sets up, and how often FerretDB is asked to.
const TRIES: u32 = 5;

const NAMESPACE_EXISTS: i32 = 48;
const NAMESPACE_NOT_FOUND: i32 = 26;
/// An index of that name or of those keys is there with other options.
const INDEX_CONFLICTS: [i32; 3] = [67, 85, 86];
const INDEX_NOT_FOUND: i32 = 27;

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
async fn missing_part(database: &Database) -> Result<Option<&'static str>> {
    let name = messages(&database.options.inbox);
    let mut collections = database
        .handle()
        .list_collections()
        .filter(doc! { "name": &name })
        .await
        .map_err(before)?;
    if !collections.advance().await.map_err(before)? {
        return Ok(Some("the collection of messages"));
    }
    let present: Document = collections
        .current()
        .try_into()
        .map_err(|_| Error::new(ErrorKind::Other, "a reply cannot be read"))?;
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
    let listed = database
        .handle()
        .run_cursor_command(doc! { "listIndexes": &name })
        .await;
    let mut cursor = match listed {
        // Another process has removed it since.
        Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => {
            return Ok(Some("the collection of messages"));
        }
        listed => listed.map_err(before)?,
    };
    while cursor.advance().await.map_err(before)? {
        present.push(cursor.deserialize_current().map_err(before)?);
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
    let drawn = find_meta(database, doc! { "_id": "sequence" }).await?;
    if drawn
        .and_then(|sequence| number(&sequence, "last"))
        .is_none()
    {
        return Ok(Some("the document of sequence numbers"));
    }
    let paused = find_meta(database, doc! { "_id": PAUSED }).await?;
    if paused.is_none_or(|paused| paused.get_array("handlers").is_err()) {
        return Ok(Some("the document of paused handlers"));
    }
    Ok(None)
}

fn is_duplicate(error: &DriverError) -> bool {
    matches!(
        error.kind.as_ref(),
        Driver::Write(WriteFailure::WriteError(write)) if write.code == DUPLICATE_KEY
    )
}

/// Inserts a document of the inbox's own, if it is not there. Answers whether it was not.
async fn ensure(database: &Database, document: Document) -> Result<bool> {
    let inserted = database
        .meta()
        .insert_one(document)
        .write_concern(write_concern())
        .await;
    match inserted {
        Ok(_) => Ok(true),
        Err(error) if is_duplicate(&error) => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Runs a command, passing over errors of these codes.
async fn run(database: &Database, mut command: Document, harmless: &[i32]) -> Result<()> {
    command.insert("writeConcern", write_concern_document());
    match database.handle().run_command(command).await {
        Ok(reply) => in_reply(&reply).map_or(Ok(()), Err),
        Err(error) if code(&error).is_some_and(|code| harmless.contains(&code)) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// Takes the lock if it is free or the holder's already, and there is something left to do, by one atomic
/// change of the mark. Answers what is marked, if the lock was taken.
async fn lock(database: &Database, holder: ObjectId, to: u32) -> Result<Option<Marked>> {
    let now = database.now();
    let lease = LOCK_LEASE.min(database.options.operation_timeout / LOCK_LEASE_PART);
    let until = doc! { "$add": [now.clone(), lease.as_micros() as i64] };
    let held = doc! { "by": holder, "until": until };
    // A lock that is not there sorts before any time.
    let lapsed = doc! { "$lte": ["$lock.until", now] };
    let free = doc! { "$or": [lapsed, { "$eq": ["$lock.by", holder] }] };
    let marked = database
        .meta()
        .find_one_and_update(
            doc! { "_id": SCHEMA, "version": { "$lte": to }, "$or": [
                { "complete": false },
                { "version": { "$lt": to } },
            ] },
            vec![doc! { "$set": { "lock": { "$cond": [free, held, "$lock"] } } }],
        )
        .return_document(ReturnDocument::After)
        .write_concern(write_concern())
        .await
        .map_err(failed)?;
    let is_ours = |mark: &Document| {
        let lock = mark.get_document("lock").ok();
        lock.and_then(|lock| lock.get_object_id("by").ok()) == Some(holder)
    };
    Ok(marked.filter(is_ours).as_ref().and_then(read_mark))
}

/// Changes the mark, unless the lock has been taken over.
async fn unlock(database: &Database, holder: ObjectId, mut change: Document) -> Result<()> {
    change.insert("$unset", doc! { "lock": "" });
    database
        .meta()
        .update_one(doc! { "_id": SCHEMA, "lock.by": holder }, change)
        .write_concern(write_concern())
        .await
        .map_err(failed)?;
    Ok(())
}

/// Takes these steps, and makes what is not there. All of it may have been done before.
async fn take_steps(database: &Database, steps: &[Step]) -> Result<()> {
    let inbox = &database.options.inbox;
    for command in steps.iter().flat_map(|step| step(inbox)) {
        let harmless = [NAMESPACE_EXISTS, NAMESPACE_NOT_FOUND, INDEX_NOT_FOUND];
        run(database, command, &harmless).await?;
    }
    run(database, create_messages(inbox), &[NAMESPACE_EXISTS]).await?;
    run(database, create_indexes(inbox), &INDEX_CONFLICTS).await?;
    ensure(database, sequence()).await?;
    ensure(database, paused()).await?;
    match missing_part(database).await? {
        Some(part) => Err(incomplete(database, part)),
        None => Ok(()),
    }
}

/// Sets up what is not there. FerretDB now and then answers with an error of its own to a collection that is
/// made while another process makes or has just dropped it, or misses a document that was just put into one;
/// MongoDB does neither.
async fn set_up(database: &Database, steps: &[Step], from_nothing_only: bool) -> Result<Migration> {
    let holder = ObjectId::new();
    for _ in 1..TRIES {
        match apply(database, holder, steps, from_nothing_only).await {
            Err(error)
                if database.server.is_ferretdb
                    && (matches!(error.kind(), ErrorKind::Other | ErrorKind::SchemaVersion)
                        || is_internal(&error)) =>
            {
                sleep(LOCK_POLL).await;
            }
            answer => return answer,
        }
    }
    apply(database, holder, steps, from_nothing_only).await
}

async fn apply(
    database: &Database,
    holder: ObjectId,
    steps: &[Step],
    from_nothing_only: bool,
) -> Result<Migration> {
    let to = version_of(steps);
    let mut from = None;
    let mut times = 0;
    loop {
        match find(database).await? {
            Found::Marked(marked) if marked.complete && marked.suits(to) => {
                // The steps have looked; and what a newer build makes of its parts, this one does not know.
                let missing = if times > 0 || marked.version != VERSION {
                    None
                } else {
                    missing_part(database).await?
                };
                return match missing {
                    Some(part) => Err(incomplete(database, part)),
                    None => Ok(Migration {
                        from: if times > 0 {
                            from
                        } else {
                            Some(marked.version)
                        },
                        to: marked.version,
                        works_from: marked.works_from,
                    }),
                };
            }
            Found::Marked(marked)
                if marked.version > to || (marked.version < to && from_nothing_only) =>
            {
                return Err(wrong_version(database, marked.version));
            }
            Found::Foreign => return Err(foreign(database)),
            Found::Nothing => {
                ensure(database, mark()).await?;
            }
            Found::Marked(_) if times == TRIES => return Err(unfinished(database)),
            Found::Marked(_) => {}
        }
        let Some(locked) = lock(database, holder, to).await? else {
            sleep(LOCK_POLL).await;
            continue;
        };
        from = locked.complete.then_some(locked.version);
        // A new inbox has the layout of this build from the start.
        let done = usize::try_from(locked.version).map_or(usize::MAX, |version| version.max(1) - 1);
        if let Err(error) = take_steps(database, steps.get(done..).unwrap_or_default()).await {
            // If this fails too, the lock runs out.
            let _ = unlock(database, holder, Document::new()).await;
            return Err(error);
        }
        // Does nothing if another process has taken over meanwhile, which is then waited for. FerretDB also misses
        // a document of a collection that was dropped and made again.
        let (version, works_from) = (i64::from(to), i64::from(WORKS_FROM));
        let done = doc! { "complete": true, "version": version, "worksFrom": works_from };
        unlock(database, holder, doc! { "$set": done }).await?;
        times += 1;
    }
}

async fn remove(database: &Database) -> Result<()> {
    match find(database).await? {
        Found::Nothing => return Ok(()),
        Found::Foreign => {
            let left = left_behind(database).await?;
            if left.is_empty() {
                return Err(foreign(database));
            }
            return drop_collections(database, left).await;
        }
        Found::Marked(marked) if marked.version > VERSION => {
            return Err(wrong_version(database, marked.version));
        }
        Found::Marked(_) => {}
    }
    remove_marked(database).await?;
    // By what had drawn its numbers before.
    let left = left_behind(database).await?;
    drop_collections(database, left).await
}

/// Removes the collections, that with the mark last. From the first step on no numbers are drawn any more.
async fn remove_marked(database: &Database) -> Result<()> {
    let inbox = &database.options.inbox;
    let statements = [
        doc! { "q": { "_id": SCHEMA }, "u": { "$set": { "complete": false } } },
        doc! { "q": { "_id": "sequence" }, "u": { "$unset": { "last": "" } } },
    ];
    let update = doc! { "update": meta(inbox), "updates": statements.as_slice() };
    run(database, update, &[]).await?;
    database.checked.store(false, Ordering::Relaxed);
    drop_collections(database, vec![messages(inbox), meta(inbox)]).await
}

async fn drop_collections(database: &Database, collections: Vec<String>) -> Result<()> {
    for collection in collections {
        run(
            database,
            doc! { "drop": collection },
            &[NAMESPACE_NOT_FOUND],
        )
        .await?;
    }
    Ok(())
}

async fn exists(database: &Database) -> Result<bool> {
    match find(database).await? {
        Found::Nothing => return Ok(false),
        Found::Foreign => return Err(foreign(database)),
        // What a newer build makes of its parts, this one does not know.
        Found::Marked(marked) if marked.version > VERSION && marked.suits(VERSION) => {
            return Ok(marked.complete);
        }
        Found::Marked(marked) if marked.version > VERSION => {
            return Err(wrong_version(database, marked.version));
        }
        Found::Marked(marked) if marked.version < VERSION || !marked.complete => {
            return Ok(false);
        }
        Found::Marked(_) => {}
    }
    let Some(part) = missing_part(database).await? else {
        return Ok(true);
    };
    let inbox = &database.options.inbox;
    tracing::warn!(%inbox, part, "a part of the inbox is missing, or not as this build makes it");
    Ok(false)
}

async fn version(database: &Database) -> Result<Option<u32>> {
    match find(database).await? {
        Found::Nothing => Ok(None),
        Found::Marked(marked) => Ok(Some(marked.version)),
        Found::Foreign => Err(foreign(database)),
    }
}

#[async_trait]
impl Schema for MongoStore {
    fn ddl(&self) -> String {
        layout::ddl(self.database.handle().name(), &self.database.options.inbox)
    }

    fn exists_query(&self) -> String {
        layout::exists_query(self.database.handle().name(), &self.database.options.inbox)
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    fn works_from(&self) -> u32 {
        WORKS_FROM
    }

    async fn version(&self) -> Result<Option<u32>> {
        let look = |database: Arc<Database>| async move { version(&database).await };
        let version = self.database.task(look).await;
        version.map_err(|error| error.in_operation("version"))
    }

    async fn exists(&self) -> Result<bool> {
        let look = |database: Arc<Database>| async move { exists(&database).await };
        let exists = self.database.task(look).await;
        exists.map_err(|error| error.in_operation("exists"))
    }

    async fn create(&self) -> Result<()> {
        let create =
            |database: Arc<Database>| async move { set_up(&database, STEPS, true).await.map(drop) };
        let created = self.database.task(create).await;
        created.map_err(|error| error.in_operation("create"))
    }

    async fn migrate(&self) -> Result<Migration> {
        let migrate =
            |database: Arc<Database>| async move { set_up(&database, STEPS, false).await };
        let migrated = self.database.task(migrate).await;
        migrated.map_err(|error| error.in_operation("migrate"))
    }

    /// Stop its workers first: one that is just storing messages may leave a collection behind, with which `create`
    /// fails. A second call drops it, if there is nothing else in it.
    async fn remove(&self) -> Result<()> {
        let remove = |database: Arc<Database>| async move { remove(&database).await };
        let removed = self.database.task(remove).await;
        removed.map_err(|error| error.in_operation("remove"))
    }
}

#[cfg(test)]
mod tests {
    use conformance_tests::samples::work_during;
    use inbox_api::{HandlerName, InboxName, Kind, Message, MessageId, Receipt, StoreExt as _};
    use test_servers::{Kind as ServerKind, Server, find, require_or_skip};

    use super::*;
    use crate::MongoOptions;

    fn add_novelty(inbox: &InboxName) -> Vec<Document> {
        let index = doc! { "name": "novelty", "key": { "novelty": 1 } };
        let novel = doc! { "q": {}, "u": { "$set": { "novelty": 1_i64 } }, "multi": true };
        vec![
            doc! { "createIndexes": messages(inbox), "indexes": [index] },
            doc! { "update": messages(inbox), "updates": [novel] },
        ]
    }

    fn drop_what_is_not_there(inbox: &InboxName) -> Vec<Document> {
        vec![doc! { "dropIndexes": messages(inbox), "index": "never" }]
    }

    fn fail(_: &InboxName) -> Vec<Document> {
        vec![doc! { "noSuchCommand": 1 }]
    }

    const LONGER: &[Step] = &[add_novelty, drop_what_is_not_there];

    async fn start() -> Option<Server> {
        let found = tokio::task::spawn_blocking(|| match find(ServerKind::Mongodb) {
            Ok(server) => Ok(Some(server)),
            Err(_) => require_or_skip(ServerKind::Ferretdb),
        });
        found.await.unwrap().unwrap()
    }

    async fn connect(server: &Server, database: &str) -> MongoStore {
        let options = MongoOptions::from_url(server.url()).unwrap();
        let random = ObjectId::new();
        let options = options.database(format!("{database}_{random}"));
        MongoStore::connect(options).await.unwrap()
    }

    fn message() -> Message {
        let handler = HandlerName::new("h").unwrap();
        let id = MessageId::new("1").unwrap();
        Message::new(handler, id, Kind::new("k").unwrap(), "payload")
    }

    #[tokio::test]
    async fn an_older_inbox_is_upgraded_once_and_keeps_its_messages() {
        let Some(server) = start().await else { return };
        let store = connect(&server, "longer").await;
        store.create().await.unwrap();
        let _ = store.receive_one(&message()).await.unwrap();
        let database = &store.database;

        // Creating does not upgrade: that is another decision.
        let error = set_up(database, LONGER, true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaVersion);

        // Two at once, while a worker is busy: one upgrades, the other finds it done.
        let upgrade = || set_up(database, LONGER, false);
        let upgrades = async { tokio::join!(upgrade(), upgrade()) };
        let (one, other) = work_during(&store, upgrades).await;
        let mut from = [one.unwrap().from, other.unwrap().from];
        from.sort_unstable();
        assert_eq!(from, [Some(1), Some(3)]);

        // This build goes on with it, and sets up nothing; the message is still there.
        let restarted = MongoStore::connect(database.options.clone()).await.unwrap();
        for store in [&store, &restarted] {
            assert!(store.exists().await.unwrap());
            store.create().await.unwrap();
            let migration = store.migrate().await.unwrap();
            let expected = Migration {
                from: Some(3),
                to: 3,
                works_from: 1,
            };
            assert_eq!(migration, expected);
            let receipt = store.receive_one(&message()).await.unwrap();
            assert_eq!(receipt, Receipt::Duplicate { differs: false });
        }

        // It refuses one that it cannot work with, and names both versions.
        let works_from = doc! { "$set": { "worksFrom": 2_i64 } };
        let mark = database.meta();
        let change = mark.update_one(doc! { "_id": SCHEMA }, works_from);
        change.write_concern(write_concern()).await.unwrap();
        let restarted = MongoStore::connect(database.options.clone()).await.unwrap();
        for error in [
            restarted.create().await.unwrap_err(),
            restarted.exists().await.unwrap_err(),
            restarted.receive_one(&message()).await.unwrap_err(),
        ] {
            let both = "version 3, this build works with 1";
            assert!(error.context().contains(both), "{error}");
        }
        database.handle().drop().await.unwrap();
    }

    #[tokio::test]
    async fn a_step_that_fails_leaves_the_old_version() {
        let Some(server) = start().await else { return };
        let store = connect(&server, "failing").await;
        store.create().await.unwrap();
        let database = &store.database;
        let failing: &[Step] = &[add_novelty, fail];
        set_up(database, failing, false).await.unwrap_err();
        assert_eq!(store.version().await.unwrap(), Some(1));
        assert!(store.exists().await.unwrap());
        let receipt = store.receive_one(&message()).await.unwrap();
        assert_eq!(receipt, Receipt::Accepted);
        let migration = set_up(database, LONGER, false).await.unwrap();
        assert_eq!((migration.from, migration.to), (Some(1), 3));
        database.handle().drop().await.unwrap();
    }

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
}
