//! How one operation gets its connection, its time and its isolation level, and gives the connection
//! back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_api::{Effect, Error, ErrorKind, Result};
use inbox_sqlx::{AtHand, Spare, close_all_of};
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, Postgres, Row as _, SqlSafeStr as _, SqlStr,
    Transaction,
    postgres::{PgArguments, PgRow},
};
use tokio::time::timeout;

use crate::{
    connection_guard::{ConnectionGuard, OrClose},
    error::{before, failed, is_stale, may_be_schema, no_answer, sqlstate},
    names::{NOT_READ_COMMITTED, Names},
    options::PostgresOptions,
    read_only::{ONLY_READS, RefusedWrites, only_reads},
    sqlstate::{LIMIT_EXCEEDED, READ_ONLY},
    statements::Statements,
    versions::check_version,
};

/// A queue of notifications that was full stays so after the session is gone that kept it, until the
/// server is asked how full it is: notifications themselves free it, too, but find no room.
const FREE_NOTIFICATIONS: &str = "SELECT pg_catalog.pg_notification_queue_usage()";

/// What the functions and set-up need, whatever the default is: to see what was committed before
/// they got their locks.
pub(crate) const READ_COMMITTED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// The same, with the mark that ends with the transaction and that `commit` asks for.
const MARKED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL inbox.transaction = 'on'";

/// One inbox's database: the pool, and what is sent over its connections.
pub(crate) struct Database {
    pub(crate) options: PostgresOptions,
    pub(crate) names: Names,
    pub(crate) statements: Statements,
    pub(crate) connections: AtHand<Postgres>,
    pub(crate) spare: Spare<Postgres>,
    /// Whether an inbox of the right version was found there.
    checked: AtomicBool,
    /// Whether connections begin transactions at another level than read committed unless told to.
    stricter: AtomicBool,
    pub(crate) refused_writes: Arc<RefusedWrites>,
    closed: AtomicBool,
}

