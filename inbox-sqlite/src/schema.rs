//! Setting up: numbered steps of SQL, applied under SQLite's write lock.

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, InboxName, Migration, Result, Schema};
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};
use tokio::time::Instant;

use crate::{
    connection::Database,
    error::failed,
    options::SqliteOptions,
    schema_objects::{Objects, expected_objects, present_objects},
    statements::{BEGIN, expand},
    store::SqliteStore,
    version::{
        Found, MARKER, Marked, STEPS, find, foreign_tables, loaded_dump, version_of, wrong_version,
    },
};

/// The oldest version whose builds work with the newest one: they go on next to newer processes while
/// a new release is rolled out. Raised by a step that they would not work with.
const WORKS_FROM: u32 = 1;

/// The triggers, which a migration replaces without a step.
const TRIGGERS: &str = include_str!("sql/schema_triggers.sql");

/// Tables, and what goes with them.
const REMOVE: &str = include_str!("sql/remove.sql");

const EXISTS: &str = include_str!("sql/exists_query.sql");

/// Raised whenever their text changes by more than comments, so that builds tell an earlier or later
/// text of the same version from damage, and an older one does not put its own back.
const REVISION: u32 = 1;

fn set_version(inbox: &InboxName, version: u32) -> String {
    format!(
        "DELETE FROM {inbox}_meta;\n\
         INSERT INTO {inbox}_meta (marker, version, works_from, revision)\n\
         VALUES ('{MARKER}', {version}, {WORKS_FROM}, {REVISION});\n"
    )
}

impl SqliteOptions {
    /// The statements that set up an empty inbox with these options: what
    /// [`Schema::ddl`](inbox_api::Schema::ddl) gives, without a connection.
    #[must_use]
    pub fn ddl(&self) -> String {
        let mut text = String::new();
        for part in STEPS.iter().chain([&TRIGGERS]) {
            text.push_str(expand(part, &self.inbox).as_str());
            text.push('\n');
        }
        text + &set_version(&self.inbox, version_of(STEPS))
    }

    /// The query for a complete inbox of that name: what
    /// [`Schema::exists_query`](inbox_api::Schema::exists_query) gives, without a connection.
    #[must_use]
    pub fn exists_query(&self) -> String {
        expand(EXISTS, &self.inbox).as_str().to_owned()
    }
}

async fn run(connection: &mut SqliteConnection, sql: String) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await?;
    Ok(())
}

/// The first object that is missing or not as this build makes it.
fn first_difference<'a>(
    expected: &'a Objects,
    present: &Objects,
    marked: Marked,
    version: u32,
) -> Option<&'a str> {
    // Of other versions and revisions only their builds know the texts.
    let same_tables = marked.version == version;
    let same_triggers = same_tables && marked.revision == REVISION;
    expected
        .iter()
        .find(|(name, object)| {
            let is_same = if object.kind == "trigger" {
                same_triggers
            } else {
                same_tables
            };
            present.get(*name).is_none_or(|there| {
                there.kind != object.kind || (is_same && there.sql != object.sql)
            })
        })
        .map(|(name, _)| name.as_str())
}

/// Compares what is there with what `steps` make.
async fn check_complete(
    connection: &mut SqliteConnection,
    inbox: &InboxName,
    expected: &Objects,
    marked: Marked,
    version: u32,
) -> Result<()> {
    let present = present_objects(connection, expected)
        .await
        .map_err(failed)?;
    match first_difference(expected, &present, marked, version) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            ErrorKind::SchemaVersion,
            format!(
                "inbox {inbox} says version {}, but {name} is missing or not as this build's \
                 version {version} makes it",
                marked.version
            ),
        )),
    }
}

/// How far to go.
#[derive(Clone, Copy, PartialEq)]
enum Apply {
    /// Sets up where there is nothing.
    FromNothing,
    /// And upgrades, and replaces triggers.
    Upgrade,
}

