//! The conformance suite's harness: each case gets its own inbox in a database that is there.
//!
//! ```no_run
//! use std::sync::Arc;
//! use conformance_tests::Harness as _;
//! use inbox_mysql::conformance::MySqlHarness;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let harness = Arc::new(MySqlHarness::at("mysql://app@localhost/shop").await?);
//! let report = conformance_tests::run(harness.clone(), "").await;
//! harness.clean_up().await?;
//! assert!(report.is_conformant(), "{report}");
//! # Ok(())
//! # }
//! ```

mod effects;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, Corruption, Fixture, Harness, Need, Offered, SchemaVariant, ServerControl,
    Settings, StartServer, Transactions, Unable, crash::proxy::Proxy,
};
use inbox_api::{
    ClockOffset, Error, ErrorKind, Inbox, InboxName, Key, Result, Schema as _, Store as _,
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, MySqlConnection, Row as _,
    mysql::{MySqlConnectOptions, MySqlSslMode},
};

pub use self::effects::Effects;
use crate::{
    MySqlOptions, MySqlStore, PayloadType,
    options::TABLES,
    procedures,
    statements::{Names, in_database},
};

/// What an inbox of this version has kept, with this in place of its name.
const KEPT: &str = include_str!("../fixtures/1/inbox.sql");
const KEPT_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/1/inbox.sql");
const KEPT_NAME: &str = "kept_inbox";

/// What an operation may take in a case that takes the server away for longer than that.
const SHORT_TIMEOUT: Duration = Duration::from_secs(4);
/// What setting up may take: a new server may take its time to make tables.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);
/// What the large payloads of the suite take.
const LARGE_PAYLOAD: usize = 16 * 1024 * 1024;

/// The suite on the store in MySQL and MariaDB.
pub struct MySqlHarness {
    name: String,
    options: MySqlOptions,
    nodes: Vec<MySqlConnectOptions>,
    servers: Option<StartServer>,
    lacking: Vec<Need>,
    inboxes: Arc<Inboxes>,
}

impl std::fmt::Debug for MySqlHarness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The nodes' settings have passwords.
        f.debug_struct("MySqlHarness")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The inboxes of a run. A fixture cannot wait for the server when it is dropped, so it only says
/// that it has done with its own, and the next case drops it.
#[derive(Debug, Default)]
struct Inboxes {
    all: Mutex<Vec<MySqlOptions>>,
    done_with: Mutex<Vec<MySqlOptions>>,
}

