//! Recording, receiving and settling inside the caller's transaction.
//!
//! Each step is a [`Step`], which is not left half-done: see there.
//!
//! A transaction may be gone before its time: a deadlock makes the server roll all of it back, DDL
//! commits, and a handler may do either by itself. What follows is then a transaction for each
//! statement, and the driver knows nothing of it. Savepoints tell: outside of a transaction they
//! leave no trace, and a `RELEASE` of one that is not there fails, with everything behind it in the
//! packet. A transaction from [`open`](Transactional::open) has one from its beginning, so that
//! not even another transaction in its place passes for it.

use std::collections::HashMap;

use async_trait::async_trait;
use inbox_api::{
    Bytes, Effect, Error, ErrorKind, Key, Message, Outcome, Receipt, Recorded, Result, Settled,
    Settlement, Transactional, settle_then_commit,
};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Row as _, SqlSafeStr as _, Transaction};

use crate::{
    compact_counters::compact_sometimes,
    connection::{Connection, Inner},
    connection_pool::too_late,
    error::{NO_SUCH_SAVEPOINT, OUT_OF_RANGE, before, failed, number},
    first_copies::Fingerprints,
    multi_statement::{Answers, COMMIT, Form, ROLLBACK, Script},
    receive::{Owner, add_look_for_keys, add_receive},
    record::{keep_result, record},
    settle::{self, Applied, Ending, Settling},
    settle_one,
    statement::Secrecy,
    store::MySqlStore,
    transaction_step::{
        self, FORGET, IS_FINISHED, IS_THERE, Step, catch_panic, is_marked, unfinished,
    },
};

const BEGIN: &str = "ROLLBACK AND NO CHAIN NO RELEASE;\n\
                     SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;\n\
                     START TRANSACTION;\n\
                     SET @inbox_tallied = NULL, @inbox_unfinished = NULL;\n\
                     SAVEPOINT inbox_begun";
/// Fails unless the transaction is the one that [`BEGIN`] has begun.
const IS_AS_BEGUN: &str = "RELEASE SAVEPOINT inbox_begun";

/// Fails, with [`OUT_OF_RANGE`], unless one row was changed.
const IS_SETTLED: &str = "SET @inbox_count = IF(@inbox_count = 1, 1, EXP(1000 + @inbox_count))";

/// Everything here runs on the given transaction's own connection, so a transaction that the
/// caller began on their own pool, on the same database, does as well as one from
/// [`open`](Transactional::open), which is `READ COMMITTED`. At every other level everything stays
/// correct, too. But in the server's default, `REPEATABLE READ`, the gaps that such a transaction locks
/// make others wait, and deadlocks more likely; and while a `SERIALIZABLE` one is open, others cannot
/// store messages whose keys are next to those that it has looked for, and fail as `Conflict` at their
/// time limit.
///
/// A deadlock or, in a Galera cluster, a conflict with another node's transaction fails as
/// `Conflict`, at any statement or at the commit; the whole transaction is rolled back then and
/// has to be done again. Message rows stay locked until the transaction ends: keep it short.
///
/// Behind a step that failed, or whose future was dropped before its end, no other step begins, and
/// [`commit`](Transactional::commit) fails as `Conflict`, without effect: roll back. The driver's own
/// `transaction.commit()` knows nothing of it. Behind a failure that the server reported, it commits the
/// transaction without the step, which was undone. Behind a step that was dropped or that met its time
/// limit, it may commit the step in parts where that takes several packets: on a caller's pool, with
/// payloads of more than 256 KiB, or with large batches. The inbox counts as corrupt then. There, the
/// driver may also have lost count of the server's answers. The next transaction in the same session of
/// a caller's pool may fail as `Conflict` once, unless the one before was ended by the store.
///
/// A handler that goes on behind such a failure, or that ends the transaction itself (by a
/// statement of DDL, too), writes outside of a transaction from there on. Every method here fails
/// then, with an unknown effect, and above all [`commit`](Transactional::commit), which tells it by a
/// savepoint: the names
/// `inbox_begun`, `inbox_probe` and `inbox_step` are the store's. Where a transaction of the
/// caller's pool is followed by another one in the same session, because the handler begins it,
/// that one passes for the first. Sessions that begin transactions by themselves (`autocommit=0`,
/// `completion_type=CHAIN`) are refused as `Unsupported` here for that reason; the connections of
/// [`connect`](MySqlStore::connect) are not concerned.
#[async_trait]
impl Transactional for MySqlStore {
    type Transaction = Transaction<'static, MySql>;

