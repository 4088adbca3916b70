//! Batches in one transaction, on each SQL database: effects exactly once, and nobody is held up by a neighbour.

use std::{
    marker::PhantomData,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use inbox::{
    Answers, Completion, Context, Failure, Inbox, LentTransaction, Next, Operate as _, Outcome,
    Processor, ProcessorBuilder, Schema as _, State, Store as _, StoreExt as _, Transactional,
    batch_in_transaction_fn,
};
use inbox_sqlite::{SqliteOptions, SqliteStore};
use sqlx::{AssertSqlSafe, Connection as _, Sqlite};
use tokio::{sync::Notify, time::sleep};

use super::*;

/// A database with an inbox and a table of effects, which refuses ids that begin with *bad*.
trait Site {
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

struct InSqlite {
    store: SqliteStore,
    _folder: tempfile::TempDir,
}

impl InSqlite {
    async fn new() -> Self {
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
mod in_postgres {
    use inbox::postgres::PostgresStore;
    use sqlx::Postgres;

    use super::*;
    use crate::postgres_support::Place;

    pub(super) struct InPostgres(Place);

    impl InPostgres {
        /// `None` when there is no server, which has been reported.
        pub(super) async fn new() -> Option<Self> {
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
mod in_mysql {
    use std::sync::atomic::{AtomicU32, Ordering};

    use inbox::mysql::{MySqlOptions, MySqlStore};
    use sqlx::{MySql, MySqlConnection};
    use test_servers::Kind;

    use super::*;
    use crate::mysql_support;

    static NEXT: AtomicU32 = AtomicU32::new(0);

    /// A database of its own on a server of this kind.
    pub(super) struct InMysql {
        store: MySqlStore,
        url: String,
        database: String,
    }

    impl InMysql {
        /// `None` when there is no server, which has been reported.
        pub(super) async fn new(kind: Kind) -> Option<Self> {
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

        pub(super) async fn remove(self) {
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

on_each_database! {
    a_message_whose_statement_fails_does_not_hold_up_its_neighbours,
    what_is_answered_with_success_is_committed_and_the_rest_ends_by_its_answer,
    a_savepoint_for_each_message_makes_one_transaction_of_a_batch_with_bad_ones,
    when_no_message_succeeds_nothing_is_committed,
    a_panic_behind_the_writes_undoes_them,
    without_the_message_whose_lease_is_lost_the_rest_is_committed,
    a_shutdown_in_the_middle_undoes_the_batch_and_costs_no_attempt,
    messages_of_an_ordering_key_take_effect_in_order,
    results_are_kept_and_too_large_ones_left_out,
}

type Tx<S> = <<S as Site>::Store as Transactional>::Transaction;

/// A transactional batch handler that notes its runs, and is written for one site.
struct Writer<S> {
    runs: Runs,
    sql: String,
    site: PhantomData<S>,
}

impl<S: Site> Writer<S> {
    fn new(site: &S, runs: &Runs) -> Arc<Self> {
        Arc::new(Self {
            runs: runs.clone(),
            sql: site.sql(),
            site: PhantomData,
        })
    }

    /// Writes for all messages, up to the first that fails.
    async fn write_all(&self, transaction: &mut Tx<S>, batch: &Batch) -> sqlx::Result<()> {
        self.runs.add(batch);
        for id in ids(batch) {
            S::write(transaction, &self.sql, &id).await?;
        }
        Ok(())
    }
}

async fn filled<S: Site>(site: &S, messages: &[Message]) {
    let receipts = site.store().receive(messages).await.unwrap();
    assert!(
        receipts
            .iter()
            .all(|receipt| *receipt == inbox::Receipt::Accepted)
    );
}

fn processor<S: Site, F, Fut, A>(site: &S, handler: F) -> ProcessorBuilder
where
    F: Fn(LentTransaction<Tx<S>>, Batch) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<A, Failure>> + Send + 'static,
    A: Into<Answers> + 'static,
{
    let router = router(batch_in_transaction_fn(site.store(), handler));
    Processor::builder(Arc::new(site.store()))
        .router(router)
        .retry(at_once(3))
        .poll_intervals(Duration::from_millis(2), Duration::from_millis(10))
}

async fn a_message_whose_statement_fails_does_not_hold_up_its_neighbours<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    filled(site, &with_one("bad", 60)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch| {
        let writer = writer.clone();
        async move { Ok(writer.write_all(&mut transaction, &batch).await?) }
    });
    let summary = until_idle(builder).await;
    assert_eq!(
        (summary.processed, summary.retried, summary.dead),
        (60, 2, 1)
    );
    let effects = site.effects().await;
    assert_eq!(
        effects,
        (0..60).map(|n| format!("{n:03}")).collect::<Vec<_>>()
    );
    let store = site.store();
    for id in &effects {
        let record = store.get(&key(id)).await.unwrap().unwrap();
        assert_eq!(
            (record.state, record.attempts.started),
            (State::Processed, 1)
        );
    }
    let bad = store.get(&key("bad")).await.unwrap().unwrap();
    assert_eq!((bad.state, bad.attempts.finished), (State::Dead, 3));
    // By halves, not one by one; and on the later attempts the bad one is by itself.
    assert!(runs.len() <= 16, "{:?}", runs.sizes());
    assert_eq!(runs.sizes()[0], 61);
}

async fn what_is_answered_with_success_is_committed_and_the_rest_ends_by_its_answer<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    filled(site, &["1", "2", "dead", "3", "later"].map(message)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.runs.add(&batch);
            let mut answers = Vec::new();
            for id in ids(&batch) {
                answers.push(match id.as_str() {
                    "dead" => Err(Failure::dead("no such order")),
                    "later" => Err(Failure::defer(Duration::from_secs(600), "closed")),
                    _ => {
                        S::write(&mut transaction, &writer.sql, &id).await?;
                        Ok(())
                    }
                });
            }
            Ok(answers)
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!(
        (summary.processed, summary.dead, summary.deferred),
        (3, 1, 1)
    );
    assert_eq!(site.effects().await, ["1", "2", "3"]);
    assert_eq!(runs.sizes(), [5]);
    let later = site.store().get(&key("later")).await.unwrap().unwrap();
    assert_eq!((later.state, later.attempts.started), (State::Pending, 0));
}

async fn a_savepoint_for_each_message_makes_one_transaction_of_a_batch_with_bad_ones<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    let ids = (0..40).map(|n| {
        if n % 10 == 3 {
            format!("bad-{n}")
        } else {
            format!("{n:02}")
        }
    });
    filled(site, &ids.map(message).collect::<Vec<_>>()).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.runs.add(&batch);
            let mut answers = Vec::new();
            for id in super::ids(&batch) {
                let written = S::write_or_not(&mut transaction, &writer.sql, &id).await;
                answers.push(written.map_err(Failure::dead));
            }
            Ok(answers)
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.dead), (36, 4));
    assert_eq!(site.effects().await.len(), 36);
    assert_eq!(runs.sizes(), [40]);
}

async fn when_no_message_succeeds_nothing_is_committed<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &["1", "2"].map(message)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.write_all(&mut transaction, &batch).await?;
            let answers = batch
                .iter()
                .map(|_| Err::<(), _>(Failure::dead("after all")));
            Ok(answers.collect::<Vec<_>>())
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.dead), (0, 2));
    assert_eq!(site.effects().await, [""; 0]);
    assert_eq!(runs.sizes(), [2]);
}

async fn a_panic_behind_the_writes_undoes_them<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &with_one("explosive", 20)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.write_all(&mut transaction, &batch).await?;
            assert!(!has(&batch, "explosive"), "it went off");
            Ok(())
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.dead), (20, 1));
    assert_eq!(site.effects().await.len(), 20);
    assert!(!site.effects().await.contains(&String::from("explosive")));
    let record = site.store().get(&key("explosive")).await.unwrap().unwrap();
    assert_eq!(record.last_error.unwrap(), "panicked: it went off");
}

async fn without_the_message_whose_lease_is_lost_the_rest_is_committed<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    filled(site, &with_one("lost", 10)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let (store, told) = (site.store(), Told::default());
    // Another worker that holds its lease finishes it before the transaction begins.
    let steal = move |context: Context, next: Next| {
        let store = store.clone();
        async move {
            if context.message().id().as_str() == "lost" {
                let outcome = Outcome::Processed { result: None };
                let _ = store.settle_one(&context.leased().lease, outcome).await?;
            }
            next.run(&context).await
        }
    };
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move { Ok(writer.write_all(&mut transaction, &batch).await?) }
    });
    let summary = until_idle(builder.middleware(steal).hooks(told.clone())).await;
    assert_eq!(
        (summary.processed, summary.lease_lost),
        (10, 1),
        "{summary:?}"
    );
    assert_eq!((summary.retried, summary.dead), (0, 0));
    assert_eq!(runs.sizes(), [11, 10]);
    let effects = site.effects().await;
    assert_eq!(effects.len(), 10);
    assert!(!effects.contains(&String::from("lost")));
    assert_eq!(told.all(), ["lost lost"]);
}

