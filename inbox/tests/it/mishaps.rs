//! Handlers that end their own transaction, on every SQL database. What they have written then stays,
//! and the runtime says so: it neither runs them again within an attempt nor calls it nothing.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::SeqCst},
};

use async_trait::async_trait;
use inbox::{
    CancellationToken, Completion, Context, Failure, Inbox, Processor, Receipt, Router,
    Schema as _, State, Store as _, StoreExt as _, Transactional, TransactionalHandler,
    in_transaction,
    inline::{ConsumeError, OnDuplicate, consume_in_transaction},
    mysql::{MySqlOptions, MySqlStore},
    sqlite::{SqliteOptions, SqliteStore},
};
use sqlx::{
    AssertSqlSafe, Connection as _, Database, Executor, MySqlConnection, SqliteConnection,
    Transaction,
};
use test_servers::Kind;

use crate::{
    mysql_support, postgres_support,
    processor_support::{at_once, billing, eventually, key, message},
};

/// How often a message is tried.
const ATTEMPTS: u32 = 3;

/// What a handler does, statement by statement.
struct Script {
    name: &'static str,
    statements: Vec<String>,
    /// Whether an effect is there after a run.
    lasts: bool,
}

/// On each database, `effect` is the statement that has to take place once.
fn scripts(effect: &str) -> Vec<Script> {
    let script = |name, statements: &[&str], lasts| Script {
        name,
        statements: statements.iter().map(|s| (*s).to_owned()).collect(),
        lasts,
    };
    vec![
        script("commits", &[effect, "COMMIT"], true),
        script("rolls-back", &[effect, "ROLLBACK"], false),
        script("commits-first", &["COMMIT", effect], true),
        script("rolls-back-first", &["ROLLBACK", effect], true),
    ]
}

struct Runs {
    statements: Vec<String>,
    count: Arc<AtomicU32>,
}

impl Runs {
    async fn run<DB: Database>(
        &self,
        transaction: &mut Transaction<'static, DB>,
    ) -> Result<(), sqlx::Error>
    where
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    {
        self.count.fetch_add(1, SeqCst);
        for statement in &self.statements {
            sqlx::raw_sql(AssertSqlSafe(statement.clone()))
                .execute(&mut **transaction)
                .await?;
        }
        Ok(())
    }
}

#[async_trait]
impl<DB: Database> TransactionalHandler<Transaction<'static, DB>> for Runs
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    async fn handle(
        &self,
        transaction: &mut Transaction<'static, DB>,
        _context: &Context,
    ) -> Result<Completion, Failure> {
        self.run(transaction).await?;
        Ok(Completion::default())
    }
}

/// Each run is an attempt, which is counted and has failed.
async fn in_transactions<S, DB>(store: &S, script: &Script, effects: impl AsyncFn() -> u32)
where
    S: Inbox + Transactional<Transaction = Transaction<'static, DB>> + Clone,
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let before = effects().await;
    let sent = message(script.name);
    assert_eq!(store.receive_one(&sent).await.unwrap(), Receipt::Accepted);
    let count = Arc::new(AtomicU32::new(0));
    let runs = Runs {
        statements: script.statements.clone(),
        count: Arc::clone(&count),
    };
    let handler = in_transaction(store.clone(), runs);
    let processor = Processor::builder(Arc::new(store.clone()))
        .router(Router::new(billing()).on("order.placed", handler))
        .retry(at_once(ATTEMPTS))
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let until_dead = async {
        let is_dead = async || {
            let record = store.get(sent.key()).await.unwrap().unwrap();
            record.state == State::Dead
        };
        eventually("dead", is_dead).await;
        stop.cancel();
    };
    let (ran, ()) = tokio::join!(processor.run(stop.clone()), until_dead);
    ran.unwrap();

    let record = store.get(&key(script.name)).await.unwrap().unwrap();
    assert_eq!(count.load(SeqCst), ATTEMPTS, "{}", script.name);
    assert_eq!(record.attempts.started, ATTEMPTS, "{}", script.name);
    let error = record.last_error.unwrap();
    assert!(
        error.contains("the transaction is not there any more"),
        "{}: {error}",
        script.name
    );
    let expected = if script.lasts { ATTEMPTS } else { 0 };
    assert_eq!(effects().await - before, expected, "{}", script.name);
}

