//! Inboxes on a real PostgreSQL server, each with a table of effects.

use std::{
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Completion, Context, Failure, Operate as _, Processor, ProcessorBuilder, Router, Schema as _,
    Statistics, TransactionalHandler, in_transaction,
    postgres::{PostgresOptions, PostgresStore, SchemaName},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection, Postgres,
    Transaction, postgres::PgConnectOptions,
};
use test_servers::{Error, Kind, Server, or_skip, require_or_skip};

use crate::processor_support::{at_once, billing};

static SERVER: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(Kind::Postgres));

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A new schema with an inbox in it.
pub struct Place {
    pub url: String,
    pub schema: SchemaName,
    pub store: PostgresStore,
    /// Whether the server outlives the tests, so that the schema has to be dropped.
    is_shared: bool,
}

impl Place {
    /// On the server that the tests share; `None` when there is none, which has been reported.
    pub async fn shared() -> Option<Self> {
        let url = tokio::task::spawn_blocking(|| {
            let server = SERVER.as_ref().unwrap_or_else(|error| panic!("{error}"));
            let server = server.as_ref()?;
            Some((server.url().to_owned(), server.is_shared()))
        });
        let (url, is_shared) = url.await.unwrap()?;
        Some(Self::at(&url, is_shared).await)
    }

    /// On a server that only this test has, to be harmed.
    pub async fn with_own_server() -> Option<(Self, Harmed)> {
        let server = tokio::task::spawn_blocking(|| require_or_skip(Kind::Postgres))
            .await
            .unwrap()
            .unwrap_or_else(|error| panic!("{error}"))
            .filter(|server| !server.is_shared())?;
        let place = Self::at(server.url(), false).await;
        Some((place, Harmed(Arc::new(Mutex::new(server)))))
    }

    async fn at(url: &str, is_shared: bool) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let schema = format!("test_inbox_{}_{number}", std::process::id());
        let schema = SchemaName::new(schema).unwrap();
        let store = connect(url, &schema).await;
        store.create().await.unwrap();
        let place = Self {
            url: url.to_owned(),
            schema,
            store,
            is_shared,
        };
        place
            .run("CREATE TABLE {schema}.effects (id text NOT NULL)")
            .await;
        place
    }

    /// The same inbox with its own connections, as another process has.
    pub async fn another(&self) -> PostgresStore {
        connect(&self.url, &self.schema).await
    }

    /// The same inbox through a pooler in transaction mode.
    pub async fn through(&self, pooler: &Server) -> PostgresStore {
        let options = PostgresOptions::from_url(pooler.url()).unwrap();
        let options = options
            .schema(self.schema.clone())
            .prepared_statements(false)
            .notifications(false);
        PostgresStore::connect(options).await.unwrap()
    }

    /// The same inbox as another role.
    pub async fn as_role(&self, role: &str, password: &str) -> PostgresStore {
        let place = self.url.rsplit_once('@').unwrap().1;
        let url = format!("postgres://{role}:{password}@{place}");
        connect(&url, &self.schema).await
    }

    /// Runs SQL with `{schema}` in it.
    pub async fn run(&self, sql: &str) {
        let mut connection = connection(&self.url).await;
        connection
            .execute(AssertSqlSafe(self.sql(sql)))
            .await
            .unwrap();
        connection.close().await.unwrap();
    }

    pub async fn number(&self, sql: &str) -> i64 {
        let mut connection = connection(&self.url).await;
        sqlx::query_scalar(AssertSqlSafe(self.sql(sql)))
            .fetch_one(&mut connection)
            .await
            .unwrap()
    }

    /// The ids of all effects, in order.
    pub async fn effects(&self) -> Vec<String> {
        let mut connection = connection(&self.url).await;
        let sql = self.sql(r#"SELECT id FROM {schema}.effects ORDER BY id COLLATE "C""#);
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(&mut connection)
            .await
            .unwrap()
    }

    pub async fn statistics(&self) -> Statistics {
        self.store.statistics().await.unwrap()
    }

    fn sql(&self, template: &str) -> String {
        template.replace("{schema}", &format!("\"{}\"", self.schema))
    }

    /// A processor on `store` whose handler writes an effect in the completing transaction.
    pub fn writer(&self, store: &PostgresStore, pause: Duration) -> ProcessorBuilder {
        let write = WriteEffect {
            sql: self.sql("INSERT INTO {schema}.effects VALUES ($1)"),
            pause,
        };
        let handler = in_transaction(store.clone(), write);
        Processor::builder(Arc::new(store.clone()))
            .router(Router::new(billing()).on("order.placed", handler))
            .concurrency(8)
            .look_ahead(8)
            .retry(at_once(1000))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_shared {
            return;
        }
        let sql = self.sql("DROP SCHEMA {schema} CASCADE");
        let url = self.url.clone();
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                connection(&url)
                    .await
                    .execute(AssertSqlSafe(sql))
                    .await
                    .unwrap();
            });
        });
        let _ = dropping.join();
    }
}

async fn connect(url: &str, schema: &SchemaName) -> PostgresStore {
    let options = PostgresOptions::from_url(url).unwrap();
    let options = options.schema(schema.clone());
    PostgresStore::connect(options).await.unwrap()
}

/// A connection that can write also while the server is read-only for everybody else.
async fn connection(url: &str) -> PgConnection {
    let options = url
        .parse::<PgConnectOptions>()
        .unwrap()
        .disable_statement_logging()
        .options([("default_transaction_read_only", "off")]);
    PgConnection::connect_with(&options).await.unwrap()
}

struct WriteEffect {
    sql: String,
    pause: Duration,
}

#[async_trait]
impl TransactionalHandler<Transaction<'static, Postgres>> for WriteEffect {
    async fn handle(
        &self,
        transaction: &mut Transaction<'static, Postgres>,
        context: &Context,
    ) -> Result<Completion, Failure> {
        let id = context.message().id().as_str();
        sqlx::query(AssertSqlSafe(self.sql.clone()))
            .bind(id)
            // Also behind a pooler.
            .persistent(false)
            .execute(&mut **transaction)
            .await?;
        tokio::time::sleep(self.pause).await;
        if id.starts_with("fails") && context.attempts().finished < 2 {
            return Err(Failure::retry("after writing"));
        }
        Ok(Completion::default())
    }
}

/// A server to be harmed.
#[derive(Clone)]
pub struct Harmed(Arc<Mutex<Server>>);

impl Harmed {
    /// In front of the server, in transaction mode.
    pub async fn pooler(&self) -> Option<Server> {
        let server = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || {
            or_skip(Kind::Pgbouncer, server.lock().unwrap().pgbouncer())
        })
        .await
        .unwrap()
        .unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn act(&self, act: impl FnOnce(&mut Server) -> Result<(), Error> + Send + 'static) {
        let server = self.0.clone();
        tokio::task::spawn_blocking(move || act(&mut server.lock().unwrap()))
            .await
            .unwrap()
            .unwrap();
    }
}
