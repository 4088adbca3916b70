//! The conformance suite's harness: each case gets its own schema in a database that is there.
//!
//! ```no_run
//! use std::sync::Arc;
//! use conformance_tests::Harness as _;
//! use inbox_postgres::conformance::PostgresHarness;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let harness = Arc::new(PostgresHarness::at("postgres://app@localhost/shop").await?);
//! let report = conformance_tests::run(harness.clone(), "").await;
//! harness.clean_up().await?;
//! assert!(report.is_conformant(), "{report}");
//! # Ok(())
//! # }
//! ```

mod effects;
mod test_schema;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, Corruption, Fixture, Harness, Need, Offered, SchemaVariant, ServerControl,
    Settings, StartServer, Transactions, Unable, crash::proxy::Proxy,
};
use inbox_api::{Inbox, InboxName, Key, Result, Schema as _, Store as _};
use sqlx::{
    ConnectOptions as _,
    postgres::{PgConnectOptions, PgSslMode},
};

pub use self::{effects::Effects, test_schema::TestSchema};
use crate::{PayloadType, options::PostgresOptions, store::PostgresStore};

/// What inboxes of this version have kept, plain and in partitions, with this in place of their schema's
/// name.
const KEPT: [&str; 2] = [
    include_str!("../fixtures/1/plain.sql"),
    include_str!("../fixtures/1/partitions.sql"),
];
const KEPT_FILES: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/1/plain.sql"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/1/partitions.sql"),
];
const KEPT_SCHEMA: &str = "kept_schema";

/// How long a case waits for a connection to a server that it takes away.
const SHORT_WAIT: Duration = Duration::from_secs(2);

/// For how long connecting is tried again, where nothing is away but a machine may be slow.
const SLOW_START: Duration = Duration::from_secs(30);

/// The suite on the PostgreSQL store.
#[derive(Debug)]
pub struct PostgresHarness {
    name: String,
    options: PostgresOptions,
    servers: Option<StartServer>,
    schemas: Arc<Schemas>,
}

/// The schemas of a run. A fixture cannot wait for the server when it is dropped, so it only says
/// that it has done with its own, and the next case drops it.
#[derive(Debug, Default)]
struct Schemas {
    all: Mutex<Vec<Arc<TestSchema>>>,
    done_with: Mutex<Vec<Arc<TestSchema>>>,
}

fn lock<T>(schemas: &Mutex<T>) -> MutexGuard<'_, T> {
    schemas.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PostgresHarness {
    /// In the database that `url` names, with the URL's settings except inbox and schema. Tries
    /// what every case needs: to connect, and to set an inbox up in a new schema.
    ///
    /// # Errors
    /// As [`PostgresOptions::from_url`], [`PostgresStore::connect`] and
    /// [`create`](inbox_api::Schema::create).
    pub async fn at(url: &str) -> Result<Self> {
        let harness = Self::new(PostgresOptions::from_url(url)?);
        let schema = harness.fresh_schema(harness.options.connection());
        let store = PostgresStore::connect(schema.inbox_options(&harness.options)).await?;
        let created = store.create().await;
        store.close().await;
        let _ = harness.clean_up().await;
        created?;
        Ok(harness)
    }

    /// With these options, but for the names of inbox and schema. Tries nothing.
    #[must_use]
    pub fn new(options: PostgresOptions) -> Self {
        let connection = options.connection().disable_statement_logging();
        Self {
            name: "postgres".to_owned(),
            options: options
                .inbox_name(InboxName::default())
                .connect_with(connection),
            servers: None,
            schemas: Arc::default(),
        }
    }

    /// What the report calls the store: `postgres` unless set.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Servers for the cases that stop or kill theirs. Without, these are not checked.
    #[must_use]
    pub fn servers(mut self, servers: StartServer) -> Self {
        self.servers = Some(servers);
        self
    }

    fn fresh_schema(&self, connection: PgConnectOptions) -> Arc<TestSchema> {
        let schema = Arc::new(TestSchema::fresh(connection));
        lock(&self.schemas.all).push(Arc::clone(&schema));
        schema
    }

    async fn drop_done_with(&self, next: &TestSchema) {
        let done_with = std::mem::take(&mut *lock(&self.schemas.done_with));
        for schema in done_with {
            if schema.remove_over(next).await.is_ok() {
                lock(&self.schemas.all).retain(|other| !Arc::ptr_eq(other, &schema));
            }
        }
    }

    /// A place without an inbox.
    async fn place(&self, settings: &Settings) -> Offered<OneSchema> {
        let mut options = self
            .options
            .clone()
            .drop_processed_payloads(settings.drop_processed_payloads);
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        let mut control: Box<dyn ServerControl> = Box::new(());
        let mut schemas = Some(Arc::clone(&self.schemas));
        let schema = match &self.servers {
            Some(servers) if settings.disrupted => {
                let server = servers.start().await?;
                let own = PostgresOptions::from_url(&server.url)?.connection();
                let own = own.disable_statement_logging();
                options = options
                    .connect_with(own.clone())
                    .acquire_timeout(SHORT_WAIT);
                control = server.control;
                // They go with their server.
                schemas = None;
                Arc::new(TestSchema::fresh(own))
            }
            _ => {
                // Nothing is away; a machine may be slow.
                options = options.acquire_timeout(SLOW_START);
                let schema = self.fresh_schema(options.connection());
                self.drop_done_with(&schema).await;
                schema
            }
        };
        options = schema.inbox_options(&options);
        let mut proxy = None;
        if let Some(limit) = settings.operation_timeout {
            options = options.operation_timeout(limit);
            if can_have_proxy(&options.connection()) {
                let (between, connection) = through_proxy(options.connection()).await?;
                options = options.connect_with(connection);
                proxy = Some(between);
            }
        }
        Ok(OneSchema {
            store: Arc::new(connect(&options).await?),
            options,
            schema,
            control,
            proxy,
            schemas,
        })
    }
}

