//! Recording, receiving and settling inside the caller's own transaction.
//!
//! Each step is a [`Step`], which is not left half-done: see there.
//!
//! A transaction may be gone before its time: a deadlock makes the server roll all of it back, DDL
//! commits, and a handler may do either by itself. What follows is then a transaction for each
//! statement, and the driver knows nothing of it. Savepoints tell: outside of a transaction they
//! leave no trace, and a `RELEASE` of one that is not there fails, with everything behind it in the
//! packet. A transaction from [`open`](Transactional::open) has one from its beginning, so that
//! not even another transaction in its place passes for it.

use async_trait::async_trait;
use inbox_api::{
    Bytes, Effect, Error, ErrorKind, Message, Receipt, Recorded, Result, Settled, Settlement,
    Transactional,
};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Row as _, SqlSafeStr as _, Transaction};

use crate::{
    connections::too_late,
    error::{NO_SUCH_SAVEPOINT, in_operation, number, without_effect},
    script::{Answers, COMMIT, Form, ROLLBACK, Script, Secrecy},
    settle::{Detail, Settling},
    step::{self, FORGET, IS_FINISHED, IS_THERE, Step, is_marked, unbroken, unfinished},
    store::MySqlStore,
    work::{Known, Whose},
};

const BEGIN: &str = "ROLLBACK AND NO CHAIN NO RELEASE;\n\
                     SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;\n\
                     START TRANSACTION;\n\
                     SET @inbox_tallied = NULL, @inbox_unfinished = NULL;\n\
                     SAVEPOINT inbox_begun";
/// Fails unless the transaction is the one that [`BEGIN`] has begun.
const IS_AS_BEGUN: &str = "RELEASE SAVEPOINT inbox_begun";

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
/// caller's own pool is followed by another one in the same session, because the handler begins it,
/// that one passes for the first. Sessions that begin transactions by themselves (`autocommit=0`,
/// `completion_type=CHAIN`) are refused as `Unsupported` here for that reason; the connections of
/// [`connect`](MySqlStore::connect) are not concerned.
#[async_trait]
impl Transactional for MySqlStore {
    type Transaction = Transaction<'static, MySql>;

    async fn open(&self) -> Result<Self::Transaction> {
        const OPERATION: &str = "open";
        let until = self.until();
        let connections = &self.inner.connections;
        let connection = connections.acquire(OPERATION, until).await?;
        let opening = Transaction::begin(connection, Some(BEGIN.into_sql_str()));
        let own = connections.are_own();
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
                Error::new(ErrorKind::Other, OPERATION, "the task ended early").with_source(error)
            })?;
            let mut transaction = opened
                .ok_or_else(|| too_late(OPERATION))?
                .map_err(without_effect(OPERATION))?;
            self.check(OPERATION, &mut transaction).await?;
            Ok(transaction)
        };
        connections
            .in_time(OPERATION, until, Effect::None, opened)
            .await
    }

    async fn commit(&self, mut transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "commit";
        let until = self.until();
        let committing = unbroken(OPERATION, self.commit_whole(OPERATION, &mut transaction));
        let committed = self
            .inner
            .connections
            .in_time(OPERATION, until, Effect::Unknown, committing)
            .await;
        // What the transaction received or settled is unknown here; a wake-up without a cause
        // does no harm.
        self.inner.signal.raise();
        committed?;
        // The driver sends a ROLLBACK behind it, which finds nothing to do.
        drop(transaction);
        self.fold_sometimes(until).await;
        Ok(())
    }

    async fn roll_back(&self, mut transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "roll_back";
        let rolling_back = unbroken(OPERATION, async {
            // The driver sends another ROLLBACK behind it, which finds nothing to do.
            let texts = AssertSqlSafe(format!("{ROLLBACK};\n{FORGET}"));
            let rolled_back = sqlx::raw_sql(texts).execute(&mut *transaction).await;
            rolled_back.map(drop).map_err(without_effect(OPERATION))
        });
        let until = self.until();
        self.inner
            .connections
            .in_time(OPERATION, until, Effect::None, rolling_back)
            .await
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        const OPERATION: &str = "receive_in";
        let mapped = in_operation(OPERATION);
        let work = &self.inner.work;
        let mut step = Step::new(self, OPERATION, transaction);
        let mut script = step.script();
        let (places, keys) = work.look_for(&mut script, messages);
        step::end_if_known(&mut script, keys);
        let answers = step.go_on(script).await?;
        let known = Known::of(&answers, &places).map_err(mapped)?;
        let mut script = step.script();
        step::go_on_all_the_same(&mut script);
        let secrecy = step.secrecy(&answers);
        let receiving = work.receive(&mut script, messages, &known, Whose::Callers, secrecy);
        let answers = if receiving.is_empty() {
            Answers::default()
        } else {
            step.end(script).await?
        };
        receiving.receipts(messages, &answers).map_err(mapped)
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        const OPERATION: &str = "record_in";
        let work = &self.inner.work;
        work.check_message(message)
            .map_err(|invalid| invalid.in_operation(OPERATION))?;
        if let Some(result) = &result {
            work.check_result(result)
                .map_err(|invalid| invalid.in_operation(OPERATION))?;
        }
        let mut step = Step::new(self, OPERATION, transaction);
        let mut script = step.script();
        let look = work.prepare_record(&mut script, message);
        let answers = step.go_on(script).await?;
        let known = !answers.rows(look).is_empty();
        let secrecy = step.secrecy(&answers);
        let mut script = step.script();
        let places = work.record(&mut script, message, result.as_ref(), known, secrecy);
        let answers = step.end(script).await?;
        work.recorded(&answers, &places)
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        const OPERATION: &str = "settle_in";
        let work = &self.inner.work;
        let settling = Settling::new(work, settlements);
        let mut step = Step::new(self, OPERATION, transaction);
        let secrecy = if settling.has_results() {
            let answers = step.go_on(step.script()).await?;
            step.secrecy(&answers)
        } else {
            Secrecy::Inline
        };
        let mut script = step.script();
        let places = work.settle(&mut script, &settling.endings, secrecy, Detail::Each);
        let answers = if places.is_empty() {
            Answers::default()
        } else {
            step.end(script).await?
        };
        let applied = work
            .applied(&answers, &places, &settling.endings)
            .map_err(in_operation(OPERATION))?;
        // What was settled before stays out: it committed with another transaction's writes.
        let none = std::collections::HashMap::new();
        Ok(settling.answers(settlements, &applied, &none))
    }
}

