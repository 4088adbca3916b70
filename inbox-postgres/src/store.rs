//! The store: connections, and the working side.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Effect, Error, ErrorKind, Extended, HandlerName,
    Lease, LeaseTerms, Message, Receipt, ReceiveAtomicity, Result, Settled, Settlement, Store,
    Subscription, Wakeups,
};
use sqlx::{
    Connection as _, PgConnection, PgPool, Postgres, Row as _, SqlSafeStr as _, SqlStr,
    Transaction,
    postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow},
};
use tokio::{sync::Mutex, time::timeout};

use crate::{
    claim_cursor::ClaimCursor,
    connection_guard::{ConnectionGuard, OrClose, no_answer},
    error::{before, in_operation, is_data_exception, is_stale, may_be_schema, sqlstate},
    options::PostgresOptions,
    rows, schema,
    sqlstate::LIMIT_EXCEEDED,
    statements::{NOT_READ_COMMITTED, Names},
    wakeups::{Listener, Subscribed},
    work::{Arguments, Repetition, Work},
};

/// A connection that was idle for longer is tried before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

/// A queue of notifications that was full stays so after the session is gone that kept it, until the
/// server is asked how full it is: notifications themselves free it, too, but find no room.
const FREE_NOTIFICATIONS: &str = "SELECT pg_catalog.pg_notification_queue_usage()";

/// How long closing waits for operations that are under way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What the functions and set-up need, whatever the default is: to see what was committed before
/// they got their locks.
pub(crate) const READ_COMMITTED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// The same, with the mark that ends with the transaction and that `commit` asks for.
const MARKED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL inbox.transaction = 'on'";

/// An inbox in a PostgreSQL database. Clones share its connections.
///
/// A value belongs to the tokio runtime in which it was made.
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) options: PostgresOptions,
    pub(crate) names: Names,
    pub(crate) work: Work,
    claim_cursor: ClaimCursor,
    pub(crate) pool: PgPool,
    /// Whether the pool is closed with the store.
    owns_pool: bool,
    listener: Mutex<Weak<Listener>>,
    /// Whether an inbox of the right version was found there.
    checked: AtomicBool,
    /// Whether connections begin transactions at another level than read committed unless told to.
    stricter: AtomicBool,
    closed: AtomicBool,
}

/// Where a statement runs.
pub(crate) enum On<'a> {
    /// On a connection of the pool, committed by itself.
    Pool,
    /// The same, with a plan made for these very arguments and for the tables' present size: for
    /// statements that people send now and then, whose best plan depends on both.
    PoolPlannedAnew,
    /// In a transaction of the caller's.
    Transaction(&'a mut PgConnection),
}

/// Marks a transaction as one that this store is used in, for [`commit`](inbox_api::Transactional).
/// Fails outside of one: what follows would commit by itself there, and a message whose work was
/// rolled back would count as handled.
async fn enter(operation: &'static str, connection: &mut PgConnection) -> Result<()> {
    const ENTER: &str = "SAVEPOINT inbox_probe; RELEASE SAVEPOINT inbox_probe; \
                         SET LOCAL inbox.transaction = 'on'";
    const NO_TRANSACTION: &str = "25P01";
    match sqlx::raw_sql(ENTER).execute(connection).await {
        Ok(_) => Ok(()),
        Err(error) if sqlstate(&error).as_deref() == Some(NO_TRANSACTION) => {
            let context = "the transaction is not there any more: a statement in it has ended it, \
                           and others may have committed by themselves";
            Err(Error::new(ErrorKind::Other, operation, context)
                .with_effect(Effect::Unknown)
                .with_source(error))
        }
        Err(error) => Err(before(operation)(error)),
    }
}

