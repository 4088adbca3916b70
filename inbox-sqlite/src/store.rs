//! The store: connections, transactions, and the working side.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Error, ErrorKind, Extended, HandlerName, Lease,
    LeaseTerms, Message, Receipt, ReceiveAtomicity, Result, Settled, Settlement, Store,
    Subscription, Wakeups,
};
use sqlx::{
    Connection as _, Sqlite, SqlitePool, Transaction, pool::PoolConnection,
    sqlite::SqlitePoolOptions,
};
use tokio::sync::Mutex;

use crate::{
    error::{BUSY, CANNOT_OPEN, NOT_A_DATABASE, in_operation, primary_code},
    options::SqliteOptions,
    schema,
    settle::Repetition,
    wakeups::{Signal, Subscribed, Watchers},
    work::Work,
};

/// Takes the write lock at once. A transaction that began by reading would have to be refused
/// when another one wrote in between.
pub(crate) const BEGIN: &str = "BEGIN IMMEDIATE";

const READERS: u32 = 4;

/// One page of the smallest size, in bytes.
const SMALLEST_DATABASE: u64 = 512;

/// An inbox in an SQLite file. Clones share its connections.
///
/// A value belongs to the tokio runtime in which it was connected.
#[derive(Clone)]
pub struct SqliteStore {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) options: SqliteOptions,
    pub(crate) work: Work,
    pub(crate) signal: Signal,
    /// One connection: SQLite has one writer at a time, and waiting here is fair and costs
    /// nothing, where waiting for SQLite's own lock is polling.
    writer: SqlitePool,
    readers: SqlitePool,
    watchers: Mutex<Watchers>,
    /// Whether an inbox of the right version was found there.
    checked: AtomicBool,
}

impl SqliteStore {
    /// Opens the file, or creates it, and switches it to WAL mode, which stays with the file.
    /// Does not set up the inbox: see [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Invalid` when the path is a folder, is `:memory:` or names a file that is not an SQLite
    /// database; `Denied` when the file cannot be written; `Unavailable` when it or its folder is
    /// missing, or when another connection kept it locked; `Unsupported` when it cannot be
    /// switched to WAL mode.
    pub async fn connect(options: SqliteOptions) -> Result<Self> {
        options.check_path()?;
        let path = options.absolute_path();
        check_file(&path, options.create_if_missing)?;
        let writer = pool(&options, 1)
            // Closes rather than trusts a connection that comes back within a transaction: a
            // dropped one whose rollback is not finished, or one that SQLite has rolled back by
            // itself (as on a full disk), after which sqlx would never begin another.
            .after_release(|connection, _| {
                Box::pin(async move { Ok(!connection.is_in_transaction()) })
            })
            .connect_lazy_with(options.writer());
        let readers = pool(&options, READERS).connect_lazy_with(options.reader());

        check_journal(
            &path,
            &mut *first_connection(&path, &options, &writer).await?,
        )
        .await?;
        Ok(Self {
            inner: Arc::new(Inner {
                work: Work::new(&options),
                options,
                signal: Signal::new(),
                writer,
                readers,
                watchers: Mutex::default(),
                checked: AtomicBool::new(false),
            }),
        })
    }

    pub(crate) fn now(&self) -> i64 {
        self.inner.options.clock.now_micros()
    }

    /// The write connection, whatever stands in the file.
    pub(crate) async fn any_writer(
        &self,
        operation: &'static str,
    ) -> Result<PoolConnection<Sqlite>> {
        self.inner
            .writer
            .acquire()
            .await
            .map_err(in_operation(operation))
    }

    /// A read connection, whatever stands in the file.
    pub(crate) async fn any_reader(
        &self,
        operation: &'static str,
    ) -> Result<PoolConnection<Sqlite>> {
        self.inner
            .readers
            .acquire()
            .await
            .map_err(in_operation(operation))
    }

    pub(crate) async fn writer(&self, operation: &'static str) -> Result<PoolConnection<Sqlite>> {
        let mut connection = self.any_writer(operation).await?;
        self.check(operation, &mut connection).await?;
        Ok(connection)
    }

    pub(crate) async fn reader(&self, operation: &'static str) -> Result<PoolConnection<Sqlite>> {
        let mut connection = self.any_reader(operation).await?;
        self.check(operation, &mut connection).await?;
        Ok(connection)
    }

