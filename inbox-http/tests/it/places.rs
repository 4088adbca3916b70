//! Inboxes, each with a table of effects.

use std::{
    path::PathBuf,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Begun, Capabilities, ClaimRequest, Claims, Error, ErrorKind, Extended, HandlerName, Inbox,
    Lease, LeaseTerms, Message, Operate as _, Page, Receipt, Record, Result, Schema as _, Settled,
    Settlement, Store, Subscription, Transactional,
    postgres::{PostgresOptions, PostgresStore, SchemaName},
    sqlite::{SqliteOptions, SqliteStore},
};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;
use test_servers::{Kind, Server, require_or_skip};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An inbox on a database of which a test can write as well.
pub(crate) trait Place: Send + Sync + Sized + 'static {
    type Store: Transactional + Inbox + Clone;

    /// `None` where there is no server, which has been reported.
    async fn make() -> Option<Self>;

    fn store(&self) -> Self::Store;

    /// What comes before the slash in the name of an effect: where its table is.
    fn schema(&self) -> String;

    /// Writes an effect, `schema/id`, in a transaction of the store.
    fn write(
        transaction: &mut <Self::Store as Transactional>::Transaction,
        effect: &str,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// All effects that are durable, in order.
    async fn effects(&self) -> Vec<String>;

    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::new(self.store())
    }

    /// Every message, with its payload.
    async fn messages(&self) -> Vec<Record> {
        let page = Page {
            with_payload: true,
            ..Page::first(1000)
        };
        let listing = self.store().list(&inbox::Filter::default(), &page).await;
        listing.unwrap().records
    }
}

pub(crate) struct Sqlite {
    store: SqliteStore,
    pool: sqlx::SqlitePool,
    folder: TempDir,
}

impl Place for Sqlite {
    type Store = SqliteStore;

    async fn make() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inbox.db");
        let store = SqliteStore::connect(SqliteOptions::new(&path))
            .await
            .unwrap();
        store.create().await.unwrap();
        let pool = sqlx::SqlitePool::connect(path.to_str().unwrap())
            .await
            .unwrap();
        pool.execute("CREATE TABLE effects (id TEXT NOT NULL)")
            .await
            .unwrap();
        Some(Self {
            store,
            pool,
            folder,
        })
    }

    fn store(&self) -> SqliteStore {
        self.store.clone()
    }

    fn schema(&self) -> String {
        "main".into()
    }

    async fn write(
        transaction: &mut <SqliteStore as Transactional>::Transaction,
        effect: &str,
    ) -> Result<(), BoxError> {
        let (_, id) = effect.split_once('/').unwrap();
        let insert = sqlx::query("INSERT INTO effects VALUES (?)").bind(id);
        insert.execute(&mut **transaction).await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<String> {
        let select = sqlx::query_scalar("SELECT id FROM effects ORDER BY id");
        select.fetch_all(&self.pool).await.unwrap()
    }
}

static SERVER: LazyLock<Result<Option<Server>, test_servers::Error>> =
    LazyLock::new(|| require_or_skip(Kind::Postgres));

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Postgres {
    store: PostgresStore,
    url: String,
    schema: SchemaName,
}

impl Place for Postgres {
    type Store = PostgresStore;

    async fn make() -> Option<Self> {
        let url = tokio::task::spawn_blocking(|| {
            let server = SERVER.as_ref().unwrap_or_else(|error| panic!("{error}"));
            server.as_ref().map(|server| server.url().to_owned())
        });
        let url = url.await.unwrap()?;
        let options = PostgresOptions::from_url(&url).unwrap();
        Some(Self::at(url, options).await)
    }

    fn store(&self) -> PostgresStore {
        self.store.clone()
    }

    fn schema(&self) -> String {
        self.schema.to_string()
    }

    async fn write(
        transaction: &mut <PostgresStore as Transactional>::Transaction,
        effect: &str,
    ) -> Result<(), BoxError> {
        let (schema, id) = effect.split_once('/').unwrap();
        let insert = format!("INSERT INTO \"{schema}\".effects VALUES ($1)");
        let insert = sqlx::query(AssertSqlSafe(insert)).bind(id);
        insert.execute(&mut **transaction).await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<String> {
        let mut connection = PgConnection::connect(&self.url).await.unwrap();
        let select = format!("SELECT id FROM \"{}\".effects ORDER BY id", self.schema);
        let select = sqlx::query_scalar(AssertSqlSafe(select));
        select.fetch_all(&mut connection).await.unwrap()
    }
}

impl Sqlite {
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("inbox.db")
    }
}