fn lock(inboxes: &Mutex<Vec<MySqlOptions>>) -> MutexGuard<'_, Vec<MySqlOptions>> {
    inboxes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MySqlHarness {
    /// In the database that `url` names, with the URL's settings except the inbox's name. Tries what
    /// every case needs: to connect, to set an inbox up, and to drop its tables.
    ///
    /// # Errors
    /// As [`MySqlOptions::from_url`], [`MySqlStore::connect`] and [`create`](inbox_api::Schema::create);
    /// `Denied` when the tables cannot be dropped.
    pub async fn at(url: &str) -> Result<Self> {
        let mut harness = Self::new(MySqlOptions::from_url(url)?);
        let options = harness.name_inbox()?;
        let store = MySqlStore::connect(options.clone()).await?;
        let created = store.create().await;
        store.close().await;
        let dropped = drop_tables(std::slice::from_ref(&options)).await;
        created?;
        dropped.map_err(|error| {
            let context = format!(
                "the tables {}_… cannot be dropped: the user needs the privilege DROP",
                options.inbox
            );
            Error::new(ErrorKind::Denied, context)
                .in_operation("connect")
                .with_source(error)
        })?;
        lock(&harness.inboxes.all).clear();
        // A MariaDB server takes packets of 16 MiB unless set: a little less than such a message.
        if store.capabilities().payload_limit < LARGE_PAYLOAD {
            harness.lacking.push(Need::LargePayloads);
        }
        Ok(harness)
    }

    /// With these options, but for the inbox's name. Tries nothing.
    #[must_use]
    pub fn new(options: MySqlOptions) -> Self {
        let connect = options.connection().clone().disable_statement_logging();
        Self {
            name: "mysql".to_owned(),
            options: options.connect_with(connect),
            nodes: Vec::new(),
            servers: None,
            lacking: Vec::new(),
            inboxes: Arc::default(),
        }
    }

    /// What the report calls the store: `mysql` unless set.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Other nodes of a cluster, over which further connections to an inbox are spread.
    #[must_use]
    pub fn nodes(mut self, nodes: &[MySqlOptions]) -> Self {
        let connect = |node: &MySqlOptions| node.connection().clone().disable_statement_logging();
        self.nodes = nodes.iter().map(connect).collect();
        self
    }

    /// Servers for the cases that stop or kill theirs. Without, these are not checked.
    #[must_use]
    pub fn servers(mut self, servers: StartServer) -> Self {
        self.servers = Some(servers);
        self
    }

    /// What else cannot be checked with these options.
    #[must_use]
    pub fn lacking(mut self, needs: &[Need]) -> Self {
        self.lacking.extend(needs);
        self
    }

    /// The options with a name that no other run takes.
    fn name_inbox(&self) -> Result<MySqlOptions> {
        let name = InboxName::new(format!("inbox_conformance_{:08x}", fastrand::u32(..)))?;
        let options = self.options.clone().inbox_name(name);
        lock(&self.inboxes.all).push(options.clone());
        Ok(options)
    }

    async fn drop_done_with(&self) {
        let done_with = std::mem::take(&mut *lock(&self.inboxes.done_with));
        if drop_tables(&done_with).await.is_ok() {
            lock(&self.inboxes.all).retain(|options| {
                let dropped = |done: &MySqlOptions| done.inbox == options.inbox;
                !done_with.iter().any(dropped)
            });
        }
    }

    /// A store without an inbox.
    async fn connect(&self, settings: &Settings) -> Offered<TestInbox> {
        self.drop_done_with().await;
        let clock = ClockOffset::default();
        let mut options = self
            .name_inbox()?
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock_offset(clock.clone());
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        let mut control: Box<dyn ServerControl> = Box::new(());
        if settings.disrupted {
            options = options.operation_timeout(SHORT_TIMEOUT);
            // Where connections go silent, the server itself comes to no harm.
            if let (Some(servers), None) = (&self.servers, settings.operation_timeout) {
                let server = servers.start().await?;
                let own = MySqlOptions::from_url(&server.url)?;
                let connect = own.connection().clone().disable_statement_logging();
                // It goes with its server.
                lock(&self.inboxes.all).retain(|other| other.inbox != options.inbox);
                options = options.connect_with(connect);
                control = server.control;
            }
        }
        let mut through = options.clone();
        let mut proxy = None;
        if let Some(limit) = settings.operation_timeout {
            options = options.operation_timeout(limit);
            through = options.clone();
            if can_stand_between(&self.options) {
                let started = start_proxy(options.connection()).await?;
                let address = started.address();
                let connect = options.connection().clone();
                let connect = connect.host(&address.ip().to_string());
                through = through.connect_with(connect.port(address.port()));
                proxy = Some(started);
            }
        }
        Ok(TestInbox {
            store: Arc::new(MySqlStore::connect(through).await?),
            options,
            clock,
            nodes: self.nodes.clone(),
            next: AtomicUsize::new(0),
            control,
            proxy,
            inboxes: Arc::clone(&self.inboxes),
        })
    }
}

/// Whether a proxy can stand between the store and its server.
fn can_stand_between(options: &MySqlOptions) -> bool {
    let connect = options.connection();
    let verified = matches!(connect.get_ssl_mode(), MySqlSslMode::VerifyIdentity);
    connect.get_socket().is_none() && !verified
}

async fn start_proxy(connect: &MySqlConnectOptions) -> io::Result<Proxy> {
    let server = (connect.get_host(), connect.get_port());
    let server = tokio::net::lookup_host(server).await?.next();
    Proxy::start(server.ok_or(io::ErrorKind::NotFound)?).await
}