    async fn open(&self) -> Result<Self::Transaction> {
        let opened = open(self.connection()).await;
        opened.map_err(|e| e.in_operation("open"))
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<()> {
        let committed = commit(self.connection(), transaction).await;
        committed.map_err(|e| e.in_operation("commit"))
    }

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        let rolled_back = roll_back(self.connection(), transaction).await;
        rolled_back.map_err(|e| e.in_operation("roll_back"))
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        let step = Step::new(self.connection(), transaction);
        let receipts = receive_in(step, messages).await;
        receipts.map_err(|e| e.in_operation("receive_in"))
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        let step = Step::new(self.connection(), transaction);
        let recorded = record(step, message, result).await;
        recorded.map_err(|e| e.in_operation("record_in"))
    }

    async fn keep_result_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &Key,
        result: Bytes,
    ) -> Result<()> {
        let step = Step::new(self.connection(), transaction);
        let kept = keep_result(step, key, &result).await;
        kept.map_err(|e| e.in_operation("keep_result_in"))
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let step = Step::new(self.connection(), transaction);
        let settled = settle_in(step, settlements).await;
        settled.map_err(|e| e.in_operation("settle_in"))
    }

    async fn settle_and_commit(
        &self,
        mut transaction: Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let connection = self.connection();
        let ended = settle_and_commit_at_once(connection, &mut transaction, settlements).await;
        let settled = match ended {
            Ok(Some(settled)) => settled,
            Ok(None) => return settle_then_commit(self, transaction, settlements).await,
            Err(error) => {
                self.inner.pool.let_go(transaction);
                return Err(error.in_operation("settle_and_commit"));
            }
        };
        if settled.iter().any(|settled| *settled != Settled::Done) {
            // One that cannot be rolled back is never committed either.
            let _ = self.roll_back(transaction).await;
        } else {
            // The driver sends a ROLLBACK behind it, which finds nothing to do.
            drop(transaction);
            compact_sometimes(connection).await;
        }
        Ok(settled)
    }
}