async fn a_shutdown_in_the_middle_undoes_the_batch_and_costs_no_attempt<
    S: Site + Send + Sync + 'static,
>(
    site: &S,
) {
    filled(site, &(0..10).map(message).collect::<Vec<_>>()).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let (written, is_first) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let signal = written.clone();
    let handler = move |mut transaction: LentTransaction<Tx<S>>, batch: Batch| {
        let (writer, signal, is_first) = (writer.clone(), signal.clone(), is_first.clone());
        async move {
            writer.write_all(&mut transaction, &batch).await?;
            if is_first.fetch_add(1, SeqCst) == 0 {
                signal.notify_one();
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    };
    let handler = Arc::new(handler);
    let shared = handler.clone();
    let builder = processor(site, move |transaction, batch| shared(transaction, batch));
    let processor_1 = builder.drain_limit(Duration::ZERO).build().unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let run = tokio::spawn(async move { processor_1.run(stop).await.unwrap() });
    written.notified().await;
    shutdown.cancel();
    let summary = run.await.unwrap();
    // A claim that was under way takes what has just been handed back, and hands it back as well.
    assert!(summary.released >= 10, "{summary:?}");
    assert_eq!(
        (summary.processed, summary.claimed),
        (0, summary.released),
        "{summary:?}"
    );
    assert_eq!(site.effects().await, [""; 0]);
    let record = site.store().get(&key(7)).await.unwrap().unwrap();
    assert_eq!((record.state, record.attempts.started), (State::Pending, 0));

    let builder = processor(site, move |transaction, batch| handler(transaction, batch));
    assert_eq!(until_idle(builder).await.processed, 10);
    assert_eq!(site.effects().await.len(), 10);
}

async fn messages_of_an_ordering_key_take_effect_in_order<S: Site + Send + Sync + 'static>(
    site: &S,
) {
    let messages = (0..48).map(|n| in_order(format!("{:02}-{}", n / 8, n % 8), n % 8));
    filled(site, &messages.collect::<Vec<_>>()).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.write_all(&mut transaction, &batch).await?;
            sleep(Duration::from_millis(1)).await;
            Ok(())
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.retried), (48, 0));
    assert_eq!(site.effects().await.len(), 48);
    for key in 0..8 {
        let suffix = format!("-{key}");
        let of_key = runs
            .all()
            .concat()
            .into_iter()
            .filter(|id| id.ends_with(&suffix));
        let of_key: Vec<_> = of_key.collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}

