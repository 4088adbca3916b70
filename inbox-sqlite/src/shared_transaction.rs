//! Small operations that are called at the same time share a transaction.
//!
//! A commit, and writing the pages that every change touches, take several times as long as what one
//! message needs. So a begin, and a receive or a settlement of a few messages, stand in a queue; a task
//! takes what stands there, runs it in one trip to SQLite's thread, answers each caller after the
//! commit, and goes on until the queue is empty. A caller alone gets a transaction of its own, and
//! waits for nothing.
//!
//! - Each caller has its own time limit. One that is dropped or runs out of time before its transaction
//!   begins has changed nothing; from then on the outcome is unknown to it.
//! - No caller fails for another's sake: where a transaction has changed nothing, for a reason that may
//!   be that of one operation, its halves are tried by themselves.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use inbox_api::{
    Begun, Effect, Error, ErrorKind, Key, LeaseTerms, Message, Receipt, Result, Settled, Settlement,
};
use sqlx::{Sqlite, pool::PoolConnection};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use crate::{
    connection::{Database, TOO_LITTLE, in_time},
    error::{failed, is_busy},
    receive, settle,
    shared_script::Script,
};

/// How many messages an operation has at most that shares a transaction.
const SMALL_ROWS: usize = 16;
/// And how many bytes.
const SMALL_BYTES: usize = 64 * 1024;
/// How many messages share a transaction at most, which keeps all other writers waiting.
const SHARED_ROWS: usize = 256;
/// And how many bytes, unless a single message has more: what fits into one statement.
const SHARED_BYTES: usize = 1024 * 1024;

/// Whether an operation of that size shares a transaction. A large one has a commit's worth of work
/// itself.
pub(crate) fn is_small(rows: usize, bytes: usize) -> bool {
    rows <= SMALL_ROWS && bytes <= SMALL_BYTES
}

/// What one caller asks for, and where it waits for the answer.
pub(crate) struct Asked<W, A> {
    pub(crate) work: W,
    until: Instant,
    /// Whether its transaction has begun.
    is_begun: Arc<AtomicBool>,
    reply: oneshot::Sender<Result<A>>,
}

impl<W, A> Asked<W, A> {
    pub(crate) fn answer(self, answer: Result<A>) {
        // The caller may have gone.
        let _ = self.reply.send(answer);
    }

    /// Says that the transaction begins. `false` when nobody waits for it any more.
    fn begins(&self) -> bool {
        // In this order: a caller that gives up closes its end first, and looks then.
        self.is_begun.store(true, Ordering::SeqCst);
        !self.reply.is_closed() && Instant::now() < self.until
    }
}

pub(crate) enum Job {
    Receive(Asked<Vec<Message>, Vec<Receipt>>),
    Begin(Box<Asked<(Message, LeaseTerms), Begun>>),
    Settle(Asked<Vec<Settlement>, Vec<Settled>>),
}

impl Job {
    /// When it has to be over.
    fn until(&self) -> Instant {
        match self {
            Self::Receive(asked) => asked.until,
            Self::Begin(asked) => asked.until,
            Self::Settle(asked) => asked.until,
        }
    }

    fn begins(&self) -> bool {
        match self {
            Self::Receive(asked) => asked.begins(),
            Self::Begin(asked) => asked.begins(),
            Self::Settle(asked) => asked.begins(),
        }
    }

    /// Says that the transaction has not begun after all.
    fn waits_again(&self) {
        let is_begun = match self {
            Self::Receive(asked) => &asked.is_begun,
            Self::Begin(asked) => &asked.is_begun,
            Self::Settle(asked) => &asked.is_begun,
        };
        is_begun.store(false, Ordering::SeqCst);
    }

    fn messages(&self) -> &[Message] {
        match self {
            Self::Receive(asked) => &asked.work,
            Self::Begin(asked) => std::slice::from_ref(&asked.work.0),
            Self::Settle(_) => &[],
        }
    }

    /// Messages and bytes.
    fn size(&self) -> (usize, usize) {
        match self {
            Self::Settle(asked) => (asked.work.len(), settle::bytes(&asked.work)),
            _ => (self.messages().len(), receive::bytes(self.messages())),
        }
    }

