//! Databases for handlers in transactions: each with an inbox and a table of effects.

use std::time::Duration;

use inbox::{
    Context, Inbox, Middleware, Next, Operate as _, Outcome, Processor, ProcessorBuilder,
    Schema as _, Store as _, StoreExt as _, Transactional,
};
use inbox_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{AssertSqlSafe, Connection as _, Sqlite};

use super::*;

/// A database with an inbox and a table of effects, which refuses ids that begin with *bad*.
pub(super) trait Site {
    type Store: Transactional<Transaction: 'static> + Inbox + Clone;

    fn store(&self) -> Self::Store;

    /// The statement that writes an effect.
    fn sql(&self) -> String;

    /// Runs it for a message.
    fn write(
        transaction: &mut <Self::Store as Transactional>::Transaction,
        sql: &str,
        id: &str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// The same within a savepoint, of which nothing is left when it fails.
    fn write_or_not(
        transaction: &mut <Self::Store as Transactional>::Transaction,
        sql: &str,
        id: &str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    async fn effects(&self) -> Vec<String>;
}

macro_rules! writes {
    ($database:ty) => {
        async fn write(
            transaction: &mut sqlx::Transaction<'static, $database>,
            sql: &str,
            id: &str,
        ) -> sqlx::Result<()> {
            let write = sqlx::query(AssertSqlSafe(sql.to_owned())).bind(id);
            write.execute(&mut **transaction).await.map(|_| ())
        }

        async fn write_or_not(
            transaction: &mut sqlx::Transaction<'static, $database>,
            sql: &str,
            id: &str,
        ) -> sqlx::Result<()> {
            let mut savepoint = transaction.begin().await?;
            let write = sqlx::query(AssertSqlSafe(sql.to_owned())).bind(id);
            match write.execute(&mut *savepoint).await {
                Ok(_) => savepoint.commit().await,
                Err(error) => {
                    savepoint.rollback().await?;
                    Err(error)
                }
            }
        }
    };
}

pub(super) struct InSqlite {
    store: SqliteStore,
    _folder: tempfile::TempDir,
}

impl InSqlite {
    pub(super) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("inbox.db"));
        let store = SqliteStore::connect(options).await.unwrap();
        store.create().await.unwrap();
        let mut transaction = store.open().await.unwrap();
        sqlx::query("CREATE TABLE effects (id TEXT NOT NULL CHECK (id NOT LIKE 'bad%'))")
            .execute(&mut *transaction)
            .await
            .unwrap();
        store.commit(transaction).await.unwrap();
        Self {
            store,
            _folder: folder,
        }
    }
}

impl Site for InSqlite {
    type Store = SqliteStore;

    fn store(&self) -> SqliteStore {
        self.store.clone()
    }

    fn sql(&self) -> String {
        String::from("INSERT INTO effects VALUES (?)")
    }

    writes!(Sqlite);

    async fn effects(&self) -> Vec<String> {
        let mut transaction = self.store.open().await.unwrap();
        let ids = sqlx::query_scalar("SELECT id FROM effects ORDER BY id")
            .fetch_all(&mut *transaction)
            .await
            .unwrap();
        self.store.roll_back(transaction).await.unwrap();
        ids
    }
}

#[cfg(feature = "postgres")]
pub(super) mod in_postgres {
    use inbox::postgres::PostgresStore;
    use sqlx::Postgres;

    use super::*;
    use crate::postgres_support::Place;

    pub struct InPostgres(Place);

    impl InPostgres {
        /// `None` when there is no server, which has been reported.
        pub async fn new() -> Option<Self> {
            let place = Place::shared().await?;
            place
                .run("ALTER TABLE {schema}.effects ADD CHECK (id NOT LIKE 'bad%')")
                .await;
            Some(Self(place))
        }
    }

    impl Site for InPostgres {
        type Store = PostgresStore;

        fn store(&self) -> PostgresStore {
            self.0.store.clone()
        }

        fn sql(&self) -> String {
            format!("INSERT INTO \"{}\".effects VALUES ($1)", self.0.schema)
        }

        writes!(Postgres);

        async fn effects(&self) -> Vec<String> {
            self.0.effects().await
        }
    }
}

#[cfg(feature = "mysql")]
pub(super) mod in_mysql {
    use std::sync::atomic::{AtomicU32, Ordering};

    use inbox::mysql::{MySqlOptions, MySqlStore};
    use sqlx::{MySql, MySqlConnection};
    use test_servers::Kind;

    use super::*;
    use crate::mysql_support;

    static NEXT: AtomicU32 = AtomicU32::new(0);

