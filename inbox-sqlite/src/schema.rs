//! Setting up: numbered steps of SQL, applied under SQLite's write lock.

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, InboxName, Migration, Result, Schema};
use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqliteConnection, sqlite::SqliteRow};
use tokio::time::Instant;

use crate::{
    error::in_operation,
    objects::{Objects, expected, present},
    statements::expand,
    store::{BEGIN, SqliteStore},
};

/// Step n brings an inbox from version n to n + 1. Never changed once released, but for comments.
pub(crate) const STEPS: &[&str] = &[include_str!("sql/schema_1.sql")];

/// The oldest version whose builds work with the newest one: they go on next to newer processes while
/// a new release is rolled out. Raised by a step that they would not work with.
const WORKS_FROM: u32 = 1;

/// The triggers, which a migration replaces without a step.
const TRIGGERS: &str = include_str!("sql/triggers.sql");

/// Raised whenever their text changes by more than comments, so that builds tell an earlier or later
/// text of the same version from damage, and an older one does not put its own back.
const REVISION: u32 = 1;

const MARKER: &str = "inbox.sqlite";

/// What stands in the file under the inbox's name.
enum Found {
    Nothing,
    Marked(Marked),
    /// A dump was loaded into what had been set up before, or without all of its tables.
    Loaded,
    Foreign,
}

#[derive(Clone, Copy)]
struct Marked {
    version: u32,
    works_from: u32,
    revision: u32,
}

impl Marked {
    /// Whether a build of that version works with it.
    fn suits(self, build: u32) -> bool {
        self.version == build || self.is_newer_but_suits(build)
    }

    fn is_newer_but_suits(self, build: u32) -> bool {
        self.version > build && self.works_from <= build
    }
}

fn version_of(steps: &[&str]) -> u32 {
    u32::try_from(steps.len()).unwrap_or(u32::MAX)
}

fn set_version(inbox: &InboxName, version: u32) -> String {
    format!(
        "DELETE FROM {inbox}_meta;\n\
         INSERT INTO {inbox}_meta (marker, version, works_from, revision)\n\
         VALUES ('{MARKER}', {version}, {WORKS_FROM}, {REVISION});\n"
    )
}

pub(crate) fn ddl(inbox: &InboxName) -> String {
    let mut text = String::new();
    for part in STEPS.iter().chain([&TRIGGERS]) {
        text.push_str(expand(part, inbox).as_str());
        text.push('\n');
    }
    text + &set_version(inbox, version_of(STEPS))
}

async fn run(connection: &mut SqliteConnection, sql: String) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await?;
    Ok(())
}

async fn find(connection: &mut SqliteConnection, inbox: &InboxName) -> sqlx::Result<Found> {
    let tables = ["message", "state", "count", "meta"].map(|table| format!("{inbox}_{table}"));
    let row = sqlx::query(
        "SELECT
            (SELECT count(*) FROM sqlite_master WHERE lower(name) IN (?1, ?2, ?3, ?4)),
            (SELECT count(*) FROM pragma_table_info(?4)
             WHERE name IN ('marker', 'version', 'works_from', 'revision'))",
    )
    .bind(&tables[0])
    .bind(&tables[1])
    .bind(&tables[2])
    .bind(&tables[3])
    .fetch_one(&mut *connection)
    .await?;
    let count: i64 = row.try_get(0)?;
    match (count, row.try_get::<i64, _>(1)?) {
        (0, _) => return Ok(Found::Nothing),
        (_, 4) => {}
        _ => return Ok(Found::Foreign),
    }
    let meta = format!("SELECT marker, version, works_from, revision FROM {inbox}_meta LIMIT 2");
    let rows = sqlx::query(AssertSqlSafe(meta))
        .fetch_all(&mut *connection)
        .await?;
    if count == 4 && is_half_empty(connection, inbox).await? {
        return Ok(Found::Loaded);
    }
    Ok(match rows.as_slice() {
        [row] => marked(row).map_or(Found::Foreign, Found::Marked),
        [row, other] if marked(row).is_some() && marked(other).is_some() => Found::Loaded,
        _ => Found::Foreign,
    })
}

/// Whether there are messages without states or the reverse: all of a table's content is missing.
/// Single rows that are lost do not stop the others.
async fn is_half_empty(connection: &mut SqliteConnection, inbox: &InboxName) -> sqlx::Result<bool> {
    let sql = format!(
        "SELECT count(DISTINCT filled) FROM (
            SELECT EXISTS (SELECT 1 FROM {inbox}_message) AS filled
            UNION ALL SELECT EXISTS (SELECT 1 FROM {inbox}_state)
            UNION ALL SELECT EXISTS (SELECT 1 FROM {inbox}_count WHERE n > 0)
        )"
    );
    let kinds: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(connection)
        .await?;
    Ok(kinds > 1)
}

