//! How every operation runs: as one transaction, on its own thread.
//!
//! Three rules of the contract are met here, once for all operations:
//! - **Atomic, and durable before `Ok`.** An operation is one write transaction, committed with
//!   redb's `Durability::Immediate` (its default): the commit returns when the disk has it.
//! - **Cancellation.** redb blocks, so the transaction runs under `spawn_blocking`. A blocking task
//!   goes on when the future that waits for it is dropped: the operation then happens as a whole,
//!   or, if it had not got its turn yet, not at all.
//! - **Nothing half-done.** redb undoes a transaction that is dropped without a commit, so every
//!   `?` in an operation leaves the inbox as it was.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicBool, Ordering},
};

use inbox_api::{Effect, Error, ErrorKind, Result};
use redb::{Database, ReadTransaction, ReadableDatabase, WriteTransaction};
use tokio::{sync::Mutex, task::spawn_blocking};

use crate::{
    error::{Failure, before_commit, is_disk_failure, lost_task},
    options::RedbOptions,
    transaction::Transaction,
    version,
    wakeups::Wakeups,
};

/// What the clones of a store share.
pub(crate) struct Inner {
    pub(crate) options: RedbOptions,
    pub(crate) wakeups: Wakeups,
    /// Operations hold it for reading as long as they run, so closing waits for them.
    file: RwLock<File>,
    /// Whether the file is known to hold a complete inbox. It stays true until a set-up or a removal
    /// while the file is open: redb locks it, so nobody else can change the tables.
    is_checked: AtomicBool,
    /// redb lets one writer in at a time anyway. Waiting here, without a thread, keeps a thousand
    /// waiting writers from taking all of the runtime's blocking threads.
    turn: Arc<Mutex<()>>,
}

const CLOSED: &str = "the store is closed";

enum File {
    Open(Database),
    /// The disk failed. The next operation opens the file again.
    Failed,
    Closed,
}

impl Inner {
    /// Opens the file, and makes an empty one if there is none. Makes no tables.
    pub(crate) fn open(options: RedbOptions) -> Result<Self> {
        let database = open_file(&options)?;
        Ok(Self {
            options,
            wakeups: Wakeups::new(),
            file: RwLock::new(File::Open(database)),
            is_checked: AtomicBool::new(false),
            turn: Arc::default(),
        })
    }

    /// Closes the database when the operations that are running have ended. Twice is harmless.
    pub(crate) async fn close(self: Arc<Self>) {
        let closing = spawn_blocking(move || {
            *self.file.write().unwrap_or_else(PoisonError::into_inner) = File::Closed;
            self.wakeups.wake();
        });
        // Fails only when the runtime is shutting down, and the process's end closes the file too.
        let _ = closing.await;
    }

    /// For calls that may be answered without the file. Does not wait: it runs outside of the
    /// blocking threads, and a file that is just being opened or closed passes for open.
    pub(crate) fn check_open(&self) -> Result<()> {
        let file = self.file.try_read();
        if file.is_ok_and(|file| matches!(*file, File::Closed)) {
            return Err(unavailable(CLOSED));
        }
        Ok(())
    }

    /// Reads one consistent snapshot. Readers wait for nobody.
    pub(crate) async fn read<T: Send + 'static>(
        self: Arc<Self>,
        body: impl FnOnce(&ReadTransaction, i64) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        let read = move |inner: &Self, database: &Database| {
            let attempt = || {
                inner.check_schema(database)?;
                body(&database.begin_read()?, inner.options.clock.now_micros())
            };
            attempt().map_err(before_commit)
        };
        self.on_a_thread(read).await
    }

    /// Does `body` in one write transaction, and then wakes those who wait for what became
    /// claimable by it. Commits only if something was changed: neither a claim that finds nothing
    /// nor a batch of duplicates waits for the disk.
    pub(crate) async fn write<T: Send + 'static>(
        self: Arc<Self>,
        body: impl FnOnce(&mut Transaction<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let write = move |inner: &Self, database: &Database| {
            // Belongs to the task, not to the future: a dropped future must not let the next in.
            let _turn = turn;
            inner.check_schema(database).map_err(before_commit)?;
            let mut has_news = false;
            let answer = transact(database, |transaction| {
                let mut work = Transaction::open(transaction, inner.options.clock.now_micros())?;
                let answer = body(&mut work)?;
                has_news = work.has_news;
                Ok((answer, work.is_changed))
            })?;
            if has_news {
                inner.wakeups.wake();
            }
            Ok(answer)
        };
        self.on_a_thread(write).await
    }

    /// Does `body` in one write transaction, whatever the file holds: for setting up. `body` says
    /// whether to commit.
    pub(crate) async fn set_up<T: Send + 'static>(
        self: Arc<Self>,
        body: impl FnOnce(&WriteTransaction) -> Result<(T, bool), Failure> + Send + 'static,
    ) -> Result<T> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let set_up = move |inner: &Self, database: &Database| {
            let _turn = turn;
            let answer = transact(database, body);
            inner.is_checked.store(false, Ordering::Release);
            answer
        };
        self.on_a_thread(set_up).await
    }

    async fn on_a_thread<T: Send + 'static>(
        self: Arc<Self>,
        body: impl FnOnce(&Self, &Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let task = move || self.with_database(|database| body(&self, database));
        spawn_blocking(task)
            .await
            .unwrap_or_else(|error| Err(lost_task(error)))
    }

    /// Lends the database to `body`, having opened it again if the disk has failed before: so that
    /// a disk that was full for an hour does not take a restart of the program to be used again.
    pub(crate) fn with_database<T>(&self, body: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        self.reopen_after_failure()?;
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        let answer = match &*file {
            File::Open(database) => body(database),
            File::Failed => Err(unavailable("the disk failed just now")),
            File::Closed => Err(unavailable(CLOSED)),
        };
        drop(file);
        if answer.as_ref().is_err_and(is_disk_failure) {
            let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
            if matches!(*file, File::Open(_)) {
                *file = File::Failed;
            }
        }
        answer
    }

    fn reopen_after_failure(&self) -> Result<()> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*file, File::Failed) {
            return Ok(());
        }
        drop(file);
        let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*file, File::Failed) {
            *file = File::Open(open_file(&self.options)?);
            // It was unlocked for a while.
            self.is_checked.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Fails unless the file holds a complete inbox of this build's version. Asks once.
    fn check_schema(&self, database: &Database) -> Result<(), Failure> {
        if !self.is_checked.load(Ordering::Acquire) {
            version::check(&database.begin_write()?)?;
            self.is_checked.store(true, Ordering::Release);
        }
        Ok(())
    }
}

fn open_file(options: &RedbOptions) -> Result<Database> {
    (options.open)(&options.path).map_err(|error| before_commit(error.into()))
}

fn unavailable(why: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, why)
}

/// Does `body` in one write transaction and commits if it says so.
fn transact<T>(
    database: &Database,
    body: impl FnOnce(&WriteTransaction) -> Result<(T, bool), Failure>,
) -> Result<T> {
    let attempt = || {
        let transaction = database.begin_write()?;
        let (answer, is_changed) = body(&transaction)?;
        Ok((transaction, answer, is_changed))
    };
    let (transaction, answer, is_changed) = attempt().map_err(before_commit)?;
    if is_changed {
        // A commit that fails may have reached the disk all the same.
        let lost = |error| Failure::from(error).into_error(Effect::Unknown);
        transaction.commit().map_err(lost)?;
    }
    Ok(answer)
}
