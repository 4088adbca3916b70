//! The pool: its connections are used for no longer than an operation may take, and closed when that did not
//! come to its end.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_api::{Effect, Error, ErrorKind, Result};
use inbox_sqlx::{AtHand, Held, Limits, Spare, close_all_of};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, MySql, MySqlConnection, MySqlPool,
    Transaction,
    mysql::{MySqlConnectOptions, MySqlPoolOptions},
    pool::PoolConnection,
};
use tokio::time::Instant;

use crate::error::{before, refuses_writes};

/// For how long a connection may have been idle to be used without a look at it.
const TRUSTED: Duration = Duration::from_secs(1);
/// The longest that such a look may take.
const LONGEST_LOOK: Duration = Duration::from_secs(5);
/// How long between two tries to replace a connection that does not answer.
const BETWEEN_RENEWALS: Duration = Duration::from_secs(1);

/// What is set for a session of the store's, once: a transaction that the server has rolled back
/// is not followed by another one that was not begun, and it is known to be one of these.
/// Lists of rows in a variable are no keys to the server: it would refuse the changes that are made by them where
/// it is set to take no others, and joins with them above a number of rows.
/// Waits for locks, also those of DDL, end before the operation does: the server would go on waiting for
/// an operation that has ended, and hold what the transaction has locked.
fn own_session(lock_wait: Duration, galera: bool) -> String {
    let seconds = lock_wait.as_secs();
    let mut session = format!(
        "SET SESSION autocommit = 1, SESSION completion_type = 0, \
         SESSION sql_safe_updates = 0, SESSION sql_big_selects = 1, \
         SESSION innodb_lock_wait_timeout = {seconds}, SESSION lock_wait_timeout = {seconds}, \
         @inbox_own = 1"
    );
    if galera {
        // What other nodes have answered before is seen by this session.
        session.push_str(", SESSION wsrep_sync_wait = 1");
    }
    session
}

/// The longest wait for a lock: whole seconds, at least one, and less than the limit where that is
/// possible.
fn lock_wait(limit: Duration) -> Duration {
    let below = limit.saturating_sub(Duration::from_millis(500)).as_secs();
    Duration::from_secs(below.max(1))
}

/// How long looks at a connection may take.
fn limits(limit: Duration) -> Limits {
    Limits {
        patience: (limit / 4).min(LONGEST_LOOK),
        longest: limit,
    }
}

/// The pool of a store.
pub(crate) struct ConnectionPool {
    connections: AtHand<MySql>,
    /// What there is to know if the pool is the store's own, whose connections log no statements.
    own: Option<Arc<Own>>,
    /// The longest that an operation may take.
    limit: Duration,
    closed: AtomicBool,
    /// Whether a server has refused to write since a transaction was closed for that.
    was_refused: AtomicBool,
    spare: Spare<MySql>,
}

/// What makes a connection of the store's own.
///
/// One that does not answer any more is not left to the pool, which would wait for it: to close an
/// encrypted connection in order takes an answer, too. Another one takes its place, and it is dropped.
struct Own {
    connect: MySqlConnectOptions,
    session: Arc<str>,
    limit: Duration,
    closed: AtomicBool,
    /// When a server last refused to write. What was connected before then is not used again.
    refused_at: Mutex<Option<Instant>>,
}

impl Own {
    fn refused_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.refused_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a connection that was made then may be to a server that has refused to write since.
    fn may_be_refused(&self, connected_at: Option<Instant>) -> bool {
        let refused_at = *self.refused_at();
        refused_at.is_some() && connected_at <= refused_at
    }

    async fn renew(&self, connection: &mut MySqlConnection) -> sqlx::Result<()> {
        let mut other = self.connect.connect().await?;
        let session = sqlx::raw_sql(AssertSqlSafe(Arc::clone(&self.session)));
        session.execute(&mut other).await?;
        *connection = other;
        Ok(())
    }

