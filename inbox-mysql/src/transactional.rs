//! Recording, receiving and settling inside the caller's own transaction.
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
use tokio::time::Instant;

use crate::{
    connections::too_late,
    error::{NO_SUCH_SAVEPOINT, in_operation, number, without_effect},
    script::{Answers, COMMIT, Form, Script, Secrecy},
    settle::{Detail, Settling},
    store::MySqlStore,
    work::{Known, Whose},
};

/// Payloads, results and headers are bound here: a transaction may be of the caller's own pool,
/// whose options may let the driver log statements.
const SECRECY: Secrecy = Secrecy::Bind;

const BEGIN: &str = "ROLLBACK AND NO CHAIN NO RELEASE;\n\
                     SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;\n\
                     START TRANSACTION;\n\
                     SET @inbox_tallied = NULL;\n\
                     SAVEPOINT inbox_begun";
/// Fails unless the transaction is the one that [`BEGIN`] has begun.
const IS_AS_BEGUN: &str = "RELEASE SAVEPOINT inbox_begun";
/// Fail unless there is a transaction.
const IS_THERE: [&str; 2] = ["SAVEPOINT inbox_probe", "RELEASE SAVEPOINT inbox_probe"];

/// Everything here runs on the given transaction's own connection, so a transaction that the
/// caller began on a pool of their own, on the same database, does as well as one from
/// [`open`](Transactional::open), which is `READ COMMITTED`. In the server's default,
/// `REPEATABLE READ`, everything stays correct, but the gaps that such a transaction locks make
/// others wait, and deadlocks more likely.
///
/// A deadlock or, in a Galera cluster, a conflict with another node's transaction fails as
/// `Conflict`, at any statement or at the commit; the whole transaction is rolled back then and
/// has to be done again. Message rows stay locked until the transaction ends: keep it short.
///
/// A handler that goes on behind such a failure, or that ends the transaction itself (by a
/// statement of DDL, too), writes outside of a transaction from there on. Every method here fails
/// then, and above all [`commit`](Transactional::commit), which tells it by a savepoint: the names
/// `inbox_begun` and `inbox_probe` are the store's. Where a transaction of the caller's own pool is
/// followed by another one in the same session, because the handler begins it, that one passes for
/// the first. Sessions that begin transactions by themselves (`autocommit=0`,
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
        let committing = self.commit_whole(OPERATION, &mut transaction);
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

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "roll_back";
        let rolling_back = async {
            transaction
                .rollback()
                .await
                .map_err(without_effect(OPERATION))
        };
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
        const OPERATION: &str = "receive_in";
        let until = self.until();
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let work = &self.inner.work;
        let mut script = Script::within(&self.now(), &IS_THERE);
        let places = work.look_for(&mut script, messages);
        let answers = self.run_in(OPERATION, until, transaction, script).await?;
        let known = Known::of(&answers, &places).map_err(in_operation(OPERATION))?;
        let mut script = Script::within(&self.now(), &IS_THERE);
        let receiving = work.receive(&mut script, messages, &known, Whose::Callers, SECRECY);
        let answers = if receiving.is_empty() {
            Answers::default()
        } else {
            self.run_in(OPERATION, until, transaction, script).await?
        };
        receiving
            .receipts(messages, &answers)
            .map_err(in_operation(OPERATION))
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        const OPERATION: &str = "record_in";
        let until = self.until();
        let work = &self.inner.work;
        work.check_message(message)
            .map_err(|invalid| invalid.in_operation(OPERATION))?;
        if let Some(result) = &result {
            work.check_result(result)
                .map_err(|invalid| invalid.in_operation(OPERATION))?;
        }
        let mut script = Script::within(&self.now(), &IS_THERE);
        let places = work.record(&mut script, message, result.as_ref(), SECRECY);
        let answers = self.run_in(OPERATION, until, transaction, script).await?;
        work.recorded(&answers, &places)
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        const OPERATION: &str = "settle_in";
        let until = self.until();
        let work = &self.inner.work;
        let settling = Settling::new(work, settlements);
        let mut script = Script::within(&self.now(), &IS_THERE);
        let places = work.settle(&mut script, &settling.endings, SECRECY, Detail::Each);
        let answers = if places.is_empty() {
            Answers::default()
        } else {
            self.run_in(OPERATION, until, transaction, script).await?
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
    /// Runs a script within a transaction, if that is still there.
    async fn run_in(
        &self,
        operation: &'static str,
        until: Instant,
        transaction: &mut Transaction<'static, MySql>,
        mut script: Script,
    ) -> Result<Answers> {
        let server = &self.inner.work.server;
        // For the case that the transaction is gone when it is to be committed.
        script.fixed("SET @inbox_tallied = LAST_INSERT_ID()");
        script.end();
        let running = async {
            self.check_within(operation, transaction).await?;
            script
                .run(transaction, server.max_packet, server.form())
                .await
                .map_err(|error| {
                    if number(&error) == Some(NO_SUCH_SAVEPOINT) {
                        let context = "the transaction is not there any more: the server has \
                                       rolled it back, or a statement in it has ended it";
                        Error::new(ErrorKind::Conflict, operation, context).with_source(error)
                    } else {
                        without_effect(operation)(error)
                    }
                })
        };
        let answers = self
            .inner
            .connections
            .in_time(operation, until, Effect::None, running)
            .await?;
        if answers.session_begins_transactions() {
            let context = "this session begins transactions by itself, so that one that the \
                           server rolls back goes unnoticed: set autocommit=1 and \
                           completion_type=NO_CHAIN in it";
            return Err(Error::new(ErrorKind::Unsupported, operation, context));
        }
        self.fold_beside();
        Ok(answers)
    }

    /// Commits the transaction if it is there, in one round trip (on Galera in two).
    async fn commit_whole(
        &self,
        operation: &'static str,
        connection: &mut MySqlConnection,
    ) -> Result<()> {
        let own = self.inner.connections.are_own();
        let tells: &[&str] = if own { &[IS_AS_BEGUN] } else { &IS_THERE };
        let error = match self.commit_if(tells, connection).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if number(&error) != Some(NO_SUCH_SAVEPOINT) {
            return Err(in_operation(operation)(error));
        }
        // Rare: a transaction of another pool, or one that is gone.
        let (of_own_session, ended_by_commit) = self
            .look_at_session(connection)
            .await
            .map_err(in_operation(operation))?;
        let error = if own && !of_own_session {
            match self.commit_if(&IS_THERE, connection).await {
                Ok(()) => return Ok(()),
                Err(again) if number(&again) == Some(NO_SUCH_SAVEPOINT) => again,
                Err(again) => return Err(in_operation(operation)(again)),
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
                "the transaction was rolled back, by the server (to end a deadlock, say) or by a \
                 statement of the handler's",
            )
        };
        // What the handler did behind that has committed by itself.
        Err(Error::new(kind, operation, context)
            .with_effect(Effect::Unknown)
            .with_source(error))
    }

    async fn commit_if(
        &self,
        tells: &[&str],
        connection: &mut MySqlConnection,
    ) -> sqlx::Result<()> {
        let server = &self.inner.work.server;
        let mut script = Script::default();
        for tell in tells {
            script.fixed(tell);
        }
        // In a cluster, the server may roll back between two statements of one packet.
        if server.form() == Form::Compound {
            script
                .run(connection, server.max_packet, Form::Sequence)
                .await?;
            script = Script::default();
        }
        script.fixed(COMMIT);
        script
            .run(connection, server.max_packet, Form::Sequence)
            .await?;
        Ok(())
    }

    /// Whether the session is the store's own, and whether what the store did last in the
    /// transaction is there although it is gone.
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