    /// A transaction that outlives this call.
    pub(crate) async fn open_transaction(
        &self,
        operation: &'static str,
    ) -> Result<Transaction<'static, Sqlite>> {
        let mut transaction = self
            .inner
            .writer
            .begin_with(BEGIN)
            .await
            .map_err(in_operation(operation))?;
        self.check(operation, &mut transaction).await?;
        Ok(transaction)
    }

    /// Fails unless the inbox is there; asks the file only until it was.
    pub(crate) async fn check(
        &self,
        operation: &'static str,
        connection: &mut sqlx::SqliteConnection,
    ) -> Result<()> {
        if self.inner.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        schema::check_version(operation, connection, &self.inner.options.inbox).await?;
        self.inner.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// SQLite has no code for a missing table: when a statement fails for a reason without a
    /// code of its own, looks whether the inbox is still there.
    pub(crate) async fn explained<T>(
        &self,
        operation: &'static str,
        outcome: Result<T>,
    ) -> Result<T> {
        if let Err(error) = &outcome
            && error.kind() == ErrorKind::Other
        {
            self.inner.checked.store(false, Ordering::Relaxed);
            self.reader(operation).await?;
        }
        outcome
    }
}

fn pool(options: &SqliteOptions, size: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(size)
        .acquire_timeout(options.busy_timeout.max(Duration::from_millis(1)))
        .idle_timeout(None)
        .max_lifetime(None)
        // A file does not hang up.
        .test_before_acquire(false)
}

fn refused(kind: ErrorKind, path: &Path, reason: &str) -> Error {
    Error::new(kind, "connect", format!("{}: {reason}", path.display()))
}

/// What the file system can tell. Never opens the file: closing it again would release the locks
/// that this process's SQLite connections hold on it.
fn check_file(path: &Path, create: bool) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            Err(refused(ErrorKind::Invalid, path, "is a folder, not a file"))
        }
        Ok(found) if found.permissions().readonly() => {
            Err(refused(ErrorKind::Denied, path, "is read-only"))
        }
        // SQLite takes such a file for an empty database and would overwrite it.
        Ok(found) if (1..SMALLEST_DATABASE).contains(&found.len()) => Err(refused(
            ErrorKind::Invalid,
            path,
            "is not an SQLite database",
        )),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if path.parent().is_some_and(|folder| !folder.is_dir()) {
                Err(refused(
                    ErrorKind::Unavailable,
                    path,
                    "its folder does not exist",
                ))
            } else if create {
                Ok(())
            } else {
                let reason = "does not exist, and the options say not to create it";
                Err(refused(ErrorKind::SchemaMissing, path, reason))
            }
        }
        Err(error) => {
            let kind = match error.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Unavailable,
            };
            Err(refused(kind, path, "cannot be looked at").with_source(error))
        }
    }
}

/// Opens the writer. SQLite does not wait for others while it switches to WAL mode, so this
/// repeats until the busy time-out has passed.
async fn first_connection(
    path: &Path,
    options: &SqliteOptions,
    writer: &SqlitePool,
) -> Result<PoolConnection<Sqlite>> {
    let start = Instant::now();
    loop {
        let error = match writer.acquire().await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        match primary_code(&error) {
            Some(BUSY) if start.elapsed() < options.busy_timeout => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Some(NOT_A_DATABASE) => {
                let reason = "is not an SQLite database";
                return Err(refused(ErrorKind::Invalid, path, reason).with_source(error));
            }
            Some(CANNOT_OPEN) => {
                let reason = "cannot be opened";
                return Err(refused(ErrorKind::Unavailable, path, reason).with_source(error));
            }
            _ => {
                let mapped = in_operation("connect")(error);
                let named = format!("{}: {}", path.display(), mapped.context());
                return Err(Error::new(mapped.kind(), "connect", named).with_source(mapped));
            }
        }
    }
}

