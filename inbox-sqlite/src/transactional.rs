//! Recording, receiving and settling inside the caller's own transaction.
//!
//! A commit must not say that a transaction is durable which is not there any more: a statement of
//! the handler's has committed it or rolled it back (`ON CONFLICT ROLLBACK`, a full disk), and later
//! ones have committed by themselves, or in another transaction. So there is a savepoint in it, which
//! ends with it, and a commit releases that first.
//!
//! Nor must it store half of a step: messages without their work. A step of several statements whose
//! future is dropped stops between two of them. So it has a savepoint around it, and nothing is committed
//! while that is there. A step that fails leaves it there, too: SQLite takes back the one statement only,
//! and a handler that goes on would commit its writes without the step.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use inbox_api::{
    Bytes, Effect, Error, ErrorKind, Key, Message, Outcome, Receipt, Recorded, Result, Settled,
    Settlement, Transactional, check_size, settle_then_commit,
};
use sqlx::{
    AssertSqlSafe, Either, Execute, Executor as _, Row as _, Sqlite, Transaction, sqlite::SqliteRow,
};
use tokio::time::Instant;

use crate::{
    begin,
    connection::{Database, in_time},
    error::{GENERIC, failed, primary_code},
    options::OWN,
    receive,
    settle::{self, Applied, Parameters, Repetition},
    store::SqliteStore,
};

/// Marks a transaction that the caller began. A second mark stands after the first one.
const MARK: &str = "SAVEPOINT inbox_used";
/// The store's own commit. The driver does not see it and would commit or roll back again: for that
/// there is another transaction, which has done nothing.
const COMMIT_OPENED: &str = "RELEASE inbox_opened; COMMIT; BEGIN";
const COMMIT_USED: &str = "RELEASE inbox_used; COMMIT; BEGIN";
/// [`OWN`] on the writer, and how many steps are unfinished there.
const WHOSE: &str = "PRAGMA analysis_limit";
/// The same, and then fails within a transaction, where it does nothing.
const WHOSE_AND_BEGIN: &str = "PRAGMA analysis_limit; BEGIN";
const BEGIN_IF_NONE: &str = "BEGIN";
/// Around a step of several statements, and behind one that has failed.
const BEGIN_STEP: &str = "SAVEPOINT inbox_step";
const END_STEP: &str = "RELEASE inbox_step";
/// Fails unless a step has not come to its end.
const UNDO_STEP: &str = "ROLLBACK TO inbox_step";

/// More than a handler takes.
const MOST_STEPS: i64 = 1 << 20;

/// For how long the mark of a failed step waits for a statement that is still running.
const SPOILING: Duration = Duration::from_secs(1);

type Own = Transaction<'static, Sqlite>;

/// How far a script came.
#[derive(Default)]
struct Run {
    /// The first column of its last row.
    number: Option<i64>,
    /// Statements that were run to their ends.
    done: usize,
    /// Why not all were.
    error: Option<sqlx::Error>,
}

impl Run {
    /// Whether SQLite refused a statement for what it is, as it does when there is no such savepoint.
    fn is_refused(&self) -> bool {
        self.error
            .as_ref()
            .is_some_and(|error| primary_code(error) == Some(GENERIC))
    }
}

async fn run(transaction: &mut Own, script: impl Into<String>) -> Run {
    let mut number = None;
    let script = sqlx::raw_sql(AssertSqlSafe(script.into()));
    let mut run = run_query(transaction, script, |_, row| {
        number = row.try_get(0).ok();
    })
    .await;
    run.number = number;
    run
}

/// Runs a script, and passes on each row and how many statements have come to their ends before.
async fn run_query<'q>(
    transaction: &mut Own,
    query: impl Execute<'q, Sqlite> + 'q,
    mut read: impl FnMut(usize, SqliteRow),
) -> Run {
    let mut run = Run::default();
    let mut results = transaction.fetch_many(query);
    while let Some(result) = results.next().await {
        match result {
            Ok(Either::Left(_)) => run.done += 1,
            Ok(Either::Right(row)) => read(run.done, row),
            Err(error) => {
                run.error = Some(error);
                break;
            }
        }
    }
    run
}

