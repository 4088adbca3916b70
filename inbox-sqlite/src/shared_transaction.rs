//! Small operations that are called at the same time share a transaction.
//!
//! A commit, and writing the pages that every change touches, take several times as long as what one
//! message needs. So a begin, and a receive or a settlement of a few messages, stand in a queue; a task
//! takes what stands there, runs it in one trip to SQLite's thread, answers each caller after the
//! commit, and goes on until the queue is empty. A caller alone runs its own transaction, without a
//! task, and waits for nothing; what has come meanwhile is left to a task.
//!
//! - Each caller has its own time limit. One that is dropped or runs out of time before its transaction
//!   begins has changed nothing; from then on the outcome is unknown to it.
//! - No caller fails for another's sake: where a transaction has changed nothing, for a reason that may
//!   be that of one operation, its halves are tried by themselves.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
};

use inbox_api::{
    Begun, Effect, Error, ErrorKind, Key, LeaseTerms, Message, Receipt, Result, Settled, Settlement,
};
use inbox_sqlx::Held;
use sqlx::Sqlite;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, timeout_at},
};

use crate::{
    connection::{Database, TOO_LITTLE, in_time},
    error::{failed, is_busy},
    receive, settle,
    shared_script::Script,
    writer_turns::WriterTurns,
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

/// How many transactions follow each other without giving the writer to others in between.
const LONGEST_CHAIN: u32 = 16;

/// How far an operation is, for its caller and the task that runs it to agree on.
#[derive(Default)]
struct Progress(AtomicU8);

impl Progress {
    const WAITS: u8 = 0;
    const BEGUN: u8 = 1;
    const GIVEN_UP: u8 = 2;

    fn change(&self, from: u8, to: u8) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.0.compare_exchange(from, to, success, failure).is_ok()
    }
}

/// What one caller asks for, and where it waits for the answer.
pub(crate) struct Asked<W, A> {
    pub(crate) work: W,
    until: Instant,
    progress: Arc<Progress>,
    reply: oneshot::Sender<Result<A>>,
}

impl<W, A> Asked<W, A> {
    pub(crate) fn answer(self, answer: Result<A>) {
        // The caller may have gone.
        let _ = self.reply.send(answer);
    }