    /// A database of its own on a server of this kind.
    pub struct InMysql {
        store: MySqlStore,
        url: String,
        database: String,
    }

    impl InMysql {
        /// `None` when there is no server, which has been reported.
        pub async fn new(kind: Kind) -> Option<Self> {
            let url = mysql_support::url(kind).await?;
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let database = format!("inbox_batches_{}_{number}", std::process::id());
            run(
                &url,
                format!(
                    "CREATE DATABASE {database}; CREATE TABLE {database}.effects \
                     (id VARCHAR(255) NOT NULL, CONSTRAINT good CHECK (id NOT LIKE 'bad%'))"
                ),
            )
            .await;
            let options = MySqlOptions::from_url(&url).unwrap();
            let options = options.database(&database).unwrap();
            let store = MySqlStore::connect(options).await.unwrap();
            store.create().await.unwrap();
            Some(Self {
                store,
                url,
                database,
            })
        }

        pub async fn remove(self) {
            self.store.close().await;
            run(&self.url, format!("DROP DATABASE {}", self.database)).await;
        }
    }

    async fn run(url: &str, sql: String) {
        let mut connection = MySqlConnection::connect(url).await.unwrap();
        let ran = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection);
        ran.await.unwrap();
        connection.close().await.unwrap();
    }

    impl Site for InMysql {
        type Store = MySqlStore;

        fn store(&self) -> MySqlStore {
            self.store.clone()
        }

        fn sql(&self) -> String {
            format!("INSERT INTO {}.effects VALUES (?)", self.database)
        }

        writes!(MySql);

        async fn effects(&self) -> Vec<String> {
            let mut connection = MySqlConnection::connect(&self.url).await.unwrap();
            let sql = format!("SELECT id FROM {}.effects ORDER BY id", self.database);
            let ids = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection);
            let ids = ids.await.unwrap();
            connection.close().await.unwrap();
            ids
        }
    }
}

/// Makes a test of each case, on each database.
macro_rules! on_each_database {
    ($($case:ident,)*) => {
        mod on_sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(&super::InSqlite::new().await).await;
                }
            )*
        }

        #[cfg(feature = "postgres")]
        mod on_postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    if let Some(site) = super::in_postgres::InPostgres::new().await {
                        super::$case(&site).await;
                    }
                }
            )*
        }

        #[cfg(feature = "mysql")]
        mod on_mariadb {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let kind = test_servers::Kind::Mariadb;
                    if let Some(site) = super::in_mysql::InMysql::new(kind).await {
                        super::$case(&site).await;
                        site.remove().await;
                    }
                }
            )*
        }

        #[cfg(feature = "mysql")]
        mod on_mysql {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let kind = test_servers::Kind::Mysql;
                    if let Some(site) = super::in_mysql::InMysql::new(kind).await {
                        super::$case(&site).await;
                        site.remove().await;
                    }
                }
            )*
        }
    };
}

pub(super) use on_each_database;

pub(super) type Tx<S> = <<S as Site>::Store as Transactional>::Transaction;

/// Stores the messages, which are new.
pub(super) async fn filled<S: Site>(site: &S, messages: &[Message]) {
    let receipts = site.store().receive(messages).await.unwrap();
    assert!(
        receipts
            .iter()
            .all(|receipt| *receipt == inbox::Receipt::Accepted)
    );
}

/// A processor that makes three attempts, one at once after the other.
pub(super) fn processor_of<S: Site>(site: &S, router: Router) -> ProcessorBuilder {
    Processor::builder(Arc::new(site.store()))
        .router(router)
        .retry(at_once(3))
        .poll_intervals(Duration::from_millis(2), Duration::from_millis(10))
}

/// Another worker that holds the lease of *lost* finishes it before the transaction begins.
pub(super) fn steals_the_lost<S: Site>(site: &S) -> impl Middleware + use<S> {
    let store = site.store();
    move |context: Context, next: Next| {
        let store = store.clone();
        async move {
            if context.message().id().as_str() == "lost" {
                let outcome = Outcome::Processed { result: None };
                let _ = store.settle_one(&context.leased().lease, outcome).await?;
            }
            next.run(&context).await
        }
    }
}

/// Of the results of *small*, *large* and *none*.
pub(super) async fn only_the_small_result_is_kept<S: Site>(site: &S) {
    for (id, result) in [("small", Some("kept")), ("large", None), ("none", None)] {
        let record = site.store().get(&key(id)).await.unwrap().unwrap();
        assert_eq!(record.result.as_deref(), result.map(str::as_bytes), "{id}");
    }
}