fn has_ended() -> Error {
    let reason = "the transaction is not there any more: a statement in it has committed it or \
        rolled it back, and others may have committed by themselves";
    Error::new(ErrorKind::Other, reason).with_effect(Effect::Unknown)
}

/// Before something is done in a transaction: looks that it is there, and marks it if the store did
/// not when it began.
///
/// Answers how many steps are unfinished in it, if it is the store's own.
async fn mark(transaction: &mut Own) -> Result<Option<i64>> {
    let looked = run(transaction, WHOSE_AND_BEGIN).await;
    match looked.error {
        // Another one has begun. It stays, so that whatever follows is rolled back with it.
        None => Err(has_ended()),
        Some(_) if looked.is_refused() => {
            let unfinished = looked.number.and_then(unfinished_steps);
            if unfinished.is_none() {
                bracket(transaction, MARK).await?;
            }
            Ok(unfinished)
        }
        Some(error) => Err(failed(error)),
    }
}

/// How many steps are unfinished on a connection of the store's own, which this number marks as that.
fn unfinished_steps(number: i64) -> Option<i64> {
    let steps = number.checked_sub(OWN)?;
    (0..MOST_STEPS).contains(&steps).then_some(steps)
}

/// What a call does in a transaction: all of it or nothing.
struct Step {
    /// When it has to be over.
    until: Instant,
    /// How many steps before it are unfinished, if the transaction is the store's own. The connection is marked with that,
    /// so that it is known without another look.
    unfinished: Option<i64>,
}

impl Step {
    /// Before anything is done in a transaction: marks it. Nothing is tried again there: whether a lock is worth
    /// a wait is for its own connection to say.
    async fn begin(database: &Database, transaction: &mut Own) -> Result<Self> {
        let until = database.deadline();
        let unfinished = in_time(until, mark(transaction)).await?;
        Ok(Self { until, unfinished })
    }

    /// The beginning of several statements.
    async fn begin_several(&self, transaction: &mut Own) -> Result<()> {
        bracket(transaction, self.beginning()).await
    }

    /// Their end.
    async fn end_several(&self, transaction: &mut Own) -> Result<()> {
        let end = match self.unfinished {
            Some(before) => format!("{END_STEP}; {WHOSE} = {}", OWN + before),
            None => END_STEP.to_owned(),
        };
        bracket(transaction, end).await
    }

    /// Ends the step. One that has failed keeps the transaction from being committed.
    async fn end<T>(self, transaction: &mut Own, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() {
            // Behind whatever is still running. Where SQLite has rolled all of it back, this begins what
            // the commit will roll back.
            let spoiling = run(transaction, self.beginning());
            let _ = tokio::time::timeout(SPOILING, spoiling).await;
        }
        outcome
    }

    fn beginning(&self) -> String {
        match self.unfinished {
            Some(before) => format!("{WHOSE} = {}; {BEGIN_STEP}", OWN + before + 1),
            None => BEGIN_STEP.to_owned(),
        }
    }
}

async fn bracket(transaction: &mut Own, script: impl Into<String>) -> Result<()> {
    let error = run(transaction, script).await.error;
    error.map_or(Ok(()), |error| Err(failed(error)))
}

fn is_unfinished() -> Error {
    let reason = "an earlier step in this transaction failed or was dropped before its end: the \
        transaction was rolled back";
    Error::new(ErrorKind::Conflict, reason)
}

/// Releases the mark and commits. `false` when there is no mark, and nothing was done.
async fn commit_marked(transaction: &mut Own, script: &'static str) -> sqlx::Result<bool> {
    let run = run(transaction, script).await;
    match run.error {
        Some(_) if run.done == 0 && run.is_refused() => Ok(false),
        Some(error) if run.done < 2 => Err(error),
        // The rest is for the driver only.
        _ => Ok(true),
    }
}

async fn commit_own(mut transaction: Own) -> Result<()> {
    if run(&mut transaction, UNDO_STEP).await.error.is_none() {
        roll_back_own(transaction).await?;
        return Err(is_unfinished());
    }
    if commit_marked(&mut transaction, COMMIT_OPENED)
        .await
        .map_err(failed)?
    {
        return Ok(());
    }
    let whose = run(&mut transaction, WHOSE).await;
    let is_own = whose.number.and_then(unfinished_steps).is_some();
    if let Some(error) = whose.error {
        return Err(failed(error));
    }
    if !is_own
        && commit_marked(&mut transaction, COMMIT_USED)
            .await
            .map_err(failed)?
    {
        return Ok(());
    }
    roll_back_own(transaction).await?;
    Err(has_ended())
}