/// Whether the server is reached by an address, and not known by the name under which it is.
fn can_have_proxy(connection: &PgConnectOptions) -> bool {
    connection.get_socket().is_none()
        && !connection.get_host().starts_with('/')
        && !matches!(connection.get_ssl_mode(), PgSslMode::VerifyFull)
}

async fn through_proxy(connection: PgConnectOptions) -> Offered<(Proxy, PgConnectOptions)> {
    let place = (connection.get_host(), connection.get_port());
    let server = tokio::net::lookup_host(place).await?.next();
    let server = server.ok_or_else(|| Unable::failed("the server's host has no address"))?;
    let proxy = Proxy::start(server).await?;
    let address = proxy.address();
    let connection = connection
        .host(&address.ip().to_string())
        .port(address.port());
    Ok((proxy, connection))
}

async fn connect(options: &PostgresOptions) -> Result<PostgresStore> {
    let until = Instant::now() + SLOW_START;
    loop {
        match PostgresStore::connect(options.clone()).await {
            Err(error) if error.is_retryable() && Instant::now() < until => {}
            outcome => return outcome,
        }
    }
}

#[async_trait]
impl Harness for PostgresHarness {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let place = self.place(settings).await?;
        if settings.disrupted || settings.operation_timeout.is_some() {
            place.set_up().await?;
        } else {
            place.store.create().await?;
        }
        Effects::of(Arc::clone(&place.schema)).create().await?;
        Ok(Box::new(place))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        if variant == SchemaVariant::Kept && self.options.payload_type != PayloadType::Bytea {
            return Err(Unable::NotOffered(Need::Schema(variant)));
        }
        let sql = match variant {
            SchemaVariant::Kept => KEPT[usize::from(self.options.partitions.is_some())],
            SchemaVariant::Missing => "SELECT 1",
            SchemaVariant::Incomplete => "DROP INDEX {schema}.inbox_claim",
            SchemaVariant::Newer => {
                "UPDATE {schema}.inbox_meta SET version = 4711, works_from = 4711"
            }
            SchemaVariant::Suitable => "UPDATE {schema}.inbox_meta SET version = 4711",
            SchemaVariant::Foreign => {
                "CREATE SCHEMA {schema}; CREATE TABLE {schema}.inbox_message (id text, note text)"
            }
            // The first version is the only one so far.
            SchemaVariant::Older => return Err(Unable::NotOffered(Need::Schema(variant))),
        };
        let place = self.place(&Settings::default()).await?;
        use SchemaVariant::{Foreign, Kept, Missing};
        if !matches!(variant, Missing | Foreign | Kept) {
            place.store.create().await?;
        }
        let sql = sql.replace(KEPT_SCHEMA, &place.schema.name.to_string());
        place.schema.run(&sql).await.map_err(Unable::failed)?;
        Ok(Box::new(place))
    }

    async fn clean_up(&self) -> Offered<()> {
        let all = std::mem::take(&mut *lock(&self.schemas.all));
        let mut left = Vec::new();
        for schema in all {
            if let Err(error) = schema.remove().await {
                left.push(format!("{} ({error})", schema.name));
            }
        }
        match left.as_slice() {
            [] => Ok(()),
            _ => Err(Unable::failed(format!(
                "schemas are left behind: {}",
                left.join(", ")
            ))),
        }
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = vec![Need::Schema(SchemaVariant::Older)];
        needs.extend(Need::DISK);
        if self.options.payload_type != PayloadType::Bytea {
            needs.push(Need::Schema(SchemaVariant::Kept));
        }
        if self.servers.is_none() {
            needs.extend([Need::Outage, Need::Restart]);
        }
        if !can_have_proxy(&self.options.connection()) {
            needs.push(Need::Silence);
        }
        if !self.options.notifications {
            needs.extend([Need::Wakeups, Need::WakeupsAcrossProcesses]);
        }
        needs
    }
}