fn marked(row: &SqliteRow) -> Option<Marked> {
    let number = |index| u32::try_from(row.try_get::<i64, _>(index).ok()?).ok();
    let marked = Marked {
        version: number(1)?,
        works_from: number(2)?,
        revision: number(3)?,
    };
    (row.try_get::<&str, _>(0).ok()? == MARKER).then_some(marked)
}

fn wrong_version(operation: &'static str, inbox: &InboxName, found: u32, expected: u32) -> Error {
    let what = if found > expected {
        "use a newer build"
    } else {
        "migrate it"
    };
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "inbox {inbox} has schema version {found}, this build works with {expected}: {what}"
        ),
    )
}

fn foreign(operation: &'static str, inbox: &InboxName, expected: u32) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "the file has tables named {inbox}_… that are not an inbox's (version unknown, this \
             build works with {expected}); choose another inbox name"
        ),
    )
}

fn loaded(operation: &'static str, inbox: &InboxName) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "a dump was loaded into inbox {inbox} when that had been set up already, or without all \
             of its tables: its messages are not in their states; drop its tables and load a whole \
             dump, with its definitions, in their place"
        ),
    )
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
    operation: &'static str,
    connection: &mut SqliteConnection,
    inbox: &InboxName,
    expected: &Objects,
    marked: Marked,
    version: u32,
) -> Result<()> {
    let present = present(connection, expected)
        .await
        .map_err(in_operation(operation))?;
    match first_difference(expected, &present, marked, version) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            ErrorKind::SchemaVersion,
            operation,
            format!(
                "inbox {inbox} says version {}, but {name} is missing or not as this build's \
                 version {version} makes it",
                marked.version
            ),
        )),
    }
}