/// Brings the inbox to the version that `steps` make, in one transaction that holds the write
/// lock from its start.
async fn apply(
    connection: &mut SqliteConnection,
    inbox: &InboxName,
    steps: &[&str],
    how: Apply,
) -> Result<Migration> {
    let to = version_of(steps);
    let expected = expected_objects(inbox, &[steps, &[TRIGGERS]].concat())
        .await
        .map_err(failed)?;
    let mut transaction = connection.begin_with(BEGIN).await.map_err(failed)?;
    let found = match find(&mut transaction, inbox).await.map_err(failed)? {
        Found::Marked(marked) if marked.is_newer_but_suits(to) => {
            check_complete(&mut transaction, inbox, &expected, marked, to).await?;
            transaction.rollback().await.map_err(failed)?;
            return Ok(Migration {
                from: Some(marked.version),
                to: marked.version,
                works_from: marked.works_from,
            });
        }
        Found::Marked(marked)
            if marked.version > to || (marked.version < to && how == Apply::FromNothing) =>
        {
            return Err(wrong_version(inbox, marked.version, to));
        }
        Found::Marked(marked) => Some(marked),
        Found::Nothing => {
            let taken = present_objects(&mut transaction, &expected)
                .await
                .map_err(failed)?;
            if !taken.is_empty() {
                return Err(foreign_tables(inbox, to));
            }
            None
        }
        Found::Foreign => return Err(foreign_tables(inbox, to)),
        Found::Loaded => return Err(loaded_dump(inbox)),
    };
    let mut now = Marked {
        version: to,
        works_from: WORKS_FROM,
        revision: REVISION,
    };
    let done = usize::try_from(found.map_or(0, |found| found.version)).unwrap_or(usize::MAX);
    for step in steps.get(done..).unwrap_or_default() {
        sqlx::raw_sql(expand(step, inbox))
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
    }
    match found {
        Some(found)
            if found.version == to && (how == Apply::FromNothing || found.revision >= REVISION) =>
        {
            now = found;
        }
        _ => {
            replace_triggers(&mut transaction, inbox, &expected)
                .await
                .map_err(failed)?;
            run(&mut transaction, set_version(inbox, to))
                .await
                .map_err(failed)?;
        }
    }
    check_complete(&mut transaction, inbox, &expected, now, to).await?;
    transaction.commit().await.map_err(failed)?;
    Ok(Migration {
        from: found.map(|found| found.version),
        to,
        works_from: now.works_from,
    })
}

async fn replace_triggers(
    connection: &mut SqliteConnection,
    inbox: &InboxName,
    expected: &Objects,
) -> sqlx::Result<()> {
    for (name, object) in expected {
        if object.kind == "trigger" {
            run(connection, format!("DROP TRIGGER IF EXISTS {name}")).await?;
        }
    }
    sqlx::raw_sql(expand(TRIGGERS, inbox))
        .execute(connection)
        .await?;
    Ok(())
}

async fn find_version(database: &Database, until: Instant) -> Result<Option<u32>> {
    let inbox = &database.options.inbox;
    let mut connection = database.any_reader(until).await?;
    let mut moment = connection.begin().await.map_err(failed)?;
    match find(&mut moment, inbox).await.map_err(failed)? {
        Found::Nothing => Ok(None),
        Found::Marked(marked) => Ok(Some(marked.version)),
        Found::Foreign => Err(foreign_tables(inbox, version_of(STEPS))),
        Found::Loaded => Err(loaded_dump(inbox)),
    }
}

async fn is_complete(database: &Database, until: Instant) -> Result<bool> {
    let inbox = &database.options.inbox;
    let build = version_of(STEPS);
    let mut connection = database.any_reader(until).await?;
    let mut moment = connection.begin().await.map_err(failed)?;
    let marked = match find(&mut moment, inbox).await.map_err(failed)? {
        Found::Nothing => return Ok(false),
        Found::Foreign => return Err(foreign_tables(inbox, build)),
        Found::Loaded => return Err(loaded_dump(inbox)),
        Found::Marked(marked) if marked.suits(build) => marked,
        Found::Marked(marked) if marked.version < build => return Ok(false),
        Found::Marked(marked) => return Err(wrong_version(inbox, marked.version, build)),
    };
    let expected = expected_objects(inbox, &[STEPS, &[TRIGGERS]].concat())
        .await
        .map_err(failed)?;
    let present = present_objects(&mut moment, &expected)
        .await
        .map_err(failed)?;
    Ok(first_difference(&expected, &present, marked, build).is_none())
}

