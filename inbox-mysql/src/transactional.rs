//! Recording, receiving and settling inside the caller's own transaction.

use async_trait::async_trait;
use inbox_api::{
    Bytes, Effect, Error, ErrorKind, Message, Receipt, Recorded, Result, Settled, Settlement,
    Transactional,
};
use sqlx::{MySql, SqlSafeStr as _, Transaction};

use crate::{
    error::{in_operation, without_effect},
    script::{Answers, Script, Secrecy},
    settle::{Detail, Settling},
    store::{MySqlStore, in_time},
    work::Order,
};

/// Payloads, results and headers are bound here: a transaction may be of the caller's own pool,
/// whose options may let the driver log statements.
const SECRECY: Secrecy = Secrecy::Bind;

const BEGIN: &str = "ROLLBACK AND NO CHAIN NO RELEASE;\n\
                     SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;\n\
                     START TRANSACTION";

/// Everything here runs on the given transaction's own connection, so a transaction that the
/// caller began on a pool of their own, on the same database, does as well as one from
/// [`open`](Transactional::open), which is `READ COMMITTED`. In the server's default,
/// `REPEATABLE READ`, everything stays correct, but the gaps that such a transaction locks make
/// others wait, and deadlocks more likely.
///
/// A deadlock or, in a Galera cluster, a conflict with another node's transaction fails as
/// `Conflict`, at any statement or at the commit; the whole transaction is rolled back then and
/// has to be done again. Message rows stay locked until the transaction ends: keep it short.
#[async_trait]
impl Transactional for MySqlStore {
    type Transaction = Transaction<'static, MySql>;

    async fn open(&self) -> Result<Self::Transaction> {
        const OPERATION: &str = "open";
        let connection = self.acquire(OPERATION).await?;
        // A task, because the driver leaves a transaction open behind a begin that is dropped.
        let opening = tokio::spawn(Transaction::begin(connection, Some(BEGIN.into_sql_str())));
        let timeout = self.inner.work.options.operation_timeout;
        let mut transaction = in_time(OPERATION, timeout, Effect::None, async {
            opening
                .await
                .map_err(|error| {
                    Error::new(ErrorKind::Other, OPERATION, "the task ended early")
                        .with_source(error)
                })?
                .map_err(without_effect(OPERATION))
        })
        .await?;
        self.check(OPERATION, &mut transaction).await?;
        Ok(transaction)
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "commit";
        let timeout = self.inner.work.options.operation_timeout;
        let committing = async { transaction.commit().await.map_err(in_operation(OPERATION)) };
        let committed = in_time(OPERATION, timeout, Effect::Unknown, committing).await;
        // What the transaction received or settled is unknown here; a wake-up without a cause
        // does no harm.
        self.inner.signal.raise();
        committed?;
        self.fold_sometimes().await;
        Ok(())
    }

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "roll_back";
        let timeout = self.inner.work.options.operation_timeout;
        in_time(OPERATION, timeout, Effect::None, async {
            transaction
                .rollback()
                .await
                .map_err(without_effect(OPERATION))
        })
        .await
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        const OPERATION: &str = "receive_in";
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let mut script = Script::within(&self.now());
        let work = &self.inner.work;
        let receiving = work.receive(&mut script, messages, Order::OfKeys, SECRECY);
        let answers = if receiving.is_empty() {
            Answers::default()
        } else {
            self.run_in(OPERATION, transaction, &script).await?
        };
        receiving
            .receipts(&answers)
            .map_err(in_operation(OPERATION))
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
        let mut script = Script::within(&self.now());
        let places = work.record(&mut script, message, result.as_ref(), SECRECY);
        let answers = self.run_in(OPERATION, transaction, &script).await?;
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
        let mut script = Script::within(&self.now());
        let places = work.settle(&mut script, &settling.endings, SECRECY, Detail::Each);
        let answers = if places.is_empty() {
            Answers::default()
        } else {
            self.run_in(OPERATION, transaction, &script).await?
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
    async fn run_in(
        &self,
        operation: &'static str,
        transaction: &mut Transaction<'static, MySql>,
        script: &Script,
    ) -> Result<Answers> {
        let work = &self.inner.work;
        in_time(operation, work.options.operation_timeout, Effect::None, async {
            self.check(operation, transaction).await?;
            script
                .run(transaction, work.server.max_packet, work.server.form())
                .await
                .map_err(without_effect(operation))
        })
        .await
    }
}
