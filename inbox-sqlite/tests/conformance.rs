//! The conformance suite, over the SQLite store.

use std::{
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, BoxError, BusinessWrites, Corruption, Fixture, Harness, Mishap, Need, Offered,
    Restart, SchemaVariant, Settings, Transactions, Unable,
};
use inbox_api::{Clock, Inbox, Key, Schema, Store};
use inbox_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{
    Connection as _, Executor as _, Sqlite, SqliteConnection, sqlite::SqliteConnectOptions,
};
use tempfile::TempDir;

struct File;

#[async_trait]
impl Harness for File {
    fn name(&self) -> String {
        "sqlite".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let place = Place::new(settings).await?;
        place.store().create().await?;
        place
            .run(
                "CREATE TABLE effects (note TEXT NOT NULL);
                 CREATE TABLE taken (only INTEGER PRIMARY KEY);
                 INSERT INTO taken VALUES (1)",
            )
            .await?;
        Ok(Box::new(place))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        let place = Place::new(&Settings::default()).await?;
        match variant {
            SchemaVariant::Missing => {}
            SchemaVariant::Incomplete => {
                place.store().create().await?;
                place.run("DROP INDEX inbox_claim").await?;
            }
            SchemaVariant::Newer => {
                place.store().create().await?;
                place
                    .run("UPDATE inbox_meta SET version = 4711, works_from = 4711")
                    .await?;
            }
            SchemaVariant::Foreign => {
                place
                    .run("CREATE TABLE inbox_message (id TEXT, text TEXT)")
                    .await?;
            }
            // The first version is the only one so far.
            SchemaVariant::Older => return Err(Unable::NotOffered(Need::Schema(variant))),
        }
        Ok(Box::new(place))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        vec![
            Need::Schema(SchemaVariant::Older),
            // There is no network, and what is written below SQLite nobody sees from here.
            Need::Silence,
            Need::PowerLoss,
            Need::OutageAmidWrites,
            Need::SharedWrites,
        ]
    }
}

struct Place {
    store: Mutex<Arc<SqliteStore>>,
    options: SqliteOptions,
    clock: Clock,
    path: PathBuf,
    /// Holds SQLite's write lock during an outage.
    lock: tokio::sync::Mutex<Option<SqliteConnection>>,
    _directory: TempDir,
}

impl Place {
    async fn new(settings: &Settings) -> Offered<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("inbox.db");
        let clock = Clock::system();
        let mut options = SqliteOptions::new(&path)
            .operation_timeout(Duration::from_secs(if settings.disrupted { 1 } else { 30 }))
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock(clock.clone());
        if let Some(limit) = settings.operation_timeout {
            options = options.operation_timeout(limit);
        }
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        let store = SqliteStore::connect(options.clone()).await?;
        Ok(Self {
            store: Mutex::new(Arc::new(store)),
            options,
            clock,
            path,
            lock: tokio::sync::Mutex::new(None),
            _directory: directory,
        })
    }

    fn store(&self) -> Arc<SqliteStore> {
        Arc::clone(&self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn file(&self, ending: &str) -> PathBuf {
        let mut file = self.path.clone().into_os_string();
        file.push(ending);
        file.into()
    }

    async fn connection(&self) -> Offered<SqliteConnection> {
        connection(&self.path).await.map_err(Unable::failed)
    }

    async fn run(&self, sql: &'static str) -> Offered<()> {
        let mut connection = self.connection().await?;
        connection.execute(sql).await.map_err(Unable::failed)?;
        connection.close().await.map_err(Unable::failed)
    }
}

/// The database and its log. What processes share of it in memory is gone with the last of them.
const FILES: [&str; 2] = ["", "-wal"];

fn is_gone(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

async fn connection(path: &std::path::Path) -> sqlx::Result<SqliteConnection> {
    SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(path)).await
}

#[async_trait]
impl Fixture for Place {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.store()
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(SqliteStore::connect(self.options.clone()).await?))
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        let mut connection = self.connection().await?;
        let broken = sqlx::query_scalar(include_str!("common/invariants.sql"))
            .fetch_all(&mut connection)
            .await
            .map_err(Unable::failed)?;
        connection.close().await.map_err(Unable::failed)?;
        Ok(broken)
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let sql = match corruption {
            Corruption::Headers => {
                "UPDATE inbox_message SET headers = '[1' WHERE handler = ?1 AND id = ?2"
            }
        };
        let mut connection = self.connection().await?;
        sqlx::query(sql)
            .bind(key.handler.as_str())
            .bind(key.id.as_str())
            .execute(&mut connection)
            .await
            .map_err(Unable::failed)?;
        connection.close().await.map_err(Unable::failed)
    }

    async fn begin_outage(&self) -> Offered<()> {
        let mut connection = self.connection().await?;
        connection
            .execute("BEGIN EXCLUSIVE")
            .await
            .map_err(Unable::failed)?;
        *self.lock.lock().await = Some(connection);
        Ok(())
    }

    async fn end_outage(&self) -> Offered<()> {
        if let Some(mut connection) = self.lock.lock().await.take() {
            connection
                .execute("ROLLBACK")
                .await
                .map_err(Unable::failed)?;
            connection.close().await.map_err(Unable::failed)?;
        }
        Ok(())
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        // What a kill leaves behind are the files as they are while the store has them open.
        let left_behind = (how == Restart::Killed)
            .then(|| FILES.map(|ending| (ending, fs::read(self.file(ending)).ok())));
        self.store().close().await;
        for (ending, content) in left_behind.into_iter().flatten() {
            match content {
                Some(content) => fs::write(self.file(ending), content)?,
                None => fs::remove_file(self.file(ending)).or_else(is_gone)?,
            }
        }
        let store = SqliteStore::connect(self.options.clone()).await?;
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(store);
        Ok(())
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        let effects = Arc::new(Effects(self.path.clone()));
        Ok(Arc::new(
            Transactions::new(self.store()).with_writes(effects),
        ))
    }
}

/// A table of the handler's own.
struct Effects(PathBuf);

#[async_trait]
impl BusinessWrites<sqlx::Transaction<'static, Sqlite>> for Effects {
    async fn write(
        &self,
        transaction: &mut sqlx::Transaction<'static, Sqlite>,
        note: &str,
    ) -> Result<(), BoxError> {
        sqlx::query("INSERT INTO effects (note) VALUES (?1)")
            .bind(note)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn mishap(
        &self,
        transaction: &mut sqlx::Transaction<'static, Sqlite>,
        mishap: Mishap,
    ) -> Offered<()> {
        let (sql, fails) = match mishap {
            Mishap::FailedStatement => ("INSERT INTO taken VALUES (1)", true),
            Mishap::RolledBackByServer => ("INSERT OR ROLLBACK INTO taken VALUES (1)", true),
            Mishap::Commit => ("COMMIT", false),
            Mishap::RollBack => ("ROLLBACK", false),
            Mishap::SchemaChange => ("CREATE TABLE IF NOT EXISTS made (note TEXT)", false),
        };
        let done = sqlx::raw_sql(sql).execute(&mut **transaction).await;
        if done.is_err() == fails {
            return Ok(());
        }
        Err(Unable::failed(format!("{sql}: {done:?}")))
    }

    async fn written(&self) -> Result<Vec<String>, BoxError> {
        let mut connection = connection(&self.0).await?;
        let notes = sqlx::query_scalar("SELECT note FROM effects")
            .fetch_all(&mut connection)
            .await?;
        connection.close().await?;
        Ok(notes)
    }
}

conformance_tests::conformance!(File);
