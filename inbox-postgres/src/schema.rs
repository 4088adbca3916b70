//! Setting up: numbered steps of SQL, applied in one transaction under an advisory lock.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, Migration, Result, Schema};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tokio::time::{sleep, timeout};

use crate::{
    connection::{Database, READ_COMMITTED},
    connection_guard::ConnectionGuard,
    ddl::{self, REVISION, STEPS, WORKS_FROM, record_version, routines, version_of},
    error::{before, failed, in_operation, refuses_writes},
    names::Names,
    shape::{exists_query, missing_part, other_texts},
    store::PostgresStore,
    versions::{
        Found, Standing, ask, find, find_sequence_behind, foreign, incomplete, loaded_in_part,
        other_layout, wrong_version,
    },
};

/// How often what is there is looked at while other processes remove it and set it up again.
const LOOKS: u32 = 5;

/// Another process may be making it for another inbox, whose advisory lock is another.
const MAKE_SCHEMA: &str = "DO $$ BEGIN CREATE SCHEMA {schema};
    EXCEPTION WHEN duplicate_schema OR unique_violation THEN NULL; END $$";

/// A removal waits no longer than this for each lock: less than the second after which the server breaks a deadlock
/// up, perhaps at a worker's expense.
const LOCK_PATIENCE: &str = "SET LOCAL lock_timeout = '200ms'";

/// How long workers go on before a removal tries again.
const BETWEEN_REMOVALS: Duration = Duration::from_millis(100);

const REMOVE_SEQUENCE: &str = "DROP SEQUENCE IF EXISTS {inbox}_seq;";

/// What is wrong with the rows of an inbox whose parts are all there: the first thing found.
async fn find_contradiction(
    connection: &mut PgConnection,
    names: &Names,
) -> sqlx::Result<Option<String>> {
    if let Some(behind) = find_sequence_behind(connection, names).await? {
        return Ok(Some(behind));
    }
    let template = include_str!("sql/schema_contradictions.sql");
    let rows = ask(connection, names, template).await?;
    rows.first().map_or(Ok(None), |row| row.try_get(0))
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
    connection: &mut PgConnection,
    names: &Names,
    steps: &[&str],
    from_nothing_only: bool,
) -> Result<Migration> {
    let to = version_of(steps);
    // What another process has made while this one waited has to be seen.
    let begun = connection.begin_with(READ_COMMITTED).await;
    let mut transaction = begun.map_err(failed)?;
    run(
        &mut transaction,
        names.text("SELECT pg_advisory_xact_lock({setup_lock})"),
    )
    .await
    .map_err(failed)?;
    check_encoding(&mut transaction).await?;
    let from = match find(&mut transaction, names).await.map_err(failed)? {
        Found::Inbox(standing) if standing.version > to && standing.works_from <= to => {
            // A newer build's, which is as good.
            return Ok(Migration {
                from: Some(standing.version),
                to: standing.version,
                works_from: standing.works_from,
            });
        }
        Found::Inbox(Standing { version, .. })
            if version > to || (version < to && from_nothing_only) =>
        {
            return Err(wrong_version(names, version, to));
        }
        Found::Inbox(standing) => Some(standing),
        Found::Nothing => None,
        Found::OtherLayout => return Err(other_layout(names)),
        Found::Foreign => return Err(foreign(names, to)),
    };
    if from.is_none() && !has_schema(&mut transaction, names).await.map_err(failed)? {
        run(&mut transaction, names.text(MAKE_SCHEMA))
            .await
            .map_err(failed)?;
    }
    let version = from.map(|standing| standing.version);
    let done = usize::try_from(version.unwrap_or(0)).unwrap_or(usize::MAX);
    for step in steps.get(done..).unwrap_or_default() {
        run(&mut transaction, names.text(step))
            .await
            .map_err(failed)?;
    }
    let replaces = match from {
        Some(standing) if standing.version == to => {
            // Those of a newer build stay.
            !from_nothing_only
                && (standing.revision < REVISION
                    || (standing.revision == REVISION
                        && other_texts(&mut transaction, names).await.map_err(failed)?))
        }
        _ => true,
    };
    if replaces {
        let rest = routines(names) + &record_version(names, to);
        run(&mut transaction, rest).await.map_err(failed)?;
    }
    if let Some(part) = missing_part(&mut transaction, names)
        .await
        .map_err(failed)?
    {
        return Err(incomplete(names, to, &part));
    }
    if let Some(what) = find_contradiction(&mut transaction, names)
        .await
        .map_err(failed)?
    {
        return Err(loaded_in_part(names, &what));
    }
    transaction.commit().await.map_err(failed)?;
    let works_from = match from {
        Some(standing) if !replaces => standing.works_from,
        _ => WORKS_FROM,
    };
    Ok(Migration {
        from: version,
        to,
        works_from,
    })
}

