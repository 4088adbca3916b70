//! How one operation gets its connection, its time limit and its transaction, and gives them back.
//!
//! SQLite's own waiting (`busy_timeout`) is off, since it blocks the connection's thread, cannot be
//! ended, and would let an operation go on with a time that it read before the wait. Instead an
//! operation that finds a lock taken is begun again a little later.
//!
//! Each operation is one statement, or one transaction, which small ones that are called at the same
//! time share. A dropped future leaves neither behind: sqlx
//! runs a statement on the connection's own thread to its end or not at all; a BEGIN whose answer
//! is not taken is rolled back by that thread; a dropped `Transaction` queues a ROLLBACK after
//! what is still running; and a COMMIT whose answer is not taken stands, with the ROLLBACK after
//! it ignored. The connection goes back to its pool only after all that, or is closed.
//!
//! A change that returns rows is always read to its end: sqlx answers `fetch_optional` with the first
//! row and drops SQLite's verdict on the commit that follows.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_api::{Effect, Error, ErrorKind, Result};
use inbox_sqlx::{AtHand, Held};
use sqlx::{
    Connection as _, SqlSafeStr as _, SqlStr, Sqlite, SqliteConnection, SqlitePool, Transaction,
    pool::PoolConnection,
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    error::{failed, is_busy},
    file_identity::FileIdentity,
    options::SqliteOptions,
    shared_transaction::SharedTransactions,
    statements::{BEGIN, Statements},
    version,
    wakeups::{Signal, Watchers},
    writer_turns::WriterTurns,
};

/// In milliseconds. Short at first, as SQLite's own.
const PAUSES: [u64; 2] = [1, 2];
/// What follows them: shorter than the writer of another process rests behind a transaction of 50
/// milliseconds, so that none of those rests is missed.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// What is left is too short for another attempt.
pub(crate) const TOO_LITTLE: Duration = Duration::from_millis(2);
/// How many steps of SQLite's virtual machine pass between two looks at the clock.
const STEPS: i32 = 10_000;

pub(crate) fn deadline(limit: Duration) -> Instant {
    Instant::now() + limit
}

/// Pauses between attempts, longer and longer.
pub(crate) struct Pauses {
    until: Instant,
    next: usize,
}

impl Pauses {
    pub(crate) fn new(until: Instant) -> Self {
        Self { until, next: 0 }
    }

    /// Waits before another attempt. `false` when there is no time for one.
    pub(crate) async fn pause(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left < TOO_LITTLE {
            return false;
        }
        let pause = PAUSES.get(self.next).copied();
        self.next += 1;
        let pause = pause.map_or(LONGEST_PAUSE, Duration::from_millis);
        sleep(pause.min(left / 2)).await;
        true
    }
}

/// Runs `work`, for as long as an operation may take.
pub(crate) async fn in_time<T>(until: Instant, work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout_at(until, work).await.unwrap_or_else(|_| {
        let reason = "it took longer than the operation's time-out";
        Err(Error::new(ErrorKind::Unavailable, reason).with_effect(Effect::Unknown))
    })
}

/// What the clones of a store share: the connections to the file, and what every operation needs
/// with them.
pub(crate) struct Database {
    pub(crate) options: SqliteOptions,
    pub(crate) statements: Statements,
    pub(crate) signal: Signal,
    /// One connection: SQLite has one writer at a time, and waiting here is fair and costs
    /// nothing, where waiting for SQLite's own lock is polling.
    pub(crate) writer: AtHand<Sqlite>,
    pub(crate) turns: Arc<WriterTurns>,
    pub(crate) shared: SharedTransactions,
    pub(crate) identity: Arc<FileIdentity>,
    pub(crate) readers: SqlitePool,
    pub(crate) watchers: Mutex<Watchers>,
    /// Whether an inbox of the right version was found there.
    pub(crate) checked: AtomicBool,
    /// Whether the last claim found nothing.
    pub(crate) idle: AtomicBool,
}

