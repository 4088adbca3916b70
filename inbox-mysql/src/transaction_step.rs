//! One step within a caller's transaction: recording, receiving or settling, in one packet or a few.
//!
//! A step that ends half-way leaves the transaction open: a statement that waits for a lock in vain is
//! undone by itself, and between two packets the step's future may be dropped. Committing would store
//! messages without their work. So a step marks its session when it begins, and takes the mark back
//! at its end. While it is there, no other step begins and nothing is committed.
//!
//! Session variables outlive a transaction, and only sessions of the store's own begin each one by
//! taking the mark back. So a step also has a savepoint, which ends with the transaction: to that, a
//! step is undone that has failed, and by that, a mark of this transaction is told from an earlier one's.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use inbox_api::{Effect, Error, ErrorKind, Result};
use sqlx::{MySql, MySqlConnection, Row as _, Transaction};

use crate::{
    compact_counters::compact_in_background,
    connection::Connection,
    context::Context,
    error::{NO_SUCH_SAVEPOINT, SEVERAL_ROWS, before, number},
    multi_statement::{Answers, Script},
    statement::Secrecy,
};

/// Fail unless there is a transaction.
pub(crate) const IS_THERE: [&str; 2] = ["SAVEPOINT inbox_probe", "RELEASE SAVEPOINT inbox_probe"];

/// The mark: 1 while a step runs, 2 when it has failed and was undone. Fails where there is one: with
/// [`SEVERAL_ROWS`], which no other statement fails with.
const BEGIN: [&str; 2] = [
    "SET @inbox_unfinished = IF(@inbox_unfinished, (SELECT 1 UNION SELECT 2), 1), @inbox_known = 0",
    "SAVEPOINT inbox_step",
];
const END: [&str; 2] = [
    "RELEASE SAVEPOINT inbox_step",
    "SET @inbox_unfinished = NULL",
];
/// Fails where a step has not come to its end.
pub(crate) const IS_FINISHED: &str =
    "SET @inbox_unfinished = IF(@inbox_unfinished, (SELECT 1 UNION SELECT 2), NULL)";
/// For the end of a transaction.
pub(crate) const FORGET: &str = "SET @inbox_unfinished = NULL";
/// The mark stays, so that nothing is committed without the step. Where the server has rolled the
/// transaction back, the savepoint is not there any more.
const UNDO: [&str; 2] = [
    "SET @inbox_unfinished = 2",
    "ROLLBACK TO SAVEPOINT inbox_step",
];

/// Whether a statement failed because of the mark.
pub(crate) fn is_marked(error: &sqlx::Error) -> bool {
    number(error) == Some(SEVERAL_ROWS)
}

pub(crate) fn unfinished() -> Error {
    let context = "an earlier step in this transaction failed or was dropped before its end: roll \
                   the transaction back";
    Error::new(ErrorKind::Conflict, context)
}

/// The driver's answers, also where it has lost count of them: when a future is dropped while a
/// statement is being prepared, it takes what it reads next for something else and may panic.
pub(crate) async fn catch_panic<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let answer = AssertUnwindSafe(work).catch_unwind().await;
    answer.unwrap_or_else(|_| {
        let context = "the driver failed, as behind a call on the same connection that was dropped";
        Err(Error::new(ErrorKind::Unavailable, context).with_effect(Effect::Unknown))
    })
}

/// Adds the end of a step that has nothing left to do when all of so many keys are known. The
/// savepoint may stay.
pub(crate) fn end_if_known(script: &mut Script, keys: usize) {
    script.fixed(&format!(
        "SET @inbox_unfinished = IF(@inbox_known >= {keys}, NULL, 1)"
    ));
}

/// Adds to the script behind that one that the step goes on: a key that was counted as known may have
/// been purged before it was listed.
pub(crate) fn go_on_all_the_same(script: &mut Script) {
    script.fixed("SET @inbox_unfinished = 1");
}

/// A step that goes on.
pub(crate) struct Step<'a> {
    connection: Connection<'a>,
    transaction: &'a mut Transaction<'static, MySql>,
    begun: bool,
}

impl<'a> Step<'a> {
    pub(crate) fn new(
        connection: Connection<'a>,
        transaction: &'a mut Transaction<'static, MySql>,
    ) -> Self {
        Self {
            connection,
            transaction,
            begun: false,
        }
    }