async fn has_schema(connection: &mut PgConnection, names: &Names) -> sqlx::Result<bool> {
    // CREATE SCHEMA IF NOT EXISTS asks for the right to create one even when it is there.
    let rows = sqlx::query("SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1")
        .bind(names.schema.as_str())
        .persistent(false)
        .fetch_all(connection)
        .await?;
    Ok(!rows.is_empty())
}

/// In another encoding, not every id could be stored.
async fn check_encoding(connection: &mut PgConnection) -> Result<()> {
    let encoding: String = sqlx::query_scalar("SELECT current_setting('server_encoding')")
        .persistent(false)
        .fetch_one(connection)
        .await
        .map_err(failed)?;
    if encoding != "UTF8" {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("the database's encoding is {encoding}; an inbox needs UTF8"),
        ));
    }
    Ok(())
}

/// Looks at what is there with `look`, which gets a connection of the pool.
async fn with_connection<T>(
    database: &Database,
    look: impl AsyncFnOnce(&mut PgConnection) -> Result<T>,
) -> Result<T> {
    let mut guard = ConnectionGuard::new(&database.connections);
    let work = async {
        let connection = guard.take().await.map_err(before)?;
        look(connection).await
    };
    let outcome = timeout(database.limit(), work).await;
    guard.finish(outcome)
}

/// Looks again if another process removed the inbox between two statements of a look.
async fn look_at_rest<T, F>(look: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    for _ in 1..LOOKS {
        match look().await {
            Err(error) if error.kind() == ErrorKind::SchemaMissing => {}
            answer => return answer,
        }
    }
    look().await
}

async fn version(database: &Database) -> Result<Option<u32>> {
    let names = &database.names;
    let find = async |connection: &mut PgConnection| find(connection, names).await.map_err(failed);
    match with_connection(database, find).await? {
        Found::Nothing => Ok(None),
        Found::Inbox(standing) => Ok(Some(standing.version)),
        Found::OtherLayout => Err(other_layout(names)),
        Found::Foreign => Err(foreign(names, version_of(STEPS))),
    }
}

async fn exists(database: &Database) -> Result<bool> {
    let names = &database.names;
    with_connection(database, async |connection| {
        is_complete(connection, names).await
    })
    .await
}

async fn is_complete(connection: &mut PgConnection, names: &Names) -> Result<bool> {
    let expected = version_of(STEPS);
    match find(connection, names).await.map_err(failed)? {
        Found::Nothing => return Ok(false),
        Found::OtherLayout => return Err(other_layout(names)),
        Found::Foreign => return Err(foreign(names, expected)),
        Found::Inbox(standing) if standing.version > expected => {
            // What a newer build makes of its parts, this one does not know.
            return if standing.suits_this_build() {
                Ok(true)
            } else {
                Err(wrong_version(names, standing.version, expected))
            };
        }
        Found::Inbox(standing) if standing.version < expected => return Ok(false),
        Found::Inbox(_) => {}
    }
    let missing = missing_part(connection, names).await.map_err(failed)?;
    if missing.is_some() {
        return Ok(false);
    }
    let found = find_contradiction(connection, names).await;
    match found.map_err(failed)? {
        Some(what) => Err(loaded_in_part(names, &what)),
        None => Ok(true),
    }
}

/// Changes what is there with `change`, which gets a connection of the pool and begins and ends a
/// transaction.
async fn in_transaction<T>(
    database: &Database,
    change: impl AsyncFnOnce(&mut PgConnection) -> Result<T>,
) -> Result<T> {
    let mut guard = ConnectionGuard::new(&database.connections);
    let work = async {
        guard.take().await.map_err(before)?;
        let connection = guard.transaction_begins().map_err(before)?;
        let changed = change(connection).await;
        // Committed, or the driver knows that it is to be rolled back.
        guard.transaction_ended();
        changed
    };
    let outcome = timeout(database.limit(), work).await;
    let outcome = guard.finish(outcome);
    if outcome.as_ref().is_err_and(refuses_writes) {
        database.leave_server();
    }
    outcome
}

async fn set_up(database: &Database, from_nothing_only: bool) -> Result<Migration> {
    in_transaction(database, async |connection| {
        apply(connection, &database.names, STEPS, from_nothing_only).await
    })
    .await
}

/// Removes what is there, in one transaction. Operations come to the sequence before the tables or behind them.
async fn take_away(
    connection: &mut PgConnection,
    names: &Names,
    sequence_first: bool,
) -> Result<()> {
    let begun = connection.begin_with(READ_COMMITTED).await;
    let mut transaction = begun.map_err(failed)?;
    let lock = names.text("SELECT pg_advisory_xact_lock({setup_lock})");
    run(&mut transaction, lock).await.map_err(failed)?;
    let known = version_of(STEPS);
    match find(&mut transaction, names).await.map_err(failed)? {
        Found::Nothing => return Ok(()),
        Found::Inbox(standing) if standing.version > known => {
            // Which parts a newer build's has, this one does not know.
            return Err(wrong_version(names, standing.version, known));
        }
        Found::Inbox(_) => {}
        Found::OtherLayout => return Err(other_layout(names)),
        Found::Foreign => return Err(foreign(names, known)),
    }
    let tables = include_str!("sql/schema_remove.sql");
    let parts = if sequence_first {
        [LOCK_PATIENCE, REMOVE_SEQUENCE, tables]
    } else {
        [LOCK_PATIENCE, tables, REMOVE_SEQUENCE]
    };
    for part in parts {
        run(&mut transaction, names.text(part))
            .await
            .map_err(failed)?;
    }
    transaction.commit().await.map_err(failed)
}

