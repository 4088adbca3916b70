//! Recording, receiving and settling inside the caller's own transaction.

use async_trait::async_trait;
use inbox_api::{
    Bytes, Effect, Error, ErrorKind, Key, Message, Receipt, Recorded, Result, Settled, Settlement,
    Transactional, from_micros,
};
use sqlx::{PgConnection, Postgres, Row as _, Transaction, postgres::PgRow};
use tokio::time::timeout_at;

use crate::{
    arguments::Arguments,
    begin::{arguments_of, kept_result, reason},
    connection::{Database, On},
    error::{failed, in_operation, sqlstate, unknown_answer},
    receive, rows,
    settle::{self, Repetition},
    store::PostgresStore,
    time::Instant,
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
        _ => return failed(error),
    };
    Error::new(kind, context)
        .with_effect(effect)
        .with_source(error)
}

async fn record(
    database: &Database,
    connection: &mut PgConnection,
    message: &Message,
    result: Option<&Bytes>,
) -> Result<Recorded> {
    let options = &database.options;
    options.check_message(message)?;
    options.check_result(result)?;
    let arguments = arguments_of(options, message)
        .with(result.map(AsRef::<[u8]>::as_ref))
        .with(options.drop_processed_payloads)
        .with(options.notifications)
        .finish()?;
    let on = On::MarkedTransaction(connection);
    let answer = database
        .run(on, &database.statements.record, arguments)
        .await
        .map_err(|error| options.payload_type.explain(error))?;
    read(rows::only(&answer)?)
}

fn read(row: &PgRow) -> Result<Recorded> {
    Ok(match row.try_get::<&str, _>(0).map_err(failed)? {
        "recorded" => Recorded::First,
        "processed" => Recorded::Processed {
            result: kept_result(row).map_err(failed)?,
        },
        "busy" => Recorded::Busy {
            until: from_micros(row.try_get::<Instant, _>(1).map_err(failed)?.0),
        },
        "blocked" => Recorded::Blocked,
        "dead" => Recorded::Dead {
            reason: reason(row).map_err(failed)?,
        },
        "discarded" => Recorded::Discarded,
        _ => return Err(unknown_answer()),
    })
}

async fn keep_result(
    database: &Database,
    connection: &mut PgConnection,
    key: &Key,
    result: &Bytes,
) -> Result<()> {
    database.options.check_result(Some(result))?;
    let arguments = Arguments::of_key(key)
        .with(AsRef::<[u8]>::as_ref(result))
        .finish()?;
    let on = On::MarkedTransaction(connection);
    let kept = database.run(on, &database.statements.keep_result, arguments);
    kept.await.map(drop)
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
/// Each call here makes sure that there is a transaction, and fails as `Other`, with an unknown effect, if a
/// statement has ended it. That takes a further round trip, but for recording and settling: those do nothing
/// outside of a transaction, and take two more for the first call in a transaction of the caller's own.
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
        let begun = self.inner.database.begin_transaction().await;
        begun.map_err(in_operation("open"))
    }

    async fn commit(&self, mut transaction: Self::Transaction) -> Result<()> {
        let database = &self.inner.database;
        let deadline = tokio::time::Instant::now() + database.limit();
        let mut failed_before = None;
        let committing = async {
            let committed = sqlx::raw_sql(COMMIT).execute(&mut *transaction).await;
            let code = committed.as_ref().err().and_then(sqlstate);
            if code.as_deref() == Some(FAILED_BEFORE) {
                failed_before = Some(transaction);
            } else {
                drop(transaction);
            }
            committed.map(|_| ()).map_err(not_committed)
        };
        let committed = database.in_time(committing).await;
        if let Some(transaction) = failed_before {
            // What failed may be a write that the server refused. That it is not committed is known by now.
            let _ = timeout_at(deadline, database.roll_back(transaction)).await;
        }
        committed.map_err(in_operation("commit"))
    }

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        let ended = self.inner.database.roll_back(transaction).await;
        ended
            .map_err(|error| error.with_effect(Effect::None))
            .map_err(in_operation("roll_back"))
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        let database = &self.inner.database;
        receive::receive_in(database, transaction, messages)
            .await
            .map_err(|error| database.options.payload_type.explain(error))
            .map_err(in_operation("receive_in"))
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        record(&self.inner.database, transaction, message, result.as_ref())
            .await
            .map_err(in_operation("record_in"))
    }

    async fn keep_result_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &Key,
        result: Bytes,
    ) -> Result<()> {
        keep_result(&self.inner.database, transaction, key, &result)
            .await
            .map_err(in_operation("keep_result_in"))
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let on = On::MarkedTransaction(transaction);
        settle::settle(&self.inner.database, on, settlements, Repetition::Lost)
            .await
            .map_err(in_operation("settle_in"))
    }
}