impl Database {
    pub(crate) fn now(&self) -> i64 {
        self.options.clock.now_micros()
    }

    /// When an operation that begins now has to be over.
    pub(crate) fn deadline(&self) -> Instant {
        deadline(self.options.operation_timeout)
    }

    async fn acquire<C>(
        &self,
        acquiring: impl Future<Output = sqlx::Result<C>>,
        until: Instant,
    ) -> Result<C> {
        let connection = timeout_at(until, acquiring)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
            .map_err(failed)?;
        self.identity.check()?;
        Ok(connection)
    }

    /// The write connection, whatever stands in the file.
    pub(crate) async fn any_writer(&self, until: Instant) -> Result<Held<Sqlite>> {
        self.acquire(self.writer.acquire(), until).await
    }

    /// A read connection, whatever stands in the file.
    pub(crate) async fn any_reader(&self, until: Instant) -> Result<PoolConnection<Sqlite>> {
        self.acquire(self.readers.acquire(), until).await
    }

    /// The write connection to a file that has the inbox.
    pub(crate) async fn writer(&self, until: Instant) -> Result<Held<Sqlite>> {
        let mut connection = self.any_writer(until).await?;
        self.check(&mut connection).await?;
        Ok(connection)
    }

    /// A read connection to a file that has the inbox.
    pub(crate) async fn reader(&self, until: Instant) -> Result<PoolConnection<Sqlite>> {
        let mut connection = self.any_reader(until).await?;
        self.check(&mut connection).await?;
        Ok(connection)
    }

    /// Leaves the write connection for the next operation, unless the pool has to look at it.
    pub(crate) fn keep(&self, writer: Held<Sqlite>) {
        if self.turns.is_opened() || writer.is_in_transaction() {
            self.writer.give_back(writer.into_inner());
        } else {
            self.writer.release(writer);
        }
    }

    /// A transaction on the write connection, which has the write lock if `statement` is [`BEGIN`].
    pub(crate) async fn begin_with(
        &self,
        statement: SqlStr,
        until: Instant,
    ) -> Result<Transaction<'static, Sqlite>> {
        // Only the connection is worth a wait: to begin answers at once.
        let beginning = async {
            let connection = self.writer.acquire().await?.into_inner();
            Transaction::begin(connection, Some(statement)).await
        };
        let mut transaction = self.acquire(beginning, until).await?;
        self.check(&mut transaction).await?;
        Ok(transaction)
    }

    /// A transaction that has the write lock.
    pub(crate) async fn begin(&self, until: Instant) -> Result<Transaction<'static, Sqlite>> {
        self.begin_with(BEGIN.into_sql_str(), until).await
    }

    /// Fails unless the inbox is there; asks the file only until it was.
    pub(crate) async fn check(&self, connection: &mut SqliteConnection) -> Result<()> {
        if self.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        version::check(connection, &self.options.inbox).await?;
        self.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// SQLite has no code for a missing table: when a statement fails for a reason without a
    /// code of its own, looks whether the inbox is still there.
    async fn explain<T>(&self, outcome: Result<T>, until: Instant) -> Result<T> {
        if let Err(error) = &outcome
            && error.kind() == ErrorKind::Other
            && error.effect() == Effect::None
        {
            self.checked.store(false, Ordering::Relaxed);
            self.reader(until).await?;
        }
        outcome
    }

    /// Runs an operation. Repeats `attempt` while others have the lock that it needs, and gives up
    /// when the operation's time is over. An attempt that finds a lock taken has done nothing; each
    /// is told when the time is over, and reads the store's clock after its wait.
    pub(crate) async fn run<T, F>(&self, attempt: impl Fn(Instant) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let until = self.deadline();
        in_time(until, self.attempts(until, attempt)).await
    }

    /// The same, for attempts that end in time by themselves. Until then they wait for locks.
    pub(crate) async fn attempts<T, F>(
        &self,
        until: Instant,
        attempt: impl Fn(Instant) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let outcome = repeat(until, &self.turns, attempt).await;
        self.explain(outcome, until).await
    }

    /// As [`run`](Self::run), for what sets up the inbox or looks whether it is there.
    pub(crate) async fn run_without_inbox<T, F>(
        &self,
        attempt: impl Fn(Instant) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let until = self.deadline();
        in_time(until, repeat(until, &self.turns, attempt)).await
    }
}

