//! The store: connecting, closing, and the working side.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Effect, Extended, HandlerName, Lease, LeaseTerms,
    Message, OperatorName, Receipt, ReceiveAtomicity, Result, Settled, Settlement, Store,
    Subscription, Wakeups,
};
use sqlx::{ConnectOptions as _, Connection as _, MySqlConnection, MySqlPool};

use crate::{
    begin, claim,
    connection::{Connection, Inner},
    connection_pool::{ConnectionPool, too_late},
    context::Context,
    error::before,
    extend,
    options::MySqlOptions,
    receive,
    server::Server,
    settle,
};

/// An inbox in MySQL or MariaDB. Clones share its connections.
///
/// A value belongs to the tokio runtime in which it was connected.
#[derive(Clone)]
pub struct MySqlStore {
    pub(crate) inner: Arc<Inner>,
    /// Who signs interventions.
    pub(crate) operator: Option<OperatorName>,
}

impl std::fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlStore")
            .field("options", &self.inner.context.options)
            .finish_non_exhaustive()
    }
}

impl MySqlStore {
    /// Connects to the server. Does not set up the inbox: see [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached; `Denied` when it refuses the user;
    /// `SchemaMissing` when the database does not exist; `Unsupported` when it is older than
    /// MySQL 8.0.14 or MariaDB 10.6.
    pub async fn connect(options: MySqlOptions) -> Result<Self> {
        let connected = connect(options).await;
        connected.map_err(|e| e.in_operation("connect"))
    }

    /// An inbox over a pool of the caller's, whose connections go back to it as they were,
    /// but for session variables named `@inbox_…`. The options' connection settings and number of
    /// connections have no effect. Renewals of leases make one connection more, outside of the pool, when transactions
    /// have all of the pool's. After an operation that took too long, or that the server refused because it takes no
    /// writes, the connections that the pool holds ready are closed: they may be as silent, or lead to the same
    /// server.
    ///
    /// Payloads, results and headers are bound to statements here rather than written into them,
    /// which costs round trips, because the pool's options may let the driver log statements.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn with_pool(pool: MySqlPool, options: MySqlOptions) -> Result<Self> {
        let connected = connect_with_pool(pool, options).await;
        connected.map_err(|e| e.in_operation("connect"))
    }

    fn over(pool: ConnectionPool, options: MySqlOptions, server: Server) -> Self {
        let context = Context::new(options, server);
        Self {
            inner: Arc::new(Inner::new(context, pool)),
            operator: None,
        }
    }

    /// For an operation that is called now.
    pub(crate) fn connection(&self) -> Connection<'_> {
        Connection::new(&self.inner)
    }
}

async fn connect(options: MySqlOptions) -> Result<MySqlStore> {
    // Statements hold payloads.
    let connect = options.connect.clone().disable_statement_logging();
    let limit = options.operation_timeout;
    // Not through the pool, which would try again and again until its time-out.
    let look = async {
        let mut session = MySqlConnection::connect_with(&connect)
            .await
            .map_err(before)?;
        let server = Server::of(&mut session).await?;
        session.close().await.map_err(before)?;
        Ok(server)
    };
    let server = tokio::time::timeout(limit, look)
        .await
        .unwrap_or_else(|_| Err(too_late()))?;
    let pool = ConnectionPool::own(connect, options.max_connections, limit, server.galera);
    Ok(MySqlStore::over(pool, options, server))
}

async fn connect_with_pool(pool: MySqlPool, options: MySqlOptions) -> Result<MySqlStore> {
    let pool = ConnectionPool::foreign(pool, options.operation_timeout);
    let until = pool.until();
    let mut guard = pool.guard(until).await?;
    let look = async { Server::of(guard.session()?).await };
    let server = pool.in_time(until, Effect::None, look).await?;
    guard.give_back();
    Ok(MySqlStore::over(pool, options, server))
}

#[async_trait]
impl Store for MySqlStore {
    fn capabilities(&self) -> Capabilities {
        let durability = "what the server's commits survive: a crash, and a power cut with \
                          innodb_flush_log_at_trx_commit=1 and, where there is a binary log, \
                          sync_binlog=1";
        let limit = self.inner.context.payload_limit();
        let mut capabilities = Capabilities::minimal(durability, limit);
        capabilities.multi_process = true;
        capabilities.transactions = true;
        capabilities.ordering = true;
        capabilities.runs = true;
        capabilities.wakeups = Wakeups::SameProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let receipts = receive::receive(self.connection(), messages).await;
        receipts.map_err(|e| e.in_operation("receive"))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let claims = claim::claim(self.connection(), request).await;
        claims.map_err(|e| e.in_operation("claim"))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let settled = settle::settle(self.connection(), settlements).await;
        settled.map_err(|e| e.in_operation("settle"))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        let extended = extend::extend(self.connection().or_spare(), leases, length).await;
        extended.map_err(|e| e.in_operation("extend"))
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        let begun = begin::begin(self.connection(), message, terms).await;
        begun.map_err(|e| e.in_operation("begin"))
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        if self.inner.pool.is_closed() {
            return Err(before(sqlx::Error::PoolClosed).in_operation("subscribe"));
        }
        Ok(Box::new(self.inner.signal.subscribe()))
    }

    async fn close(&self) {
        self.inner.pool.close().await;
    }
}
