//! Inboxes on the other stores.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicU32, Ordering},
};

use inbox::{
    Inbox, Result, Schema as _, Transactional,
    mongo::{
        MongoOptions, MongoStore,
        mongodb::{
            Client, Collection,
            bson::{Document, doc},
        },
    },
    mysql::{MySqlOptions, MySqlStore},
    redis::{RedisOptions, RedisStore},
};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection};
use test_servers::{Kind, Server, require_or_skip};

use crate::places::{BoxError, Place};

type Found = LazyLock<Result<Option<Server>, test_servers::Error>>;

static MARIADB: Found = LazyLock::new(|| require_or_skip(Kind::Mariadb));

static MYSQL: Found = LazyLock::new(|| require_or_skip(Kind::Mysql));

static MONGODB: Found = LazyLock::new(|| require_or_skip(Kind::MongodbSet));

static FERRETDB: Found = LazyLock::new(|| require_or_skip(Kind::Ferretdb));

static REDIS: Found = LazyLock::new(|| require_or_skip(Kind::Redis));

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The address of a server, or `None` where there is none, which has been reported.
async fn url_of(found: &'static Found) -> Option<String> {
    let url = tokio::task::spawn_blocking(|| {
        let server = found.as_ref().unwrap_or_else(|error| panic!("{error}"));
        server.as_ref().map(|server| server.url().to_owned())
    });
    url.await.unwrap()
}

fn new_database() -> String {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("http_{}_{number}", std::process::id())
}

/// Does the last work of a test, if others may have to live with what it leaves.
fn at_the_end(found: &Found, work: impl Future<Output = ()> + Send + 'static) {
    let server = found.as_ref().ok().and_then(Option::as_ref);
    if server.is_some_and(Server::is_shared) {
        let ending = std::thread::spawn(move || {
            tokio::runtime::Runtime::new().unwrap().block_on(work);
        });
        let _ = ending.join();
    }
}

/// On MariaDB, or on MySQL.
pub(crate) struct OnMySql<const IS_ORACLES: bool> {
    store: MySqlStore,
    url: String,
    database: String,
}

pub(crate) type MariaDb = OnMySql<false>;

pub(crate) type MySql = OnMySql<true>;

impl<const IS_ORACLES: bool> OnMySql<IS_ORACLES> {
    fn server() -> &'static Found {
        if IS_ORACLES { &MYSQL } else { &MARIADB }
    }
}

impl<const IS_ORACLES: bool> Place for OnMySql<IS_ORACLES> {
    type Store = MySqlStore;

    async fn make() -> Option<Self> {
        let url = url_of(Self::server()).await?;
        let url = format!("mysql://{}", url.split_once("://").unwrap().1);
        let database = new_database();
        let mut connection = MySqlConnection::connect(&url).await.unwrap();
        let create =
            format!("CREATE DATABASE {database}; CREATE TABLE {database}.effects (id TEXT)");
        let create = sqlx::raw_sql(AssertSqlSafe(create));
        create.execute(&mut connection).await.unwrap();
        let options = MySqlOptions::from_url(&url).unwrap();
        let store = MySqlStore::connect(options.database(&database).unwrap())
            .await
            .unwrap();
        store.create().await.unwrap();
        Some(Self {
            store,
            url,
            database,
        })
    }

    fn store(&self) -> MySqlStore {
        self.store.clone()
    }

    fn schema(&self) -> String {
        self.database.clone()
    }