async fn results_are_kept_and_too_large_ones_left_out<S: Site + Send + Sync + 'static>(site: &S) {
    filled(site, &["small", "large", "none"].map(message)).await;
    let runs = Runs::default();
    let writer = Writer::new(site, &runs);
    let builder = processor(site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            writer.write_all(&mut transaction, &batch).await?;
            let results = batch.iter().map(|one| match one.message().id().as_str() {
                "small" => Ok(Completion::with_result("kept")),
                "large" => Ok(Completion::with_result(vec![
                    0;
                    inbox::DEFAULT_PAYLOAD_LIMIT
                        + 1
                ])),
                _ => Ok::<_, Failure>(Completion::default()),
            });
            Ok(results.collect::<Vec<_>>())
        }
    });
    assert_eq!(until_idle(builder).await.processed, 3);
    assert_eq!(site.effects().await, ["large", "none", "small"]);
    assert_eq!(runs.sizes(), [3]);
    for (id, result) in [("small", Some("kept")), ("large", None), ("none", None)] {
        let record = site.store().get(&key(id)).await.unwrap().unwrap();
        assert_eq!(record.result.as_deref(), result.map(str::as_bytes), "{id}");
    }
}

/// A server that goes on after a failed statement lets a handler overlook it; this one must not.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overlooked_error_of_postgresql_is_not_committed() {
    let Some(site) = in_postgres::InPostgres::new().await else {
        return;
    };
    filled(&site, &with_one("bad", 20)).await;
    let runs = Runs::default();
    let writer = Writer::new(&site, &runs);
    let builder = processor(&site, move |mut transaction, batch: Batch| {
        let writer = writer.clone();
        async move {
            let _ = writer.write_all(&mut transaction, &batch).await;
            Ok(())
        }
    });
    let summary = until_idle(builder).await;
    assert_eq!((summary.processed, summary.dead), (20, 1));
    assert_eq!(site.effects().await.len(), 20);
    assert!(runs.len() <= 14, "{:?}", runs.sizes());
}