/// Fails unless an inbox of the expected version is there. Looks at the version only, so that it
/// is cheap enough for the first use of every store.
pub(crate) async fn check_version(
    operation: &'static str,
    connection: &mut SqliteConnection,
    inbox: &InboxName,
) -> Result<()> {
    let expected = version_of(STEPS);
    match find(connection, inbox)
        .await
        .map_err(in_operation(operation))?
    {
        Found::Marked(marked) if marked.suits(expected) => Ok(()),
        Found::Marked(marked) => Err(wrong_version(operation, inbox, marked.version, expected)),
        Found::Foreign => Err(foreign(operation, inbox, expected)),
        Found::Loaded => Err(loaded(operation, inbox)),
        Found::Nothing => Err(Error::new(
            ErrorKind::SchemaMissing,
            operation,
            format!("there is no inbox named {inbox} in the file; create or migrate sets one up"),
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
    operation: &'static str,
    connection: &mut SqliteConnection,
    inbox: &InboxName,
    steps: &[&str],
    how: Apply,
) -> Result<Migration> {
    let mapped = in_operation(operation);
    let to = version_of(steps);
    let expected = expected(inbox, &[steps, &[TRIGGERS]].concat())
        .await
        .map_err(mapped)?;
    let mut transaction = connection.begin_with(BEGIN).await.map_err(mapped)?;
    let found = match find(&mut transaction, inbox).await.map_err(mapped)? {
        Found::Marked(marked) if marked.is_newer_but_suits(to) => {
            check_complete(operation, &mut transaction, inbox, &expected, marked, to).await?;
            transaction.rollback().await.map_err(mapped)?;
            return Ok(Migration {
                from: Some(marked.version),
                to: marked.version,
            });
        }
        Found::Marked(marked)
            if marked.version > to || (marked.version < to && how == Apply::FromNothing) =>
        {
            return Err(wrong_version(operation, inbox, marked.version, to));
        }
        Found::Marked(marked) => Some(marked),
        Found::Nothing => {
            let taken = present(&mut transaction, &expected).await.map_err(mapped)?;
            if !taken.is_empty() {
                return Err(foreign(operation, inbox, to));
            }
            None
        }
        Found::Foreign => return Err(foreign(operation, inbox, to)),
        Found::Loaded => return Err(loaded(operation, inbox)),
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
            .map_err(mapped)?;
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
                .map_err(mapped)?;
            run(&mut transaction, set_version(inbox, to))
                .await
                .map_err(mapped)?;
        }
    }
    check_complete(operation, &mut transaction, inbox, &expected, now, to).await?;
    transaction.commit().await.map_err(mapped)?;
    Ok(Migration {
        from: found.map(|found| found.version),
        to,
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

impl SqliteStore {
    async fn find_version(&self, until: Instant) -> Result<Option<u32>> {
        const OPERATION: &str = "version";
        let inbox = &self.inner.options.inbox;
        let mut connection = self.any_reader(OPERATION, until).await?;
        match find(&mut connection, inbox)
            .await
            .map_err(in_operation(OPERATION))?
        {
            Found::Nothing => Ok(None),
            Found::Marked(marked) => Ok(Some(marked.version)),
            Found::Foreign => Err(foreign(OPERATION, inbox, version_of(STEPS))),
            Found::Loaded => Err(loaded(OPERATION, inbox)),
        }
    }

    async fn is_complete(&self, until: Instant) -> Result<bool> {
        const OPERATION: &str = "exists";
        let mapped = in_operation(OPERATION);
        let inbox = &self.inner.options.inbox;
        let build = version_of(STEPS);
        let mut connection = self.any_reader(OPERATION, until).await?;
        let marked = match find(&mut connection, inbox).await.map_err(mapped)? {
            Found::Nothing => return Ok(false),
            Found::Foreign => return Err(foreign(OPERATION, inbox, build)),
            Found::Loaded => return Err(loaded(OPERATION, inbox)),
            Found::Marked(marked) if marked.suits(build) => marked,
            Found::Marked(marked) if marked.version < build => return Ok(false),
            Found::Marked(marked) => {
                return Err(wrong_version(OPERATION, inbox, marked.version, build));
            }
        };
        let expected = expected(inbox, &[STEPS, &[TRIGGERS]].concat())
            .await
            .map_err(mapped)?;
        let present = present(&mut connection, &expected).await.map_err(mapped)?;
        Ok(first_difference(&expected, &present, marked, build).is_none())
    }

    async fn set_up(
        &self,
        operation: &'static str,
        how: Apply,
        until: Instant,
    ) -> Result<Migration> {
        let mut connection = self.any_writer(operation, until).await?;
        let inbox = &self.inner.options.inbox;
        apply(operation, &mut connection, inbox, STEPS, how).await
    }
}

#[async_trait]
impl Schema for SqliteStore {
    fn ddl(&self) -> String {
        ddl(&self.inner.options.inbox)
    }

    fn expected_version(&self) -> u32 {
        version_of(STEPS)
    }

    async fn version(&self) -> Result<Option<u32>> {
        self.run_without_inbox("version", |until| self.find_version(until))
            .await
    }

    async fn exists(&self) -> Result<bool> {
        self.run_without_inbox("exists", |until| self.is_complete(until))
            .await
    }

    async fn create(&self) -> Result<()> {
        if self.exists().await? {
            return Ok(());
        }
        self.run_without_inbox("create", |until| {
            self.set_up("create", Apply::FromNothing, until)
        })
        .await?;
        Ok(())
    }

    async fn migrate(&self) -> Result<Migration> {
        self.run_without_inbox("migrate", |until| {
            self.set_up("migrate", Apply::Upgrade, until)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use inbox_api::{Clock, HandlerName, Key, Kind, Message, MessageId, Operate, Store};
    use sqlx::ConnectOptions as _;

    use super::*;
    use crate::{SqliteOptions, operation::deadline};

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
            .any_writer("test", deadline(Duration::from_secs(60)))
            .await
            .unwrap();
        let error = apply(
            "create",
            &mut connection,
            &inbox,
            LONGER,
            Apply::FromNothing,
        )
        .await
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaVersion);
        assert!(
            error
                .context()
                .contains("version 1, this build works with 3")
        );
        drop(connection);

        // Two at once, on two connections: one upgrades, the other finds it done.
        let upgrade = async || {
            let options = store.inner.options.writer();
            let options = options.busy_timeout(Duration::from_secs(60));
            let mut connection = options.connect().await.unwrap();
            let migration = apply("migrate", &mut connection, &inbox, LONGER, Apply::Upgrade).await;
            connection.close().await.unwrap();
            migration.unwrap().from
        };
        let (one, other) = tokio::join!(upgrade(), upgrade());
        let mut from = [one, other];
        from.sort_unstable();
        assert_eq!(from, [Some(1), Some(3)]);

        // This build goes on with it, and sets up nothing; the message is still there.
        let other = SqliteStore::connect(store.inner.options.clone())
            .await
            .unwrap();
        assert!(other.exists().await.unwrap());
        other.create().await.unwrap();
        let migration = other.migrate().await.unwrap();
        assert_eq!((migration.from, migration.to), (Some(3), 3));
        assert_eq!(other.version().await.unwrap(), Some(3));
        let receipts = other.receive(std::slice::from_ref(&message)).await;
        assert_eq!(receipts.unwrap(), [inbox_api::Receipt::Duplicate]);

        // It refuses one that it cannot work with, and names both versions.
        let mut connection = store
            .any_writer("test", deadline(Duration::from_secs(60)))
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
            (REVISION, sum(&crate::objects::normal(TRIGGERS))),
            (1, 2_643_045_557)
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
            .any_writer("test", deadline(Duration::from_secs(60)))
            .await
            .unwrap();
        apply("migrate", &mut connection, &inbox, &steps, Apply::Upgrade)
            .await
            .unwrap_err();
        drop(connection);
        assert_eq!(store.version().await.unwrap(), Some(1));
        assert!(store.exists().await.unwrap());
    }
}