    fn fail(self, error: Error) {
        match self {
            Self::Receive(asked) => asked.answer(Err(error)),
            Self::Begin(asked) => asked.answer(Err(error)),
            Self::Settle(asked) => asked.answer(Err(error)),
        }
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// Whether there is a task that takes from it.
    is_served: bool,
}

/// The operations that wait for a transaction.
#[derive(Default)]
pub(crate) struct SharedTransactions {
    queue: Mutex<Queue>,
}

impl SharedTransactions {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) async fn receive(
    database: &Arc<Database>,
    messages: Vec<Message>,
) -> Result<Vec<Receipt>> {
    ask(database, messages, Job::Receive).await
}

pub(crate) async fn begin(
    database: &Arc<Database>,
    message: Message,
    terms: LeaseTerms,
) -> Result<Begun> {
    let job = |asked| Job::Begin(Box::new(asked));
    ask(database, (message, terms), job).await
}

pub(crate) async fn settle(
    database: &Arc<Database>,
    settlements: Vec<Settlement>,
) -> Result<Vec<Settled>> {
    ask(database, settlements, Job::Settle).await
}

async fn ask<W, A>(
    database: &Arc<Database>,
    work: W,
    job: impl FnOnce(Asked<W, A>) -> Job,
) -> Result<A> {
    let (reply, mut answer) = oneshot::channel();
    let (until, is_begun) = (database.deadline(), Arc::<AtomicBool>::default());
    let asked = Asked {
        work,
        until,
        is_begun: Arc::clone(&is_begun),
        reply,
    };
    let is_served = {
        let mut queue = database.shared.lock();
        queue.waiting.push_back(job(asked));
        std::mem::replace(&mut queue.is_served, true)
    };
    if !is_served {
        let serving = Serving {
            database: Arc::clone(database),
            is_over: false,
        };
        tokio::spawn(serving.run());
    }
    if let Ok(Ok(answer)) = timeout_at(until, &mut answer).await {
        return answer;
    }
    answer.close();
    // It may just have come.
    if let Ok(answer) = answer.try_recv() {
        return answer;
    }
    if !is_begun.load(Ordering::SeqCst) {
        return Err(failed(sqlx::Error::PoolTimedOut));
    }
    let reason = "it took longer than the operation's time-out, or the runtime has ended";
    Err(Error::new(ErrorKind::Unavailable, reason).with_effect(Effect::Unknown))
}

/// The queue in the hands of its task.
struct Serving {
    database: Arc<Database>,
    is_over: bool,
}

impl Serving {
    async fn run(mut self) {
        while let Some(jobs) = self.next() {
            let mut parts = vec![jobs];
            while let Some(jobs) = parts.pop() {
                parts.extend(run(&self.database, jobs).await);
            }
        }
    }