    async fn write(
        transaction: &mut <MySqlStore as Transactional>::Transaction,
        effect: &str,
    ) -> Result<(), BoxError> {
        let (database, id) = effect.split_once('/').unwrap();
        let insert = format!("INSERT INTO {database}.effects VALUES (?)");
        let insert = sqlx::query(AssertSqlSafe(insert)).bind(id);
        insert.execute(&mut **transaction).await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<String> {
        let mut connection = MySqlConnection::connect(&self.url).await.unwrap();
        let select = format!("SELECT id FROM {}.effects ORDER BY id", self.database);
        let select = sqlx::query_scalar(AssertSqlSafe(select));
        select.fetch_all(&mut connection).await.unwrap()
    }
}

impl<const IS_ORACLES: bool> Drop for OnMySql<IS_ORACLES> {
    fn drop(&mut self) {
        let (url, drop) = (self.url.clone(), format!("DROP DATABASE {}", self.database));
        at_the_end(Self::server(), async move {
            let mut connection = MySqlConnection::connect(&url).await.unwrap();
            connection.execute(AssertSqlSafe(drop)).await.unwrap();
        });
    }
}

/// On Redis, which has no transactions of several statements.
pub(crate) struct OnRedis {
    store: RedisStore,
    url: String,
}

impl OnRedis {
    pub(crate) async fn make() -> Option<Self> {
        let url = format!("{}?inbox={}", url_of(&REDIS).await?, new_database());
        let store = redis_store(&url).await;
        store.create().await.unwrap();
        Some(Self { store, url })
    }

    pub(crate) fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::new(self.store.clone())
    }
}

async fn redis_store(url: &str) -> RedisStore {
    let options = RedisOptions::from_url(url).unwrap();
    RedisStore::connect(options).await.unwrap()
}

impl Drop for OnRedis {
    fn drop(&mut self) {
        let url = self.url.clone();
        at_the_end(&REDIS, async move {
            redis_store(&url).await.remove().await.unwrap();
        });
    }
}

/// On a replica set, which has transactions.
pub(crate) struct MongoDb {
    store: MongoStore,
    url: String,
    database: String,
}

/// A store on FerretDB, which speaks MongoDB's protocol and has no transactions.
pub(crate) async fn on_ferretdb() -> Option<MongoStore> {
    let url = url_of(&FERRETDB).await?;
    Some(mongo_store(&url, &new_database()).await)
}

async fn mongo_store(url: &str, database: &str) -> MongoStore {
    let options = MongoOptions::from_url(url).unwrap().database(database);
    let store = MongoStore::connect(options).await.unwrap();
    store.create().await.unwrap();
    store
}

impl MongoDb {
    async fn collection(&self) -> Collection<Document> {
        let client = Client::with_uri_str(&self.url).await.unwrap();
        client.database(&self.database).collection("effects")
    }

    pub(crate) async fn clear(&self) {
        self.collection().await.delete_many(doc! {}).await.unwrap();
    }
}

impl Place for MongoDb {
    type Store = MongoStore;

    async fn make() -> Option<Self> {
        let url = url_of(&MONGODB).await?;
        let database = new_database();
        Some(Self {
            store: mongo_store(&url, &database).await,
            url,
            database,
        })
    }

    fn store(&self) -> MongoStore {
        self.store.clone()
    }

    fn schema(&self) -> String {
        self.database.clone()
    }

    async fn write(
        transaction: &mut <MongoStore as Transactional>::Transaction,
        effect: &str,
    ) -> Result<(), BoxError> {
        let (database, id) = effect.split_once('/').unwrap();
        let session = transaction.session()?;
        let effects = session.client().database(database).collection("effects");
        effects
            .insert_one(doc! { "_id": id })
            .session(session)
            .await?;
        Ok(())
    }

    async fn effects(&self) -> Vec<String> {
        let effects = self.collection().await;
        let mut cursor = effects.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
        let mut ids = Vec::new();
        while cursor.advance().await.unwrap() {
            let effect = cursor.deserialize_current().unwrap();
            ids.push(effect.get_str("_id").unwrap().to_owned());
        }
        ids
    }
}

impl Drop for MongoDb {
    fn drop(&mut self) {
        let (url, database) = (self.url.clone(), self.database.clone());
        at_the_end(&MONGODB, async move {
            let client = Client::with_uri_str(&url).await.unwrap();
            client.database(&database).drop().await.unwrap();
        });
    }
}