/// Where a statement runs.
pub(crate) enum On<'a> {
    /// On a connection of the pool, committed by itself.
    Pool,
    /// The same, with a plan made for these very arguments and for the tables' present size: for
    /// statements that people send now and then, whose best plan depends on both.
    PoolPlannedEachTime,
    /// As [`Pool`](Self::Pool), or on the [spare](Spare) connection while others have all of those.
    PoolOrSpare,
    /// In a transaction of the caller's, after a look whether it is there.
    Transaction(&'a mut PgConnection),
    /// The same, without that look where the statement finds its mark. For a few messages at most, as the
    /// arguments are there twice.
    MarkedTransaction(&'a mut PgConnection),
}

impl Database {
    /// The pool, if it is the store's own, heeds `refused_writes`.
    pub(crate) fn new(
        connections: AtHand<Postgres>,
        options: PostgresOptions,
        refused_writes: Arc<RefusedWrites>,
    ) -> Self {
        let names = options.names();
        Self {
            statements: Statements::new(&names),
            names,
            options,
            connections,
            spare: Spare::default(),
            checked: AtomicBool::new(false),
            stricter: AtomicBool::new(false),
            refused_writes,
            closed: AtomicBool::new(false),
        }
    }

    /// Every operation fails from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(before(sqlx::Error::PoolClosed));
        }
        Ok(())
    }

    /// The longest that one operation may take.
    pub(crate) fn limit(&self) -> Duration {
        self.options.operation_timeout
    }

    /// Runs one statement, after a look at the schema's version if there was none yet.
    pub(crate) async fn run(
        &self,
        on: On<'_>,
        sql: &SqlStr,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>> {
        self.run_within(self.limit(), on, sql, arguments).await
    }

    /// The same, for what is left of an operation's time.
    pub(crate) async fn run_within(
        &self,
        limit: Duration,
        on: On<'_>,
        sql: &SqlStr,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>> {
        self.check_open()?;
        // Behind a pooler, a statement that is not prepared goes in two steps, which only a transaction holds
        // together.
        let may_be_marked = matches!(on, On::MarkedTransaction(_))
            && self.options.prepared_statements
            && self.checked.load(Ordering::Relaxed);
        let connection = match on {
            On::Pool | On::PoolPlannedEachTime | On::PoolOrSpare => {
                let mut guard = ConnectionGuard::new(&self.connections);
                let work = self.run_on_pool(&mut guard, &on, sql, arguments);
                let outcome = timeout(limit, work).await;
                return guard.finish(outcome);
            }
            On::Transaction(connection) | On::MarkedTransaction(connection) => connection,
        };
        let work = async {
            if may_be_marked {
                let rows = self.ask(connection, sql, arguments.clone()).await?;
                if !rows.is_empty() {
                    return Ok(rows);
                }
            }
            enter(connection).await?;
            self.check(connection).await?;
            self.ask(connection, sql, arguments).await
        };
        // The connection is the caller's, who has to roll back.
        timeout(limit, work)
            .await
            .unwrap_or_else(|_| Err(no_answer()))
    }

    /// In a transaction of the caller's: no row if it has not been [entered](enter).
    async fn ask(
        &self,
        connection: &mut PgConnection,
        sql: &SqlStr,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>> {
        sqlx::query_with(sql.clone(), arguments)
            .persistent(self.options.prepared_statements)
            .fetch_all(connection)
            .await
            .map_err(|error| self.failed(error))
    }

    async fn run_on_pool(
        &self,
        guard: &mut ConnectionGuard<'_>,
        on: &On<'_>,
        sql: &SqlStr,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>> {
        let taken = match on {
            On::PoolOrSpare => guard.take_or_spare(&self.spare).await,
            _ => guard.take().await,
        };
        let connection = taken.map_err(before)?;
        self.check(connection).await?;
        let prepared = self.options.prepared_statements;
        let is_rare = matches!(on, On::PoolPlannedEachTime);
        let query = sqlx::query_with(sql.clone(), arguments).persistent(prepared && !is_rare);
        let answer = if prepared && !is_rare && !self.stricter.load(Ordering::Relaxed) {
            let answer = query.fetch_all(&mut *connection).await;
            if let Err(sqlx::Error::Database(_)) = answer {
                // The server tells an error first and rolls back then. What comes next, on another
                // connection, must not meet the locks of this one. If this fails, the connection is given up.
                let _ = connection.ping().await;
            }
            answer
        } else {
            // To say at which isolation level it runs. And a statement that is not prepared goes in two
            // steps, between which a pooler may change the server's connection, unless in a transaction: the
            // arguments would reach what another client has sent there.
            let connection = guard.transaction_begins().map_err(before)?;
            let begun = connection.begin_with(READ_COMMITTED).await;
            let mut transaction = begun.map_err(before)?;
            let answer = match query.fetch_all(&mut *transaction).await {
                Ok(rows) => transaction.commit().await.map(|()| rows),
                Err(error) => transaction.rollback().await.and(Err(error)),
            };
            if answer.as_ref().err().is_none_or(is_of_server) {
                guard.transaction_ended();
            }
            answer
        };
        if let Err(error) = &answer
            && sqlstate(error).is_some_and(|code| code == LIMIT_EXCEEDED)
            && let Some(connection) = guard.connection()
        {
            let _ = sqlx::raw_sql(FREE_NOTIFICATIONS).execute(connection).await;
        }
        answer.map_err(|error| {
            if sqlstate(&error).is_some_and(|code| is_stale(&code) || code == READ_ONLY) {
                guard.close();
            }
            self.failed(error)
        })
    }

    /// Looks at the schema's version, until it was seen to be right.
    async fn check(&self, connection: &mut PgConnection) -> Result<()> {
        if !self.checked.load(Ordering::Relaxed) {
            check_version(connection, &self.names).await?;
            self.learn_isolation(connection).await?;
            self.checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether single statements run at the level that they need, or have to be put into
    /// transactions that say so. Functions refuse other levels, should the default change.
    async fn learn_isolation(&self, connection: &mut PgConnection) -> Result<()> {
        let sql = "SELECT pg_catalog.current_setting('default_transaction_isolation')";
        let row = sqlx::raw_sql(sql)
            .fetch_one(connection)
            .await
            .map_err(before)?;
        let stricter = row.try_get::<&str, _>(0).map_err(before)? != "read committed";
        self.stricter.store(stricter, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a transaction of the store's own. It may have failed at a write of the caller's that the server refused:
    /// so the server is asked along with it, in the next transaction, which is there for the driver to roll back.
    pub(crate) async fn roll_back(
        &self,
        mut transaction: Transaction<'static, Postgres>,
    ) -> Result<()> {
        let ending = async {
            let text = AssertSqlSafe(format!("ROLLBACK; {READ_COMMITTED}; {ONLY_READS}"));
            let ended = sqlx::raw_sql(text).fetch_all(&mut *transaction).await;
            if ended.as_ref().is_ok_and(|answer| only_reads(answer)) {
                self.leave_server();
                close_all_of(transaction);
            } else {
                drop(transaction);
            }
            ended.map(drop).map_err(failed)
        };
        self.in_time(ending).await
    }

    /// What was connected until now is not used again, as its server refuses to write: a fail-over has put another
    /// one behind the address. In a pool of the application's this is so for connections that are idle.
    pub(crate) fn leave_server(&self) {
        self.refused_writes.note();
        self.connections.close_idle();
    }

    fn failed(&self, error: sqlx::Error) -> Error {
        if sqlstate(&error).as_deref() == Some(READ_ONLY) {
            self.leave_server();
        }
        if sqlstate(&error).as_deref() == Some(NOT_READ_COMMITTED) {
            // The default has changed since. From now on each transaction says what it needs.
            self.stricter.store(true, Ordering::Relaxed);
            let context = "the connection's default isolation level has changed";
            return Error::new(ErrorKind::Conflict, context).with_source(error);
        }
        if sqlstate(&error).is_some_and(|code| may_be_schema(&code)) {
            // The next operation looks again.
            self.checked.store(false, Ordering::Relaxed);
        }
        failed(error)
    }

    /// A transaction that outlives this call, marked for `commit` to recognise.
    pub(crate) async fn begin_transaction(&self) -> Result<Transaction<'static, Postgres>> {
        self.check_open()?;
        let beginning = async {
            let connection = self.connections.acquire().await.map_err(before)?;
            let connection = connection.into_inner();
            let begun = Transaction::begin(connection, Some(MARKED.into_sql_str())).await;
            begun.map_err(before)
        };
        self.in_time(beginning)
            .await
            .map_err(|error| error.with_effect(Effect::None))
    }

    /// Runs what owns a connection of the pool, in a transaction for instance, and closes it if
    /// that takes too long or is dropped.
    pub(crate) fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> impl Future<Output = Result<T>> {
        self.in_time_within(self.limit(), work)
    }

    /// The same, where not all of the time is left.
    pub(crate) async fn in_time_within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        timeout(limit, OrClose::new(work))
            .await
            .unwrap_or_else(|_| Err(no_answer()))
    }
}

/// Marks a transaction as one that this store is used in, for [`commit`](inbox_api::Transactional).
/// Fails outside of one: what follows would commit by itself there, and a message whose work was
/// rolled back would count as handled.
async fn enter(connection: &mut PgConnection) -> Result<()> {
    const ENTER: &str = "SAVEPOINT inbox_probe; RELEASE SAVEPOINT inbox_probe; \
                         SET LOCAL inbox.transaction = 'on'";
    const NO_TRANSACTION: &str = "25P01";
    match sqlx::raw_sql(ENTER).execute(connection).await {
        Ok(_) => Ok(()),
        Err(error) if sqlstate(&error).as_deref() == Some(NO_TRANSACTION) => {
            let context = "the transaction is not there any more: a statement in it has ended it, \
                           and others may have committed by themselves";
            Err(Error::new(ErrorKind::Other, context)
                .with_effect(Effect::Unknown)
                .with_source(error))
        }
        Err(error) => Err(before(error)),
    }
}

/// Whether the server, or a pooler, has answered: then the connection is sound, or closed.
fn is_of_server(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some()
}
