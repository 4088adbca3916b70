//! Setting up: numbered steps of SQL, applied in one transaction under an advisory lock.

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, Migration, Result, Schema};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _, postgres::PgRow};
use tokio::time::timeout;

use crate::{
    connection_guard::ConnectionGuard,
    error::{before, in_operation},
    shape::{missing_part, other_texts},
    statements::Names,
    store::{Inner, PostgresStore, READ_COMMITTED},
};

/// Step n brings the tables from version n to n + 1. Never changed once released. The functions
/// and the view are those of the newest version, and are replaced as a whole.
///
/// A version stands for the tables and for how the functions are called. What changes within the
/// functions only is a [`REVISION`]: old builds and new ones work with either.
pub(crate) const STEPS: &[&str] = &[include_str!("sql/schema_1.sql")];

/// To be counted up by whatever changes a function or the view.
const REVISION: u32 = 1;

/// The oldest version whose builds work with the tables and functions that this build makes.
const WORKS_FROM: u32 = 1;

/// The oldest version that this build works with.
const OLDEST: u32 = 1;

const VIEW: &str = include_str!("sql/view.sql");
const MARKER: &str = "inbox.postgres";

/// What stands in the schema under the inbox's name.
enum Found {
    Nothing,
    Inbox(Standing),
    /// In partitions where this store's options say otherwise, or the reverse.
    OtherLayout,
    Foreign,
}

/// Which inbox it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    version: u32,
    works_from: u32,
    revision: u32,
}

impl Standing {
    /// Whether a build of version `build`, which works with versions from `oldest` on, works with
    /// it.
    fn suits(self, oldest: u32, build: u32) -> bool {
        (oldest..=build).contains(&self.version)
            || (self.version > build && self.works_from <= build)
    }

    fn suits_this_build(self) -> bool {
        self.suits(OLDEST, version_of(STEPS))
    }
}

fn version_of(steps: &[&str]) -> u32 {
    u32::try_from(steps.len()).unwrap_or(u32::MAX)
}

/// What sets the functions and the view up, over whatever revision of them is there.
fn routines(names: &Names) -> String {
    names
        .functions()
        .map(|(_, template)| *template)
        .chain([VIEW])
        .map(|template| names.text(template) + "\n")
        .collect()
}

fn record_version(names: &Names, version: u32) -> String {
    let functions: Vec<String> = names
        .functions()
        .map(|(name, _)| format!("'{}_{name}'", names.inbox()))
        .collect();
    names
        .text(include_str!("sql/record_version.sql"))
        .replace("{marker}", MARKER)
        .replace("{version}", &version.to_string())
        .replace("{works_from}", &WORKS_FROM.to_string())
        .replace("{revision}", &REVISION.to_string())
        .replace("{functions}", &functions.join(", "))
}

pub(crate) fn ddl(names: &Names) -> String {
    let mut text = names.text("CREATE SCHEMA IF NOT EXISTS {schema};\n\n");
    for step in STEPS {
        text.push_str(&names.text(step));
        text.push('\n');
    }
    text + &routines(names) + &record_version(names, version_of(STEPS))
}

/// As one message without parameters, so that a pooler sends all of it to one server connection
/// although there is no transaction.
pub(crate) async fn ask(
    connection: &mut PgConnection,
    names: &Names,
    template: &str,
) -> sqlx::Result<Vec<PgRow>> {
    sqlx::raw_sql(names.expand(template))
        .fetch_all(connection)
        .await
}

async fn find(connection: &mut PgConnection, names: &Names) -> sqlx::Result<Found> {
    let rows = ask(connection, names, include_str!("sql/find.sql")).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    match (row.try_get::<i64, _>(0)?, row.try_get::<i64, _>(1)?) {
        (0, _) => return Ok(Found::Nothing),
        (_, 4) => {}
        _ => return Ok(Found::Foreign),
    }
    let in_partitions: bool = row.try_get(2)?;
    let sql = "SELECT marker, version, works_from, revision FROM {meta} LIMIT 1";
    let rows = ask(connection, names, sql).await?;
    let number = |row: &PgRow, index: usize| u32::try_from(row.try_get::<i32, _>(index).ok()?).ok();
    let standing = rows.first().and_then(|row| {
        row.try_get::<&str, _>(0).ok().filter(|m| *m == MARKER)?;
        Some(Standing {
            version: number(row, 1)?,
            works_from: number(row, 2)?,
            revision: number(row, 3)?,
        })
    });
    Ok(match standing {
        // Of a version that does not suit, only the version matters.
        Some(standing) if standing.suits_this_build() && in_partitions != names.in_partitions() => {
            Found::OtherLayout
        }
        Some(standing) => Found::Inbox(standing),
        None => Found::Foreign,
    })
}