#[async_trait]
impl Harness for MySqlHarness {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let inbox = self.connect(settings).await?;
        inbox.set_up().await?;
        let effects = Effects::of(&inbox.options);
        effects.create().await.map_err(Unable::failed)?;
        Ok(Box::new(inbox))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        if variant == SchemaVariant::Kept && self.options.payload_type != PayloadType::LongBlob {
            return Err(Unable::NotOffered(Need::Schema(variant)));
        }
        let sql = match variant {
            SchemaVariant::Kept => KEPT,
            SchemaVariant::Missing => "DO 0",
            SchemaVariant::Incomplete => "ALTER TABLE {work} DROP INDEX claim",
            SchemaVariant::Newer => "UPDATE {meta} SET version = 4711, works_from = 4711",
            SchemaVariant::Suitable => "UPDATE {meta} SET version = 4711",
            SchemaVariant::Foreign => "CREATE TABLE {message} (id VARCHAR(9), note TEXT)",
            // The first version is the only one so far.
            SchemaVariant::Older => return Err(Unable::NotOffered(Need::Schema(variant))),
        };
        let inbox = self.connect(&Settings::default()).await?;
        use SchemaVariant::{Foreign, Kept, Missing};
        if !matches!(variant, Missing | Foreign | Kept) {
            inbox.set_up().await?;
        }
        let sql = sql.replace(KEPT_NAME, inbox.options.inbox.as_str());
        let spoilt = run(&inbox.options, &sql).await;
        spoilt.map_err(Unable::failed)?;
        Ok(Box::new(inbox))
    }

    async fn clean_up(&self) -> Offered<()> {
        lock(&self.inboxes.done_with).clear();
        let all = std::mem::take(&mut *lock(&self.inboxes.all));
        drop_tables(&all).await.map_err(|error| {
            Unable::failed(format!(
                "tables named inbox_conformance_… are left behind: {error}"
            ))
        })
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = self.lacking.clone();
        needs.extend(Need::DISK);
        needs.extend([
            Need::Runs,
            Need::Schema(SchemaVariant::Older),
            // Neither server has notifications.
            Need::WakeupsAcrossProcesses,
        ]);
        if self.options.payload_type != PayloadType::LongBlob {
            needs.push(Need::Schema(SchemaVariant::Kept));
        }
        if self.servers.is_none() {
            needs.extend([Need::Outage, Need::Restart]);
        }
        if !can_stand_between(&self.options) {
            needs.push(Need::Silence);
        }
        needs
    }
}

async fn connect(options: &MySqlOptions) -> sqlx::Result<MySqlConnection> {
    options.connection().connect().await
}

async fn run(options: &MySqlOptions, sql: &str) -> sqlx::Result<()> {
    let mut connection = connect(options).await?;
    let sql = AssertSqlSafe(Names::new(options).expand(sql));
    sqlx::raw_sql(sql).execute(&mut connection).await?;
    connection.close().await
}

/// Drops these inboxes of one database, and what stands next to them under their names.
async fn drop_tables(inboxes: &[MySqlOptions]) -> sqlx::Result<()> {
    let Some(first) = inboxes.first() else {
        return Ok(());
    };
    let mut connection = connect(first).await?;
    // Does not wait for ever for those that still use one.
    let limit = "SET SESSION lock_wait_timeout = 5";
    sqlx::raw_sql(limit).execute(&mut connection).await?;
    for options in inboxes {
        let prefix = format!("{}_", options.inbox);
        let sql = format!(
            "SELECT CAST(table_name AS BINARY) FROM information_schema.tables \
             WHERE {} AND LEFT(table_name, {}) = '{prefix}'",
            in_database(options),
            prefix.len()
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(sql));
        for row in rows.fetch_all(&mut connection).await? {
            let name: &[u8] = row.try_get_unchecked(0)?;
            let name = String::from_utf8_lossy(name);
            let table = options.table(name.strip_prefix(&prefix).unwrap_or_default());
            let sql = AssertSqlSafe(format!("DROP TABLE IF EXISTS {table}"));
            sqlx::raw_sql(sql).execute(&mut connection).await?;
        }
        procedures::drop_all(&mut connection, options).await?;
    }
    connection.close().await
}