    pub(crate) fn context(&self) -> &'a Context {
        self.connection.context
    }

    /// The next script. The first one begins the step. Those behind it have nothing in front that would be
    /// a packet by itself.
    pub(crate) fn script(&self) -> Script {
        let now = self.context().now();
        if self.begun {
            return Script::further(&now);
        }
        let [there, still_there] = IS_THERE;
        let [mark, savepoint] = BEGIN;
        Script::within(&now, &[there, still_there, mark, savepoint])
    }

    /// Runs a script behind which another one follows.
    pub(crate) async fn go_on(&mut self, mut script: Script) -> Result<Answers> {
        script.end();
        let answers = self.run(&script).await?;
        self.begun = true;
        if answers.session_begins_transactions() {
            let context = "this session begins transactions by itself, so that one that the \
                           server rolls back goes unnoticed: set autocommit=1 and \
                           completion_type=NO_CHAIN in it";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        Ok(answers)
    }

    /// Runs the last script.
    pub(crate) async fn end(mut self, script: Script) -> Result<Answers> {
        self.end_one(script).await
    }

    /// Runs the last script of a step. What follows is another step.
    pub(crate) async fn end_one(&mut self, mut script: Script) -> Result<Answers> {
        // For the case that the transaction is gone when it is to be committed.
        script.fixed("SET @inbox_tallied = LAST_INSERT_ID()");
        if self.begun {
            script.tell_time();
        }
        for statement in END {
            script.fixed(statement);
        }
        let answers = self.go_on(script).await?;
        self.begun = false;
        compact_in_background(self.connection.inner);
        Ok(answers)
    }

    /// How payloads, results and headers are sent: to another pool's session they are bound, since its
    /// options may let the driver log statements.
    pub(crate) fn secrecy(&self, answers: &Answers) -> Secrecy {
        if answers.session_is_own() {
            self.context().secrecy_of_own()
        } else {
            Secrecy::Bind
        }
    }

    async fn run(&mut self, script: &Script) -> Result<Answers> {
        let inner = self.connection.inner;
        let session = &mut **self.transaction;
        let running = catch_panic(async {
            inner.check_within(session).await?;
            let error = match inner.run_script(script, session).await {
                Err(error) if is_marked(&error) => {
                    if is_unfinished(session).await.map_err(before)? {
                        return Err(unfinished());
                    }
                    inner.run_script(script, session).await
                }
                outcome => outcome,
            };
            let error = match error {
                Ok(answers) => return Ok(answers),
                Err(error) => error,
            };
            if number(&error).is_some() {
                // Whatever comes of it, the mark stands.
                let _ = script.undo(session, &UNDO).await;
            }
            Err(if number(&error) == Some(NO_SUCH_SAVEPOINT) {
                let context = "the transaction is not there any more: the server has rolled it \
                               back, or a statement in it has ended it, and others may have \
                               committed by themselves";
                Error::new(ErrorKind::Other, context)
                    .with_effect(Effect::Unknown)
                    .with_source(error)
            } else {
                before(error)
            })
        });
        self.connection.in_time(Effect::None, running).await
    }
}

/// Whether the mark is of this transaction; if not, takes it back.
///
/// In a session of the store's own, it is. In another one, the savepoint tells. Without it, the
/// transaction may be a new one, or the handler may have released its own earlier savepoint, and
/// this one with it. Then a step that was dropped counts as this transaction's once.
async fn is_unfinished(connection: &mut MySqlConnection) -> sqlx::Result<bool> {
    let mark = "SELECT COALESCE(@inbox_own, 0), @inbox_unfinished";
    let row = sqlx::raw_sql(mark).fetch_one(&mut *connection).await?;
    let (own, mark): (i64, Option<i64>) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
    let [failed, undo] = UNDO;
    match sqlx::raw_sql(undo).execute(&mut *connection).await {
        Ok(_) => return Ok(true),
        Err(error) if number(&error) == Some(NO_SUCH_SAVEPOINT) => {}
        Err(error) => return Err(error),
    }
    if own == 1 {
        return Ok(true);
    }
    let dropped = mark == Some(1);
    let next = if dropped { failed } else { FORGET };
    sqlx::raw_sql(next).execute(connection).await?;
    Ok(dropped)
}
