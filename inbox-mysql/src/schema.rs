//! Setting up, migrating, and telling what is there.

use std::time::Duration;

use async_trait::async_trait;
use inbox_api::{Effect, Error, ErrorKind, Migration, Result, Schema};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use tokio::time::Instant;

use crate::{
    connection::Connection,
    consistency,
    error::{before, failed},
    installed_schema::{
        Found, MARKER, OLDEST, VERSION, difference, expected, find, foreign, incomplete, present,
        works_with, wrong_version,
    },
    multi_statement::{Access, Script, Sets},
    options::{MySqlOptions, TABLES},
    procedures::{self, fnv},
    statement::hex,
    statements::Names,
    store::MySqlStore,
};

/// How often a step is tried when another process is at it too.
const TRIES: u32 = 10;
/// How long between two tries.
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

#[async_trait]
impl Schema for MySqlStore {
    fn ddl(&self) -> String {
        self.inner.context.options.ddl()
    }

    fn exists_query(&self) -> String {
        self.inner.context.options.exists_query()
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        let version = version(self.connection()).await;
        version.map_err(|e| e.in_operation("version"))
    }

    async fn exists(&self) -> Result<bool> {
        let complete = is_complete(self.connection()).await;
        complete.map_err(|e| e.in_operation("exists"))
    }

    async fn create(&self) -> Result<()> {
        let created = create(self.connection()).await;
        created.map_err(|e| e.in_operation("create"))
    }

    async fn migrate(&self) -> Result<Migration> {
        let migration = migrate(self.connection()).await;
        migration.map_err(|e| e.in_operation("migrate"))
    }

    async fn remove(&self) -> Result<()> {
        let removed = remove(self.connection()).await;
        removed.map_err(|e| e.in_operation("remove"))
    }
}

impl MySqlOptions {
    /// The statements that set up an empty inbox with these options: what
    /// [`Schema::ddl`](inbox_api::Schema::ddl) gives, without a connection.
    #[must_use]
    pub fn ddl(&self) -> String {
        let names = Names::new(self);
        let tables = names.expand(include_str!("sql/schema_1.sql"));
        format!("{tables}\n{};\n", set_version(&names))
    }
}

fn set_version(names: &Names) -> String {
    names.expand(&format!(
        "INSERT INTO {{meta}} (only_row, marker, version, oldest)\n\
         VALUES (1, '{MARKER}', {VERSION}, {OLDEST})\n\
         ON DUPLICATE KEY UPDATE version = {VERSION}, oldest = {OLDEST}"
    ))
}

/// Sets the inbox up unless it is there. Under a lock of the server's by the inbox's name,
/// so that of several at once one does it. In a cluster that lock would be one node's only;
/// there the statements themselves, which are harmless when repeated and run in one order on
/// all nodes, have to do.
async fn apply(connection: Connection<'_>) -> Result<Migration> {
    let inner = connection.inner;
    let options = &connection.context.options;
    let mut guard = connection.guard().await?;
    let work = async {
        let session = guard.session()?;
        let lock = lock(connection, session).await?;
        inner.begin_reading(session).await?;
        let (found, _) = find(session, options).await.map_err(failed)?;
        inner.end_reading(session).await?;
        let from = match found {
            Found::Version { version, oldest } if works_with(version, oldest) => Some(version),
            Found::Version { version, .. } => {
                return Err(wrong_version(&options.inbox, version));
            }
            Found::Foreign => return Err(foreign(&options.inbox)),
            Found::Nothing | Found::Unfinished => None,
        };
        if from.is_none() {
            for statement in &connection.context.sql.schema {
                let statement = statement.fill(&[]).into_text();
                execute(session, statement).await.map_err(failed)?;
            }
            let mut mark = Script::default();
            mark.begin(Access::Write, Sets::default());
            mark.fixed(&set_version(&Names::new(options)));
            mark.commit();
            inner.run_script(&mark, session).await.map_err(failed)?;
        }
        inner.begin_reading(session).await?;
        let to = from.unwrap_or(VERSION);
        let present = present(session, options).await.map_err(failed)?;
        if let Some((table, line)) = difference(&expected(options), &present) {
            return Err(incomplete(&options.inbox, to, table, line));
        }
        consistency::check(session, options).await?;
        inner.end_reading(session).await?;
        if !connection.context.server.galera {
            procedures::install(session, options, connection.context.procedures()).await?;
        }
        unlock(session, lock).await?;
        Ok(Migration {
            from,
            to,
            works_from: OLDEST,
        })
    };
    let migration = connection.in_time(Effect::Unknown, work).await?;
    guard.give_back();
    Ok(migration)
}

/// Removes the inbox, under the same lock. The table that marks it comes last, so that what an earlier
/// call has left is still known as an inbox's.
async fn take_down(connection: Connection<'_>) -> Result<()> {
    let inner = connection.inner;
    let options = &connection.context.options;
    let mut guard = connection.guard().await?;
    let work = async {
        let session = guard.session()?;
        let lock = lock(connection, session).await?;
        inner.begin_reading(session).await?;
        let (found, _) = find(session, options).await.map_err(failed)?;
        inner.end_reading(session).await?;
        match found {
            Found::Version { version, .. } if version > VERSION => {
                return Err(wrong_version(&options.inbox, version));
            }
            Found::Foreign => return Err(foreign(&options.inbox)),
            Found::Version { .. } | Found::Nothing | Found::Unfinished => {}
        }
        let dropped = procedures::drop_all(session, options).await;
        dropped.map_err(failed)?;
        let tables = TABLES.map(|table| options.table(table));
        let drop = format!("DROP TABLE IF EXISTS {}", tables.join(", "));
        execute(session, drop).await.map_err(failed)?;
        unlock(session, lock).await
    };
    connection.in_time(Effect::Unknown, work).await?;
    guard.give_back();
    Ok(())
}