/// The one who delivers the message is told that something may have happened.
async fn inline<S, DB>(store: &S, script: &Script, effects: impl AsyncFn() -> u32)
where
    S: Transactional<Transaction = Transaction<'static, DB>>,
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let before = effects().await;
    let sent = message(format!("inline-{}", script.name));
    let runs = Runs {
        statements: script.statements.clone(),
        count: Arc::default(),
    };
    let work = async |transaction: &mut Transaction<'static, DB>| runs.run(transaction).await;
    let consumed = consume_in_transaction(store, &sent, OnDuplicate::Skip, work).await;
    assert!(
        matches!(consumed, Err(ConsumeError::Unrecorded(Some(_)))),
        "{}: {consumed:?}",
        script.name
    );
    let expected = u32::from(script.lasts);
    assert_eq!(effects().await - before, expected, "{}", script.name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let Some(place) = postgres_support::Place::shared().await else {
        return;
    };
    let effect = format!("INSERT INTO {}.effects VALUES ('effect')", place.schema);
    let effects = async || u32::try_from(place.effects().await.len()).unwrap();
    for script in scripts(&effect) {
        in_transactions(&place.store, &script, effects).await;
        inline(&place.store, &script, effects).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql() {
    for kind in [Kind::Mariadb, Kind::Mysql] {
        let Some(url) = mysql_support::url(kind).await else {
            continue;
        };
        let database = format!("inbox_mishaps_{}", std::process::id());
        let connect = async || MySqlConnection::connect(&url).await.unwrap();
        let run = async |sql: String| {
            let mut connection = connect().await;
            let ran = sqlx::raw_sql(AssertSqlSafe(sql));
            ran.execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        };
        run(format!(
            "CREATE DATABASE {database}; CREATE TABLE {database}.effects (id TEXT)"
        ))
        .await;
        let options = MySqlOptions::from_url(&url).unwrap();
        let options = options.database(&database).unwrap();
        let store = MySqlStore::connect(options).await.unwrap();
        store.create().await.unwrap();
        let effects = async || {
            let mut connection = connect().await;
            let sql = format!("SELECT COUNT(*) FROM {database}.effects");
            let count: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_one(&mut connection)
                .await
                .unwrap();
            u32::try_from(count).unwrap()
        };
        let effect = format!("INSERT INTO {database}.effects VALUES ('effect')");
        let mut scripts = scripts(&effect);
        // DDL commits.
        let ddl = format!("CREATE TABLE IF NOT EXISTS {database}.own (n INT)");
        scripts.push(Script {
            name: "ddl",
            statements: vec![effect, ddl],
            lasts: true,
        });
        for script in scripts {
            in_transactions(&store, &script, effects).await;
            inline(&store, &script, effects).await;
        }
        store.close().await;
        run(format!("DROP DATABASE {database}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("inbox.db");
    let store = SqliteStore::connect(SqliteOptions::new(&path))
        .await
        .unwrap();
    store.create().await.unwrap();
    let url = format!("sqlite://{}", path.display());
    let connect = async || SqliteConnection::connect(&url).await.unwrap();
    let created = sqlx::raw_sql("CREATE TABLE effects (id TEXT)");
    created.execute(&mut connect().await).await.unwrap();
    let effects = async || {
        sqlx::query_scalar("SELECT count(*) FROM effects")
            .fetch_one(&mut connect().await)
            .await
            .unwrap()
    };
    for script in scripts("INSERT INTO effects VALUES ('effect')") {
        in_transactions(&store, &script, effects).await;
        inline(&store, &script, effects).await;
    }
}
