//! Setting up: numbered steps of SQL, applied under SQLite's write lock.

use std::collections::BTreeMap;

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, InboxName, Migration, Result, Schema};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, SqliteConnection,
    sqlite::SqliteConnectOptions,
};

use crate::{
    error::in_operation,
    statements::expand,
    store::{BEGIN, SqliteStore},
};

/// Step n brings an inbox from version n to n + 1. Never changed once released.
pub(crate) const STEPS: &[&str] = &[include_str!("sql/schema_1.sql")];

const MARKER: &str = "inbox.sqlite";

/// What stands in the file under the inbox's name.
enum Found {
    Nothing,
    Version(u32),
    Foreign,
}

/// Names of tables, indexes and triggers, with the text that made them.
type Objects = BTreeMap<String, String>;

fn version_of(steps: &[&str]) -> u32 {
    u32::try_from(steps.len()).unwrap_or(u32::MAX)
}

fn set_version(inbox: &InboxName, version: u32) -> String {
    format!(
        "INSERT INTO {inbox}_meta (only, marker, version) VALUES (1, '{MARKER}', {version})\n\
         ON CONFLICT (only) DO UPDATE SET version = excluded.version;\n"
    )
}

pub(crate) fn ddl(inbox: &InboxName) -> String {
    let mut text = String::new();
    for step in STEPS {
        text.push_str(expand(step, inbox).as_str());
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

/// The objects of this inbox that `connection` has, out of `names`.
async fn objects(connection: &mut SqliteConnection, names: &[&str]) -> sqlx::Result<Objects> {
    let rows = sqlx::query(
        "SELECT name, coalesce(sql, '') FROM sqlite_master
         WHERE name IN (SELECT value FROM json_each(?1))",
    )
    .bind(serde_json::json!(names).to_string())
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let sql: &str = row.try_get(1)?;
            // Tools reformat what they run; columns, types, conditions and bodies remain.
            let normal = sql.split_whitespace().collect::<Vec<_>>().join(" ");
            Ok((row.try_get(0)?, normal))
        })
        .collect()
}

/// What `steps` make: set up in memory, so that the comparison covers every column, type, check,
/// index and trigger without a second description of them.
async fn expected(inbox: &InboxName, steps: &[&str]) -> sqlx::Result<Objects> {
    let mut memory = SqliteConnectOptions::new()
        .in_memory(true)
        .disable_statement_logging()
        .connect()
        .await?;
    for step in steps {
        sqlx::raw_sql(expand(step, inbox))
            .execute(&mut memory)
            .await?;
    }
    let names: Vec<String> =
        sqlx::query_scalar("SELECT name FROM sqlite_master WHERE sql IS NOT NULL")
            .fetch_all(&mut memory)
            .await?;
    let prefix = format!("{inbox}_");
    let names: Vec<_> = names
        .iter()
        .map(String::as_str)
        .filter(|name| name.starts_with(&prefix))
        .collect();
    let objects = objects(&mut memory, &names).await?;
    memory.close().await?;
    Ok(objects)
}

async fn present(connection: &mut SqliteConnection, expected: &Objects) -> sqlx::Result<Objects> {
    let names: Vec<_> = expected.keys().map(String::as_str).collect();
    objects(connection, &names).await
}