impl PostgresStore {
    /// Connects with its own pool. Does not set the inbox up: see
    /// [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Denied` when it refuses the credentials,
    /// `SchemaMissing` when the database does not exist.
    pub async fn connect(connection: PgConnectOptions, options: PostgresOptions) -> Result<Self> {
        // No floating-point number is read here, and PgBouncer refuses a client that asks for their
        // format, unless it is told to ignore that.
        let connection = connection.extra_float_digits(None);
        let limit = options.operation_timeout;
        let patience = options.acquire_timeout.min(limit) / 2;
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            // A try costs a round trip, which a busy connection does not need.
            .test_before_acquire(false)
            .before_acquire(move |connection, meta| {
                Box::pin(async move {
                    if meta.idle_for < TRUSTED_IDLE {
                        return Ok(true);
                    }
                    // Leaves time for a new connection.
                    Ok(matches!(
                        timeout(patience, connection.ping()).await,
                        Ok(Ok(()))
                    ))
                })
            })
            .after_release(move |connection, _| {
                Box::pin(async move {
                    // A transaction that was dropped, whose roll-back is still to be sent. The
                    // driver would wait for its answer without limit.
                    if !connection.should_flush() {
                        return Ok(true);
                    }
                    timeout(limit / 2, connection.ping())
                        .await
                        .map_err(|_| sqlx::Error::WorkerCrashed)??;
                    Ok(true)
                })
            })
            .connect_lazy_with(connection.clone());
        // Not through the pool, which would try again and again until its time-out.
        let first = async {
            let connection = PgConnection::connect_with(&connection).await?;
            connection.close().await
        };
        match timeout(options.acquire_timeout.min(limit), first).await {
            Ok(Ok(())) => Ok(Self::new(pool, true, options)),
            Ok(Err(error)) => Err(before("connect")(error)),
            Err(_) => Err(before("connect")(sqlx::Error::PoolTimedOut)),
        }
    }

    /// Connects to what `url` names: [`PostgresOptions::from_url`] and
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// As those two.
    pub async fn connect_url(url: &str) -> Result<Self> {
        let (connection, options) = PostgresOptions::from_url(url)?;
        Self::connect(connection, options).await
    }

    /// Uses a pool of the application's. [`close`](inbox_api::Store::close) leaves it open;
    /// `max_connections` and `acquire_timeout` of the options are the pool's own business.
    /// Subscriptions take one connection more, with the same settings, outside of the pool.
    ///
    /// The pool itself knows no time limit: a transaction that its holder drops on a connection
    /// that has gone silent keeps its place in the pool until the operating system gives the
    /// connection up. [`commit`](inbox_api::Transactional::commit) and
    /// [`roll_back`](inbox_api::Transactional::roll_back) close it.
    #[must_use]
    pub fn with_pool(pool: PgPool, options: PostgresOptions) -> Self {
        Self::new(pool, false, options)
    }

    fn new(pool: PgPool, owns_pool: bool, options: PostgresOptions) -> Self {
        let names = Names::new(&options);
        Self {
            inner: Arc::new(Inner {
                work: Work::new(&options, &names),
                claim_cursor: ClaimCursor::default(),
                names,
                options,
                pool,
                owns_pool,
                listener: Mutex::new(Weak::new()),
                checked: AtomicBool::new(false),
                stricter: AtomicBool::new(false),
                closed: AtomicBool::new(false),
            }),
        }
    }

    fn check_open(&self, operation: &'static str) -> Result<()> {
        if self.inner.closed.load(Ordering::Relaxed) {
            return Err(before(operation)(sqlx::Error::PoolClosed));
        }
        Ok(())
    }

    /// The longest that one operation may take.
    pub(crate) fn limit(&self) -> Duration {
        self.inner.options.operation_timeout
    }

