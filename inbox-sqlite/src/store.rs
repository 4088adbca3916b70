//! The store: connecting, closing, and the working side.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{
    Begun, Capabilities, ClaimRequest, Claims, Error, ErrorKind, Extended, HandlerName, Lease,
    LeaseTerms, Message, OperatorName, Receipt, ReceiveAtomicity, Result, Settled, Settlement,
    Store, Subscription, Wakeups,
};
use inbox_sqlx::{AtHand, Limits};
use sqlx::{
    Connection as _, Sqlite, SqliteConnection, SqlitePool, pool::PoolConnection,
    sqlite::SqlitePoolOptions,
};
use tokio::{sync::Mutex, time::Instant, time::timeout_at};

use crate::{
    begin, claim,
    connection::{Database, Pauses, deadline, in_time},
    error::{BUSY, CANNOT_OPEN, NOT_A_DATABASE, READ_ONLY, failed, primary_code},
    extend,
    file_identity::FileIdentity,
    options::SqliteOptions,
    receive, settle,
    shared_transaction::SharedTransactions,
    statements::Statements,
    wakeups::{Look, Signal, Subscribed},
    writer_turns::WriterTurns,
};

const READERS: u32 = 4;

/// One page of the smallest size, in bytes.
const SMALLEST_DATABASE: u64 = 512;

/// An inbox in an SQLite file. Clones share its connections.
///
/// A value belongs to the tokio runtime in which it was connected.
#[derive(Clone)]
pub struct SqliteStore {
    pub(crate) database: Arc<Database>,
    /// Who signs interventions.
    pub(crate) operator: Option<OperatorName>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore")
            .field("options", &self.database.options)
            .finish_non_exhaustive()
    }
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
        connect(options)
            .await
            .map_err(|error| error.in_operation("connect"))
    }
}

async fn connect(options: SqliteOptions) -> Result<SqliteStore> {
    options.check()?;
    let path = options.absolute_path();
    check_file(&path, options.create_if_missing)?;
    let turns = Arc::<WriterTurns>::default();
    let after_release = turns.clone();
    let identity = Arc::new(FileIdentity::new(path.clone()));
    let writer = pool(&options, 1, &identity)
        // Closes rather than trusts a connection that comes back within a transaction, as one
        // that SQLite has rolled back by itself (on a full disk), after which sqlx would never
        // begin another. A dropped one may not have been rolled back yet.
        .after_release(move |connection, _| {
            let rest = after_release.rest();
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
    in_time(until, look).await?;
    // A file does not hang up, but the writer may have to rest first.
    let limits = Limits {
        patience: options.operation_timeout,
        longest: options.operation_timeout,
    };
    let writer = AtHand::own(writer, limits);
    Ok(SqliteStore {
        database: Arc::new(Database {
            statements: Statements::new(&options.inbox),
            options,
            signal: Signal::new(),
            writer,
            turns,
            shared: SharedTransactions::default(),
            identity,
            readers,
            watchers: Mutex::default(),
            checked: AtomicBool::new(false),
            idle: AtomicBool::new(true),
        }),
        operator: None,
    })
}

fn pool(options: &SqliteOptions, size: u32, identity: &Arc<FileIdentity>) -> SqlitePoolOptions {
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

fn refusal(kind: ErrorKind, path: &Path, reason: &str) -> Error {
    Error::new(kind, format!("{}: {reason}", path.display()))
}

/// What the file system can tell. Never opens the file: closing it again would release the locks
/// that this process's SQLite connections hold on it.
fn check_file(path: &Path, create: bool) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            Err(refusal(ErrorKind::Invalid, path, "is a folder, not a file"))
        }
        // SQLite takes such a file for an empty database and would overwrite it.
        Ok(found) if (1..SMALLEST_DATABASE).contains(&found.len()) => Err(refusal(
            ErrorKind::Invalid,
            path,
            "is not an SQLite database",
        )),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if path.parent().is_some_and(|folder| !folder.is_dir()) {
                Err(refusal(
                    ErrorKind::Unavailable,
                    path,
                    "its folder does not exist",
                ))
            } else if create {
                Ok(())
            } else {
                let reason = "does not exist, and the options say not to create it";
                Err(refusal(ErrorKind::SchemaMissing, path, reason))
            }
        }
        Err(error) => {
            let kind = match error.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Unavailable,
            };
            Err(refusal(kind, path, "cannot be looked at").with_source(error))
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
                return Err(refusal(ErrorKind::Invalid, path, reason).with_source(error));
            }
            Some(READ_ONLY) => {
                let reason = "is read-only, and has to be switched to WAL mode";
                return Err(refusal(ErrorKind::Denied, path, reason).with_source(error));
            }
            Some(CANNOT_OPEN) => return Err(cannot_open(path, error)),
            _ => {
                let error = failed(error);
                let named = format!("{}: {}", path.display(), error.context());
                return Err(Error::new(error.kind(), named).with_source(error));
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
            let (kind, reason) = match path.is_file() {
                // Whose permissions the system does not tell without opening it.
                true => (
                    ErrorKind::Denied,
                    "cannot be opened; may this user read and write it, and those next to it (-wal, -shm)?",
                ),
                false => (ErrorKind::Unavailable, "cannot be opened"),
            };
            refusal(kind, path, reason).with_source(error)
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
            refusal(kind, path, &reason).with_source(error)
        }
    }
}

