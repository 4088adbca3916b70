//! Servers for the tests of this crate, and inboxes on them.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    reason = "each test program uses a part of it, and fails by panicking"
)]

use std::{
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use conformance_tests::{Offered, Restart, Unable};
use inbox_api::{HandlerName, Kind, Message, MessageId, Schema as _, WorkerName};
use inbox_postgres::{PostgresOptions, PostgresStore, SchemaName};
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection, postgres::PgConnectOptions,
};
use test_servers::{Kind as ServerKind, Server, require_or_skip};

static SERVER: LazyLock<Result<Option<Mutex<Server>>, test_servers::Error>> =
    LazyLock::new(|| Ok(require_or_skip(ServerKind::Postgres)?.map(Mutex::new)));

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The URL of the server that all tests of a program share; `None` when there is none, which has
/// been reported.
pub fn shared_url() -> Option<String> {
    let server = SERVER.as_ref().unwrap_or_else(|error| panic!("{error}"));
    let server = server.as_ref()?;
    Some(lock(server).url().to_owned())
}

/// A server of the test's own, to be harmed.
pub fn own_server() -> Option<Server> {
    let server = require_or_skip(ServerKind::Postgres).unwrap_or_else(|error| panic!("{error}"));
    server.filter(|server| !server.is_shared())
}

/// Restarts a server of the test's own.
pub async fn restart(server: &Arc<Mutex<Server>>, how: Restart) -> Offered<()> {
    act(server, move |server| match how {
        Restart::Orderly => server.restart(),
        Restart::Killed => {
            server.kill()?;
            server.start()
        }
    })
    .await
}

/// Does something to a server of the test's own, which may take a while.
pub async fn act(
    server: &Arc<Mutex<Server>>,
    act: impl FnOnce(&mut Server) -> Result<(), test_servers::Error> + Send + 'static,
) -> Offered<()> {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || act(&mut lock(&server)))
        .await
        .map_err(Unable::failed)?
        .map_err(Unable::failed)
}

pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A schema name that no other test uses, also not one of another program on the same server.
pub fn fresh_schema() -> SchemaName {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    SchemaName::new(format!("test_{}_{number}", std::process::id())).unwrap()
}

pub fn connection_options(url: &str) -> PgConnectOptions {
    use sqlx::ConnectOptions as _;

    url.parse::<PgConnectOptions>()
        .unwrap()
        .disable_statement_logging()
}

pub async fn connection(url: &str) -> sqlx::Result<PgConnection> {
    PgConnection::connect_with(&connection_options(url)).await
}

/// Runs SQL with `{schema}` in it.
pub async fn run(url: &str, schema: &SchemaName, sql: &str) -> sqlx::Result<()> {
    let sql = sql.replace("{schema}", &format!("\"{schema}\""));
    let mut connection = connection(url).await?;
    connection.execute(AssertSqlSafe(sql)).await?;
    connection.close().await
}

/// An inbox in a schema of its own.
pub struct Place {
    pub url: String,
    pub schema: SchemaName,
    pub options: PostgresOptions,
}

impl Place {
    pub fn at(url: String) -> Self {
        let schema = fresh_schema();
        Self {
            url,
            options: PostgresOptions::new()
                .schema(schema.clone())
                .acquire_timeout(Duration::from_secs(2)),
            schema,
        }
    }

    /// On the shared server.
    pub fn shared() -> Option<Self> {
        shared_url().map(Self::at)
    }

    pub async fn connect(&self) -> inbox_api::Result<PostgresStore> {
        PostgresStore::connect(connection_options(&self.url), self.options.clone()).await
    }

    /// Set up.
    pub async fn store(&self) -> Arc<PostgresStore> {
        let store = self.connect().await.unwrap();
        store.create().await.unwrap();
        Arc::new(store)
    }

    pub async fn run(&self, sql: &str) -> sqlx::Result<()> {
        run(&self.url, &self.schema, sql).await
    }
}

pub fn handler() -> HandlerName {
    HandlerName::new("orders").unwrap()
}

pub fn worker() -> WorkerName {
    WorkerName::new("worker").unwrap()
}

pub fn message(id: &str) -> Message {
    Message::new(
        handler(),
        MessageId::new(id).unwrap(),
        Kind::new("order.placed").unwrap(),
        "payload",
    )
}