/// Takes a step, again if another process was at it, for as long as there is time: it was preferred,
/// removed a table that had been seen, or, in a cluster, interrupted what another node was doing.
async fn persist<T, F>(connection: Connection<'_>, step: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut tries = 1;
    loop {
        let answer = step().await;
        let again = Instant::now() + BETWEEN_TRIES;
        let disturbed = answer.as_ref().is_err_and(|error| match error.kind() {
            ErrorKind::Conflict | ErrorKind::SchemaMissing => true,
            ErrorKind::Unavailable => connection.context.server.galera,
            _ => false,
        });
        if !disturbed || tries >= TRIES || again >= connection.until {
            return answer;
        }
        tries += 1;
        tokio::time::sleep_until(again).await;
    }
}

async fn remove(connection: Connection<'_>) -> Result<()> {
    persist(connection, || take_down(connection)).await
}

async fn migrate(connection: Connection<'_>) -> Result<Migration> {
    persist(connection, || apply(connection)).await
}

/// What stands there, and whether that is a complete inbox that this build works with.
async fn look(connection: Connection<'_>) -> Result<(Found, bool)> {
    persist(connection, || look_once(connection)).await
}

async fn look_once(connection: Connection<'_>) -> Result<(Found, bool)> {
    let inner = connection.inner;
    let options = &connection.context.options;
    let mut guard = connection.guard().await?;
    let work = async {
        let session = guard.session()?;
        inner.begin_reading(session).await?;
        let (found, present) = find(session, options).await.map_err(before)?;
        let complete = match found {
            Found::Version { version, oldest } => {
                works_with(version, oldest) && difference(&expected(options), &present).is_none()
            }
            _ => false,
        };
        if complete {
            consistency::check(session, options).await?;
        }
        inner.end_reading(session).await?;
        Ok((found, complete))
    };
    let found = connection.in_time(Effect::None, work).await?;
    guard.give_back();
    Ok(found)
}

async fn create(connection: Connection<'_>) -> Result<()> {
    if !is_complete(connection).await? {
        migrate(connection).await?;
    }
    Ok(())
}

async fn version(connection: Connection<'_>) -> Result<Option<u32>> {
    match look(connection).await?.0 {
        Found::Nothing | Found::Unfinished => Ok(None),
        Found::Version { version, .. } => Ok(Some(version)),
        Found::Foreign => Err(foreign(&connection.context.options.inbox)),
    }
}

/// Whether a complete inbox of this version is there.
async fn is_complete(connection: Connection<'_>) -> Result<bool> {
    let options = &connection.context.options;
    let (found, complete) = look(connection).await?;
    match found {
        Found::Nothing | Found::Unfinished => Ok(false),
        Found::Foreign => Err(foreign(&options.inbox)),
        Found::Version { version, oldest } if version > VERSION && !works_with(version, oldest) => {
            Err(wrong_version(&options.inbox, version))
        }
        Found::Version { .. } => Ok(complete),
    }
}

async fn execute(session: &mut MySqlConnection, sql: String) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(session).await?;
    Ok(())
}

/// Takes the server's lock by the inbox's name, unless it is in a cluster.
async fn lock(connection: Connection<'_>, session: &mut MySqlConnection) -> Result<Option<String>> {
    if connection.context.server.galera {
        return Ok(None);
    }
    let options = &connection.context.options;
    let lock = lock_name(options);
    take_lock(session, &lock, options.operation_timeout.as_secs()).await?;
    Ok(Some(lock))
}

async fn unlock(session: &mut MySqlConnection, lock: Option<String>) -> Result<()> {
    if let Some(lock) = lock {
        let release = execute(session, format!("DO RELEASE_LOCK('{lock}')"));
        release.await.map_err(failed)?;
    }
    Ok(())
}

/// Names of locks have at most 64 characters and are the whole server's.
fn lock_name(options: &MySqlOptions) -> String {
    let database = options
        .database
        .as_deref()
        .or(options.connect.get_database())
        .unwrap_or_default();
    let names = database
        .bytes()
        .chain([0])
        .chain(options.inbox.as_str().bytes());
    // Two inboxes with one lock would only wait for each other.
    let hash = fnv(names);
    let mut name = "inbox.".to_owned();
    hex(&hash.to_be_bytes(), &mut name);
    name
}

async fn take_lock(session: &mut MySqlConnection, lock: &str, seconds: u64) -> Result<()> {
    let sql = format!("SELECT COALESCE(GET_LOCK('{lock}', {}), 0)", seconds.max(1));
    let row = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_one(session)
        .await
        .map_err(before)?;
    let taken: i64 = row.try_get_unchecked(0).map_err(before)?;
    if taken == 1 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Conflict,
        "another process has been setting the inbox up for too long",
    ))
}