impl Postgres {
    async fn at(url: String, options: PostgresOptions) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let schema = format!("http_{}_{number}", std::process::id());
        let schema = SchemaName::new(schema).unwrap();
        let options = options.schema(schema.clone());
        let store = PostgresStore::connect(options).await.unwrap();
        store.create().await.unwrap();
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let create = format!("CREATE TABLE \"{schema}\".effects (id text NOT NULL)");
        connection.execute(AssertSqlSafe(create)).await.unwrap();
        Self { store, url, schema }
    }

    /// On a server that only this test has, to be harmed, by a store whose operations take no longer than this. It
    /// is set up by another one.
    pub(crate) async fn with_own_server(limit: Duration) -> Option<(Self, Server)> {
        let server = tokio::task::spawn_blocking(|| require_or_skip(Kind::Postgres));
        let server = server
            .await
            .unwrap()
            .unwrap_or_else(|error| panic!("{error}"));
        let server = server.filter(|server| !server.is_shared())?;
        let url = server.url().to_owned();
        let options = PostgresOptions::from_url(&url).unwrap();
        let mut place = Self::at(url, options.clone()).await;
        let options = options.schema(place.schema_name());
        let options = options.operation_timeout(limit).acquire_timeout(limit);
        place.store = PostgresStore::connect(options).await.unwrap();
        Some((place, server))
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn schema_name(&self) -> SchemaName {
        self.schema.clone()
    }

    /// Does this to the table of effects.
    pub(crate) async fn change(&self, before: &str, after: &str) {
        let mut connection = PgConnection::connect(&self.url).await.unwrap();
        let change = format!("{before} \"{}\".effects {after}", self.schema);
        connection.execute(AssertSqlSafe(change)).await.unwrap();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let is_shared = SERVER
            .as_ref()
            .is_ok_and(|server| server.as_ref().is_some_and(Server::is_shared));
        if !is_shared {
            return;
        }
        let (url, drop) = (
            self.url.clone(),
            format!("DROP SCHEMA \"{}\" CASCADE", self.schema),
        );
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let mut connection = PgConnection::connect(&url).await.unwrap();
                connection.execute(AssertSqlSafe(drop)).await.unwrap();
            });
        });
        let _ = dropping.join();
    }
}

/// A store that is away on command, counts calls of `receive`, and takes its time for `begin`.
pub(crate) struct Away {
    inner: Arc<dyn Inbox>,
    pub(crate) is_away: AtomicBool,
    pub(crate) receives: AtomicUsize,
    begins: AtomicUsize,
    /// The most that were called at a time.
    pub(crate) most_begins: AtomicUsize,
}

impl Away {
    pub(crate) fn new(inner: Arc<dyn Inbox>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            is_away: AtomicBool::new(false),
            receives: AtomicUsize::new(0),
            begins: AtomicUsize::new(0),
            most_begins: AtomicUsize::new(0),
        })
    }

    pub(crate) fn set(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    fn check(&self, operation: &'static str) -> Result<()> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "away").in_operation(operation));
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Away {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.check("receive")?;
        self.receives.fetch_add(1, Ordering::SeqCst);
        self.inner.receive(messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.check("claim")?;
        self.inner.claim(request).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.check("settle")?;
        self.inner.settle(settlements).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.check("extend")?;
        self.inner.extend(leases, length).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.check("begin")?;
        let begins = self.begins.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_begins.fetch_max(begins, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        let begun = self.inner.begin(message, terms).await;
        self.begins.fetch_sub(1, Ordering::SeqCst);
        begun
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.inner.subscribe(handlers).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// An inbox in memory.
pub(crate) async fn in_memory() -> Arc<dyn Inbox> {
    let store = inbox::connect("memory://").await.unwrap();
    store.create().await.unwrap();
    store
}

/// Makes a test of each function on one store.
macro_rules! on_store {
    ($module:ident: $place:path, $($name:ident),* $(,)?) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                use $crate::places::Place as _;
                if let Some(place) = <$place>::make().await {
                    super::$name(place).await;
                }
            })*
        }
    };
}

/// Makes a test of each function for each store.
macro_rules! on_each_store {
    ($($name:ident),* $(,)?) => {
        $crate::places::on_store!(sqlite: $crate::places::Sqlite, $($name),*);
        $crate::places::on_store!(postgres: $crate::places::Postgres, $($name),*);
    };
}
pub(crate) use {on_each_store, on_store};