async fn find(connection: &mut SqliteConnection, inbox: &InboxName) -> sqlx::Result<Found> {
    let tables = ["message", "state", "count", "meta"].map(|table| format!("{inbox}_{table}"));
    let row = sqlx::query(
        "SELECT
            (SELECT count(*) FROM sqlite_master WHERE name IN (?1, ?2, ?3, ?4)),
            (SELECT count(*) FROM pragma_table_info(?4) WHERE name IN ('marker', 'version'))",
    )
    .bind(&tables[0])
    .bind(&tables[1])
    .bind(&tables[2])
    .bind(&tables[3])
    .fetch_one(&mut *connection)
    .await?;
    match (row.try_get::<i64, _>(0)?, row.try_get::<i64, _>(1)?) {
        (0, _) => return Ok(Found::Nothing),
        (_, 2) => {}
        _ => return Ok(Found::Foreign),
    }
    let meta = format!("SELECT marker, version FROM {inbox}_meta LIMIT 1");
    let row = sqlx::query(AssertSqlSafe(meta))
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else {
        return Ok(Found::Foreign);
    };
    let version = row.try_get::<i64, _>(1).ok();
    Ok(match version.and_then(|version| version.try_into().ok()) {
        Some(version) if row.try_get::<&str, _>(0).is_ok_and(|m| m == MARKER) => {
            Found::Version(version)
        }
        _ => Found::Foreign,
    })
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

/// Compares what is there with what `steps` make.
async fn check_complete(
    operation: &'static str,
    connection: &mut SqliteConnection,
    inbox: &InboxName,
    expected: &Objects,
    version: u32,
) -> Result<()> {
    let present = present(connection, expected)
        .await
        .map_err(in_operation(operation))?;
    let differing = expected
        .iter()
        .find(|(name, sql)| present.get(*name) != Some(sql));
    match differing {
        None => Ok(()),
        Some((name, _)) => Err(Error::new(
            ErrorKind::SchemaVersion,
            operation,
            format!(
                "inbox {inbox} says version {version}, but {name} is missing or not as this \
                 build's version {version} makes it"
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
        Found::Version(version) if version == expected => Ok(()),
        Found::Version(version) => Err(wrong_version(operation, inbox, version, expected)),
        Found::Foreign => Err(foreign(operation, inbox, expected)),
        Found::Nothing => Err(Error::new(
            ErrorKind::SchemaMissing,
            operation,
            format!("there is no inbox named {inbox} in the file; create or migrate sets one up"),
        )),
    }
}

/// Brings the inbox to the version that `steps` make, in one transaction that holds the write
/// lock from its start. With `from_nothing_only` an older inbox is refused.
async fn apply(
    operation: &'static str,
    connection: &mut SqliteConnection,
    inbox: &InboxName,
    steps: &[&str],
    from_nothing_only: bool,
) -> Result<Migration> {
    let mapped = in_operation(operation);
    let to = version_of(steps);
    let expected = expected(inbox, steps).await.map_err(mapped)?;
    let mut transaction = connection.begin_with(BEGIN).await.map_err(mapped)?;
    let from = match find(&mut transaction, inbox).await.map_err(mapped)? {
        Found::Version(version) if version > to || (version < to && from_nothing_only) => {
            return Err(wrong_version(operation, inbox, version, to));
        }
        Found::Version(version) => Some(version),
        Found::Nothing => {
            let taken = present(&mut transaction, &expected).await.map_err(mapped)?;
            if !taken.is_empty() {
                return Err(foreign(operation, inbox, to));
            }
            None
        }
        Found::Foreign => return Err(foreign(operation, inbox, to)),
    };
    let done = usize::try_from(from.unwrap_or(0)).unwrap_or(usize::MAX);
    for step in steps.get(done..).unwrap_or_default() {
        sqlx::raw_sql(expand(step, inbox))
            .execute(&mut *transaction)
            .await
            .map_err(mapped)?;
    }
    if from != Some(to) {
        run(&mut transaction, set_version(inbox, to))
            .await
            .map_err(mapped)?;
    }
    check_complete(operation, &mut transaction, inbox, &expected, to).await?;
    transaction.commit().await.map_err(mapped)?;
    Ok(Migration { from, to })
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
        const OPERATION: &str = "version";
        let inbox = &self.inner.options.inbox;
        let mut connection = self.any_reader(OPERATION).await?;
        match find(&mut connection, inbox)
            .await
            .map_err(in_operation(OPERATION))?
        {
            Found::Nothing => Ok(None),
            Found::Version(version) => Ok(Some(version)),
            Found::Foreign => Err(foreign(OPERATION, inbox, version_of(STEPS))),
        }
    }

    async fn exists(&self) -> Result<bool> {
        const OPERATION: &str = "exists";
        let mapped = in_operation(OPERATION);
        let inbox = &self.inner.options.inbox;
        let mut connection = self.any_reader(OPERATION).await?;
        match find(&mut connection, inbox).await.map_err(mapped)? {
            Found::Nothing => return Ok(false),
            Found::Foreign => return Err(foreign(OPERATION, inbox, version_of(STEPS))),
            Found::Version(version) if version > version_of(STEPS) => {
                return Err(wrong_version(OPERATION, inbox, version, version_of(STEPS)));
            }
            Found::Version(version) if version < version_of(STEPS) => return Ok(false),
            Found::Version(_) => {}
        }
        let expected = expected(inbox, STEPS).await.map_err(mapped)?;
        Ok(present(&mut connection, &expected).await.map_err(mapped)? == expected)
    }

    async fn create(&self) -> Result<()> {
        if self.exists().await? {
            return Ok(());
        }
        let mut connection = self.any_writer("create").await?;
        apply(
            "create",
            &mut connection,
            &self.inner.options.inbox,
            STEPS,
            true,
        )
        .await?;
        Ok(())
    }

    async fn migrate(&self) -> Result<Migration> {
        let mut connection = self.any_writer("migrate").await?;
        apply(
            "migrate",
            &mut connection,
            &self.inner.options.inbox,
            STEPS,
            false,
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use inbox_api::{Clock, HandlerName, Key, Kind, Message, MessageId, Operate, Store};

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
        // Creating does not upgrade: that is a decision of its own.
        let mut connection = store.any_writer("test").await.unwrap();
        let error = apply("create", &mut connection, &inbox, LONGER, true)
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
            let mut connection = options.connect().await.unwrap();
            let migration = apply("migrate", &mut connection, &inbox, LONGER, false).await;
            connection.close().await.unwrap();
            migration.unwrap().from
        };
        let (one, other) = tokio::join!(upgrade(), upgrade());
        let mut from = [one, other];
        from.sort_unstable();
        assert_eq!(from, [Some(1), Some(3)]);

        // This build now refuses it, and naming both versions; the message is still there.
        let error = store.create().await.unwrap_err();
        assert!(
            error
                .context()
                .contains("version 3, this build works with 1")
        );
        let record = store.get(&key).await.unwrap().unwrap();
        assert_eq!(record.message(), Some(message));
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
        let mut connection = store.any_writer("test").await.unwrap();
        apply("migrate", &mut connection, &inbox, &steps, false)
            .await
            .unwrap_err();
        drop(connection);
        assert_eq!(store.version().await.unwrap(), Some(1));
        assert!(store.exists().await.unwrap());
    }
}