/// All of an inbox as statements.
async fn dump(options: &MySqlOptions) -> sqlx::Result<String> {
    let mut connection = connect(options).await?;
    let mut text = options.ddl();
    for table in TABLES.into_iter().filter(|table| *table != "meta") {
        let sql = format!(
            "SELECT CAST(column_name AS BINARY), data_type IN ('bigint', 'tinyint')
             FROM information_schema.columns WHERE {} AND table_name = '{}_{table}'
             ORDER BY ordinal_position",
            in_database(options),
            options.inbox
        );
        let (mut columns, mut values) = (Vec::new(), Vec::new());
        for row in sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_all(&mut connection)
            .await?
        {
            let column: &[u8] = row.try_get_unchecked(0)?;
            let column = String::from_utf8_lossy(column).into_owned();
            values.push(match row.try_get_unchecked(1)? {
                true => format!("COALESCE({column}, 'NULL')"),
                false => format!("COALESCE(CONCAT('X''', HEX({column}), ''''), 'NULL')"),
            });
            columns.push(column);
        }
        let (columns, values) = (columns.join(", "), values.join(", "));
        let name = options.table(table);
        let sql = format!(
            "SELECT CAST(CONCAT_WS(', ', {values}) AS BINARY) FROM {name} ORDER BY {columns}"
        );
        for row in sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_all(&mut connection)
            .await?
        {
            let row: &[u8] = row.try_get_unchecked(0)?;
            let row = String::from_utf8_lossy(row);
            text += &format!("INSERT INTO {name} ({columns}) VALUES ({row});\n");
        }
    }
    connection.close().await?;
    Ok(text.replace(options.inbox.as_str(), KEPT_NAME))
}

/// What does not agree in the tables of an inbox, with the number of rows.
///
/// # Errors
/// What the driver fails with.
pub async fn contradictions(options: &MySqlOptions) -> sqlx::Result<Vec<String>> {
    let mut connection = connect(options).await?;
    let sql = Names::new(options).expand(include_str!("conformance/invariants.sql"));
    let rows = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_all(&mut connection)
        .await?;
    connection.close().await?;
    let texts = rows.iter().map(|row| {
        let text: &[u8] = row.try_get_unchecked(0)?;
        Ok(String::from_utf8_lossy(text).into_owned())
    });
    texts.collect()
}

/// The inbox of one case.
struct TestInbox {
    store: Arc<MySqlStore>,
    /// Of connections that go straight to the server.
    options: MySqlOptions,
    clock: ClockOffset,
    /// Where further connections go, in turn, behind the first one's server.
    nodes: Vec<MySqlConnectOptions>,
    next: AtomicUsize,
    control: Box<dyn ServerControl>,
    /// Between the store and its server, where connections are to go silent.
    proxy: Option<Proxy>,
    inboxes: Arc<Inboxes>,
}

impl TestInbox {
    async fn set_up(&self) -> Offered<()> {
        let options = self.options.clone().operation_timeout(LONG_TIMEOUT);
        let patient = MySqlStore::connect(options).await?;
        let created = patient.create().await;
        patient.close().await;
        Ok(created?)
    }
}

impl Drop for TestInbox {
    fn drop(&mut self) {
        let ours = |options: &MySqlOptions| options.inbox == self.options.inbox;
        if lock(&self.inboxes.all).iter().any(ours) {
            lock(&self.inboxes.done_with).push(self.options.clone());
        }
    }
}

#[async_trait]
impl Fixture for TestInbox {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::<MySqlStore>::clone(&self.store)
    }

    fn server(&self) -> &dyn ServerControl {
        &*self.control
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }

    async fn keep(&self) -> Offered<()> {
        let text = dump(&self.options).await.map_err(Unable::failed)?;
        std::fs::write(KEPT_FILE, text)?;
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        let mut options = self.options.clone();
        let next = self.next.fetch_add(1, Ordering::Relaxed) % (self.nodes.len() + 1);
        if let Some(node) = self.nodes.get(next) {
            options = options.connect_with(node.clone());
        }
        Ok(Arc::new(MySqlStore::connect(options).await?))
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        let found = contradictions(&self.options).await;
        found.map_err(Unable::failed)
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let set = match corruption {
            Corruption::Headers => "headers = '[1'",
        };
        let sql = format!(
            "UPDATE {} SET {set} WHERE handler = ? AND id = ?",
            self.options.table("message")
        );
        let corrupted = async {
            let mut connection = connect(&self.options).await?;
            sqlx::query(AssertSqlSafe(sql))
                .bind(key.handler.as_str())
                .bind(key.id.as_str())
                .execute(&mut connection)
                .await?;
            connection.close().await
        };
        corrupted.await.map_err(Unable::failed)
    }

    async fn silence(&self) -> Offered<()> {
        let proxy = self.proxy.as_ref();
        proxy.ok_or(Unable::NotOffered(Need::Silence))?.silence();
        Ok(())
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        let effects = Arc::new(Effects::of(&self.options));
        let transactions = Transactions::new(Arc::clone(&self.store));
        Ok(Arc::new(transactions.with_writes(effects)))
    }
}
