//! Recording, receiving and settling inside the caller's own transaction.

use async_trait::async_trait;
use inbox_api::{
    Bytes, Effect, Message, Receipt, Recorded, Result, Settled, Settlement, Transactional,
};
use sqlx::{Postgres, Transaction};

use crate::{
    error::in_operation,
    store::{On, PostgresStore},
    work::{Repetition, Work},
};

/// Everything here runs on the given transaction's own connection, so a transaction that the
/// caller began on a pool of their own, on the same database, does as well as one from
/// [`open`](Transactional::open), at any isolation level.
///
/// Of two transactions that record one key, the second waits for the first. Under read committed
/// (PostgreSQL's default) it then sees the duplicate and goes on; under repeatable read and
/// serializable it may fail as `Conflict`, to be rolled back and repeated.
///
/// A transaction holds a lock on each ordering key that it touches, until it ends: receiving and
/// settling messages of that key waits, other keys and messages without one do not.
#[async_trait]
impl Transactional for PostgresStore {
    type Transaction = Transaction<'static, Postgres>;

    async fn open(&self) -> Result<Self::Transaction> {
        self.begin_transaction("open").await
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "commit";
        let committing = async { transaction.commit().await.map_err(in_operation(OPERATION)) };
        self.in_time(OPERATION, committing).await
    }

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "roll_back";
        let ending = async {
            let ended = transaction.rollback().await;
            ended.map_err(in_operation(OPERATION))
        };
        self.in_time(OPERATION, ending)
            .await
            .map_err(|error| error.with_effect(Effect::None))
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        const OPERATION: &str = "receive_in";
        self.receive_on(OPERATION, Some(transaction), messages)
            .await
            .map_err(|error| self.payload_error(OPERATION, error))
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        const OPERATION: &str = "record_in";
        let work = &self.inner.work;
        work.check(message)
            .and_then(|()| work.check_result(result.as_ref()))
            .map_err(|invalid| invalid.in_operation(OPERATION))?;
        let arguments = work.record(message, result.as_ref())?;
        let on = On::Transaction(transaction);
        let answer = self
            .run(OPERATION, on, &work.statements.record, arguments)
            .await
            .map_err(|error| self.payload_error(OPERATION, error))?;
        Work::recorded(&answer)
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let on = On::Transaction(transaction);
        self.settle_on("settle_in", on, settlements, Repetition::Lost)
            .await
    }
}
