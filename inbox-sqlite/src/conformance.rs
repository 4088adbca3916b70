//! The harness of the [conformance suite](conformance_tests) for this store.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, BoxError, BusinessWrites, Corruption, Fixture, Harness, Mishap, Need, Offered,
    Restart, SchemaVariant, ServerControl, Settings, Transactions, Unable,
};
use inbox_api::{Clock, Inbox, InboxName, Key, Result, Schema as _, Store as _};
use sqlx::{
    AssertSqlSafe, Connection as _, Sqlite, SqliteConnection, Transaction,
    sqlite::SqliteConnectOptions,
};

use crate::{options::SqliteOptions, statements::expand, store::SqliteStore};

/// Numbers the files of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// What an inbox of this version has kept.
const KEPT: &str = include_str!("../fixtures/1/inbox.sql");
const KEPT_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/1/inbox.sql");

/// What an operation may take in a case that takes the file away for longer than that.
const SHORT_TIMEOUT: Duration = Duration::from_secs(4);

/// The database and its log. What processes share of it in memory is gone with the last of them.
const FILES: [&str; 2] = ["", "-wal"];

/// Every case gets its own file, next to the one that the options name, which is not touched.
#[derive(Debug)]
pub struct SqliteHarness {
    options: SqliteOptions,
}

impl SqliteHarness {
    /// Cases with these options, but for the file and the clock.
    #[must_use]
    pub fn new(options: SqliteOptions) -> Self {
        Self { options }
    }

    /// Cases next to the file of this URL, with its settings.
    ///
    /// # Errors
    /// What a URL, connecting or setting up is refused for: one inbox is made, and removed again.
    pub async fn at(url: &str) -> Result<Self> {
        let harness = Self::new(SqliteOptions::from_url(url)?);
        let inbox = harness.connect(&Settings::default()).await?;
        inbox.store().create().await?;
        inbox.store().close().await;
        Ok(harness)
    }

    async fn connect(&self, settings: &Settings) -> Result<TestInbox> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut path = self.options.path().as_os_str().to_owned();
        path.push(format!(".conformance-{}-{number}", std::process::id()));
        let clock = Clock::system();
        let mut options = self
            .options
            .clone()
            .create_if_missing(true)
            .clock(clock.clone());
        options.path = path.into();
        if settings.disrupted {
            options = options.operation_timeout(SHORT_TIMEOUT);
        }
        if settings.drop_processed_payloads {
            options = options.drop_processed_payloads(true);
        }
        if let Some(limit) = settings.operation_timeout {
            options = options.operation_timeout(limit);
        }
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        let store = SqliteStore::connect(options.clone()).await?;
        Ok(TestInbox {
            store: Mutex::new(Arc::new(store)),
            options,
            clock,
            lock: tokio::sync::Mutex::new(None),
        })
    }
}

#[async_trait]
impl Harness for SqliteHarness {
    fn name(&self) -> String {
        "sqlite".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let inbox = self.connect(settings).await?;
        inbox.store().create().await?;
        Effects::create(inbox.options.path())
            .await
            .map_err(Unable::failed)?;
        Ok(Box::new(inbox))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        // The first version is the only one so far.
        if variant == SchemaVariant::Older {
            return Err(Unable::NotOffered(Need::Schema(variant)));
        }
        let inbox = self.connect(&Settings::default()).await?;
        use SchemaVariant::{Foreign, Kept, Missing};
        if !matches!(variant, Missing | Foreign | Kept) {
            inbox.store().create().await?;
        }
        match variant {
            SchemaVariant::Missing | SchemaVariant::Older => {}
            SchemaVariant::Kept => inbox.run(KEPT).await?,
            SchemaVariant::Suitable => inbox.run("UPDATE {inbox}_meta SET version = 4711").await?,
            SchemaVariant::Incomplete => inbox.run("DROP INDEX {inbox}_claim").await?,
            SchemaVariant::Newer => {
                inbox
                    .run("UPDATE {inbox}_meta SET version = 4711, works_from = 4711")
                    .await?;
            }
            SchemaVariant::Foreign => {
                inbox
                    .run("CREATE TABLE {inbox}_message (id TEXT, text TEXT)")
                    .await?;
            }
        }
        Ok(Box::new(inbox))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        vec![
            Need::Schema(SchemaVariant::Older),
            // There is no network, and what is written below SQLite cannot be seen from here.
            Need::Silence,
            Need::PowerLoss,
            Need::OutageAmidWrites,
            Need::SharedWrites,
        ]
    }
}