/// The driver counts transactions, and would not notice that one has ended: it needs one to roll back.
async fn roll_back_own(mut transaction: Own) -> Result<()> {
    let begun = run(&mut transaction, BEGIN_IF_NONE).await;
    match begun.error {
        Some(error) if primary_code(&error) != Some(GENERIC) => Err(failed(error)),
        _ => transaction.rollback().await.map_err(failed),
    }
}

async fn roll_back(database: &Database, transaction: Own) -> Result<()> {
    in_time(database.deadline(), roll_back_own(transaction)).await
}

async fn open(database: &Database) -> Result<Own> {
    let turns = &database.turns;
    let open = async {
        let _turn = turns.wait().await;
        let transaction = database
            .run(|until| database.begin_with(database.statements.open.clone(), until))
            .await?;
        turns.note_opened();
        Ok(transaction)
    };
    in_time(database.deadline(), open).await
}

async fn commit(database: &Database, transaction: Own) -> Result<()> {
    database.identity.check()?;
    let committed = in_time(database.deadline(), commit_own(transaction)).await;
    // What the transaction received or settled is unknown here; a wake-up without a cause
    // does no harm.
    database.signal.raise();
    committed
}

async fn receive_in(
    database: &Database,
    transaction: &mut Own,
    messages: &[Message],
) -> Result<Vec<Receipt>> {
    let prepared = receive::prepare(messages, database.options.payload_limit);
    let step = Step::begin(database, transaction).await?;
    let work = in_time(step.until, async {
        database.check(transaction).await?;
        let several = prepared.statements() > 1;
        if several {
            step.begin_several(transaction).await?;
        }
        let receipts = receive::insert(database, transaction, prepared, database.now()).await?;
        if several {
            step.end_several(transaction).await?;
        }
        Ok(receipts)
    });
    let outcome = work.await;
    step.end(transaction, outcome).await
}

async fn record_in(
    database: &Database,
    transaction: &mut Own,
    message: &Message,
    result: Option<&Bytes>,
) -> Result<Recorded> {
    begin::check_record(database, message, result)?;
    let step = Step::begin(database, transaction).await?;
    let work = in_time(step.until, async {
        database.check(transaction).await?;
        step.begin_several(transaction).await?;
        let recorded = begin::record_on(database, transaction, message, result).await?;
        step.end_several(transaction).await?;
        Ok(recorded)
    });
    let outcome = work.await;
    step.end(transaction, outcome).await
}

async fn keep_result_in(
    database: &Database,
    transaction: &mut Own,
    key: &Key,
    result: &Bytes,
) -> Result<()> {
    check_size("result", result.len(), database.options.payload_limit)?;
    let step = Step::begin(database, transaction).await?;
    let keeping = begin::keep_result_on(database, transaction, key, result);
    let outcome = in_time(step.until, keeping).await;
    step.end(transaction, outcome).await
}

async fn settle_in(
    database: &Database,
    transaction: &mut Own,
    settlements: &[Settlement],
) -> Result<Vec<Settled>> {
    let step = Step::begin(database, transaction).await?;
    let work = in_time(step.until, async {
        database.check(transaction).await?;
        let several = !settle::settles_at_once(database, settlements);
        if several {
            step.begin_several(transaction).await?;
        }
        let answers =
            settle::settle_on(database, transaction, settlements, Repetition::Lost).await?;
        if several {
            step.end_several(transaction).await?;
        }
        Ok(answers.settled)
    });
    let outcome = work.await;
    step.end(transaction, outcome).await
}