    /// What shares the next transaction; `None` when nothing waits, and the task has to end.
    fn next(&mut self) -> Option<Vec<Job>> {
        let mut queue = self.database.shared.lock();
        let (mut jobs, mut keys) = (Vec::new(), HashSet::new());
        let (mut rows, mut bytes) = (0, 0);
        while let Some(job) = queue.waiting.front() {
            let (more_rows, more_bytes) = job.size();
            rows += more_rows;
            bytes += more_bytes;
            let is_full = rows > SHARED_ROWS || bytes > SHARED_BYTES;
            // Which of two operations stores a message is a matter of their order.
            let shares_a_key = job.messages().iter().any(|m| keys.contains(m.key()));
            if !jobs.is_empty() && (is_full || shares_a_key) {
                break;
            }
            keys.extend(job.messages().iter().map(|m| Key::clone(m.key())));
            jobs.extend(queue.waiting.pop_front());
        }
        if jobs.is_empty() {
            queue.is_served = false;
            self.is_over = true;
            return None;
        }
        Some(jobs)
    }
}

impl Drop for Serving {
    /// When the runtime ends. What waits is answered, and another task may serve what follows.
    fn drop(&mut self) {
        if !self.is_over {
            let mut queue = self.database.shared.lock();
            queue.is_served = false;
            queue.waiting.clear();
        }
    }
}

/// Runs operations in one transaction and answers them. Returns those that are to be run again, in parts.
async fn run(database: &Database, jobs: Vec<Job>) -> Vec<Vec<Job>> {
    // The first to run out of time says how long all of them wait for the file.
    let Some(until) = jobs.iter().map(Job::until).min() else {
        return Vec::new();
    };
    let jobs = Mutex::new(jobs);
    let attempts = database.attempts(until, |until| attempt(database, &jobs, until));
    let Err(error) = attempts.await else {
        return Vec::new();
    };
    let mut jobs = jobs.into_inner().unwrap_or_else(PoisonError::into_inner);
    let is_of_one = matches!(
        error.kind(),
        ErrorKind::Other | ErrorKind::Invalid | ErrorKind::Corrupt
    );
    if error.effect() == Effect::None && jobs.len() > 1 {
        if is_of_one {
            let half = jobs.split_off(jobs.len() / 2);
            return vec![half, jobs];
        }
        // Others may have more time for a lock than the first.
        let now = Instant::now() + TOO_LITTLE;
        let (late, others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.until() <= now);
        if !late.is_empty() {
            fail(late, error);
            return vec![others];
        }
        jobs = others;
    }
    fail(jobs, error);
    Vec::new()
}

/// Answers all of them with one error, whose source goes to the first.
fn fail(jobs: Vec<Job>, error: Error) {
    let copy = |error: &Error| {
        Error::new(error.kind(), error.context().to_owned()).with_effect(error.effect())
    };
    let mut jobs = jobs.into_iter();
    let first = jobs.next();
    for job in jobs {
        job.fail(copy(&error));
    }
    if let Some(job) = first {
        job.fail(error);
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

/// Takes the operations, and gives them back if it fails.
async fn attempt(database: &Database, jobs: &Mutex<Vec<Job>>, until: Instant) -> Result<()> {
    let lock = || jobs.lock().unwrap_or_else(PoisonError::into_inner);
    let connection = timeout_at(until, database.writer(until)).await;
    let mut scripted = Scripted {
        connection: connection.unwrap_or_else(|_| Err(failed(sqlx::Error::PoolTimedOut)))?,
        is_over: false,
    };
    let mut taken = std::mem::take(&mut *lock());
    taken.retain(Job::begins);
    let Some(latest) = taken.iter().map(Job::until).max() else {
        scripted.is_over = true;
        return Ok(());
    };
    if taken.len() > 1 {
        database.turns.note_opened();
    }
    // Behind the wait for the connection.
    let mut script = Script::new(database, &taken, database.now());
    let outcome = in_time(latest, script.run(database, &mut scripted.connection)).await;
    let returned = match outcome {
        Ok(returned) => returned,
        Err(error) => {
            if is_busy(&error) {
                // As a rule there is nothing to roll back, since it was refused at its beginning.
                let roll_back = sqlx::raw_sql("ROLLBACK").execute(&mut *scripted.connection);
                let _ = roll_back.await;
                scripted.is_over = true;
                taken.iter().for_each(Job::waits_again);
            }
            *lock() = taken;
            return Err(error);
        }
    };
    scripted.is_over = true;
    drop(scripted);
    match script.read(database, &returned) {
        Ok(answers) => {
            if answers.wake {
                database.signal.raise();
            }
            answers.send(taken);
            Ok(())
        }
        Err(error) => {
            database.signal.raise();
            *lock() = taken;
            // It is committed.
            Err(error.with_effect(Effect::Unknown))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use conformance_tests::samples::{message, processed, terms};
    use futures_util::future::join_all;
    use inbox_api::{Schema as _, Store as _};

    use super::*;
    use crate::{SqliteOptions, SqliteStore};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn callers_at_once_share_commits() {
        let folder = tempfile::TempDir::new().unwrap();
        let options = SqliteOptions::new(folder.path().join("inbox.db"));
        let store = SqliteStore::connect(options).await.unwrap();
        store.create().await.unwrap();
        let commits = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&commits);
        {
            let mut writer = store.database.writer.acquire().await.unwrap();
            let mut handle = writer.lock_handle().await.unwrap();
            handle.set_commit_hook(move || {
                count.fetch_add(1, SeqCst);
                true
            });
        }
        let terms = terms();
        let pair = async |n: usize| {
            let begun = store.begin(&message(&format!("{n}")), &terms).await;
            let Begun::Run(leased) = begun.unwrap() else {
                panic!("{n} does not run");
            };
            let lease = leased.lease;
            let outcome = processed();
            let settled = store.settle(&[Settlement { lease, outcome }]).await;
            assert_eq!(settled.unwrap(), [Settled::Done]);
        };
        pair(0).await;
        assert_eq!(commits.swap(0, SeqCst), 2);
        join_all((1..=200).map(pair)).await;
        let commits = commits.load(SeqCst);
        assert!(commits < 100, "{commits} commits for 400 operations");
    }
}