/// What is wrong with the rows of an inbox whose parts are all there: the first thing found.
async fn torn(connection: &mut PgConnection, names: &Names) -> sqlx::Result<Option<String>> {
    if let Some(behind) = behind(connection, names).await? {
        return Ok(Some(behind));
    }
    let rows = ask(connection, names, include_str!("sql/torn.sql")).await?;
    rows.first().map_or(Ok(None), |row| row.try_get(0))
}

/// Numbers that have been given out would be given out again: a new message would not be stored, or
/// overtake earlier ones of its ordering key.
async fn behind(connection: &mut PgConnection, names: &Names) -> sqlx::Result<Option<String>> {
    let rows = ask(connection, names, include_str!("sql/numbers.sql")).await?;
    let behind = rows
        .first()
        .map_or(Ok(None), |row| row.try_get::<Option<bool>, _>(0))?;
    Ok((behind == Some(true)).then(|| {
        format!(
            "the sequence {}_seq is behind the numbers of messages; set it to more than the \
             highest, in thousands",
            names.inbox()
        )
    }))
}

fn loaded_in_part(operation: &'static str, names: &Names, what: &str) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!("{names} is not whole; was a part of it loaded from a dump? {what}"),
    )
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

/// Fails unless an inbox that this build works with is there. Looks at the version, the payload's
/// type and the sequence only, so that it is cheap enough for the first use of every store.
pub(crate) async fn check_version(
    operation: &'static str,
    connection: &mut PgConnection,
    inner: &Inner,
) -> Result<()> {
    let mapped = in_operation(operation);
    let names = &inner.names;
    let expected = version_of(STEPS);
    let standing = match find(connection, names).await.map_err(mapped)? {
        Found::Inbox(standing) => standing,
        Found::OtherLayout => return Err(other_layout(operation, names)),
        Found::Foreign => return Err(foreign(operation, names, expected)),
        Found::Nothing => {
            return Err(Error::new(
                ErrorKind::SchemaMissing,
                operation,
                format!("there is no {names}; create or migrate sets one up"),
            ));
        }
    };
    if !standing.suits_this_build() {
        return Err(wrong_version(operation, names, standing.version, expected));
    }
    let sql = "SELECT FROM pg_catalog.pg_attribute WHERE attrelid = '{message}'::regclass
        AND attname = 'payload' AND atttypid = '{payload}'::regtype";
    let found = ask(connection, names, sql).await.map_err(mapped)?;
    if found.is_empty() {
        let part = names.text("column {prefix}_message.payload {payload}");
        return Err(incomplete(operation, names, standing.version, &part));
    }
    match behind(connection, names).await.map_err(mapped)? {
        Some(behind) => Err(loaded_in_part(operation, names, &behind)),
        None => Ok(()),
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
    // What another process has made while this one waited has to be seen.
    let begun = connection.begin_with(READ_COMMITTED).await;
    let mut transaction = begun.map_err(mapped)?;
    run(
        &mut transaction,
        names.text("SELECT pg_advisory_xact_lock({setup_lock})"),
    )
    .await
    .map_err(mapped)?;
    check_encoding(operation, &mut transaction).await?;
    let from = match find(&mut transaction, names).await.map_err(mapped)? {
        Found::Inbox(standing) if standing.version > to && standing.works_from <= to => {
            // A newer build's, which is as good.
            return Ok(Migration {
                from: Some(standing.version),
                to: standing.version,
            });
        }
        Found::Inbox(Standing { version, .. })
            if version > to || (version < to && from_nothing_only) =>
        {
            return Err(wrong_version(operation, names, version, to));
        }
        Found::Inbox(standing) => Some(standing),
        Found::Nothing => None,
        Found::OtherLayout => return Err(other_layout(operation, names)),
        Found::Foreign => return Err(foreign(operation, names, to)),
    };
    if from.is_none() && !has_schema(&mut transaction, names).await.map_err(mapped)? {
        run(&mut transaction, names.text("CREATE SCHEMA {schema}"))
            .await
            .map_err(mapped)?;
    }
    let version = from.map(|standing| standing.version);
    let done = usize::try_from(version.unwrap_or(0)).unwrap_or(usize::MAX);
    for step in steps.get(done..).unwrap_or_default() {
        run(&mut transaction, names.text(step))
            .await
            .map_err(mapped)?;
    }
    let replaces = match from {
        Some(standing) if standing.version == to => {
            // Those of a newer build stay.
            !from_nothing_only
                && (standing.revision < REVISION
                    || (standing.revision == REVISION
                        && other_texts(&mut transaction, names).await.map_err(mapped)?))
        }
        _ => true,
    };
    if replaces {
        let rest = routines(names) + &record_version(names, to);
        run(&mut transaction, rest).await.map_err(mapped)?;
    }
    if let Some(part) = missing_part(&mut transaction, names)
        .await
        .map_err(mapped)?
    {
        return Err(incomplete(operation, names, to, &part));
    }
    if let Some(what) = torn(&mut transaction, names).await.map_err(mapped)? {
        return Err(loaded_in_part(operation, names, &what));
    }
    transaction.commit().await.map_err(mapped)?;
    Ok(Migration { from: version, to })
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
        let mut guard = ConnectionGuard::new(self.limit());
        let work = async {
            let mapped = before(operation);
            guard.take(&self.inner.pool).await.map_err(mapped)?;
            let connection = guard.transaction_begins().map_err(mapped)?;
            let migration = apply(operation, connection, names, STEPS, from_nothing_only).await;
            // Committed, or the driver knows that it is to be rolled back.
            guard.transaction_ended();
            migration
        };
        let outcome = timeout(self.limit(), work).await;
        guard.finish(operation, outcome)
    }

    async fn found(&self, operation: &'static str) -> Result<Found> {
        let names = &self.inner.names;
        let mut guard = ConnectionGuard::new(self.limit());
        let work = async {
            let connection = guard
                .take(&self.inner.pool)
                .await
                .map_err(before(operation))?;
            let mapped = in_operation(operation);
            find(connection, names).await.map_err(mapped)
        };
        let outcome = timeout(self.limit(), work).await;
        guard.finish(operation, outcome)
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
        match self.found(OPERATION).await? {
            Found::Nothing => Ok(None),
            Found::Inbox(standing) => Ok(Some(standing.version)),
            Found::OtherLayout => Err(other_layout(OPERATION, names)),
            Found::Foreign => Err(foreign(OPERATION, names, version_of(STEPS))),
        }
    }

    async fn exists(&self) -> Result<bool> {
        const OPERATION: &str = "exists";
        let names = &self.inner.names;
        let expected = version_of(STEPS);
        let mut guard = ConnectionGuard::new(self.limit());
        let work = async {
            let connection = guard
                .take(&self.inner.pool)
                .await
                .map_err(before(OPERATION))?;
            let mapped = in_operation(OPERATION);
            match find(connection, names).await.map_err(mapped)? {
                Found::Nothing => return Ok(false),
                Found::OtherLayout => return Err(other_layout(OPERATION, names)),
                Found::Foreign => return Err(foreign(OPERATION, names, expected)),
                Found::Inbox(standing) if standing.version > expected => {
                    // What a newer build makes of its parts, this one does not know.
                    return if standing.suits_this_build() {
                        Ok(true)
                    } else {
                        Err(wrong_version(OPERATION, names, standing.version, expected))
                    };
                }
                Found::Inbox(standing) if standing.version < expected => return Ok(false),
                Found::Inbox(_) => {}
            }
            if missing_part(connection, names)
                .await
                .map_err(mapped)?
                .is_some()
            {
                return Ok(false);
            }
            match torn(connection, names).await.map_err(mapped)? {
                Some(what) => Err(loaded_in_part(OPERATION, names, &what)),
                None => Ok(true),
            }
        };
        let outcome = timeout(self.limit(), work).await;
        guard.finish(OPERATION, outcome)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_suit_within_their_stated_ranges() {
        // Version of the inbox, the oldest build that it suits; oldest inbox of the build, its
        // version.
        for (version, works_from, oldest, build, suits) in [
            (3, 3, 3, 3, true),
            (3, 3, 2, 4, true),
            (3, 3, 4, 4, false),
            (4, 3, 3, 3, true),
            (4, 4, 3, 3, false),
            (7, 2, 1, 2, true),
            (0, 0, 1, 1, false),
        ] {
            let standing = Standing {
                version,
                works_from,
                revision: 1,
            };
            assert_eq!(
                standing.suits(oldest, build),
                suits,
                "{standing:?} {oldest} {build}"
            );
        }
    }
}