/// What does not agree in the tables of the inbox of that name in the file at `path`, a sentence each.
///
/// # Errors
/// What the driver fails with.
pub async fn contradictions(path: &Path, inbox: &InboxName) -> sqlx::Result<Vec<String>> {
    let mut connection = open(path).await?;
    let found = sqlx::query_scalar(expand(include_str!("conformance/invariants.sql"), inbox))
        .fetch_all(&mut connection)
        .await?;
    connection.close().await?;
    Ok(found)
}

/// All of an inbox as statements, tables and rows before what would change these.
async fn dump(path: &Path, inbox: &InboxName) -> sqlx::Result<String> {
    let mut connection = open(path).await?;
    let mut text = String::new();
    let objects = "SELECT type, name, sql FROM sqlite_master
        WHERE substr(tbl_name, 1, length(?1)) = ?1 AND sql IS NOT NULL
        ORDER BY type <> 'table', rowid";
    let prefix = format!("{inbox}_");
    let objects: Vec<(String, String, String)> = sqlx::query_as(objects)
        .bind(&prefix)
        .fetch_all(&mut connection)
        .await?;
    for (kind, name, sql) in objects {
        text += &format!("{sql};\n");
        if kind == "table" {
            let columns = "SELECT group_concat('quote(' || name || ')', ' || '', '' || ')
                FROM pragma_table_info(?)";
            let columns: String = sqlx::query_scalar(columns)
                .bind(&name)
                .fetch_one(&mut connection)
                .await?;
            let rows =
                format!("SELECT 'INSERT INTO {name} VALUES (' || {columns} || ');' FROM {name}");
            let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(rows))
                .fetch_all(&mut connection)
                .await?;
            text += &(rows.join("\n") + "\n");
        }
    }
    connection.close().await?;
    Ok(text.replace(&prefix, "{inbox}_"))
}

/// A connection as a tool of SQLite's has it.
async fn open(path: &Path) -> sqlx::Result<SqliteConnection> {
    SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(path)).await
}

/// The inbox of one case, and its file.
struct TestInbox {
    store: Mutex<Arc<SqliteStore>>,
    options: SqliteOptions,
    clock: Clock,
    /// Holds SQLite's write lock during an outage.
    lock: tokio::sync::Mutex<Option<SqliteConnection>>,
}

impl TestInbox {
    fn store(&self) -> Arc<SqliteStore> {
        Arc::clone(&self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn file(&self, ending: &str) -> PathBuf {
        let mut file = self.options.path().as_os_str().to_owned();
        file.push(ending);
        file.into()
    }

    async fn run(&self, sql: &'static str) -> Offered<()> {
        let attempt = async {
            let mut connection = open(self.options.path()).await?;
            sqlx::raw_sql(expand(sql, &self.options.inbox))
                .execute(&mut connection)
                .await?;
            connection.close().await
        };
        attempt.await.map_err(Unable::failed)
    }
}

impl Drop for TestInbox {
    fn drop(&mut self) {
        for ending in FILES.into_iter().chain(["-shm"]) {
            // What cannot be removed stays behind for its owner to see.
            let _ = fs::remove_file(self.file(ending));
        }
    }
}

#[async_trait]
impl Fixture for TestInbox {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.store()
    }

    fn server(&self) -> &dyn ServerControl {
        self
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(SqliteStore::connect(self.options.clone()).await?))
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        contradictions(self.options.path(), &self.options.inbox)
            .await
            .map_err(Unable::failed)
    }

