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
    Connection as _, PgConnection, PgPool, Postgres, SqlStr, Transaction,
    postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow},
};
use tokio::sync::Mutex;

use crate::{
    error::{before, in_operation, is_data_exception, may_be_schema, sqlstate},
    options::PostgresOptions,
    rows, schema,
    statements::Names,
    wakeups::{Listener, Subscribed},
    work::{Arguments, Repetition, Work},
};

/// A connection that was idle for longer is tried before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

/// How long closing waits for operations that are under way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

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
    pub(crate) pool: PgPool,
    /// Whether the pool is closed with the store.
    owns_pool: bool,
    listener: Mutex<Weak<Listener>>,
    /// Whether an inbox of the right version was found there.
    checked: AtomicBool,
    closed: AtomicBool,
}

/// Where a statement runs.
pub(crate) enum On<'a> {
    /// On a connection of the pool, committed by itself.
    Pool,
    /// In a transaction of the caller's.
    Transaction(&'a mut PgConnection),
}

impl PostgresStore {
    /// Connects with a pool of its own. Does not set the inbox up: see
    /// [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Denied` when it refuses the credentials,
    /// `SchemaMissing` when the database does not exist.
    pub async fn connect(connection: PgConnectOptions, options: PostgresOptions) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            // A try costs a round trip, which a busy connection does not need.
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move {
                    Ok(meta.idle_for < TRUSTED_IDLE || connection.ping().await.is_ok())
                })
            })
            .connect_lazy_with(connection.clone());
        // Not through the pool, which would try again and again until its time-out.
        let first = tokio::time::timeout(
            options.acquire_timeout,
            PgConnection::connect_with(&connection),
        );
        match first.await {
            Ok(Ok(connection)) => {
                let _ = connection.close().await;
            }
            Ok(Err(error)) => return Err(before("connect")(error)),
            Err(_) => return Err(before("connect")(sqlx::Error::PoolTimedOut)),
        }
        Ok(Self::new(pool, true, options))
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
    #[must_use]
    pub fn with_pool(pool: PgPool, options: PostgresOptions) -> Self {
        Self::new(pool, false, options)
    }

    fn new(pool: PgPool, owns_pool: bool, options: PostgresOptions) -> Self {
        let names = Names::new(&options);
        Self {
            inner: Arc::new(Inner {
                work: Work::new(&options, &names),
                names,
                options,
                pool,
                owns_pool,
                listener: Mutex::new(Weak::new()),
                checked: AtomicBool::new(false),
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

    /// Runs one statement, after a look at the schema's version if there was none yet.
    pub(crate) async fn run(
        &self,
        operation: &'static str,
        mut on: On<'_>,
        sql: &SqlStr,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>> {
        self.check_open(operation)?;
        if !self.inner.checked.load(Ordering::Relaxed) {
            match &mut on {
                On::Pool => {
                    let mut connection = self.connection(operation).await?;
                    schema::check_version(operation, &mut connection, &self.inner).await?;
                }
                On::Transaction(connection) => {
                    schema::check_version(operation, connection, &self.inner).await?;
                }
            }
            self.inner.checked.store(true, Ordering::Relaxed);
        }
        let answer = match on {
            On::Pool if self.inner.options.prepared_statements => {
                let mut connection = self.connection(operation).await?;
                sqlx::query_with(sql.clone(), arguments)
                    .fetch_all(&mut *connection)
                    .await
            }
            On::Pool => {
                self.run_in_transaction(operation, sql.clone(), arguments)
                    .await?
            }
            On::Transaction(connection) => {
                sqlx::query_with(sql.clone(), arguments)
                    .persistent(self.inner.options.prepared_statements)
                    .fetch_all(connection)
                    .await
            }
        };
        answer.map_err(|error| {
            if sqlstate(&error).is_some_and(|code| may_be_schema(&code)) {
                // The next operation looks again.
                self.inner.checked.store(false, Ordering::Relaxed);
            }
            in_operation(operation)(error)
        })
    }

    /// A connection, whatever stands in the database.
    pub(crate) async fn connection(
        &self,
        operation: &'static str,
    ) -> Result<sqlx::pool::PoolConnection<Postgres>> {
        self.inner.pool.acquire().await.map_err(before(operation))
    }

    /// Without prepared statements, the driver sends a statement and its arguments in two steps,
    /// between which a pooler may change the server's connection, unless in a transaction. In a
    /// task of its own: a BEGIN whose future is dropped would leave its transaction open.
    async fn run_in_transaction(
        &self,
        operation: &'static str,
        sql: SqlStr,
        arguments: PgArguments,
    ) -> Result<sqlx::Result<Vec<PgRow>>> {
        let pool = self.inner.pool.clone();
        let task = tokio::spawn(async move {
            let mut transaction = pool.begin().await.map_err(before(operation))?;
            let query = sqlx::query_with(sql, arguments).persistent(false);
            Ok(match query.fetch_all(&mut *transaction).await {
                Ok(rows) => transaction.commit().await.map(|()| rows),
                Err(error) => Err(error),
            })
        });
        task.await.map_err(|error| ended(operation, error))?
    }

    /// A transaction that outlives this call. Begun in a task of its own, for the same reason.
    pub(crate) async fn begin_transaction(
        &self,
        operation: &'static str,
    ) -> Result<Transaction<'static, Postgres>> {
        self.check_open(operation)?;
        let pool = self.inner.pool.clone();
        tokio::spawn(async move { pool.begin().await })
            .await
            .map_err(|error| ended(operation, error))?
            .map_err(before(operation))
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
                let mut transaction = self.begin_transaction(operation).await?;
                for chunk in &chunks {
                    let arguments = work.receive(operation, messages, chunk, false)?;
                    let on = On::Transaction(&mut transaction);
                    let answer = self
                        .run(operation, on, &work.statements.receive, arguments)
                        .await?;
                    Work::received(operation, &answer, chunk, &mut receipts)?;
                }
                transaction
                    .commit()
                    .await
                    .map_err(in_operation(operation))?;
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

    pub(crate) async fn settle_on(
        &self,
        operation: &'static str,
        on: On<'_>,
        settlements: &[Settlement],
        repetition: Repetition,
    ) -> Result<Vec<Settled>> {
        let work = &self.inner.work;
        let settle = work.settle(settlements);
        let mut answer = Vec::new();
        if !settle.is_empty() {
            let arguments = work.settle_arguments(operation, &settle)?;
            answer = self
                .run(operation, on, &work.statements.settle, arguments)
                .await?;
        }
        settle.settled(operation, &answer, settlements, repetition)
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
            .with(None::<Vec<bool>>)
            .with(None::<Vec<&[u8]>>)
            .with(true)
            .with(false)
            .with(work.notifications)
            .finish()?;
        self.run("claim", On::Pool, &work.statements.settle, arguments)
            .await?;
        Ok(())
    }
}

pub(crate) fn ended(operation: &'static str, error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the runtime is ending")
        .with_effect(Effect::Unknown)
        .with_source(error)
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
        let work = &self.inner.work;
        let answer = self
            .run(
                "claim",
                On::Pool,
                &work.statements.claim,
                work.claim(request)?,
            )
            .await?;
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
        let outcome = self
            .run(OPERATION, On::Pool, &work.statements.begin, arguments)
            .await;
        let answer = match outcome {
            Err(error) if work.keeps_json() && refused_by_server(&error) => {
                return Err(invalid(work.not_json()).with_source(error));
            }
            outcome => outcome?,
        };
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
        let mut current = self.inner.listener.lock().await;
        let listener = match current.upgrade() {
            Some(listener) => listener,
            None => {
                let connection = self.inner.pool.connect_options();
                let channel = self.inner.names.channel();
                let listener = Listener::start((*connection).clone(), channel)
                    .await
                    .map_err(before(OPERATION))?;
                let listener = Arc::new(listener);
                *current = Arc::downgrade(&listener);
                listener
            }
        };
        Ok(Box::new(Subscribed::new(listener)))
    }

    async fn close(&self) {
        self.inner.closed.store(true, Ordering::Relaxed);
        if let Some(listener) = self.inner.listener.lock().await.upgrade() {
            listener.stop();
        }
        if self.inner.owns_pool {
            // A transaction that the caller still holds must not keep this from returning.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.inner.pool.close()).await;
        }
    }
}