/// Those that have found a lock taken look for it again in turns.
async fn repeat<T, F>(
    until: Instant,
    turns: &WriterTurns,
    attempt: impl Fn(Instant) -> F + Send,
) -> Result<T>
where
    F: Future<Output = Result<T>> + Send,
{
    let mut pauses = Pauses::new(until);
    let mut turn = None;
    loop {
        match attempt(until).await {
            Err(error) if is_busy(&error) => {
                if turn.is_none() {
                    turn = timeout_at(until - TOO_LITTLE, turns.line()).await.ok();
                } else if !pauses.pause().await {
                    return Err(error);
                }
                if turn.is_none() {
                    return Err(error);
                }
            }
            outcome => return outcome,
        }
    }
}

/// A connection for a statement that may have to look at every message: SQLite ends it when the
/// operation's time is over. Closed unless it is given back, since what ends the statement would
/// end later ones, too.
pub(crate) struct Limited {
    pub(crate) connection: PoolConnection<Sqlite>,
    is_over: Arc<AtomicBool>,
}

impl Limited {
    pub(crate) async fn new(connection: PoolConnection<Sqlite>, until: Instant) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut limited = Self {
            connection,
            is_over: Arc::clone(&is_over),
        };
        limited
            .connection
            .lock_handle()
            .await
            .map_err(failed)?
            .set_progress_handler(STEPS, move || {
                is_over.load(Ordering::Relaxed) || Instant::now() < until
            });
        Ok(limited)
    }

    /// What looks at the time stays on the connection, which costs less than to remove it.
    pub(crate) fn give_back(self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        if !self.is_over.load(Ordering::Relaxed) {
            self.connection.close_on_drop();
        }
    }
}

#[cfg(test)]
mod tests {
    use inbox_api::Schema as _;

    use super::*;
    use crate::SqliteStore;

    #[tokio::test]
    async fn a_search_without_end_is_ended() {
        const ENDLESS: &str = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n)
            SELECT count(*) FROM n";
        let folder = tempfile::TempDir::new().unwrap();
        let options = SqliteOptions::new(folder.path().join("inbox.db"));
        let store = SqliteStore::connect(options).await.unwrap();
        store.create().await.unwrap();
        let until = deadline(Duration::from_millis(100));
        let reader = store.database.reader(until).await.unwrap();
        let mut limited = Limited::new(reader, until).await.unwrap();
        let error = sqlx::query_scalar::<_, i64>(ENDLESS)
            .fetch_one(&mut *limited.connection)
            .await
            .map_err(failed)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        drop(limited);
        // The next one is on another connection, or on one without a limit.
        for _ in 0..10 {
            let until = deadline(Duration::from_secs(60));
            let reader = store.database.reader(until).await.unwrap();
            let mut limited = Limited::new(reader, until).await.unwrap();
            let one: i64 = sqlx::query_scalar("SELECT 1")
                .fetch_one(&mut *limited.connection)
                .await
                .unwrap();
            assert_eq!(one, 1);
            limited.give_back();
        }
    }

    #[tokio::test]
    async fn pauses_end_at_the_deadline() {
        let mut pauses = Pauses::new(deadline(Duration::ZERO));
        assert!(!pauses.pause().await);
        let mut pauses = Pauses::new(deadline(Duration::from_millis(300)));
        let mut count = 0;
        while pauses.pause().await {
            count += 1;
        }
        assert!(count >= 2, "{count}");
    }
}
