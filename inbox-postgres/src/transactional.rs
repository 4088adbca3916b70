//! Recording, receiving and settling inside the caller's own transaction.

use async_trait::async_trait;
use inbox_api::{
    Bytes, Effect, Error, ErrorKind, Message, Receipt, Recorded, Result, Settled, Settlement,
    Transactional,
};
use sqlx::{Postgres, Transaction};

use crate::{
    error::{in_operation, sqlstate},
    store::{On, PostgresStore},
    work::{Repetition, Work},
};

/// Asks for the mark of the transaction and commits, as one message. A transaction that has failed
/// refuses the question; one that is not marked answers it with [`NOT_MARKED`]; neither commits.
///
/// The driver cannot be told that its transaction has ended, and rolls it back as the connection
/// goes back to the pool. What is chained to the committed one is there to be rolled back, since the
/// server logs a warning when there is nothing. It has done nothing and holds nothing.
const COMMIT: &str = concat!(
    "SELECT /* Is this the transaction that was opened? */ pg_catalog.width_bucket(0, 0, 1, ",
    "(pg_catalog.current_setting('inbox.transaction', true) IS NOT DISTINCT FROM 'on')::int); ",
    "COMMIT AND CHAIN"
);

/// What the question answers when the mark is missing: that there can be no 0 buckets.
const NOT_MARKED: &str = "2201G";
const FAILED_BEFORE: &str = "25P02";

fn not_committed(error: sqlx::Error) -> Error {
    const OPERATION: &str = "commit";
    let (kind, context, effect) = match sqlstate(&error).as_deref() {
        Some(NOT_MARKED) => (
            ErrorKind::Other,
            "this is not the transaction that was opened: the handler has ended that by itself, or \
             this store was never used in it",
            Effect::Unknown,
        ),
        Some(FAILED_BEFORE) => (
            ErrorKind::Conflict,
            "a statement in the transaction has failed, so the server commits nothing of it",
            Effect::None,
        ),
        _ => return in_operation(OPERATION)(error),
    };
    Error::new(kind, OPERATION, context)
        .with_effect(effect)
        .with_source(error)
}

/// Everything here runs on the given transaction's own connection, so a transaction that the
/// caller began on their own pool, on the same database, does as well as one from
/// [`open`](Transactional::open), at any isolation level. `open` begins at read committed, whatever
/// the database's default; a handler that needs more sets it with its first statement (`SET
/// TRANSACTION ISOLATION LEVEL SERIALIZABLE`).
///
/// Of two transactions that record one key, the second waits for the first. Under read committed
/// it then sees the duplicate and goes on. Under repeatable read and serializable, whatever has
/// changed since the transaction's first statement makes it fail as `Conflict`, to be rolled back
/// and repeated: a duplicate, a lease that was handed out or renewed, an ordering key that has moved
/// on. A handler at these levels has to be done before its lease is renewed.
///
/// Each call here first makes sure that there is a transaction, which takes a round trip, and fails as
/// `Other`, with an unknown effect, if a statement has ended it.
/// [`commit`](Transactional::commit) checks, without a further one, that the transaction is
/// still the one that was opened and that no statement in it has failed. A transaction of the
/// caller's own is recognised from its first call of this store on; one in which this store was never
/// used is refused. So is one that was rolled back to a savepoint older than that call, unless this
/// store was called again since: as `Other`, with an unknown effect, although it was sound. What cannot
/// be noticed is a handler that ends its transaction and begins another by itself before it calls this
/// store again. A caller who commits with the driver gets no check:
/// PostgreSQL answers `COMMIT` of a failed transaction with success.
///
/// A transaction holds a lock on each ordering key that it touches, until it ends: receiving and
/// settling messages of that key waits, other keys and messages without one do not.
#[async_trait]
impl Transactional for PostgresStore {
    type Transaction = Transaction<'static, Postgres>;

    async fn open(&self) -> Result<Self::Transaction> {
        self.begin_transaction("open").await
    }

    async fn commit(&self, mut transaction: Self::Transaction) -> Result<()> {
        let committing = async {
            let committed = sqlx::raw_sql(COMMIT).execute(&mut *transaction).await;
            drop(transaction);
            committed.map(|_| ()).map_err(not_committed)
        };
        self.in_time("commit", committing).await
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
