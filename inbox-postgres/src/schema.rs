//! Setting up: numbered steps of SQL, applied in one transaction under an advisory lock.

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, Migration, Result, Schema};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, postgres::PgRow};
use tokio::time::timeout;

use crate::{
    error::{before, in_operation},
    leash::Leash,
    statements::Names,
    store::{Inner, PostgresStore},
};

/// Step n brings the tables from version n to n + 1. Never changed once released. The functions
/// and the view are those of the newest version, and are replaced as a whole.
pub(crate) const STEPS: &[&str] = &[include_str!("sql/schema_1.sql")];

const VIEW: &str = include_str!("sql/view.sql");
const MARKER: &str = "inbox.postgres";

/// Whatever the default is. Under another isolation level a set-up that has waited for another one
/// would not see what that one has made.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// What stands in the schema under the inbox's name.
enum Found {
    Nothing,
    Version(u32),
    /// In partitions where this store's options say otherwise, or the reverse.
    OtherLayout,
    Foreign,
}

fn version_of(steps: &[&str]) -> u32 {
    u32::try_from(steps.len()).unwrap_or(u32::MAX)
}

/// What sets the functions and the view up, over whatever version of them is there.
fn routines(names: &Names) -> String {
    names
        .functions()
        .map(|(_, template)| *template)
        .chain([VIEW])
        .map(|template| names.text(template) + "\n")
        .collect()
}

fn set_version(names: &Names, version: u32) -> String {
    names.text(&format!(
        "INSERT INTO {{meta}} (singleton, marker, version) VALUES (true, '{MARKER}', {version})\n\
         ON CONFLICT (singleton) DO UPDATE SET version = excluded.version;\n"
    ))
}

pub(crate) fn ddl(names: &Names) -> String {
    let mut text = names.text("CREATE SCHEMA IF NOT EXISTS {schema};\n\n");
    for step in STEPS {
        text.push_str(&names.text(step));
        text.push('\n');
    }
    text + &routines(names) + &set_version(names, version_of(STEPS))
}

/// What `names`' inbox is made of when it is complete: as `shape.sql` tells it.
fn expected_shape(names: &Names) -> Vec<String> {
    let layout = if names.in_partitions() {
        include_str!("sql/shape_1_partitioned.txt")
    } else {
        include_str!("sql/shape_1_plain.txt")
    };
    let mut shape: Vec<String> = names
        .text(&(include_str!("sql/shape_1.txt").to_owned() + layout))
        .lines()
        .map(str::to_owned)
        .collect();
    for (name, template) in names.functions() {
        let text = names.text(template);
        let body = text.split("$$").nth(1).unwrap_or_default();
        shape.push(format!("function {}_{name}{body}", names.inbox()));
    }
    shape
}

/// As one message without parameters, so that a pooler sends all of it to one server connection
/// although there is no transaction.
async fn ask(
    connection: &mut PgConnection,
    names: &Names,
    template: &str,
) -> sqlx::Result<Vec<PgRow>> {
    sqlx::raw_sql(names.expand(template))
        .fetch_all(connection)
        .await
}

/// The first part that is missing or not as this build makes it.
async fn missing_part(
    connection: &mut PgConnection,
    names: &Names,
) -> sqlx::Result<Option<String>> {
    let rows = ask(connection, names, include_str!("sql/shape.sql")).await?;
    let present = rows
        .iter()
        .map(|row| row.try_get(0))
        .collect::<sqlx::Result<std::collections::HashSet<String>>>()?;
    Ok(expected_shape(names)
        .into_iter()
        .find(|part| !present.contains(part))
        // Of a function, its name is enough.
        .map(|part| part.lines().next().unwrap_or_default().to_owned()))
}

async fn find(connection: &mut PgConnection, names: &Names) -> sqlx::Result<Found> {
    let rows = ask(connection, names, include_str!("sql/find.sql")).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    match (row.try_get::<i64, _>(0)?, row.try_get::<i64, _>(1)?) {
        (0, _) => return Ok(Found::Nothing),
        (_, 2) => {}
        _ => return Ok(Found::Foreign),
    }
    let in_partitions: bool = row.try_get(2)?;
    let sql = "SELECT marker, version FROM {meta} LIMIT 1";
    let rows = ask(connection, names, sql).await?;
    let Some(row) = rows.first() else {
        return Ok(Found::Foreign);
    };
    let version = row.try_get::<i32, _>(1).ok();
    Ok(match version.and_then(|version| version.try_into().ok()) {
        Some(version) if row.try_get::<&str, _>(0).is_ok_and(|m| m == MARKER) => {
            // Of another version, only the version matters.
            if version == version_of(STEPS) && in_partitions != names.in_partitions() {
                Found::OtherLayout
            } else {
                Found::Version(version)
            }
        }
        _ => Found::Foreign,
    })
}