impl MySqlStore {
    /// Commits the transaction if it is there, in one round trip (on Galera in two).
    async fn commit_whole(
        &self,
        operation: &'static str,
        connection: &mut MySqlConnection,
    ) -> Result<()> {
        let own = self.inner.connections.are_own();
        let tells: &[&str] = if own { &[IS_AS_BEGUN] } else { &IS_THERE };
        let error = match self.commit_if(operation, tells, connection).await? {
            Ok(()) => return Ok(()),
            Err(gone) => gone,
        };
        // Rare: a transaction of another pool, or one that is gone.
        let (of_own_session, ended_by_commit) = self
            .look_at_session(connection)
            .await
            .map_err(in_operation(operation))?;
        let error = if own && !of_own_session {
            match self.commit_if(operation, &IS_THERE, connection).await? {
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
        Err(Error::new(kind, operation, context)
            .with_effect(Effect::Unknown)
            .with_source(error))
    }

    /// Commits if all of these tell so, and if no step is left unfinished. `Ok(Err(_))` means that the
    /// transaction is not there.
    async fn commit_if(
        &self,
        operation: &'static str,
        tells: &[&str],
        connection: &mut MySqlConnection,
    ) -> Result<sqlx::Result<()>> {
        let server = &self.inner.work.server;
        let mut scripts = vec![Script::default()];
        for (n, statement) in tells.iter().chain([&IS_FINISHED, &COMMIT]).enumerate() {
            // In a cluster, the server may roll back between two statements of one packet.
            if n > tells.len() && server.form() == Form::Compound {
                scripts.push(Script::default());
            }
            if let Some(script) = scripts.last_mut() {
                script.fixed(statement);
            }
        }
        for script in scripts {
            let ran = script.run(&mut *connection, server.max_packet, Form::Sequence);
            match ran.await {
                Ok(_) => {}
                Err(error) if number(&error) == Some(NO_SUCH_SAVEPOINT) => return Ok(Err(error)),
                Err(error) if is_marked(&error) => {
                    // What comes next in this session is another transaction.
                    let forgotten = sqlx::raw_sql(FORGET).execute(connection).await;
                    forgotten.map_err(without_effect(operation))?;
                    return Err(unfinished(operation));
                }
                Err(error) => return Err(in_operation(operation)(error)),
            }
        }
        Ok(Ok(()))
    }

    /// Whether the session is the store's own, and whether what the store did last in the
    /// transaction is there although it is gone. If it is not, the transaction was rolled back, or the
    /// tally has been summed up since it was committed.
    async fn look_at_session(
        &self,
        connection: &mut MySqlConnection,
    ) -> sqlx::Result<(bool, bool)> {
        let sql = self.inner.work.sql.expand(
            "SELECT COALESCE(@inbox_own, 0), \
             EXISTS (SELECT 1 FROM {tally} WHERE n = @inbox_tallied)",
        );
        let row = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_one(connection)
            .await?;
        let own: i64 = row.try_get_unchecked(0)?;
        let there: i64 = row.try_get_unchecked(1)?;
        Ok((own == 1, there == 1))
    }
}