/// Drops what is this build's to drop, in one transaction.
async fn remove(database: &Database) -> Result<()> {
    let inbox = &database.options.inbox;
    let build = version_of(STEPS);
    let attempt = |until| async move {
        let mut connection = database.any_writer(until).await?;
        let mut transaction = connection.begin_with(BEGIN).await.map_err(failed)?;
        match find(&mut transaction, inbox).await.map_err(failed)? {
            Found::Nothing => return transaction.rollback().await.map_err(failed),
            Found::Foreign => return Err(foreign_tables(inbox, build)),
            Found::Marked(marked) if marked.version > build => {
                return Err(wrong_version(inbox, marked.version, build));
            }
            Found::Marked(_) | Found::Loaded => {}
        }
        sqlx::raw_sql(expand(REMOVE, inbox))
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        transaction.commit().await.map_err(failed)
    };
    database.run_without_inbox(attempt).await
}

async fn exists(database: &Database) -> Result<bool> {
    database
        .run_without_inbox(|until| is_complete(database, until))
        .await
}

async fn set_up(database: &Database, how: Apply) -> Result<Migration> {
    let attempt = |until| async move {
        let mut connection = database.any_writer(until).await?;
        apply(&mut connection, &database.options.inbox, STEPS, how).await
    };
    database.run_without_inbox(attempt).await
}

async fn create(database: &Database) -> Result<()> {
    if !exists(database).await? {
        set_up(database, Apply::FromNothing).await?;
    }
    Ok(())
}

#[async_trait]
impl Schema for SqliteStore {
    fn ddl(&self) -> String {
        self.database.options.ddl()
    }

    /// Of names alone: the texts of tables, indexes and triggers, which
    /// [`exists`](Schema::exists) compares as well, and the version are not for a query that is to
    /// answer where there is no inbox.
    fn exists_query(&self) -> String {
        self.database.options.exists_query()
    }

    fn expected_version(&self) -> u32 {
        version_of(STEPS)
    }

    fn works_from(&self) -> u32 {
        WORKS_FROM
    }

    async fn version(&self) -> Result<Option<u32>> {
        let database = &self.database;
        database
            .run_without_inbox(|until| find_version(database, until))
            .await
            .map_err(|error| error.in_operation("version"))
    }

    async fn exists(&self) -> Result<bool> {
        exists(&self.database)
            .await
            .map_err(|error| error.in_operation("exists"))
    }

    async fn create(&self) -> Result<()> {
        create(&self.database)
            .await
            .map_err(|error| error.in_operation("create"))
    }

    async fn migrate(&self) -> Result<Migration> {
        set_up(&self.database, Apply::Upgrade)
            .await
            .map_err(|error| error.in_operation("migrate"))
    }