async fn check_journal(path: &Path, connection: &mut sqlx::SqliteConnection) -> Result<()> {
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(connection)
        .await
        .map_err(in_operation("connect"))?;
    if mode != "wal" {
        let reason = "cannot be switched to WAL mode; is it on a network file system?";
        return Err(refused(ErrorKind::Unsupported, path, reason));
    }
    Ok(())
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        let options = &self.inner.options;
        let mut capabilities =
            Capabilities::minimal(options.synchronous.durability(), options.payload_limit);
        capabilities.multi_process = true;
        capabilities.transactions = true;
        capabilities.ordering = true;
        capabilities.wakeups = Wakeups::EveryProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let outcome = self.receive_batch(messages).await;
        self.explained("receive", outcome).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        if request.handlers.is_empty() || request.limit == 0 {
            return Ok(Claims::default());
        }
        let outcome = self.claim_batch(request).await;
        self.explained("claim", outcome).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let outcome = self.settle_batch(settlements).await;
        self.explained("settle", outcome).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        LeaseTerms::check_length(length).map_err(|invalid| invalid.in_operation("extend"))?;
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let outcome = async {
            let mut connection = self.writer("extend").await?;
            self.inner
                .work
                .extend(&mut connection, leases, length, self.now())
                .await
        };
        self.explained("extend", outcome.await).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.inner.work.check_begin(message)?;
        let outcome = self.begin_one(message, terms).await;
        self.explained("begin", outcome).await
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        const OPERATION: &str = "subscribe";
        let inner = &self.inner;
        let mut watchers = inner.watchers.lock().await;
        if inner.readers.is_closed() {
            return Err(in_operation(OPERATION)(sqlx::Error::PoolClosed));
        }
        let watcher = watchers
            .current(inner.options.reader(), inner.signal.clone())
            .await
            .map_err(in_operation(OPERATION))?;
        Ok(Box::new(Subscribed::new(&inner.signal, watcher)))
    }

    async fn close(&self) {
        let inner = &self.inner;
        // Both refuse new work from here on, whether or not this future is polled to its end.
        let closing = (inner.writer.close(), inner.readers.close());
        // A transaction that the caller still holds must not keep this from returning.
        let all = async {
            inner.watchers.lock().await.stop().await;
            closing.0.await;
            closing.1.await;
        };
        let _ = tokio::time::timeout(inner.options.busy_timeout, all).await;
    }
}

/// A connection that runs a transaction of which sqlx knows nothing. Closed, which rolls back, unless
/// all of it was run.
struct Scripted {
    connection: PoolConnection<Sqlite>,
    is_over: bool,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if !self.is_over {
            self.connection.close_on_drop();
        }
    }
}

/// Each of these is one statement, or one transaction of its own. A dropped future leaves
/// neither behind: sqlx runs a statement on the connection's own thread to its end or not at all;
/// a BEGIN whose answer nobody takes is rolled back by that thread; a dropped `Transaction` queues
/// a ROLLBACK behind whatever is still running; and a COMMIT whose answer nobody takes stands,
/// with the ROLLBACK behind it ignored. The connection goes back to its pool only behind all that,
/// or (`Scripted`) is closed.
impl SqliteStore {
    async fn receive_batch(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        const OPERATION: &str = "receive";
        let mapped = in_operation(OPERATION);
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let work = &self.inner.work;
        let prepared = work.prepare_receive(messages, self.now());
        let receipts = match prepared.statements() {
            0 => return Ok(prepared.receipts),
            1 => {
                let mut connection = self.writer(OPERATION).await?;
                work.receive(&mut connection, prepared).await?
            }
            _ => {
                let mut connection = self.writer(OPERATION).await?;
                let mut transaction = connection.begin_with(BEGIN).await.map_err(mapped)?;
                let receipts = work.receive(&mut transaction, prepared).await?;
                transaction.commit().await.map_err(mapped)?;
                receipts
            }
        };
        if receipts.contains(&Receipt::Accepted) {
            self.inner.signal.raise();
        }
        Ok(receipts)
    }

    async fn claim_batch(&self, request: &ClaimRequest) -> Result<Claims> {
        let mapped = in_operation("claim");
        let mut connection = self.writer("claim").await?;
        let mut transaction = connection.begin_with(BEGIN).await.map_err(mapped)?;
        let claims = self
            .inner
            .work
            .claim(&mut transaction, request, self.now())
            .await?;
        transaction.commit().await.map_err(mapped)?;
        if !claims.corrupt.is_empty() {
            // What was set aside may have been first of its ordering key.
            self.inner.signal.raise();
        }
        Ok(claims)
    }

    async fn settle_batch(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mapped = in_operation("settle");
        let work = &self.inner.work;
        let mut connection = self.writer("settle").await?;
        let answers = if work.settles_at_once(settlements) {
            work.settle(&mut connection, settlements, Repetition::Done, self.now())
                .await?
        } else {
            let mut transaction = connection.begin_with(BEGIN).await.map_err(mapped)?;
            let answers = work
                .settle(&mut transaction, settlements, Repetition::Done, self.now())
                .await?;
            transaction.commit().await.map_err(mapped)?;
            answers
        };
        if answers.wake {
            self.inner.signal.raise();
        }
        Ok(answers.settled)
    }

    async fn begin_one(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        let mut scripted = Scripted {
            connection: self.writer("begin").await?,
            is_over: false,
        };
        let (begun, accepted) = self
            .inner
            .work
            .begin(&mut scripted.connection, message, terms, self.now())
            .await?;
        scripted.is_over = true;
        if accepted && !matches!(begun, Begun::Run(_)) {
            self.inner.signal.raise();
        }
        Ok(begun)
    }
}