    /// Looks at a connection that was idle. The pool limits the time of this, too.
    async fn check_or_renew(&self, connection: &mut MySqlConnection) -> sqlx::Result<()> {
        let most = limits(self.limit).patience;
        match tokio::time::timeout(most, connection.ping()).await {
            Ok(Ok(())) => Ok(()),
            _ => self.renew(connection).await,
        }
    }

    /// Sends what a transaction that was dropped has left to be sent. The pool would wait for the
    /// answer for as long as the network does.
    async fn flush_or_renew(&self, connection: &mut MySqlConnection) -> sqlx::Result<bool> {
        match tokio::time::timeout(self.limit, connection.flush()).await {
            Ok(settled) => return settled.map(|()| true),
            // No operation waits for it, but it has a place in the pool.
            Err(_) => {
                while !self.closed.load(Ordering::Relaxed) {
                    let renewed = tokio::time::timeout(self.limit, self.renew(connection)).await;
                    if matches!(renewed, Ok(Ok(()))) {
                        return Ok(true);
                    }
                    tokio::time::sleep(BETWEEN_RENEWALS).await;
                }
            }
        }
        Err(io::Error::from(io::ErrorKind::TimedOut).into())
    }
}

impl ConnectionPool {
    /// Connections of the store's own.
    pub(crate) fn own(
        connect: MySqlConnectOptions,
        most: u32,
        limit: Duration,
        galera: bool,
    ) -> Self {
        let session: Arc<str> = own_session(lock_wait(limit), galera).into();
        let own = Arc::new(Own {
            connect: connect.clone(),
            session: Arc::clone(&session),
            limit,
            closed: AtomicBool::new(false),
            refused_at: Mutex::new(None),
        });
        let (before, after) = (Arc::clone(&own), Arc::clone(&own));
        let pool = MySqlPoolOptions::new()
            .max_connections(most)
            .acquire_timeout(limit)
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let session = Arc::clone(&session);
                Box::pin(async move {
                    let session = sqlx::raw_sql(AssertSqlSafe(session));
                    session.execute(connection).await?;
                    Ok(())
                })
            })
            .before_acquire(move |connection, meta| {
                let own = Arc::clone(&before);
                Box::pin(async move {
                    if meta.idle_for >= TRUSTED {
                        own.check_or_renew(connection).await?;
                    }
                    Ok(true)
                })
            })
            .after_release(move |connection, meta| {
                let own = Arc::clone(&after);
                Box::pin(async move {
                    let connected_at = Instant::now().checked_sub(meta.age);
                    let is_settled = own.flush_or_renew(connection).await?;
                    Ok(is_settled && !own.may_be_refused(connected_at))
                })
            })
            .connect_lazy_with(connect);
        Self {
            connections: AtHand::own(pool, limits(limit)),
            own: Some(own),
            limit,
            closed: AtomicBool::new(false),
            was_refused: AtomicBool::new(false),
            spare: Spare::default(),
        }
    }

    /// Those of a pool of the caller's.
    pub(crate) fn foreign(pool: MySqlPool, limit: Duration) -> Self {
        Self {
            connections: AtHand::of_application(pool, limits(limit)),
            own: None,
            limit,
            closed: AtomicBool::new(false),
            was_refused: AtomicBool::new(false),
            spare: Spare::default(),
        }
    }

    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The longest that a statement waits for a lock.
    pub(crate) fn lock_wait(&self) -> Duration {
        lock_wait(self.limit)
    }

    /// When an operation that is called now has to have answered.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// A connection that goes back to the pool after use.
    pub(crate) async fn acquire(&self, until: Instant) -> Result<PoolConnection<MySql>> {
        let held = self.acquire_by(until, self.connections.acquire()).await?;
        Ok(held.into_inner())
    }

    async fn acquire_by(
        &self,
        until: Instant,
        acquiring: impl Future<Output = sqlx::Result<Held<MySql>>>,
    ) -> Result<Held<MySql>> {
        if self.is_closed() {
            return Err(before(sqlx::Error::PoolClosed));
        }
        let mut outcome = Err(sqlx::Error::PoolTimedOut);
        if Instant::now() < until {
            let acquiring = tokio::time::timeout_at(until, acquiring).await;
            outcome = acquiring.unwrap_or(outcome);
        }
        if matches!(outcome, Err(sqlx::Error::PoolTimedOut)) {
            self.close_idle();
        }
        outcome.map_err(before)
    }

    /// A connection that is closed unless it is [released](ConnectionGuard::release) or given back.
    pub(crate) async fn guard(&self, until: Instant) -> Result<ConnectionGuard<'_>> {
        let held = self.acquire_by(until, self.connections.acquire()).await?;
        Ok(self.guarded(held))
    }

    /// The same, of the [spare](Spare) connection while others have all of the pool's.
    pub(crate) async fn guard_or_spare(&self, until: Instant) -> Result<ConnectionGuard<'_>> {
        // Boxed, as it has room for all of connecting, twice.
        let acquiring = Box::pin(self.spare.acquire(&self.connections));
        let held = self.acquire_by(until, acquiring).await?;
        Ok(self.guarded(held))
    }

    fn guarded(&self, held: Held<MySql>) -> ConnectionGuard<'_> {
        ConnectionGuard {
            connections: &self.connections,
            held: Some(held),
        }
    }

    /// What takes longer fails as `Unavailable`. It is dropped then, which closes its connection. Where the server
    /// refuses to write, what was connected before is not used again: a fail-over has put another server behind the
    /// address, and none of these connections leads there.
    pub(crate) async fn in_time<T>(
        &self,
        until: Instant,
        effect: Effect,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout_at(until, work).await {
            Ok(outcome) => {
                if outcome.as_ref().is_err_and(refuses_writes) {
                    self.leave_server();
                }
                outcome
            }
            Err(_) => {
                self.close_idle();
                Err(too_late().with_effect(effect))
            }
        }
    }

    fn leave_server(&self) {
        match &self.own {
            Some(own) => *own.refused_at() = Some(Instant::now()),
            None => self.was_refused.store(true, Ordering::Relaxed),
        }
        self.close_idle();
    }

    /// Lets go of a transaction that has ended or failed. The store's own pool closes its connection if its server
    /// has refused to write; that of a caller's pool is closed here.
    pub(crate) fn let_go(&self, transaction: Transaction<'static, MySql>) {
        if self.was_refused.swap(false, Ordering::Relaxed) {
            close_all_of(transaction);
        }
    }

    /// Closes what is held ready: when one connection does not answer, those that were open at
    /// the same time may be as silent.
    fn close_idle(&self) {
        self.connections.close_idle();
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let _ = tokio::time::timeout(self.limit, self.spare.close()).await;
        if let Some(own) = &self.own {
            own.closed.store(true, Ordering::Relaxed);
            // A transaction that the caller still holds must not keep this from returning.
            let _ = tokio::time::timeout(self.limit, self.connections.close()).await;
        }
    }
}

pub(crate) fn too_late() -> Error {
    let context = "the server did not answer in time";
    Error::new(ErrorKind::Unavailable, context)
}

/// A connection that is closed when a script on it did not come to its end: the server then rolls back
/// what is open.
pub(crate) struct ConnectionGuard<'a> {
    connections: &'a AtHand<MySql>,
    held: Option<Held<MySql>>,
}

impl ConnectionGuard<'_> {
    /// All has gone well: the next operation may have it, unless a server has refused to write meanwhile. Then the pool
    /// looks whether it is to be closed.
    pub(crate) fn release(mut self) {
        if let Some(held) = self.held.take() {
            self.connections.release(held);
        }
    }

    /// The script has come to its end. What the server refused may be this session's: the pool has it
    /// again behind others.
    pub(crate) fn give_back(mut self) {
        if let Some(held) = self.held.take() {
            self.connections.give_back(held.into_inner());
        }
    }

    pub(crate) fn session(&mut self) -> Result<&mut MySqlConnection> {
        match &mut self.held {
            Some(held) => Ok(&mut **held),
            None => Err(before(sqlx::Error::WorkerCrashed)),
        }
    }
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            drop(held.into_inner().detach());
        }
    }
}