/// A case's inbox.
struct OneSchema {
    store: Arc<PostgresStore>,
    options: PostgresOptions,
    schema: Arc<TestSchema>,
    control: Box<dyn ServerControl>,
    /// Between the store and the server, if connections are to go silent.
    proxy: Option<Proxy>,
    /// Where to say that this one is done with.
    schemas: Option<Arc<Schemas>>,
}

impl OneSchema {
    /// Without the short limits of the case.
    async fn set_up(&self) -> Result<()> {
        let options = self.options.clone().acquire_timeout(SLOW_START);
        let patient = connect(&options.operation_timeout(SLOW_START)).await?;
        let created = patient.create().await;
        patient.close().await;
        created
    }

    /// Statements that put the rows back, and the sequence behind them. The mark is made with the tables.
    async fn dump_rows(&self) -> sqlx::Result<String> {
        let tables = "SELECT relname::text FROM pg_catalog.pg_class
            WHERE relnamespace = '{schema}'::regnamespace
              AND relname LIKE 'inbox\\_%' AND relname <> 'inbox_meta'
              AND relkind IN ('r', 'p') AND NOT relispartition
            ORDER BY relname";
        let mut text = String::new();
        for table in self.schema.column::<String>(tables).await? {
            let rows =
                format!("SELECT COALESCE(json_agg(t), '[]')::text FROM {{schema}}.{table} AS t");
            let rows: Vec<String> = self.schema.column(&rows).await?;
            text += &format!(
                "DELETE FROM {{schema}}.{table};\n\
                 INSERT INTO {{schema}}.{table} SELECT * FROM \
                 json_populate_recordset(NULL::{{schema}}.{table}, $kept${}$kept$);\n",
                rows.concat().replace(", \n ", ",\n")
            );
        }
        let sequence =
            "SELECT format('setval(%L, %s, %L)', '{schema}.inbox_seq', last_value, is_called)
            FROM {schema}.inbox_seq";
        let sequence: Vec<String> = self.schema.column(sequence).await?;
        let sequence = sequence.concat();
        let sequence = sequence.replace(&format!("\"{}\"", self.schema.name), "{schema}");
        Ok(text + &format!("SELECT {sequence};\n"))
    }
}

#[async_trait]
impl Fixture for OneSchema {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.store.clone()
    }

    fn server(&self) -> &dyn ServerControl {
        &*self.control
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        if by.is_zero() {
            return Ok(());
        }
        self.schema.advance(by).await.map_err(Unable::failed)
    }

    async fn keep(&self) -> Offered<()> {
        let rows = self.dump_rows().await.map_err(Unable::failed)?;
        let ddl = self.options.ddl();
        let ddl = ddl.replace(&self.schema.name.to_string(), KEPT_SCHEMA);
        let file = KEPT_FILES[usize::from(self.options.partitions.is_some())];
        std::fs::write(file, ddl + &rows)?;
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(
            PostgresStore::connect(self.options.clone()).await?,
        ))
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        let broken = self.schema.find_broken_rules().await;
        broken.map_err(Unable::failed)
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let sql = match corruption {
            Corruption::Headers => {
                "UPDATE {schema}.inbox_message SET headers = '[1]' WHERE handler = $1 AND id = $2"
            }
        };
        let arguments = [key.handler.as_str(), key.id.as_str()];
        let corrupted = self.schema.run_with(sql, &arguments).await;
        corrupted.map_err(Unable::failed)
    }

    async fn silence(&self) -> Offered<()> {
        let proxy = self.proxy.as_ref();
        proxy.ok_or(Unable::NotOffered(Need::Silence))?.silence();
        Ok(())
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        let effects = Arc::new(Effects::of(Arc::clone(&self.schema)));
        Ok(Arc::new(
            Transactions::new(Arc::clone(&self.store)).with_writes(effects),
        ))
    }
}

impl Drop for OneSchema {
    fn drop(&mut self) {
        self.schema.let_go();
        if let Some(schemas) = &self.schemas {
            lock(&schemas.done_with).push(Arc::clone(&self.schema));
        }
    }
}