    /// Runs one statement, after a look at the schema's version if there was none yet.
    pub(crate) async fn run(
        &self,
        operation: &'static str,
        on: On<'_>,
        sql: &SqlStr,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>> {
        self.run_within(self.limit(), operation, on, sql, arguments)
            .await
    }

    /// The same, for what is left of an operation's time.
    pub(crate) async fn run_within(
        &self,
        limit: Duration,
        operation: &'static str,
        on: On<'_>,
        sql: &SqlStr,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>> {
        self.check_open(operation)?;
        let persistent = matches!(on, On::Pool);
        let connection = match on {
            On::Pool | On::PoolPlannedAnew => {
                let mut guard = ConnectionGuard::new(self.limit());
                let work = self.run_on_pool(operation, &mut guard, persistent, sql, arguments);
                let outcome = timeout(limit, work).await;
                return guard.finish(operation, outcome);
            }
            On::Transaction(connection) => connection,
        };
        let work = async {
            enter(operation, connection).await?;
            self.check(operation, connection).await?;
            sqlx::query_with(sql.clone(), arguments)
                .persistent(self.inner.options.prepared_statements)
                .fetch_all(connection)
                .await
                .map_err(|error| self.failed(operation, error))
        };
        // The connection is the caller's, who has to roll back.
        timeout(limit, work)
            .await
            .unwrap_or_else(|_| Err(no_answer(operation)))
    }

    async fn run_on_pool(
        &self,
        operation: &'static str,
        guard: &mut ConnectionGuard,
        persistent: bool,
        sql: &SqlStr,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>> {
        let connection = guard
            .take(&self.inner.pool)
            .await
            .map_err(before(operation))?;
        self.check(operation, connection).await?;
        let prepared = self.inner.options.prepared_statements;
        let query = sqlx::query_with(sql.clone(), arguments).persistent(prepared && persistent);
        let answer = if prepared && !self.inner.stricter.load(Ordering::Relaxed) {
            query.fetch_all(connection).await
        } else {
            // To say at which isolation level it runs. And without prepared statements, the driver
            // sends a statement and its arguments in two steps, between which a pooler may change
            // the server's connection, unless in a transaction.
            let connection = guard.transaction_begins().map_err(before(operation))?;
            let begun = connection.begin_with(READ_COMMITTED).await;
            let mut transaction = begun.map_err(before(operation))?;
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
            if sqlstate(&error).is_some_and(|code| is_stale(&code)) {
                guard.close();
            }
            self.failed(operation, error)
        })
    }

    /// Looks at the schema's version, until it was seen to be right.
    async fn check(&self, operation: &'static str, connection: &mut PgConnection) -> Result<()> {
        if !self.inner.checked.load(Ordering::Relaxed) {
            schema::check_version(operation, connection, &self.inner).await?;
            self.learn_isolation(operation, connection).await?;
            self.inner.checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether single statements run at the level that they need, or have to be put into
    /// transactions that say so. Functions refuse other levels, should the default change.
    async fn learn_isolation(
        &self,
        operation: &'static str,
        connection: &mut PgConnection,
    ) -> Result<()> {
        let sql = "SELECT pg_catalog.current_setting('default_transaction_isolation')";
        let mapped = before(operation);
        let row = sqlx::raw_sql(sql)
            .fetch_one(connection)
            .await
            .map_err(mapped)?;
        let stricter = row.try_get::<&str, _>(0).map_err(mapped)? != "read committed";
        self.inner.stricter.store(stricter, Ordering::Relaxed);
        Ok(())
    }

    fn failed(&self, operation: &'static str, error: sqlx::Error) -> Error {
        if sqlstate(&error).as_deref() == Some(NOT_READ_COMMITTED) {
            // The default has changed since. From now on each transaction says what it needs.
            self.inner.stricter.store(true, Ordering::Relaxed);
            let context = "the connection's default isolation level has changed";
            return Error::new(ErrorKind::Conflict, operation, context).with_source(error);
        }
        if sqlstate(&error).is_some_and(|code| may_be_schema(&code)) {
            // The next operation looks again.
            self.inner.checked.store(false, Ordering::Relaxed);
        }
        in_operation(operation)(error)
    }

    /// A transaction that outlives this call, marked for `commit` to recognise.
    pub(crate) async fn begin_transaction(
        &self,
        operation: &'static str,
    ) -> Result<Transaction<'static, Postgres>> {
        self.check_open(operation)?;
        let beginning = async {
            let connection = self.inner.pool.acquire().await.map_err(before(operation))?;
            let begun = Transaction::begin(connection, Some(MARKED.into_sql_str())).await;
            begun.map_err(before(operation))
        };
        self.in_time(operation, beginning)
            .await
            .map_err(|error| error.with_effect(Effect::None))
    }

    /// Runs what owns a connection of the pool, in a transaction for instance, and closes it if
    /// that takes too long or is dropped.
    pub(crate) async fn in_time<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        timeout(self.limit(), OrClose::new(work))
            .await
            .unwrap_or_else(|_| Err(no_answer(operation)))
    }

    pub(crate) async fn receive_on(
        &self,
        operation: &'static str,
        connection: Option<&mut PgConnection>,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        let work = &self.inner.work;
        let (mut receipts, chunks) = work.lay_out(messages);
        match (connection, chunks.as_slice()) {
            (Some(connection), _) => {
                for chunk in &chunks {
                    let arguments = work.receive(operation, messages, chunk, false)?;
                    let on = On::Transaction(&mut *connection);
                    let answer = self
                        .run(operation, on, &work.statements.receive, arguments)
                        .await?;
                    Work::received(operation, &answer, chunk, &mut receipts)?;
                }
            }
            (None, []) => {}
            (None, [chunk]) => {
                let arguments = work.receive(operation, messages, chunk, true)?;
                let answer = self
                    .run(operation, On::Pool, &work.statements.receive, arguments)
                    .await?;
                Work::received(operation, &answer, chunk, &mut receipts)?;
            }
            // More bytes than one statement takes.
            (None, _) => {
                let receiving = async {
                    let mut transaction = self.begin_transaction(operation).await?;
                    for chunk in &chunks {
                        let arguments = work.receive(operation, messages, chunk, false)?;
                        let on = On::Transaction(&mut transaction);
                        let answer = self
                            .run(operation, on, &work.statements.receive, arguments)
                            .await?;
                        Work::received(operation, &answer, chunk, &mut receipts)?;
                    }
                    transaction.commit().await.map_err(in_operation(operation))
                };
                self.in_time(operation, receiving).await?;
            }
        }
        Ok(receipts)
    }

    /// Finds the message whose payload the server does not take as JSON, although it is: each is
    /// stored by itself.
    async fn receive_each(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut receipts = Vec::with_capacity(messages.len());
        for message in messages {
            let one = std::slice::from_ref(message);
            match self.receive_on("receive", None, one).await {
                Ok(receipt) => receipts.extend(receipt),
                Err(error) if refused_by_server(&error) => {
                    receipts.push(Receipt::Refused(self.inner.work.not_json()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(receipts)
    }

    /// An operation with one payload that the server does not take as JSON, although it is, fails
    /// as it does for any other payload that is not.
    pub(crate) fn payload_error(&self, operation: &'static str, error: Error) -> Error {
        let work = &self.inner.work;
        if work.keeps_json() && refused_by_server(&error) {
            return work.not_json().in_operation(operation).with_source(error);
        }
        error
    }

    async fn claim_rows(&self, request: &ClaimRequest, handlers: &[&str]) -> Result<Vec<PgRow>> {
        const OPERATION: &str = "claim";
        let (work, cursor) = (&self.inner.work, &self.inner.claim_cursor);
        if let Some(look) = cursor.look(handlers) {
            let arguments = work.front(handlers, &look.since)?;
            let text = &work.statements.front;
            let answer = self.run(OPERATION, On::Pool, text, arguments).await?;
            let seen: sqlx::Result<Vec<_>> = answer.iter().map(rows::seen).collect();
            cursor.learn(handlers, &look, &seen.map_err(before(OPERATION))?);
        }
        let arguments = work.claim(request, handlers, &cursor.since(handlers))?;
        let text = &work.statements.claim;
        let answer = self.run(OPERATION, On::Pool, text, arguments).await?;
        cursor.took(handlers, answer.len());
        Ok(answer)
    }

    /// Makes rows that cannot be read dead, under the leases that the claim has just given them.
    async fn set_aside(&self, rows: &[(i64, i64, String)]) -> Result<()> {
        let work = &self.inner.work;
        let mut sorted: Vec<_> = rows.iter().collect();
        sorted.sort_unstable_by_key(|(seq, _, _)| *seq);
        let reasons: Vec<String> = sorted
            .iter()
            .map(|(_, _, reason)| format!("corrupt: {reason}"))
            .collect();
        let arguments = Arguments::new("claim")
            .with(sorted.iter().map(|(seq, _, _)| *seq).collect::<Vec<_>>())
            .with(
                sorted
                    .iter()
                    .map(|(_, token, _)| *token)
                    .collect::<Vec<_>>(),
            )
            .with(vec![3_i16; sorted.len()])
            .with(None::<Vec<i64>>)
            .with(reasons)
            // They let the next of their ordering key through.
            .with(vec![false; sorted.len()])
            .with(None::<Vec<&[u8]>>)
            .with(true)
            .with(false)
            .with(work.notifications)
            .with(true)
            .with(None::<i32>)
            .finish()?;
        self.run("claim", On::Pool, &work.statements.settle, arguments)
            .await?;
        Ok(())
    }
}

/// Whether the server, or a pooler, has answered: then the connection is sound, or closed.
fn is_of_server(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some()
}

fn refused_by_server(error: &Error) -> bool {
    use std::error::Error as _;

    error
        .source()
        .and_then(|source| source.downcast_ref::<sqlx::Error>())
        .is_some_and(is_data_exception)
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        let options = &self.inner.options;
        let mut capabilities = Capabilities::minimal(
            "survives what the server's commits survive: with synchronous_commit and fsync on, \
             as they are by default, a crash of the server and a power cut",
            options.payload_limit,
        );
        capabilities.multi_process = true;
        capabilities.transactions = true;
        capabilities.ordering = true;
        if options.notifications {
            capabilities.wakeups = Wakeups::EveryProcess;
        }
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.check_open("receive")?;
        match self.receive_on("receive", None, messages).await {
            Err(error) if self.inner.work.keeps_json() && refused_by_server(&error) => {
                self.receive_each(messages).await
            }
            outcome => outcome,
        }
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.check_open("claim")?;
        if request.handlers.is_empty() || request.limit == 0 {
            return Ok(Claims::default());
        }
        let mut handlers: Vec<&str> = request.handlers.iter().map(AsRef::as_ref).collect();
        handlers.sort_unstable();
        handlers.dedup();
        let answer = match self.claim_rows(request, &handlers).await {
            Ok(answer) => answer,
            Err(error) => {
                self.inner.claim_cursor.forget();
                return Err(error);
            }
        };
        let work = &self.inner.work;
        let mut claims = Claims::default();
        let mut unreadable = Vec::new();
        for row in &answer {
            match rows::leased(row) {
                Ok(leased) => claims.leased.push(leased),
                Err(reason) => {
                    let (seq, token) = rows::hold(row).map_err(in_operation("claim"))?;
                    claims
                        .corrupt
                        .push(rows::corrupt_row(&work.inbox, seq, reason.clone()));
                    unreadable.push((seq, token, reason));
                }
            }
        }
        if !unreadable.is_empty() {
            self.set_aside(&unreadable).await?;
        }
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.check_open("settle")?;
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        self.settle_on("settle", On::Pool, settlements, Repetition::Done)
            .await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.check_open("extend")?;
        LeaseTerms::check_length(length).map_err(|invalid| invalid.in_operation("extend"))?;
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let work = &self.inner.work;
        let arguments = work.extend(leases, length)?;
        let answer = self
            .run("extend", On::Pool, &work.statements.extend, arguments)
            .await?;
        Work::extended(&answer, leases)
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        const OPERATION: &str = "begin";
        self.check_open(OPERATION)?;
        let work = &self.inner.work;
        let invalid = |invalid: inbox_api::Invalid| invalid.in_operation(OPERATION);
        work.check(message).map_err(invalid)?;
        let arguments = work.begin(message, terms)?;
        let answer = self
            .run(OPERATION, On::Pool, &work.statements.begin, arguments)
            .await
            .map_err(|error| self.payload_error(OPERATION, error))?;
        work.begun(&answer, message)
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        const OPERATION: &str = "subscribe";
        self.check_open(OPERATION)?;
        if !self.inner.options.notifications {
            return Err(Error::new(
                ErrorKind::Unsupported,
                OPERATION,
                "notifications are turned off in this store's options",
            ));
        }
        let listening = async {
            let mut current = self.inner.listener.lock().await;
            if let Some(listener) = current.upgrade() {
                return Ok(listener);
            }
            let connection = self.inner.pool.connect_options();
            let channel = self.inner.names.channel();
            let listener = Listener::start((*connection).clone(), channel, self.limit()).await?;
            let listener = Arc::new(listener);
            *current = Arc::downgrade(&listener);
            Ok(listener)
        };
        let listener = timeout(self.limit(), listening)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
            .map_err(before(OPERATION))?;
        Ok(Box::new(Subscribed::new(listener)))
    }

    async fn close(&self) {
        self.inner.closed.store(true, Ordering::Relaxed);
        let closing = async {
            if let Some(listener) = self.inner.listener.lock().await.upgrade() {
                listener.stop();
            }
            if self.inner.owns_pool {
                self.inner.pool.close().await;
            }
        };
        // A transaction that the caller still holds must not keep this from returning.
        let _ = timeout(CLOSE_TIMEOUT, closing).await;
    }
}