/// Settles processed messages without results and commits, in one trip to SQLite's thread, unless a lease is lost.
/// `None`, and nothing is done, if there are others, if the transaction is not the store's own or not there any more,
/// or if a step in it is unfinished.
async fn settle_and_commit_at_once(
    database: &Database,
    transaction: &mut Own,
    settlements: &[Settlement],
) -> Result<Option<Vec<Settled>>> {
    let is_plain = |s: &Settlement| matches!(s.outcome, Outcome::Processed { result: None });
    if !settlements.iter().all(is_plain) || !settle::settles_at_once(database, settlements) {
        return Ok(None);
    }
    database.identity.check()?;
    let now = database.now();
    let mut batch = settle::Batch::new(settlements, database.options.payload_limit, now);
    let chunk = batch.chunks.pop();
    let Some(Parameters::Processed { leases }) = chunk.map(settle::parameters).transpose()? else {
        return Ok(None);
    };
    let script = sqlx::query(database.statements.settle_and_commit.clone())
        .bind(leases)
        .bind(now)
        .bind(i64::try_from(batch.rows().len()).unwrap_or(i64::MAX));
    let mut returned = Vec::new();
    let run = run_query(transaction, script, |done, row| {
        if done == 2 {
            returned.push(row);
        }
    })
    .await;
    match run.error {
        Some(_) if run.done < 2 && run.is_refused() => return Ok(None),
        // Not so many as there are.
        Some(_) if run.done == 3 && run.is_refused() => {}
        Some(error) if run.done < 5 => return Err(failed(error)),
        None if run.done < 5 => return Err(failed(sqlx::Error::WorkerCrashed)),
        // The rest is for the driver only.
        _ => {}
    }
    let mut applied = Applied::default();
    batch
        .read(&returned, &mut applied)
        .map_err(settle::unclear_end)?;
    let newest = applied.leases.into_iter().collect();
    Ok(Some(batch.answers(&newest)))
}

/// Everything here runs on the given transaction's own connection, so a transaction that the
/// caller began on their own pool, on the same file, does as well as one from
/// [`open`](Transactional::open). Begin it with `BEGIN IMMEDIATE`: one that reads first and
/// writes later fails as `Conflict` when another connection wrote in between.
///
/// While a transaction holds SQLite's write lock, all other writers of the file wait, at most for
/// their [`operation_timeout`](crate::SqliteOptions::operation_timeout), and then fail as
/// `Unavailable`. That includes this store's own operations: settle in the transaction, not next to
/// it.
///
/// [`commit`](Transactional::commit) fails when a statement has ended the transaction before: as
/// `Other`, with an unknown effect, since what came after it may be durable. For a transaction of
/// the caller's that begins with the first call that it is given to; one that was given to none is
/// refused, and so is one that was rolled back to a savepoint older than that call, unless it was given
/// to another since. It fails as `Conflict`, and rolls back, when an earlier step failed or was dropped before
/// its end. A caller who commits with the driver itself is not told of either.
#[async_trait]
impl Transactional for SqliteStore {
    type Transaction = Transaction<'static, Sqlite>;

    async fn open(&self) -> Result<Self::Transaction> {
        open(&self.database)
            .await
            .map_err(|error| error.in_operation("open"))
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<()> {
        commit(&self.database, transaction)
            .await
            .map_err(|error| error.in_operation("commit"))
    }

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        roll_back(&self.database, transaction)
            .await
            .map_err(|error| error.in_operation("roll_back"))
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        receive_in(&self.database, transaction, messages)
            .await
            .map_err(|error| error.in_operation("receive_in"))
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        record_in(&self.database, transaction, message, result.as_ref())
            .await
            .map_err(|error| error.in_operation("record_in"))
    }

    async fn keep_result_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &Key,
        result: Bytes,
    ) -> Result<()> {
        keep_result_in(&self.database, transaction, key, &result)
            .await
            .map_err(|error| error.in_operation("keep_result_in"))
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        settle_in(&self.database, transaction, settlements)
            .await
            .map_err(|error| error.in_operation("settle_in"))
    }

    async fn settle_and_commit(
        &self,
        mut transaction: Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let database = &self.database;
        let ending = settle_and_commit_at_once(database, &mut transaction, settlements);
        let ended = in_time(database.deadline(), ending).await;
        database.signal.raise();
        let Some(settled) = ended.map_err(|error| error.in_operation("settle_and_commit"))? else {
            return settle_then_commit(self, transaction, settlements).await;
        };
        if settled.iter().any(|settled| *settled != Settled::Done) {
            // One that cannot be rolled back is never committed either.
            let _ = self.roll_back(transaction).await;
        }
        Ok(settled)
    }
}
