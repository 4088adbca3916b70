//! The store: connecting and closing, and its operations by name.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Extended, HandlerName, Lease, LeaseTerms, Message,
    OperatorName, Receipt, ReceiveAtomicity, Result, Settled, Settlement, Store, Subscription,
    Wakeups,
};
use inbox_sqlx::{AtHand, Limits};
use sqlx::{Connection as _, PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::{sync::Mutex, time::timeout};

use crate::{
    begin, claim,
    claim_cursor::ClaimCursor,
    connection::{Database, On},
    error::{before, in_operation},
    extend,
    options::PostgresOptions,
    read_only::RefusedWrites,
    receive,
    settle::{self, Repetition},
    wakeups::{self, Listener},
};

/// A connection that was idle for longer is tried before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

/// How long such a try may take. Leaves time for a new connection.
fn patience(options: &PostgresOptions) -> Duration {
    options.acquire_timeout.min(options.operation_timeout) / 2
}

/// How long closing waits for operations that are under way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// An inbox in a PostgreSQL database. Clones share its connections.
///
/// A value belongs to the tokio runtime in which it was made.
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) inner: Arc<Inner>,
    /// Who signs interventions.
    pub(crate) operator: Option<OperatorName>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore")
            .field("options", &self.inner.database.options)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) database: Database,
    claim_cursor: ClaimCursor,
    /// Whether the pool is closed with the store.
    owns_pool: bool,
    listener: Mutex<Weak<Listener>>,
}

impl PostgresStore {
    /// Connects with its own pool, as the options say. Does not set the inbox up: see
    /// [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Denied` when it refuses the credentials,
    /// `SchemaMissing` when the database does not exist.
    pub async fn connect(options: PostgresOptions) -> Result<Self> {
        // No floating-point number is read here, and PgBouncer refuses a client that asks for their
        // format, unless it is told to ignore that.
        let connection = options.connection().extra_float_digits(None);
        let limit = options.operation_timeout;
        let patience = patience(&options);
        let refused_writes = Arc::new(RefusedWrites::default());
        let on_acquire = Arc::clone(&refused_writes);
        let on_release = Arc::clone(&refused_writes);
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            // A try costs a round trip, which a busy connection does not need.
            .test_before_acquire(false)
            .before_acquire(move |connection, meta| {
                let is_left = on_acquire.concern(Instant::now().checked_sub(meta.age));
                Box::pin(async move {
                    if is_left {
                        return Ok(false);
                    }
                    if meta.idle_for < TRUSTED_IDLE {
                        return Ok(true);
                    }
                    Ok(matches!(
                        timeout(patience, connection.ping()).await,
                        Ok(Ok(()))
                    ))
                })
            })
            .after_release(move |connection, meta| {
                let is_left = on_release.concern(Instant::now().checked_sub(meta.age));
                Box::pin(async move {
                    if is_left {
                        return Ok(false);
                    }
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
            Ok(Ok(())) => Ok(Self::new(pool, true, options, refused_writes)),
            Ok(Err(error)) => Err(before(error).in_operation("connect")),
            Err(_) => Err(before(sqlx::Error::PoolTimedOut).in_operation("connect")),
        }
    }

    /// Connects to what `url` names: [`PostgresOptions::from_url`] and
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// As those two.
    pub async fn connect_url(url: &str) -> Result<Self> {
        Self::connect(PostgresOptions::from_url(url)?).await
    }

    /// Uses a pool of the application's. [`close`](inbox_api::Store::close) leaves it open;
    /// the options' `connect_with`, `max_connections` and `acquire_timeout` are the pool's own business.
    /// Subscriptions take one connection more, with the same settings, outside of the pool; renewals of
    /// leases another one, when transactions have all of the pool's.
    ///
    /// The pool itself knows no time limit: a transaction that its holder drops on a connection
    /// that has gone silent keeps its place in the pool until the operating system gives the
    /// connection up. [`commit`](inbox_api::Transactional::commit) and
    /// [`roll_back`](inbox_api::Transactional::roll_back) close it.
    #[must_use]
    pub fn with_pool(pool: PgPool, options: PostgresOptions) -> Self {
        Self::new(pool, false, options, Arc::default())
    }

    fn new(
        pool: PgPool,
        owns_pool: bool,
        options: PostgresOptions,
        refused_writes: Arc<RefusedWrites>,
    ) -> Self {
        let limits = Limits {
            patience: patience(&options),
            // In time for the next one who waits.
            longest: options.operation_timeout / 2,
        };
        let connections = if owns_pool {
            AtHand::own(pool, limits)
        } else {
            AtHand::of_application(pool, limits)
        };
        Self {
            inner: Arc::new(Inner {
                database: Database::new(connections, options, refused_writes),
                claim_cursor: ClaimCursor::default(),
                owns_pool,
                listener: Mutex::new(Weak::new()),
            }),
            operator: None,
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        let options = &self.inner.database.options;
        let mut capabilities = Capabilities::minimal(
            "survives what the server's commits survive: with synchronous_commit and fsync on, \
             as they are by default, a crash of the server and a power cut",
            options.payload_limit,
        );
        capabilities.multi_process = true;
        capabilities.transactions = true;
        capabilities.ordering = true;
        capabilities.runs = true;
        if options.notifications {
            capabilities.wakeups = Wakeups::EveryProcess;
        }
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        receive::receive(&self.inner.database, messages)
            .await
            .map_err(in_operation("receive"))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        claim::claim(&self.inner.database, &self.inner.claim_cursor, request)
            .await
            .map_err(in_operation("claim"))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        settle::settle(
            &self.inner.database,
            On::Pool,
            settlements,
            Repetition::Done,
        )
        .await
        .map_err(in_operation("settle"))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        extend::extend(&self.inner.database, leases, length)
            .await
            .map_err(in_operation("extend"))
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        begin::begin(&self.inner.database, message, terms)
            .await
            .map_err(in_operation("begin"))
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        wakeups::subscribe(&self.inner.database, &self.inner.listener)
            .await
            .map_err(in_operation("subscribe"))
    }

    async fn close(&self) {
        let inner = &self.inner;
        let database = &inner.database;
        database.close();
        // Refuses new work from here on. A subscription that is being made keeps the listener for as long as the server is
        // silent, and finds out by itself that the store is closed.
        let pool = inner.owns_pool.then(|| database.connections.close());
        let closing = async {
            let listener = async {
                if let Some(listener) = inner.listener.lock().await.upgrade() {
                    listener.stop();
                }
            };
            let pool = async {
                if let Some(pool) = pool {
                    pool.await;
                }
            };
            tokio::join!(listener, database.spare.close(), pool);
        };
        // A transaction that the caller still holds must not keep this from returning.
        let _ = timeout(CLOSE_TIMEOUT, closing).await;
    }
}