    async fn keep(&self) -> Offered<()> {
        let text = dump(self.options.path(), &self.options.inbox).await;
        let text = text.map_err(Unable::failed)?;
        fs::write(KEPT_FILE, text)?;
        Ok(())
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let sql = match corruption {
            Corruption::Headers => {
                "UPDATE {inbox}_message SET headers = '[1' WHERE handler = ?1 AND id = ?2"
            }
        };
        let attempt = async {
            let mut connection = open(self.options.path()).await?;
            sqlx::query(expand(sql, &self.options.inbox))
                .bind(key.handler.as_str())
                .bind(key.id.as_str())
                .execute(&mut connection)
                .await?;
            connection.close().await
        };
        attempt.await.map_err(Unable::failed)
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        let effects = Arc::new(Effects::at(self.options.path()));
        Ok(Arc::new(
            Transactions::new(self.store()).with_writes(effects),
        ))
    }
}

/// What can be done to a file without a server: another process locks it, or the only one that has it
/// open is killed.
#[async_trait]
impl ServerControl for TestInbox {
    async fn begin_outage(&self) -> Offered<()> {
        let attempt = async {
            let mut connection = open(self.options.path()).await?;
            sqlx::raw_sql("BEGIN EXCLUSIVE")
                .execute(&mut connection)
                .await?;
            Ok::<_, sqlx::Error>(connection)
        };
        *self.lock.lock().await = Some(attempt.await.map_err(Unable::failed)?);
        Ok(())
    }

    async fn end_outage(&self) -> Offered<()> {
        let Some(mut connection) = self.lock.lock().await.take() else {
            return Ok(());
        };
        let attempt = async {
            sqlx::raw_sql("ROLLBACK").execute(&mut connection).await?;
            connection.close().await
        };
        attempt.await.map_err(Unable::failed)
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        // What a kill leaves behind are the files as they are while the store has them open.
        let left_behind = (how == Restart::Killed)
            .then(|| FILES.map(|ending| (ending, fs::read(self.file(ending)).ok())));
        self.store().close().await;
        for (ending, content) in left_behind.into_iter().flatten() {
            match content {
                Some(content) => fs::write(self.file(ending), content)?,
                None => fs::remove_file(self.file(ending)).or_else(ignore_missing)?,
            }
        }
        let store = SqliteStore::connect(self.options.clone()).await?;
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(store);
        Ok(())
    }
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// What handlers write in their transactions, in a table in the same file.
#[derive(Debug)]
pub struct Effects(PathBuf);

impl Effects {
    /// What is in the file at `path`.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self(path.as_ref().to_owned())
    }

    /// Makes the tables in the file at `path`.
    ///
    /// # Errors
    /// What the driver fails with.
    pub async fn create(path: impl AsRef<Path>) -> sqlx::Result<Self> {
        let mut connection = open(path.as_ref()).await?;
        let tables = "CREATE TABLE effects (note TEXT NOT NULL);
            CREATE TABLE taken (only INTEGER PRIMARY KEY);
            INSERT INTO taken VALUES (1)";
        sqlx::raw_sql(tables).execute(&mut connection).await?;
        connection.close().await?;
        Ok(Self::at(path))
    }
}

#[async_trait]
impl BusinessWrites<Transaction<'static, Sqlite>> for Effects {
    async fn write(
        &self,
        transaction: &mut Transaction<'static, Sqlite>,
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
        transaction: &mut Transaction<'static, Sqlite>,
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
        let mut connection = open(&self.0).await?;
        let notes = sqlx::query_scalar("SELECT note FROM effects")
            .fetch_all(&mut connection)
            .await?;
        connection.close().await?;
        Ok(notes)
    }
}
