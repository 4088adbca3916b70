//! Servers for the tests of this crate, and inboxes on them.

pub mod dump;

pub use conformance_tests::samples::{
    LEASE, accept, claim, claim_one, dead, defer, handler, key, message, ordered, processed,
    settle, terms,
};
use std::{
    num::NonZeroUsize,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use conformance_tests::{Options, Report, crash::proxy::Proxy, run_with};
use inbox_api::{ClockOffset, Schema as _};
use inbox_mysql::{MySqlOptions, MySqlStore, conformance::MySqlHarness};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, MySqlConnection,
    mysql::MySqlConnectOptions,
};
use test_servers::{
    Kind as ServerKind, Server,
    control::{Outage, own},
    require_or_skip,
};

type Shared = LazyLock<Result<Option<Mutex<Server>>, test_servers::Error>>;

static MARIADB: Shared =
    LazyLock::new(|| Ok(require_or_skip(ServerKind::Mariadb)?.map(Mutex::new)));
static MYSQL: Shared = LazyLock::new(|| Ok(require_or_skip(ServerKind::Mysql)?.map(Mutex::new)));

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The URL of the server that all tests of a program share; `None` when there is none, which has
/// been reported.
pub fn shared_url(kind: ServerKind) -> Option<String> {
    let server = match kind {
        ServerKind::Mysql => &MYSQL,
        _ => &MARIADB,
    };
    let server = server.as_ref().unwrap_or_else(|error| panic!("{error}"));
    Some(lock(server.as_ref()?).url().to_owned())
}

/// A server of the test's own, to be harmed.
pub fn own_server(kind: ServerKind) -> Option<Server> {
    let server = require_or_skip(kind).unwrap_or_else(|error| panic!("{error}"));
    server.filter(|server| !server.is_shared())
}

pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The suite on the server of a kind that all cases share, and on others like it for those that harm
/// theirs.
pub fn harness(kind: ServerKind) -> MySqlHarness {
    let url = shared_url(kind).unwrap_or_else(|| panic!("no {kind} server"));
    MySqlHarness::new(MySqlOptions::from_url(&url).unwrap())
        .named(kind.name())
        .servers(own(kind, &[], Outage::Paused))
}

/// Runs the cases of a filter, several at a time, and reports.
pub async fn report(harness: MySqlHarness, filter: &str) -> Report {
    let options = Options {
        filter: filter.into(),
        jobs: NonZeroUsize::new(4),
        ..Options::default()
    };
    run_with(Arc::new(harness), &options, |_| {}).await
}

pub fn connect_options(url: &str, database: Option<&str>) -> MySqlConnectOptions {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let options: MySqlConnectOptions = format!("mysql://{rest}").parse().unwrap();
    let options = options.disable_statement_logging();
    match database {
        Some(database) => options.database(database),
        None => options,
    }
}

/// A database of a test's own on a server. Dropped with the value, as far as the server is there.
pub struct TestInbox {
    pub url: String,
    pub database: String,
    pub clock: ClockOffset,
    pub options: MySqlOptions,
}

impl TestInbox {
    pub async fn at(url: String) -> sqlx::Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let database = format!("inbox_{}_{number}", std::process::id());
        let mut connection = connect_options(&url, None).connect().await?;
        connection
            .execute(AssertSqlSafe(format!("CREATE DATABASE {database}")))
            .await?;
        connection.close().await?;
        let clock = ClockOffset::default();
        let options =
            MySqlOptions::new(connect_options(&url, Some(&database))).clock_offset(clock.clone());
        Ok(Self {
            url,
            database,
            clock,
            options,
        })
    }

    /// Lets the stores of this inbox reach its server through a proxy only.
    pub async fn behind_proxy(&mut self) -> std::io::Result<Proxy> {
        let connect = self.options.connection();
        let server = (connect.get_host(), connect.get_port());
        let server = tokio::net::lookup_host(server).await?.next();
        let proxy = Proxy::start(server.ok_or(std::io::ErrorKind::NotFound)?).await?;
        let address = proxy.address();
        let connect = connect.clone().host(&address.ip().to_string());
        self.options = self
            .options
            .clone()
            .connect_with(connect.port(address.port()));
        Ok(proxy)
    }

    pub async fn connection(&self) -> sqlx::Result<MySqlConnection> {
        connect_options(&self.url, Some(&self.database))
            .connect()
            .await
    }

    pub async fn run(&self, sql: impl Into<String>) -> sqlx::Result<()> {
        let mut connection = self.connection().await?;
        sqlx::raw_sql(AssertSqlSafe(sql.into()))
            .execute(&mut connection)
            .await?;
        connection.close().await
    }

    pub async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.connection().await.unwrap();
        let row = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
        sqlx::Row::try_get_unchecked(&row, 0).unwrap()
    }

    /// Makes a user who may work, but not set anything up, call procedures or do what takes an administrator. Answers
    /// with how it connects.
    pub async fn add_worker(&self) -> MySqlConnectOptions {
        let (database, name) = (&self.database, format!("w{}", &self.database[5..]));
        let make = format!(
            "CREATE USER '{name}'@'127.0.0.1' IDENTIFIED BY 'few';
             GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO '{name}'@'127.0.0.1'"
        );
        self.run(make).await.unwrap();
        connect_options(&self.url, Some(database))
            .username(&name)
            .password("few")
    }

    /// With an inbox that is set up.
    pub async fn store(&self) -> MySqlStore {
        let store = self.other().await;
        store.create().await.unwrap();
        store
    }

    /// Another store, with its own connections as another process has.
    pub async fn other(&self) -> MySqlStore {
        MySqlStore::connect(self.options.clone()).await.unwrap()
    }
}

/// Runs a test on each of the two servers that is there, in its own database.
pub fn on_each<F: Future<Output = ()>>(test: impl Fn(TestInbox, ServerKind) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for kind in [ServerKind::Mariadb, ServerKind::Mysql] {
        if let Some(url) = shared_url(kind) {
            runtime.block_on(async {
                let inbox = TestInbox::at(url).await.unwrap();
                let database = inbox.database.clone();
                let url = inbox.url.clone();
                test(inbox, kind).await;
                let mut connection = connect_options(&url, None).connect().await.unwrap();
                let sql = format!("DROP DATABASE IF EXISTS {database}");
                connection.execute(AssertSqlSafe(sql)).await.unwrap();
            });
        }
    }
}

/// How many of the inbox's sessions wait for a lock.
pub async fn waiting(inbox: &TestInbox) -> i64 {
    /// The servers renew what they answer only when nobody has asked for a tenth of a second.
    static ASKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx AS t \
                   JOIN information_schema.processlist AS p ON p.ID = t.trx_mysql_thread_id \
                   WHERE t.trx_state = 'LOCK WAIT' AND p.DB = DATABASE()";
    let _alone = ASKING.lock().await;
    tokio::time::sleep(Duration::from_millis(250)).await;
    inbox.number(waiting).await
}

/// Until one does.
pub async fn waits(inbox: &TestInbox) {
    for _ in 0..40 {
        if waiting(inbox).await > 0 {
            return;
        }
    }
    panic!("no transaction waited for the other one");
}