    /// Whether its transaction may begin: its caller waits and has time.
    fn begins(&self) -> bool {
        !self.reply.is_closed()
            && Instant::now() < self.until
            && self.progress.change(Progress::WAITS, Progress::BEGUN)
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

    /// Says that nothing was changed.
    fn waits_again(&self) {
        let progress = match self {
            Self::Receive(asked) => &asked.progress,
            Self::Begin(asked) => &asked.progress,
            Self::Settle(asked) => &asked.progress,
        };
        progress.change(Progress::BEGUN, Progress::WAITS);
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
    /// Whether a caller or a task takes from it.
    is_served: bool,
}

/// The operations that wait for a transaction.
#[derive(Default)]
pub(crate) struct SharedTransactions {
    queue: Mutex<Queue>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    let (until, progress) = (database.deadline(), Arc::<Progress>::default());
    let asked = Asked {
        work,
        until,
        progress: Arc::clone(&progress),
        reply,
    };
    let is_served = {
        let mut queue = lock(&database.shared.queue);
        queue.waiting.push_back(job(asked));
        std::mem::replace(&mut queue.is_served, true)
    };
    if is_served {
        if let Ok(Ok(answer)) = timeout_at(until, &mut answer).await {
            return answer;
        }
    } else {
        let mut serving = Serving {
            database: Arc::clone(database),
            writer: Mutex::default(),
            state: ServingState::Caller,
        };
        serving.run_first().await;
    }
    // It may just have come.
    if let Ok(answer) = answer.try_recv() {
        return answer;
    }
    if progress.change(Progress::WAITS, Progress::GIVEN_UP) {
        return Err(failed(sqlx::Error::PoolTimedOut));
    }
    let reason = "it took longer than the operation's time-out, or the runtime has ended";
    Err(Error::new(ErrorKind::Unavailable, reason).with_effect(Effect::Unknown))
}

/// The connection, between two transactions of a chain.
type Kept = Mutex<Option<Held<Sqlite>>>;

/// The queue in the hands of the caller or the task that takes from it.
struct Serving {
    database: Arc<Database>,
    writer: Kept,
    state: ServingState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ServingState {
    /// In the hands of a caller, which was the first and runs its own transaction.
    Caller,
    /// In those of a task.
    Task,
    /// The queue was empty.
    Over,
}

impl Serving {
    /// Runs the transaction of the caller that has put its operation into an empty queue.
    async fn run_first(&mut self) {
        let first = lock(&self.database.shared.queue).waiting.pop_front();
        run(&self.database, &self.writer, first.into_iter().collect()).await;
    }

    async fn run(mut self) {
        let mut chain = 0;
        while let Some(jobs) = self.next() {
            let mut parts = vec![jobs];
            while let Some(jobs) = parts.pop() {
                if chain == 1 {
                    // Other processes find it free as seldom as behind a long transaction.
                    self.database.turns.note_opened();
                }
                parts.extend(run(&self.database, &self.writer, jobs).await);
                chain += 1;
                if chain == LONGEST_CHAIN {
                    chain = 0;
                    drop(lock(&self.writer).take());
                }
            }
        }
    }

    /// What shares the next transaction; `None` when nothing waits, and the task has to end.
    fn next(&mut self) -> Option<Vec<Job>> {
        let mut queue = lock(&self.database.shared.queue);
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
            self.state = ServingState::Over;
            return None;
        }
        Some(jobs)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let writer = lock(&self.writer).take();
        if self.state == ServingState::Over {
            if let Some(writer) = writer {
                self.database.keep(writer);
            }
            return;
        }
        let mut queue = lock(&self.database.shared.queue);
        if self.state == ServingState::Caller
            && !queue.waiting.is_empty()
            && let Ok(runtime) = Handle::try_current()
        {
            drop(queue);
            runtime.spawn(
                Self {
                    database: Arc::clone(&self.database),
                    writer: Mutex::new(writer),
                    state: ServingState::Task,
                }
                .run(),
            );
            return;
        }
        if let Some(writer) = writer {
            self.database.keep(writer);
        }
        // Nothing waits, or the runtime has ended: what waits is answered, and the next caller begins again.
        queue.is_served = false;
        queue.waiting.clear();
    }
}

/// Runs operations in one transaction and answers them. Returns those that are to be run again, in parts.
async fn run(database: &Database, kept: &Kept, jobs: Vec<Job>) -> Vec<Vec<Job>> {
    // The first to run out of time says how long all of them wait for the file.
    let Some(until) = jobs.iter().map(Job::until).min() else {
        return Vec::new();
    };
    let jobs = Mutex::new(jobs);
    let attempts = database.attempts(until, |until| attempt(database, kept, &jobs, until));
    let Err(error) = attempts.await else {
        return Vec::new();
    };
    let mut jobs = jobs.into_inner().unwrap_or_else(PoisonError::into_inner);
    if error.effect() == Effect::Unknown {
        fail(jobs, error);
        return Vec::new();
    }
    jobs.iter().for_each(Job::waits_again);
    let is_of_one = matches!(error.kind(), ErrorKind::Other | ErrorKind::Invalid);
    if is_of_one && jobs.len() > 1 {
        let half = jobs.split_off(jobs.len() / 2);
        return vec![half, jobs];
    }
    let now = Instant::now() + TOO_LITTLE;
    if until > now {
        fail(jobs, error);
        return Vec::new();
    }
    // Others may have more time than the first, which may be gone by now.
    let (late, others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.until() <= now);
    fail(late, error);
    if others.is_empty() {
        Vec::new()
    } else {
        vec![others]
    }
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

/// A connection while it runs a transaction of which sqlx knows nothing. Closed, which rolls back,
/// unless all of it was run.
struct Scripted<'w> {
    writer: &'w mut Held<Sqlite>,
    turns: &'w WriterTurns,
    is_over: bool,
}

impl Drop for Scripted<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.turns.forget_opened();
            self.writer.close_on_drop();
        }
    }
}

