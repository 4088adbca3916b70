//! The store: connections, transactions, and the working side.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
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
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use crate::{
    error::{
        BUSY, CANNOT_OPEN, NOT_A_DATABASE, READ_ONLY, in_operation, is_busy, is_too_late,
        primary_code,
    },
    identity::Identity,
    operation::{self, Pauses, deadline, in_time},
    options::SqliteOptions,
    schema,
    settle::Repetition,
    turns::Turns,
    wakeups::{Signal, Subscribed, Watchers},
    work::Work,
};

/// Takes the write lock at once. A transaction that began by reading would have to be refused
/// when another one wrote in between.
pub(crate) const BEGIN: &str = "BEGIN IMMEDIATE";

/// Takes the write lock with the first change, and fails then if there was another in between.
const BEGIN_READING: &str = "BEGIN";

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
    pub(crate) turns: Arc<Turns>,
    pub(crate) identity: Arc<Identity>,
    readers: SqlitePool,
    watchers: Mutex<Watchers>,
    /// Whether an inbox of the right version was found there.
    checked: AtomicBool,
    /// Whether the last claim found nothing.
    idle: AtomicBool,
}

impl SqliteStore {
    /// Opens the file, or creates it, and switches it to WAL mode, which stays with the file.
    /// Does not set up the inbox: see [`Schema`](inbox_api::Schema).
    ///
    /// # Errors
    /// `Invalid` when the path is a folder, is `:memory:` or names a file that is not an SQLite
    /// database; `Denied` when the folder, or a file that is not in WAL mode yet, cannot be written;
    /// `Unavailable` when the file or its folder is missing, or when another connection kept it
    /// locked; `Unsupported` when it cannot be switched to WAL mode, or when its texts are in UTF-16.
    /// A read-only file can be looked into, and what would write fails as `Denied`.
    pub async fn connect(options: SqliteOptions) -> Result<Self> {
        options.check()?;
        let path = options.absolute_path();
        check_file(&path, options.create_if_missing)?;
        let turns = Arc::<Turns>::default();
        let turned = turns.clone();
        let identity = Arc::new(Identity::new(path.clone()));
        let writer = pool(&options, 1, &identity)
            // Closes rather than trusts a connection that comes back within a transaction, as one
            // that SQLite has rolled back by itself (on a full disk), after which sqlx would never
            // begin another. A dropped one may not have been rolled back yet.
            .after_release(move |connection, _| {
                let rest = turned.rest();
                Box::pin(async move {
                    if !rest.is_zero() {
                        tokio::time::sleep(rest).await;
                    }
                    if connection.is_in_transaction() {
                        connection.ping().await?;
                    }
                    Ok(!connection.is_in_transaction())
                })
            })
            .connect_lazy_with(options.writer());
        let readers = pool(&options, READERS, &identity).connect_lazy_with(options.reader());

        let until = deadline(options.operation_timeout);
        let look = async {
            let mut connection = first_connection(&path, &writer, until).await?;
            identity.is_opened();
            check_settings(&path, &mut connection).await
        };
        in_time("connect", until, look).await?;
        Ok(Self {
            inner: Arc::new(Inner {
                work: Work::new(&options),
                options,
                signal: Signal::new(),
                writer,
                turns,
                identity,
                readers,
                watchers: Mutex::default(),
                checked: AtomicBool::new(false),
                idle: AtomicBool::new(true),
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
        until: Instant,
    ) -> Result<PoolConnection<Sqlite>> {
        let connection = operation::acquire(operation, &self.inner.writer, until).await?;
        self.inner.identity.check(operation)?;
        Ok(connection)
    }

    /// A read connection, whatever stands in the file.
    pub(crate) async fn any_reader(
        &self,
        operation: &'static str,
        until: Instant,
    ) -> Result<PoolConnection<Sqlite>> {
        let connection = operation::acquire(operation, &self.inner.readers, until).await?;
        self.inner.identity.check(operation)?;
        Ok(connection)
    }

    pub(crate) async fn writer(
        &self,
        operation: &'static str,
        until: Instant,
    ) -> Result<PoolConnection<Sqlite>> {
        let mut connection = self.any_writer(operation, until).await?;
        self.check(operation, &mut connection).await?;
        Ok(connection)
    }

    pub(crate) async fn reader(
        &self,
        operation: &'static str,
        until: Instant,
    ) -> Result<PoolConnection<Sqlite>> {
        let mut connection = self.any_reader(operation, until).await?;
        self.check(operation, &mut connection).await?;
        Ok(connection)
    }

    /// A transaction on the write connection, which has the write lock if `statement` is [`BEGIN`].
    pub(crate) async fn begin_with(
        &self,
        operation: &'static str,
        statement: &'static str,
        until: Instant,
    ) -> Result<Transaction<'static, Sqlite>> {
        let mut transaction =
            operation::begin(operation, &self.inner.writer, statement, until).await?;
        self.inner.identity.check(operation)?;
        self.check(operation, &mut transaction).await?;
        Ok(transaction)
    }

    /// A transaction that has the write lock.
    pub(crate) async fn locked(
        &self,
        operation: &'static str,
        until: Instant,
    ) -> Result<Transaction<'static, Sqlite>> {
        self.begin_with(operation, BEGIN, until).await
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
        until: Instant,
    ) -> Result<T> {
        if let Err(error) = &outcome
            && error.kind() == ErrorKind::Other
        {
            self.inner.checked.store(false, Ordering::Relaxed);
            self.reader(operation, until).await?;
        }
        outcome
    }
}

fn pool(options: &SqliteOptions, size: u32, identity: &Arc<Identity>) -> SqlitePoolOptions {
    let identity = Arc::clone(identity);
    SqlitePoolOptions::new()
        .after_connect(move |_, _| {
            identity.look_again();
            Box::pin(std::future::ready(Ok(())))
        })
        .max_connections(size)
        .acquire_timeout(options.operation_timeout)
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

/// Opens the writer. While others are there, it cannot switch the file to WAL mode: this tries again.
async fn first_connection(
    path: &Path,
    writer: &SqlitePool,
    until: Instant,
) -> Result<PoolConnection<Sqlite>> {
    let mut pauses = Pauses::new(until);
    loop {
        let error = match writer.acquire().await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        match primary_code(&error) {
            Some(BUSY) if pauses.pause().await => {}
            Some(NOT_A_DATABASE) => {
                let reason = "is not an SQLite database";
                return Err(refused(ErrorKind::Invalid, path, reason).with_source(error));
            }
            Some(READ_ONLY) => {
                let reason = "is read-only, and has to be switched to WAL mode";
                return Err(refused(ErrorKind::Denied, path, reason).with_source(error));
            }
            Some(CANNOT_OPEN) => return Err(cannot_open(path, error)),
            _ => {
                let mapped = in_operation("connect")(error);
                let named = format!("{}: {}", path.display(), mapped.context());
                return Err(Error::new(mapped.kind(), "connect", named).with_source(mapped));
            }
        }
    }
}

/// SQLite does not say why, so the system is asked: for another file in the same folder, where SQLite
/// keeps `-wal` and `-shm`, too. Not for this one: closing it would release the locks on it.
fn cannot_open(path: &Path, error: sqlx::Error) -> Error {
    let mut probe = path.as_os_str().to_owned();
    probe.push(format!("-probe-{}", std::process::id()));
    let probe = Path::new(&probe);
    match std::fs::File::create_new(probe) {
        Ok(_) => {
            let _ = std::fs::remove_file(probe);
            refused(ErrorKind::Unavailable, path, "cannot be opened").with_source(error)
        }
        Err(why) => {
            let kind = match why.kind() {
                std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                    ErrorKind::Denied
                }
                _ => ErrorKind::Unavailable,
            };
            let reason =
                format!("cannot be opened, since nothing can be made in its folder: {why}");
            refused(kind, path, &reason).with_source(error)
        }
    }
}

/// What the file's maker may have chosen, and what cannot be right.
async fn check_settings(path: &Path, connection: &mut sqlx::SqliteConnection) -> Result<()> {
    let mapped = in_operation("connect");
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&mut *connection)
        .await
        .map_err(mapped)?;
    if mode != "wal" {
        let reason = "cannot be switched to WAL mode; is it on a network file system?";
        return Err(refused(ErrorKind::Unsupported, path, reason));
    }
    let encoding: String = sqlx::query_scalar("PRAGMA encoding")
        .fetch_one(connection)
        .await
        .map_err(mapped)?;
    if encoding != "UTF-8" {
        let reason = "has another encoding than UTF-8 (PRAGMA encoding): texts would not come back as \
            they were, and different keys would be taken for one";
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
        capabilities.exclusive_transactions = true;
        capabilities.ordering = true;
        capabilities.wakeups = Wakeups::EveryProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.run("receive", |until| self.receive_batch(messages, until))
            .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        if request.handlers.is_empty() || request.limit == 0 {
            return Ok(Claims::default());
        }
        self.run("claim", |until| self.claim_batch(request, until))
            .await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        self.run("settle", |until| self.settle_batch(settlements, until))
            .await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        LeaseTerms::check_length(length).map_err(|invalid| invalid.in_operation("extend"))?;
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        self.run("extend", |until| self.extend_batch(leases, length, until))
            .await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.inner.work.check_begin(message)?;
        self.run("begin", |until| self.begin_one(message, terms, until))
            .await
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        const OPERATION: &str = "subscribe";
        let inner = &self.inner;
        let watcher = async {
            let mut watchers = inner.watchers.lock().await;
            if inner.readers.is_closed() {
                return Err(sqlx::Error::PoolClosed);
            }
            watchers.current(inner).await
        };
        let until = deadline(inner.options.operation_timeout);
        let mapped = async { watcher.await.map_err(in_operation(OPERATION)) };
        let watcher = in_time(OPERATION, until, mapped).await?;
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
        let _ = timeout_at(deadline(inner.options.operation_timeout), all).await;
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
    async fn receive_batch(&self, messages: &[Message], until: Instant) -> Result<Vec<Receipt>> {
        const OPERATION: &str = "receive";
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let work = &self.inner.work;
        let prepared = work.prepare_receive(messages);
        let (receipts, now) = match prepared.statements() {
            0 => return Ok(prepared.receipts),
            1 => {
                let mut connection = self.writer(OPERATION, until).await?;
                let now = self.now();
                let receipts = work.receive(&mut connection, prepared, now).await?;
                (receipts, now)
            }
            _ => {
                let mut transaction = self.locked(OPERATION, until).await?;
                let now = self.now();
                let receipts = work.receive(&mut transaction, prepared, now).await?;
                transaction
                    .commit()
                    .await
                    .map_err(in_operation(OPERATION))?;
                (receipts, now)
            }
        };
        let is_due = |(receipt, message): (&Receipt, &Message)| {
            *receipt == Receipt::Accepted && message.due().resolve(now) <= now
        };
        if receipts.iter().zip(messages).any(is_due) {
            self.inner.signal.raise();
        }
        Ok(receipts)
    }

    /// A worker that found nothing looks first the next time, without the write lock: those who wait
    /// for work keep no others from writing. If there is something after all, the transaction goes
    /// on with what it has read, unless another process has written meanwhile.
    async fn claim_batch(&self, request: &ClaimRequest, until: Instant) -> Result<Claims> {
        let idle = &self.inner.idle;
        if idle.load(Ordering::Relaxed) {
            match self.claim_within(BEGIN_READING, request, until).await {
                Err(error) if is_too_late(&error) => idle.store(false, Ordering::Relaxed),
                outcome => return outcome,
            }
        }
        self.claim_within(BEGIN, request, until).await
    }

    async fn claim_within(
        &self,
        begin: &'static str,
        request: &ClaimRequest,
        until: Instant,
    ) -> Result<Claims> {
        const OPERATION: &str = "claim";
        let inner = &self.inner;
        let mut transaction = self.begin_with(OPERATION, begin, until).await?;
        let now = self.now();
        let claims = inner.work.claim(&mut transaction, request, now).await?;
        transaction
            .commit()
            .await
            .map_err(in_operation(OPERATION))?;
        let idle = claims.leased.is_empty() && claims.corrupt.is_empty();
        inner.idle.store(idle, Ordering::Relaxed);
        if !claims.corrupt.is_empty() {
            // What was set aside may have been first of its ordering key.
            inner.signal.raise();
        }
        Ok(claims)
    }

    async fn settle_batch(
        &self,
        settlements: &[Settlement],
        until: Instant,
    ) -> Result<Vec<Settled>> {
        const OPERATION: &str = "settle";
        let work = &self.inner.work;
        let answers = if work.settles_at_once(settlements) {
            let mut connection = self.writer(OPERATION, until).await?;
            work.settle(&mut connection, settlements, Repetition::Done, self.now())
                .await?
        } else {
            let mut transaction = self.locked(OPERATION, until).await?;
            let answers = work
                .settle(&mut transaction, settlements, Repetition::Done, self.now())
                .await?;
            transaction
                .commit()
                .await
                .map_err(in_operation(OPERATION))?;
            answers
        };
        if answers.wake {
            self.inner.signal.raise();
        }
        Ok(answers.settled)
    }

    async fn extend_batch(
        &self,
        leases: &[Lease],
        length: Duration,
        until: Instant,
    ) -> Result<Vec<Extended>> {
        let mut connection = self.writer("extend", until).await?;
        let work = &self.inner.work;
        work.extend(&mut connection, leases, length, self.now())
            .await
    }

    async fn begin_one(
        &self,
        message: &Message,
        terms: &LeaseTerms,
        until: Instant,
    ) -> Result<Begun> {
        let mut scripted = Scripted {
            connection: self.writer("begin", until).await?,
            is_over: false,
        };
        let work = &self.inner.work;
        let outcome = work
            .begin(&mut scripted.connection, message, terms, self.now())
            .await;
        if outcome.as_ref().is_err_and(is_busy) {
            // As a rule there is nothing to roll back, since it was refused at its beginning.
            let _ = sqlx::raw_sql("ROLLBACK")
                .execute(&mut *scripted.connection)
                .await;
            scripted.is_over = true;
        }
        let (begun, accepted) = outcome?;
        scripted.is_over = true;
        if accepted && !matches!(begun, Begun::Run(_)) {
            self.inner.signal.raise();
        }
        Ok(begun)
    }
}