async fn open(connection: Connection<'_>) -> Result<Transaction<'static, MySql>> {
    let inner = connection.inner;
    let until = connection.until;
    let session = inner.pool.acquire(until).await?;
    let opening = Transaction::begin(session, Some(BEGIN.into_sql_str()));
    let own = inner.pool.is_own();
    // A task, because the driver leaves a transaction open behind a begin that is dropped. That
    // does no harm on the store's own connections.
    let opening = tokio::spawn(async move {
        if own {
            tokio::time::timeout_at(until, opening).await.ok()
        } else {
            Some(opening.await)
        }
    });
    let opened = async {
        let opened = opening.await.map_err(|error| {
            Error::new(ErrorKind::Other, "the task ended early").with_source(error)
        })?;
        let mut transaction = opened.ok_or_else(too_late)?.map_err(before)?;
        inner.check(&mut transaction).await?;
        Ok(transaction)
    };
    connection.in_time(Effect::None, opened).await
}

async fn commit(
    connection: Connection<'_>,
    mut transaction: Transaction<'static, MySql>,
) -> Result<()> {
    let inner = connection.inner;
    let committing = catch_panic(commit_whole(inner, &mut transaction));
    let committed = connection.in_time(Effect::Unknown, committing).await;
    // What the transaction received or settled is unknown here; a wake-up without a cause
    // does no harm.
    inner.signal.raise();
    // The driver sends a ROLLBACK behind it, which finds nothing to do.
    inner.pool.let_go(transaction);
    committed?;
    compact_sometimes(connection).await;
    Ok(())
}

async fn roll_back(
    connection: Connection<'_>,
    mut transaction: Transaction<'static, MySql>,
) -> Result<()> {
    let rolling_back = catch_panic(async {
        // The driver sends another ROLLBACK behind it, which finds nothing to do.
        let texts = AssertSqlSafe(format!("{ROLLBACK};\n{FORGET}"));
        let rolled_back = sqlx::raw_sql(texts).execute(&mut *transaction).await;
        rolled_back.map(drop).map_err(before)
    });
    let rolled_back = connection.in_time(Effect::None, rolling_back).await;
    connection.inner.pool.let_go(transaction);
    rolled_back
}

async fn receive_in(mut step: Step<'_>, messages: &[Message]) -> Result<Vec<Receipt>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let context = step.context();
    let mut script = step.script();
    let (places, keys) = add_look_for_keys(context, &mut script, messages);
    script.all(&context.sql.rest_on_others);
    transaction_step::end_if_known(&mut script, keys);
    let answers = step.go_on(script).await?;
    let known = Fingerprints::read(&answers, &places).map_err(failed)?;
    let mut script = step.script();
    transaction_step::go_on_all_the_same(&mut script);
    let secrecy = step.secrecy(&answers);
    let owner = Owner::Caller;
    let receiving = add_receive(context, &mut script, messages, &known, owner, secrecy);
    let answers = if receiving.is_empty() {
        Answers::default()
    } else {
        step.end(script).await?
    };
    let received = receiving.read(messages, &answers).map_err(failed)?;
    Ok(received.compare(messages, &known))
}

async fn settle_in(mut step: Step<'_>, settlements: &[Settlement]) -> Result<Vec<Settled>> {
    let context = step.context();
    let settling = Settling::new(context, settlements);
    let secrecy = if settling.has_results() {
        let answers = step.go_on(step.script()).await?;
        step.secrecy(&answers)
    } else {
        Secrecy::Inline
    };
    let applied = match settling.endings.as_slice() {
        [] => Applied::default(),
        endings => settle::settle_in(step, endings, secrecy).await?,
    };
    // What was settled before stays out: it committed with another transaction's writes.
    let none = HashMap::new();
    Ok(settling.answers(settlements, &applied, &none))
}

/// Settles and commits in one packet, unless the lease is lost. `None`, and nothing is done, where that cannot be.
async fn settle_and_commit_at_once(
    connection: Connection<'_>,
    transaction: &mut Transaction<'static, MySql>,
    settlements: &[Settlement],
) -> Result<Option<Vec<Settled>>> {
    let inner = connection.inner;
    let settling = Settling::new(connection.context, settlements);
    let [ending] = settling.endings.as_slice() else {
        return Ok(None);
    };
    if settling.refuses_any() || !is_settled_by_commit(inner, ending) {
        return Ok(None);
    }
    let ending = catch_panic(settle_one_and_commit(inner, transaction, ending));
    let ended = connection.in_time(Effect::Unknown, ending).await;
    inner.signal.raise();
    let applied = ended?;
    Ok(applied.map(|applied| settling.answers(settlements, &applied, &HashMap::new())))
}

/// Whether a settlement and the commit may be one packet: in a cluster, the commit has its own, and in another
/// pool's sessions more has to be looked at.
fn is_settled_by_commit(inner: &Inner, ending: &Ending<'_>) -> bool {
    let has_result = matches!(ending.outcome, Outcome::Processed { result: Some(_) });
    settle_one::is_simple(&inner.context, ending)
        && !has_result
        && inner.pool.is_own()
        && inner.context.server.form() == Form::Sequence
}

/// Settles and commits in a transaction from [`open`]. Answers with nothing applied if the lease is lost, and
/// `None`, having done nothing, if the transaction is another one.
async fn settle_one_and_commit(
    inner: &Inner,
    session: &mut MySqlConnection,
    ending: &Ending<'_>,
) -> Result<Option<Applied>> {
    let context = &inner.context;
    let mut script = Script::default();
    for statement in [IS_AS_BEGUN, IS_FINISHED] {
        script.fixed(statement);
    }
    settle_one::add(context, &mut script, ending, Secrecy::Inline);
    script.keep_changed();
    script.fixed(IS_SETTLED);
    script.fixed(COMMIT);
    let max_packet = context.server.max_packet;
    let mut applied = Applied::default();
    match script.run(&mut *session, max_packet, Form::Sequence).await {
        Ok(_) => {
            applied.leases.insert(ending.row.seq_and_token());
        }
        Err(error) if number(&error) == Some(OUT_OF_RANGE) => {}
        Err(error) if number(&error) == Some(NO_SUCH_SAVEPOINT) => return Ok(None),
        Err(error) if is_marked(&error) => return Err(unfinished()),
        Err(error) => return Err(failed(error)),
    }
    Ok(Some(applied))
}

/// Commits the transaction if it is there, in one round trip (on Galera in two).
async fn commit_whole(inner: &Inner, session: &mut MySqlConnection) -> Result<()> {
    let own = inner.pool.is_own();
    let tells: &[&str] = if own { &[IS_AS_BEGUN] } else { &IS_THERE };
    let error = match commit_if(inner, tells, session).await? {
        Ok(()) => return Ok(()),
        Err(gone) => gone,
    };
    // Rare: a transaction of another pool, or one that is gone.
    let (of_own_session, ended_by_commit) =
        look_at_session(inner, session).await.map_err(failed)?;
    let error = if own && !of_own_session {
        match commit_if(inner, &IS_THERE, session).await? {
            Ok(()) => return Ok(()),
            Err(gone) => gone,
        }
    } else {
        error
    };
    let (kind, context) = if ended_by_commit {
        (
            ErrorKind::Other,
            "a statement of the handler's has committed what the transaction had done until \
             then: a COMMIT, or DDL",
        )
    } else {
        (
            ErrorKind::Conflict,
            "the transaction is gone: most likely it was rolled back, by the server (to end a \
             deadlock, say) or by a statement of the handler's",
        )
    };
    // What the handler did behind that has committed by itself.
    Err(Error::new(kind, context)
        .with_effect(Effect::Unknown)
        .with_source(error))
}

/// Commits if all of these tell so, and if no step is left unfinished. `Ok(Err(_))` means that the
/// transaction is not there.
async fn commit_if(
    inner: &Inner,
    tells: &[&str],
    session: &mut MySqlConnection,
) -> Result<sqlx::Result<()>> {
    let server = &inner.context.server;
    let mut script = Script::default();
    for statement in tells.iter().chain([&IS_FINISHED]) {
        script.fixed(statement);
    }
    let mut scripts = vec![script];
    if server.form() == Form::Compound {
        // In a cluster, the server may roll back between two statements of one packet, and does not
        // say so to the next one. What comes last before the commit has to look for the transaction,
        // and the commit has its own packet: a roll-back between packets fails the next.
        for statement in IS_THERE {
            if let Some(script) = scripts.last_mut() {
                script.fixed(statement);
            }
        }
        scripts.push(Script::default());
    }
    if let Some(script) = scripts.last_mut() {
        script.fixed(COMMIT);
    }
    for script in scripts {
        let ran = script.run(&mut *session, server.max_packet, Form::Sequence);
        match ran.await {
            Ok(_) => {}
            Err(error) if number(&error) == Some(NO_SUCH_SAVEPOINT) => return Ok(Err(error)),
            Err(error) if is_marked(&error) => {
                // What comes next in this session is another transaction.
                let forgotten = sqlx::raw_sql(FORGET).execute(session).await;
                forgotten.map_err(before)?;
                return Err(unfinished());
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(Ok(()))
}

/// Whether the session is the store's own, and whether what the store did last in the
/// transaction is there although it is gone. If it is not, the transaction was rolled back, or the
/// tally has been summed up since it was committed.
async fn look_at_session(
    inner: &Inner,
    session: &mut MySqlConnection,
) -> sqlx::Result<(bool, bool)> {
    let sql = inner.context.sql.expand(
        "SELECT COALESCE(@inbox_own, 0), \
         EXISTS (SELECT 1 FROM {tally} WHERE n = @inbox_tallied)",
    );
    let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(session).await?;
    let own: i64 = row.try_get_unchecked(0)?;
    let there: i64 = row.try_get_unchecked(1)?;
    Ok((own == 1, there == 1))
}
