//! Servers for the tests of this crate, inboxes on them, and what the tests say to them.

pub use conformance_tests::samples::{
    LEASE, accept, begin, claim, claim_one, dead, defer, get, handler, ids, key, message, ordered,
    processed, request, retry, settle, terms, worker,
};
use std::{
    num::NonZeroUsize,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use conformance_tests::{Options, Report, crash::proxy::Proxy};
use inbox_api::{
    Bytes, ClaimRequest, Edit, Filter, Kind, Leased, Message, MessageId, Operate as _, Schema as _,
    State, Store as _,
};
use inbox_postgres::{
    PostgresOptions, PostgresStore,
    conformance::{PostgresHarness, TestSchema},
};
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection, postgres::PgConnectOptions,
};
use test_servers::{
    Kind as ServerKind, Server,
    control::{Outage, own},
    find_own, or_skip, require_or_skip,
};

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

/// Names the server, `postgres` or `postgres-18`, for runs of the whole suite where otherwise a part is run,
/// by hand.
pub const SETTINGS_ON: &str = "INBOX_TEST_SETTINGS_ON";

pub fn kind_with_settings() -> ServerKind {
    match std::env::var(SETTINGS_ON).as_deref() {
        Ok("postgres-18") => ServerKind::Postgres18,
        _ => ServerKind::Postgres,
    }
}

/// A server for one test, with these settings: that of [`SETTINGS_ON`].
pub fn own_server_with(settings: &[&str]) -> Option<Server> {
    let kind = kind_with_settings();
    let arguments: Vec<&str> = settings.iter().flat_map(|s| ["-c", *s]).collect();
    or_skip(kind, find_own(kind, &arguments)).unwrap_or_else(|error| panic!("{error}"))
}

/// Does something to a server of the test's own, which may take a while.
pub async fn act(
    server: &Arc<Mutex<Server>>,
    act: impl FnOnce(&mut Server) -> Result<(), test_servers::Error> + Send + 'static,
) {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || act(&mut lock(&server)))
        .await
        .unwrap()
        .unwrap();
}

pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name that no other test uses, also not one of another program on the same server.
pub fn fresh_name() -> String {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test_{}_{number}", std::process::id())
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

/// Claims with runs of so many messages of one ordering key.
pub async fn claim_runs(store: &PostgresStore, limit: u32, run_limit: u32) -> Vec<Leased> {
    let request = ClaimRequest {
        run_limit,
        ..request(limit)
    };
    let claims = store.claim(&request).await.unwrap();
    assert_eq!(claims.corrupt, []);
    claims.leased
}

/// Runs SQL that may be several statements.
pub async fn execute(url: &str, sql: &str) -> sqlx::Result<()> {
    let mut connection = connection(url).await?;
    connection.execute(AssertSqlSafe(sql.to_owned())).await?;
    connection.close().await
}

/// A proxy in front of the server that `url` names, and a URL that goes through it.
pub async fn proxied(url: &str) -> std::io::Result<(Proxy, String)> {
    let unreadable = || std::io::Error::other("a URL without a host");
    let mut url = url::Url::parse(url).map_err(|_| unreadable())?;
    let host = url.host_str().ok_or_else(unreadable)?.to_owned();
    let port = url.port().unwrap_or(5432);
    let mut servers = tokio::net::lookup_host((host, port)).await?;
    let proxy = Proxy::start(servers.next().ok_or_else(unreadable)?).await?;
    let address = proxy.address();
    url.set_ip_host(address.ip()).map_err(|()| unreadable())?;
    url.set_port(Some(address.port()))
        .map_err(|()| unreadable())?;
    Ok((proxy, url.into()))
}

/// Settings for a server that nothing takes away; but a machine may be slow.
pub fn patient(url: &str) -> PostgresOptions {
    let options = PostgresOptions::new().connect_with(connection_options(url));
    options.acquire_timeout(Duration::from_secs(30))
}

/// The suite on a server of this kind and with these settings, which the cases share, and on others
/// like it for those that harm theirs.
pub fn harness(options: PostgresOptions, kind: ServerKind, settings: &[&str]) -> PostgresHarness {
    let arguments: Vec<&str> = settings.iter().flat_map(|s| ["-c", *s]).collect();
    PostgresHarness::new(options).servers(own(kind, &arguments, Outage::Stopped))
}

/// Runs all cases, several at a time. For servers that a machine need not have.
pub async fn run_suite(harness: PostgresHarness) {
    let report = report(harness, "").await;
    assert!(report.is_conformant(), "{report}");
}

/// Runs these groups of cases, or all where [`SETTINGS_ON`] asks for that.
pub async fn run_parts(parts: &[&str], harness: impl Fn() -> PostgresHarness) {
    if std::env::var_os(SETTINGS_ON).is_some() {
        return run_suite(harness()).await;
    }
    for part in parts {
        run_part(harness(), part).await;
    }
}

/// Runs the cases whose `group::name` contains `filter`, several at a time.
pub async fn run_part(harness: PostgresHarness, filter: &str) {
    let report = report(harness, filter).await;
    println!("{report}");
    assert!(report.is_clean() && report.passed > 0, "{filter}");
}

async fn report(harness: PostgresHarness, filter: &str) -> Report {
    let options = Options {
        filter: filter.into(),
        jobs: NonZeroUsize::new(4),
        // The model's, which takes a minute otherwise. Parts are run for the sake of time.
        budget: (!filter.is_empty()).then_some(Duration::from_secs(15)),
        ..Options::default()
    };
    conformance_tests::run_with(Arc::new(harness), &options, |_| {}).await
}

/// An edit of the payload alone.
pub fn with_payload(payload: impl Into<Bytes>) -> Edit {
    Edit {
        payload: Some(payload.into()),
        ..Edit::default()
    }
}

/// An inbox in its own schema.
pub struct TestInbox {
    pub url: String,
    pub schema: TestSchema,
    pub options: PostgresOptions,
}

impl TestInbox {
    pub fn at(url: String) -> Self {
        let schema = TestSchema::fresh(connection_options(&url));
        Self {
            options: schema.inbox_options(&patient(&url)),
            url,
            schema,
        }
    }

    pub fn shared() -> Option<Self> {
        Some(Self::at(shared_url()?))
    }

    pub async fn connect(&self) -> inbox_api::Result<PostgresStore> {
        let connection = connection_options(&self.url);
        PostgresStore::connect(self.options.clone().connect_with(connection)).await
    }

    /// As another process would.
    pub async fn other(&self) -> PostgresStore {
        self.connect().await.unwrap()
    }

    /// Set up.
    pub async fn store(&self) -> PostgresStore {
        let store = self.connect().await.unwrap();
        store.create().await.unwrap();
        store
    }

    /// `sql` with the schema's quoted name for `{schema}`.
    pub fn sql(&self, sql: &str) -> String {
        self.schema.sql(sql)
    }

    /// Runs SQL with `{schema}` in it.
    pub async fn run(&self, sql: &str) -> sqlx::Result<()> {
        self.schema.run(sql).await
    }

    /// The first column of all rows.
    pub async fn column<T>(&self, sql: &str) -> Vec<T>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        let found = self.schema.column(sql).await;
        found.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The first column of the one row.
    pub async fn value<T>(&self, sql: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        let mut found = self.column(sql).await;
        assert_eq!(found.len(), 1, "{sql}");
        found.remove(0)
    }

    /// Moves the inbox's clock forward.
    pub async fn advance(&self, by: Duration) {
        self.schema.advance(by).await.unwrap();
    }

    /// The rules that do not hold in the inbox's tables.
    pub async fn broken_rules(&self) -> Vec<String> {
        self.schema.find_broken_rules().await.unwrap()
    }
}

/// Fails unless the tables agree with each other, and the statistics with the listing.
pub async fn check_consistent(ready: &Ready) {
    assert_eq!(ready.place.broken_rules().await, [""; 0]);
    let statistics = ready.store.statistics().await.unwrap();
    for state in State::ALL {
        let filter = Filter {
            states: vec![state],
            ..Filter::default()
        };
        let counted = ready.store.count(&filter).await.unwrap();
        assert_eq!(statistics.count(state), counted, "{state}");
    }
}

/// Until a statement on this inbox waits for a lock.
pub async fn wait_for_a_lock_wait(place: &TestInbox) {
    let started = Instant::now();
    loop {
        // By the name of this test's schema in the statement.
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
             AND query LIKE '%{}%'",
            place.schema.name
        );
        if place.value::<i64>(&sql).await > 0 {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "nobody waits");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An inbox that is set up, and a store on it.
pub struct Ready {
    pub place: TestInbox,
    pub store: PostgresStore,
}

/// A fresh inbox on the shared server; `None` when there is no server.
pub async fn ready() -> Option<Ready> {
    ready_with(|options| options).await
}

pub async fn ready_with(change: impl FnOnce(PostgresOptions) -> PostgresOptions) -> Option<Ready> {
    let mut place = TestInbox::shared()?;
    place.options = change(place.options);
    let store = place.store().await;
    Some(Ready { place, store })
}

/// How long the leases of these tests run.
pub fn message_with(id: &str, payload: impl Into<inbox_api::Bytes>) -> Message {
    Message::new(
        handler("h"),
        MessageId::new(id).unwrap(),
        Kind::new("k").unwrap(),
        payload,
    )
}