/// The writer of the transaction before, or the store's.
async fn take_writer(database: &Database, kept: &Kept, until: Instant) -> Result<Held<Sqlite>> {
    let writer = lock(kept).take();
    if let Some(mut writer) = writer.filter(|_| !database.writer.pool().is_closed()) {
        database.identity.check()?;
        database.check(&mut writer).await?;
        return Ok(writer);
    }
    database.writer(until).await
}

/// Takes the operations, and gives them back if it fails.
async fn attempt(
    database: &Database,
    kept: &Kept,
    jobs: &Mutex<Vec<Job>>,
    until: Instant,
) -> Result<()> {
    let writer = timeout_at(until, take_writer(database, kept, until)).await;
    let mut writer = writer.unwrap_or_else(|_| Err(failed(sqlx::Error::PoolTimedOut)))?;
    let mut taken = std::mem::take(&mut *lock(jobs));
    taken.retain(Job::begins);
    let Some(latest) = taken.iter().map(Job::until).max() else {
        *lock(kept) = Some(writer);
        return Ok(());
    };
    // Behind the wait for the connection.
    let mut script = Script::new(database, &taken, database.now());
    let mut scripted = Scripted {
        writer: &mut writer,
        turns: &database.turns,
        is_over: false,
    };
    let outcome = in_time(latest, script.run(database, scripted.writer)).await;
    let returned = match outcome {
        Ok(returned) => returned,
        Err(error) => {
            if is_busy(&error) {
                // As a rule there is nothing to roll back, since it was refused at its beginning.
                let roll_back = sqlx::raw_sql("ROLLBACK").execute(&mut **scripted.writer);
                let _ = roll_back.await;
                scripted.is_over = true;
                taken.iter().for_each(Job::waits_again);
            }
            if error.effect() == Effect::Unknown {
                database.signal.raise();
            }
            *lock(jobs) = taken;
            return Err(error);
        }
    };
    scripted.is_over = true;
    drop(scripted);
    *lock(kept) = Some(writer);
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
            *lock(jobs) = taken;
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
        assert!(
            (2..100).contains(&commits),
            "{commits} commits for 400 operations"
        );
    }

    #[tokio::test]
    async fn what_others_claim_at_once_was_released() {
        // In place of another process, which claims it behind the statement that puts it back.
        const CLAIM: &str = "CREATE TEMP TRIGGER claimed AFTER UPDATE OF state ON inbox_state
            WHEN NEW.state = 0
            BEGIN UPDATE inbox_state SET token = token + 1 WHERE seq = NEW.seq; END";
        let folder = tempfile::TempDir::new().unwrap();
        let options = SqliteOptions::new(folder.path().join("inbox.db"));
        let store = SqliteStore::connect(options).await.unwrap();
        store.create().await.unwrap();
        let begun = store.begin(&message("m"), &terms()).await;
        let Begun::Run(leased) = begun.unwrap() else {
            panic!("it does not run");
        };
        let mut writer = store.database.writer.acquire().await.unwrap();
        sqlx::raw_sql(CLAIM).execute(&mut *writer).await.unwrap();
        store.database.keep(writer);
        let settlement = Settlement {
            lease: leased.lease,
            outcome: inbox_api::Outcome::Release,
        };
        let settled = store.settle(std::slice::from_ref(&settlement)).await;
        assert_eq!(settled.unwrap(), [Settled::Done]);
        let settled = store.settle(&[settlement]).await;
        assert_eq!(settled.unwrap(), [Settled::LeaseLost]);
    }
}