fn other_layout(operation: &'static str, names: &Names) -> Error {
    let what = if names.in_partitions() {
        "not set up in partitions, and this store's options ask for them"
    } else {
        "set up in partitions, and this store's options do not say so"
    };
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!("{names} is {what}; every process on one inbox has to say the same"),
    )
}

fn wrong_version(operation: &'static str, names: &Names, found: u32, expected: u32) -> Error {
    let what = if found > expected {
        "use a newer build"
    } else {
        "migrate it"
    };
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!("{names} has schema version {found}, this build works with {expected}: {what}"),
    )
}

fn foreign(operation: &'static str, names: &Names, expected: u32) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "there are tables of the names of {names} that are not an inbox's (version unknown, \
             this build works with {expected}); choose another inbox name or schema"
        ),
    )
}

fn incomplete(operation: &'static str, names: &Names, version: u32, part: &str) -> Error {
    let other_type = part.starts_with(&format!("column {}_message.payload ", names.inbox()));
    let hint = if other_type {
        "; was it set up with another payload type?"
    } else {
        ""
    };
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "{names} says version {version}, but this is missing or not as this build's version \
             {version} makes it: {part}{hint}"
        ),
    )
}

/// Fails unless an inbox of the expected version is there. Looks at the version and the payload's
/// type only, so that it is cheap enough for the first use of every store.
pub(crate) async fn check_version(
    operation: &'static str,
    connection: &mut PgConnection,
    inner: &Inner,
) -> Result<()> {
    let names = &inner.names;
    let expected = version_of(STEPS);
    match find(connection, names)
        .await
        .map_err(in_operation(operation))?
    {
        Found::Version(version) if version == expected => {
            let sql = "SELECT FROM pg_catalog.pg_attribute WHERE attrelid = '{message}'::regclass
                AND attname = 'payload' AND atttypid = '{payload}'::regtype";
            let found = ask(connection, names, sql)
                .await
                .map_err(in_operation(operation))?;
            if found.is_empty() {
                let part = names.text("column {prefix}_message.payload {payload}");
                return Err(incomplete(operation, names, version, &part));
            }
            Ok(())
        }
        Found::Version(version) => Err(wrong_version(operation, names, version, expected)),
        Found::OtherLayout => Err(other_layout(operation, names)),
        Found::Foreign => Err(foreign(operation, names, expected)),
        Found::Nothing => Err(Error::new(
            ErrorKind::SchemaMissing,
            operation,
            format!("there is no {names}; create or migrate sets one up"),
        )),
    }
}

async fn run(connection: &mut PgConnection, sql: String) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await?;
    Ok(())
}

/// Brings the inbox to the version that `steps` make, in one transaction. With
/// `from_nothing_only` an older inbox is refused.
async fn apply(
    operation: &'static str,
    connection: &mut PgConnection,
    names: &Names,
    steps: &[&str],
    from_nothing_only: bool,
) -> Result<Migration> {
    let mapped = in_operation(operation);
    let to = version_of(steps);
    let mut transaction = connection.begin_with(BEGIN).await.map_err(mapped)?;
    run(
        &mut transaction,
        names.text("SELECT pg_advisory_xact_lock({setup_lock})"),
    )
    .await
    .map_err(mapped)?;
    check_encoding(operation, &mut transaction).await?;
    let from = match find(&mut transaction, names).await.map_err(mapped)? {
        Found::Version(version) if version > to || (version < to && from_nothing_only) => {
            return Err(wrong_version(operation, names, version, to));
        }
        Found::Version(version) => Some(version),
        Found::Nothing => None,
        Found::OtherLayout => return Err(other_layout(operation, names)),
        Found::Foreign => return Err(foreign(operation, names, to)),
    };
    if from.is_none() && !has_schema(&mut transaction, names).await.map_err(mapped)? {
        run(&mut transaction, names.text("CREATE SCHEMA {schema}"))
            .await
            .map_err(mapped)?;
    }
    if from != Some(to) {
        let done = usize::try_from(from.unwrap_or(0)).unwrap_or(usize::MAX);
        for step in steps.get(done..).unwrap_or_default() {
            run(&mut transaction, names.text(step))
                .await
                .map_err(mapped)?;
        }
        let rest = routines(names) + &set_version(names, to);
        run(&mut transaction, rest).await.map_err(mapped)?;
    }
    if to == version_of(STEPS)
        && let Some(part) = missing_part(&mut transaction, names)
            .await
            .map_err(mapped)?
    {
        return Err(incomplete(operation, names, to, &part));
    }
    transaction.commit().await.map_err(mapped)?;
    Ok(Migration { from, to })
}