/// What the file's maker may have chosen, and what cannot be right.
async fn check_settings(path: &Path, connection: &mut SqliteConnection) -> Result<()> {
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    if mode != "wal" {
        let reason = "cannot be switched to WAL mode; is it on a network file system?";
        return Err(refusal(ErrorKind::Unsupported, path, reason));
    }
    let encoding: String = sqlx::query_scalar("PRAGMA encoding")
        .fetch_one(connection)
        .await
        .map_err(failed)?;
    if encoding != "UTF-8" {
        let reason = "has another encoding than UTF-8 (PRAGMA encoding): texts would not come back as \
            they were, and different keys would be taken for one";
        return Err(refusal(ErrorKind::Unsupported, path, reason));
    }
    Ok(())
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        let options = &self.database.options;
        let mut capabilities =
            Capabilities::minimal(options.synchronous.durability(), options.payload_limit);
        capabilities.multi_process = true;
        capabilities.transactions = true;
        capabilities.exclusive_transactions = true;
        capabilities.ordering = true;
        capabilities.runs = true;
        capabilities.wakeups = Wakeups::EveryProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        receive::receive(&self.database, messages)
            .await
            .map_err(|error| error.in_operation("receive"))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        claim::claim(&self.database, request)
            .await
            .map_err(|error| error.in_operation("claim"))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        settle::settle(&self.database, settlements)
            .await
            .map_err(|error| error.in_operation("settle"))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        extend::extend(&self.database, leases, length)
            .await
            .map_err(|error| error.in_operation("extend"))
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        begin::begin(&self.database, message, terms)
            .await
            .map_err(|error| error.in_operation("begin"))
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        subscribe(&self.database)
            .await
            .map_err(|error| error.in_operation("subscribe"))
    }

    async fn close(&self) {
        let database = &self.database;
        // Both refuse new work from here on, whether or not this future is polled to its end.
        let closing = (database.writer.close(), database.readers.close());
        // A transaction that the caller still holds must not keep this from returning.
        let all = async {
            database.watchers.lock().await.stop().await;
            closing.0.await;
            closing.1.await;
        };
        let _ = timeout_at(database.deadline(), all).await;
    }
}

async fn subscribe(database: &Database) -> Result<Box<dyn Subscription>> {
    let look = || Look {
        options: database.options.watcher(),
        due: database.statements.subscribe_due.clone(),
        clock: database.options.clock.clone(),
        identity: Arc::clone(&database.identity),
    };
    let watcher = async {
        let mut watchers = database.watchers.lock().await;
        if database.readers.is_closed() {
            return Err(failed(sqlx::Error::PoolClosed));
        }
        watchers
            .current(look, &database.signal)
            .await
            .map_err(failed)
    };
    let watcher = in_time(database.deadline(), watcher).await?;
    Ok(Box::new(Subscribed::new(&database.signal, watcher)))
}