    async fn remove(&self) -> Result<()> {
        remove(&self.database)
            .await
            .map_err(|error| error.in_operation("remove"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use conformance_tests::samples::work_during;
    use inbox_api::{Clock, HandlerName, Key, Kind, Message, MessageId, Operate, Store};
    use sqlx::ConnectOptions as _;

    use super::*;
    use crate::SqliteOptions;

    const LONGER: &[&str] = &[
        STEPS[0],
        "ALTER TABLE {inbox}_state ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;",
        "CREATE INDEX {inbox}_priority ON {inbox}_state (priority) WHERE claimable = 1;",
    ];

    #[tokio::test]
    async fn an_older_inbox_is_upgraded_once_and_keeps_its_messages() {
        let folder = tempfile::TempDir::new().unwrap();
        let options = SqliteOptions::new(folder.path().join("inbox.db")).clock(Clock::system());
        let store = SqliteStore::connect(options).await.unwrap();
        store.create().await.unwrap();
        let key = Key::new(HandlerName::new("h").unwrap(), MessageId::new("1").unwrap());
        let message = Message::new(
            key.handler.clone(),
            key.id.clone(),
            Kind::new("k").unwrap(),
            "payload",
        );
        store.receive(std::slice::from_ref(&message)).await.unwrap();

        let inbox = InboxName::default();
        // Creating does not upgrade: that is another decision.
        let mut connection = store
            .database
            .any_writer(store.database.deadline())
            .await
            .unwrap();
        let error = apply(&mut connection, &inbox, LONGER, Apply::FromNothing)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaVersion);
        assert!(
            error
                .context()
                .contains("version 1, this build works with 3")
        );
        drop(connection);

        // Two at once, on two connections, while a worker is busy: one upgrades, the other finds it done.
        let upgrade = async || {
            let options = store.database.options.writer();
            let options = options.busy_timeout(Duration::from_secs(60));
            let mut connection = options.connect().await.unwrap();
            let migration = apply(&mut connection, &inbox, LONGER, Apply::Upgrade).await;
            connection.close().await.unwrap();
            migration.unwrap().from
        };
        let upgrades = async { tokio::join!(upgrade(), upgrade()) };
        let (one, other) = work_during(&store, upgrades).await;
        let mut from = [one, other];
        from.sort_unstable();
        assert_eq!(from, [Some(1), Some(3)]);

        // This build goes on with it, and sets up nothing; the message is still there.
        let other = SqliteStore::connect(store.database.options.clone())
            .await
            .unwrap();
        assert!(other.exists().await.unwrap());
        other.create().await.unwrap();
        let migration = other.migrate().await.unwrap();
        assert_eq!((migration.from, migration.to), (Some(3), 3));
        assert_eq!(other.version().await.unwrap(), Some(3));
        let receipts = other.receive(std::slice::from_ref(&message)).await;
        assert_eq!(
            receipts.unwrap(),
            [inbox_api::Receipt::Duplicate { differs: false }]
        );

        // It refuses one that it cannot work with, and names both versions.
        let mut connection = store
            .database
            .any_writer(store.database.deadline())
            .await
            .unwrap();
        let sql = "UPDATE inbox_meta SET works_from = 2".to_owned();
        run(&mut connection, sql).await.unwrap();
        drop(connection);
        let error = store.create().await.unwrap_err();
        assert!(
            error
                .context()
                .contains("version 3, this build works with 1")
        );
        let record = store.get(&key).await.unwrap().unwrap();
        assert_eq!(record.message(), Some(message));
    }

    /// A sum over the triggers' text.
    fn sum(text: &str) -> u32 {
        text.bytes().fold(0x811c_9dc5, |sum, byte| {
            (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
    }

    #[test]
    fn a_revision_stands_for_one_text_of_the_triggers() {
        // When this fails: raise REVISION, so that existing inboxes are not taken for damaged, and
        // write the new pair here.
        assert_eq!(
            (REVISION, sum(&crate::schema_objects::normalize(TRIGGERS))),
            (1, 1_978_788_303)
        );
    }

    #[tokio::test]
    async fn a_step_that_fails_leaves_the_old_version() {
        let folder = tempfile::TempDir::new().unwrap();
        let options = SqliteOptions::new(folder.path().join("inbox.db"));
        let store = SqliteStore::connect(options).await.unwrap();
        store.create().await.unwrap();
        let inbox = InboxName::default();
        let steps = [
            STEPS[0],
            "CREATE TABLE {inbox}_new (a); SELECT * FROM nowhere;",
        ];
        let mut connection = store
            .database
            .any_writer(store.database.deadline())
            .await
            .unwrap();
        apply(&mut connection, &inbox, &steps, Apply::Upgrade)
            .await
            .unwrap_err();
        drop(connection);
        assert_eq!(store.version().await.unwrap(), Some(1));
        assert!(store.exists().await.unwrap());
    }
}