async fn has_schema(connection: &mut PgConnection, names: &Names) -> sqlx::Result<bool> {
    // CREATE SCHEMA IF NOT EXISTS asks for the right to create one even when it is there.
    let rows = sqlx::query("SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1")
        .bind(names.schema().as_str())
        .persistent(false)
        .fetch_all(connection)
        .await?;
    Ok(!rows.is_empty())
}

/// In another encoding, not every id could be stored.
async fn check_encoding(operation: &'static str, connection: &mut PgConnection) -> Result<()> {
    let encoding: String = sqlx::query_scalar("SELECT current_setting('server_encoding')")
        .persistent(false)
        .fetch_one(connection)
        .await
        .map_err(in_operation(operation))?;
    if encoding != "UTF8" {
        return Err(Error::new(
            ErrorKind::Unsupported,
            operation,
            format!("the database's encoding is {encoding}; an inbox needs UTF8"),
        ));
    }
    Ok(())
}

impl PostgresStore {
    async fn set_up(&self, operation: &'static str, from_nothing_only: bool) -> Result<Migration> {
        let names = &self.inner.names;
        let mut leash = Leash::new(self.limit());
        let work = async {
            let mapped = before(operation);
            leash.take(&self.inner.pool).await.map_err(mapped)?;
            let connection = leash.transaction_begins().map_err(mapped)?;
            let migration = apply(operation, connection, names, STEPS, from_nothing_only).await?;
            leash.transaction_ended();
            Ok(migration)
        };
        let outcome = timeout(self.limit(), work).await;
        leash.finish(operation, outcome)
    }

    /// What `look` sees on a connection of the pool.
    async fn found(&self, operation: &'static str) -> Result<(Found, Option<String>)> {
        let names = &self.inner.names;
        let mut leash = Leash::new(self.limit());
        let work = async {
            let connection = leash
                .take(&self.inner.pool)
                .await
                .map_err(before(operation))?;
            let mapped = in_operation(operation);
            let found = find(connection, names).await.map_err(mapped)?;
            let missing = match found {
                Found::Version(version) if version == version_of(STEPS) => {
                    missing_part(connection, names).await.map_err(mapped)?
                }
                _ => None,
            };
            Ok((found, missing))
        };
        let outcome = timeout(self.limit(), work).await;
        leash.finish(operation, outcome)
    }
}

#[async_trait]
impl Schema for PostgresStore {
    fn ddl(&self) -> String {
        ddl(&self.inner.names)
    }

    fn expected_version(&self) -> u32 {
        version_of(STEPS)
    }

    async fn version(&self) -> Result<Option<u32>> {
        const OPERATION: &str = "version";
        let names = &self.inner.names;
        match self.found(OPERATION).await?.0 {
            Found::Nothing => Ok(None),
            Found::Version(version) => Ok(Some(version)),
            Found::OtherLayout => Err(other_layout(OPERATION, names)),
            Found::Foreign => Err(foreign(OPERATION, names, version_of(STEPS))),
        }
    }

    async fn exists(&self) -> Result<bool> {
        const OPERATION: &str = "exists";
        let names = &self.inner.names;
        match self.found(OPERATION).await? {
            (Found::Nothing, _) => Ok(false),
            (Found::OtherLayout, _) => Err(other_layout(OPERATION, names)),
            (Found::Foreign, _) => Err(foreign(OPERATION, names, version_of(STEPS))),
            (Found::Version(version), _) if version > version_of(STEPS) => {
                Err(wrong_version(OPERATION, names, version, version_of(STEPS)))
            }
            (Found::Version(version), missing) => {
                Ok(version == version_of(STEPS) && missing.is_none())
            }
        }
    }

    async fn create(&self) -> Result<()> {
        if self.exists().await? {
            return Ok(());
        }
        self.set_up("create", true).await?;
        Ok(())
    }

    async fn migrate(&self) -> Result<Migration> {
        self.set_up("migrate", false).await
    }
}