/// Tries again for as long as an operation may take while workers have parts of it.
async fn remove(database: &Database) -> Result<()> {
    let started = Instant::now();
    let mut sequence_first = true;
    loop {
        let removed = in_transaction(database, async |connection| {
            take_away(connection, &database.names, sequence_first).await
        })
        .await;
        match removed {
            Err(error)
                if error.kind() == ErrorKind::Conflict && started.elapsed() < database.limit() =>
            {
                sequence_first = !sequence_first;
                sleep(BETWEEN_REMOVALS).await;
            }
            removed => return removed,
        }
    }
}

async fn create(database: &Database) -> Result<()> {
    if !look_at_rest(|| exists(database)).await? {
        set_up(database, true).await?;
    }
    Ok(())
}

#[async_trait]
impl Schema for PostgresStore {
    fn ddl(&self) -> String {
        ddl::ddl(&self.inner.database.names)
    }

    fn expected_version(&self) -> u32 {
        version_of(STEPS)
    }

    fn works_from(&self) -> u32 {
        WORKS_FROM
    }

    fn exists_query(&self) -> String {
        exists_query(&self.inner.database.names)
    }

    async fn version(&self) -> Result<Option<u32>> {
        let found = look_at_rest(|| version(&self.inner.database)).await;
        found.map_err(in_operation("version"))
    }

    async fn exists(&self) -> Result<bool> {
        let exists = look_at_rest(|| exists(&self.inner.database)).await;
        exists.map_err(in_operation("exists"))
    }

    async fn create(&self) -> Result<()> {
        let created = create(&self.inner.database).await;
        created.map_err(in_operation("create"))
    }

    async fn migrate(&self) -> Result<Migration> {
        let migrated = set_up(&self.inner.database, false).await;
        migrated.map_err(in_operation("migrate"))
    }

    async fn remove(&self) -> Result<()> {
        let removed = remove(&self.inner.database).await;
        removed.map_err(in_operation("remove"))
    }
}

#[cfg(test)]
mod tests {
    use conformance_tests::samples::work_during;
    use inbox_api::{Operate as _, State, Store as _};
    use test_servers::{Kind, require_or_skip};

    use super::*;
    use crate::{PostgresOptions, conformance::TestSchema};

    const LONGER: &[&str] = &[
        STEPS[0],
        "ALTER TABLE {inbox}_work ADD COLUMN priority integer NOT NULL DEFAULT 0;",
        "CREATE INDEX {prefix}_priority ON {inbox}_work (priority);
         UPDATE {inbox}_work SET priority = 1 WHERE state = 0;",
    ];

    const FAILING: &[&str] = &[STEPS[0], LONGER[1], "SELECT nothing FROM {inbox}_work;"];

    #[tokio::test]
    async fn an_older_inbox_is_upgraded_once_while_its_workers_are_busy() {
        let found = tokio::task::spawn_blocking(|| require_or_skip(Kind::Postgres));
        let Some(server) = found.await.unwrap().unwrap() else {
            return;
        };
        let options = PostgresOptions::from_url(server.url()).unwrap();
        let schema = TestSchema::fresh(options.connection());
        let store = PostgresStore::connect(schema.inbox_options(&options))
            .await
            .unwrap();
        store.create().await.unwrap();
        let database = &store.inner.database;
        let migrate = |steps: &'static [&'static str], from_nothing_only| {
            in_transaction(database, async move |connection| {
                apply(connection, &database.names, steps, from_nothing_only).await
            })
        };
        // Creating does not upgrade: that is another decision.
        let error = migrate(LONGER, true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaVersion);
        // A step that fails leaves the old version.
        migrate(FAILING, false).await.unwrap_err();
        assert_eq!(store.version().await.unwrap(), Some(1));

        // Two at once: one upgrades, the other finds it done.
        let upgrades = async { tokio::join!(migrate(LONGER, false), migrate(LONGER, false)) };
        let (one, other) = work_during(&store, Box::pin(upgrades)).await;
        let mut from = [one.unwrap().from, other.unwrap().from];
        from.sort_unstable();
        assert_eq!(from, [Some(1), Some(3)]);

        // This build goes on with it.
        assert!(store.exists().await.unwrap());
        let migration = store.migrate().await.unwrap();
        assert_eq!((migration.to, migration.works_from), (3, 1));
        work_during(&store, async {}).await;
        let statistics = store.statistics().await.unwrap();
        assert_eq!(statistics.count(State::Dead), 0);
        store.close().await;
        schema.remove().await.unwrap();
    }
}
