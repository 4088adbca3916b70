//! Recording, receiving and settling inside the caller's own transaction.

use std::{future::Future, sync::Arc, time::Instant};

use async_trait::async_trait;
use inbox_api::{
    Bytes, Error, ErrorKind, Key, Lease, Message, Receipt, Recorded, Result, Settled, Settlement,
    State, Transactional, check_size, from_micros,
};
use mongodb::{
    ClientSession,
    bson::{DateTime, Document, doc, oid::ObjectId},
};

use crate::{
    begin::{Obstacle, find, obstacle},
    connection::{Change, Connection, Database},
    extend::prolong,
    layout::ORDERING_INDEX,
    ordering::{is_first, is_first_now, promote_key_heads},
    pipelines::{self, Keeping},
    receive::{self, Plan},
    rows::{Beginning, code, document, identifier, number, those},
    settle::{Repetition, settle_on},
    store::MongoStore,
    transaction::{Changes, OpenTransaction},
};

/// A transaction of a [`MongoStore`], in a session of the driver's.
///
/// Dropping it aborts it.
pub struct MongoTransaction {
    /// With the task that works on it while an operation is under way.
    open: Option<OpenTransaction>,
    /// Whether an operation took longer than it may.
    timed_out: bool,
}

impl std::fmt::Debug for MongoTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MongoTransaction")
            .field("usable", &self.open.is_some())
            .finish()
    }
}

impl MongoTransaction {
    /// The session, for the handler's own reads and writes. Do not commit or abort through it:
    /// [`commit`](Transactional::commit) and [`roll_back`](Transactional::roll_back) do.
    ///
    /// The driver's futures are not cancel-safe: do not drop one that uses the session before it
    /// has ended.
    ///
    /// # Errors
    /// `Invalid` when an earlier operation of the store in this transaction was dropped before it
    /// had ended, `Unavailable` when one did not end in its time: the transaction is aborted then.
    pub fn session(&mut self) -> Result<&mut ClientSession> {
        match &mut self.open {
            Some(open) => Ok(&mut open.session),
            None => Err(abort_error(self.timed_out).in_operation("session")),
        }
    }

    fn new(open: OpenTransaction) -> Self {
        Self {
            open: Some(open),
            timed_out: false,
        }
    }

    fn take(&mut self) -> Result<OpenTransaction> {
        let timed_out = self.timed_out;
        self.open.take().ok_or_else(|| abort_error(timed_out))
    }
}

fn abort_error(timed_out: bool) -> Error {
    let (kind, context) = if timed_out {
        let context = "an operation in this transaction took too long, which aborted it";
        (ErrorKind::Unavailable, context)
    } else {
        let context = "an operation in this transaction was cancelled, which aborted it";
        (ErrorKind::Invalid, context)
    };
    Error::new(kind, context)
}

/// Does `work` on the transaction in its own task. If the caller's future is dropped meanwhile, the
/// task goes on to its end and then aborts the transaction. Behind work that failed, none is begun and
/// nothing is committed.
async fn in_transaction<T, F>(
    database: &Arc<Database>,
    transaction: &mut MongoTransaction,
    work: impl FnOnce(Arc<Database>, OpenTransaction) -> F,
) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = (OpenTransaction, Result<T>)> + Send + 'static,
{
    database.check_open()?;
    if let Some(open) = &transaction.open {
        open.check_steps()?;
    }
    let mut open = transaction.take()?;
    open.check_open().await?;
    let task = tokio::spawn(work(Arc::clone(database), open));
    let waited = database.wait(task).await;
    transaction.timed_out = waited.is_err();
    let (mut open, outcome) = waited?;
    if outcome.is_err() {
        open.note_failure();
    }
    transaction.open = Some(open);
    outcome
}

/// What is to be recorded in a transaction.
struct Recording<'a> {
    message: &'a Message,
    id: String,
    result: Option<&'a Bytes>,
    mark: ObjectId,
    /// The messages with ordering keys that the transaction has changed before.
    mine: &'a [String],
}

impl Recording<'_> {
    /// Whether the message may be recorded as far as the messages of its ordering key go that others
    /// have changed since the transaction began, of which it sees nothing.
    async fn is_first_now(&self, database: &Database, seq: Option<i64>) -> Result<bool> {
        let Some(ordering_key) = self.message.ordering_key() else {
            return Ok(true);
        };
        let mut mine: Vec<&str> = self.mine.iter().map(String::as_str).collect();
        mine.push(&self.id);
        is_first_now(
            &database.connection(),
            self.message.handler().as_str(),
            ordering_key.as_str(),
            &mine,
            seq,
        )
        .await
    }
}

/// Transactions that record messages of the same ordering key have one guard, and few others have
/// the same.
fn guard(message: &Message) -> Option<String> {
    const GUARDS: u64 = 1 << 16;
    let ordering_key = message.ordering_key()?.as_str().bytes();
    let key = message
        .handler()
        .as_str()
        .bytes()
        .chain([0])
        .chain(ordering_key);
    // FNV-1a: the same in every build.
    let hash = key.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Some(format!("guard {}", (hash ^ hash >> 32) % GUARDS))
}

/// Decides about a message within a transaction, and records it if it may be.
async fn record(connection: &mut Connection<'_>, recording: &Recording<'_>) -> Result<Recorded> {
    if let Some(guard) = guard(recording.message) {
        // Two of one key that see nothing of each other would both be the first.
        connection.guard(&guard).await?;
    }
    match find(connection, &recording.id).await? {
        Some(found) => record_known(connection, recording, found).await,
        None => record_new(connection, recording).await,
    }
}

async fn record_known(
    connection: &mut Connection<'_>,
    recording: &Recording<'_>,
    mut found: Document,
) -> Result<Recorded> {
    if let Some(obstacle) = obstacle(connection, &mut found)? {
        return Ok(match obstacle {
            Obstacle::Processed(result) => Recorded::Processed { result },
            Obstacle::Busy(until) => Recorded::Busy {
                until: from_micros(until),
            },
            Obstacle::Dead(reason) => Recorded::Dead { reason },
            Obstacle::Discarded => Recorded::Discarded,
        });
    }
    let id = recording.id.as_str();
    let is_first = !found.contains_key("orderingKey")
        || is_first(connection, id).await?
            && recording
                .is_first_now(connection.database, number(&found, "seq"))
                .await?;
    if !is_first {
        return Ok(Recorded::Blocked);
    }
    if let Some((seq, now)) = number(&found, "seq").zip(number(&found, "now")) {
        connection.open([seq], now).await?;
    }
    let mut filter = those([id]);
    filter.extend(doc! { "token": number(&found, "token"), "state": number(&found, "state") });
    let pipeline = pipelines::record(
        connection.database,
        recording.result,
        Keeping::of(&connection.database.options),
        recording.mark,
    );
    match connection.change(filter, pipeline).await? {
        Change::Done(_) | Change::Unread => Ok(Recorded::First),
        Change::NoneSuch | Change::Held => {
            Err(connection.error(ErrorKind::Conflict, "the message was changed just now"))
        }
    }
}

async fn record_new(
    connection: &mut Connection<'_>,
    recording: &Recording<'_>,
) -> Result<Recorded> {
    let message = recording.message;
    let (seq, now) = connection.draw(1).await?;
    connection.open_by_drawing([seq]);
    let due = message.due().resolve(now);
    let blocked = match message.ordering_key() {
        None => false,
        Some(ordering_key) => {
            let open = vec![
                doc! { "$match": {
                    "handler": message.handler().as_str(),
                    "orderingKey": ordering_key.as_str(),
                    "open": true,
                } },
                doc! { "$limit": 1 },
                doc! { "$project": { "_id": 1 } },
            ];
            !connection
                .aggregate(Some(ORDERING_INDEX), open)
                .await?
                .is_empty()
                || !recording.is_first_now(connection.database, None).await?
        }
    };
    let beginning = if due > now || blocked {
        Beginning::Pending(recording.mark)
    } else {
        let age = connection.database.options.expire_processed_after;
        let expire_at = age.map(|age| {
            let millis = now / 1000 + i64::try_from(age.as_millis()).unwrap_or(i64::MAX / 4);
            DateTime::from_millis(millis)
        });
        Beginning::Processed(
            recording.result,
            expire_at,
            connection.database.options.drop_processed_payloads,
        )
    };
    let stored = document(message, seq, now, beginning);
    connection.insert(std::slice::from_ref(&stored)).await?;
    Ok(if due > now {
        Recorded::Busy {
            until: from_micros(due),
        }
    } else if blocked {
        Recorded::Blocked
    } else {
        Recorded::First
    })
}

async fn open(database: &Arc<Database>) -> Result<MongoTransaction> {
    let open = database.task(|database| async move { OpenTransaction::open(&database).await });
    open.await.map(MongoTransaction::new)
}

async fn open_for(database: &Arc<Database>, leases: &[Lease]) -> Result<MongoTransaction> {
    let leases = leases.to_vec();
    let open = database.task(|database| async move {
        let lifetime = database.options.transaction_lifetime;
        let ends = Instant::now() + lifetime;
        let mut connection = database.connection();
        let until = prolong(&mut connection, &leases, lifetime).await?;
        let lasting = leases
            .iter()
            .zip(until)
            // The settlement finds out which are lost.
            .filter_map(|(lease, until)| Some((lease, until?)))
            .collect();
        let pause = database.paused_renewals.begin(lasting, ends);
        let mut open = OpenTransaction::open(&database).await?;
        open.pause = Some(pause);
        Ok(open)
    });
    open.await.map(MongoTransaction::new)
}

async fn commit(database: &Arc<Database>, mut transaction: MongoTransaction) -> Result<()> {
    let open = transaction.take()?;
    let committed = database.task(|database| async move {
        let (session, changes) = open.commit().await?;
        promote_committed(session, &changes).await;
        raise_all(&database, &changes);
        Ok(())
    });
    committed.await
}

/// It is committed, whatever becomes of this; claims find what is left of it.
async fn promote_committed(session: ClientSession, changes: &[Changes]) {
    let mut session = Some(session);
    for changes in changes.iter().filter(|changes| !changes.ordered.is_empty()) {
        // Another member may have taken over, whose readers do not see the commit yet: a look at what
        // was before would take the marks away for nothing.
        let Some(committed) = session.take() else {
            return;
        };
        let mut connection = changes.database.connection_after(committed);
        let _ = promote_key_heads(&mut connection, &changes.ordered, &changes.marks).await;
        session = connection.into_session();
    }
}

/// Wakes those that wait for work of this inbox, and of the others in which a transaction has worked.
fn raise_all(database: &Arc<Database>, changes: &[Changes]) {
    database.wakers.raise();
    for changes in changes {
        if !Arc::ptr_eq(&changes.database, database) {
            changes.database.wakers.raise();
        }
    }
}

async fn roll_back(database: &Arc<Database>, mut transaction: MongoTransaction) -> Result<()> {
    let open = transaction.take()?;
    let rolled_back = database.task(|database| async move {
        let changes = open.abort().await;
        // What it held may be claimed now.
        raise_all(&database, &changes);
        Ok(())
    });
    rolled_back.await
}

async fn receive_in(
    database: &Arc<Database>,
    transaction: &mut MongoTransaction,
    messages: &[Message],
) -> Result<Vec<Receipt>> {
    let plan = Plan::new(messages, database.options.payload_limit);
    if plan.is_empty() {
        return Ok(plan.receipts());
    }
    let received = in_transaction(database, transaction, |database, mut open| async move {
        let mut connection = database.in_transaction(&mut open.session);
        let outcome = receive::receive_in(&mut connection, plan).await;
        let opening = connection.opening.take();
        open.note_opening(&database, opening);
        let outcome = outcome.map(|received| {
            open.note(&database, &received.ordered, received.mark);
            received.receipts
        });
        (open, outcome)
    });
    received.await
}

async fn record_in(
    database: &Arc<Database>,
    transaction: &mut MongoTransaction,
    message: &Message,
    result: Option<Bytes>,
) -> Result<Recorded> {
    let limit = database.options.payload_limit;
    message.check_payload(limit)?;
    check_size("result", result.as_ref().map_or(0, Bytes::len), limit)?;
    let message = message.clone();
    let recorded = in_transaction(database, transaction, |database, mut open| async move {
        let mark = ObjectId::new();
        let mine = open.ordered_in(&database);
        let mut connection = database.in_transaction(&mut open.session);
        let recording = Recording {
            message: &message,
            id: identifier(message.key()),
            result: result.as_ref(),
            mark,
            mine: &mine,
        };
        let outcome = record(&mut connection, &recording).await;
        let opening = connection.opening.take();
        open.note_opening(&database, opening);
        open.note(&database, &[identifier(message.key())], mark);
        (open, outcome)
    });
    recorded.await
}

async fn keep_result_in(
    database: &Arc<Database>,
    transaction: &mut MongoTransaction,
    key: &Key,
    result: Bytes,
) -> Result<()> {
    check_size("result", result.len(), database.options.payload_limit)?;
    let id = identifier(key);
    let kept = in_transaction(database, transaction, |database, mut open| async move {
        let mut connection = database.in_transaction(&mut open.session);
        let mut filter = those([id.as_str()]);
        filter.insert("state", code(State::Processed));
        let kept = match connection
            .change(filter, pipelines::keep_result(&result))
            .await
        {
            Ok(Change::Done(_) | Change::Unread) => Ok(()),
            Ok(Change::NoneSuch | Change::Held) => {
                let context = "the message is not recorded in this transaction";
                Err(connection.error(ErrorKind::Other, context))
            }
            Err(error) => Err(error),
        };
        (open, kept)
    });
    kept.await
}

async fn settle_in(
    database: &Arc<Database>,
    transaction: &mut MongoTransaction,
    settlements: &[Settlement],
) -> Result<Vec<Settled>> {
    if settlements.is_empty() {
        return Ok(Vec::new());
    }
    let settlements = settlements.to_vec();
    let settled = in_transaction(database, transaction, |database, mut open| async move {
        let mut connection = database.in_transaction(&mut open.session);
        let outcome = settle_on(&mut connection, &settlements, Repetition::Lost).await;
        let opening = connection.opening.take();
        open.note_opening(&database, opening);
        let outcome = outcome.map(|settled| {
            open.note(&database, &settled.ordered, settled.mark);
            settled.answers
        });
        (open, outcome)
    });
    settled.await
}

/// On replica sets and sharded clusters; on a standalone server [`open`](Transactional::open)
/// fails as `Unsupported`, and [`Capabilities::transactions`](inbox_api::Capabilities) is false.
///
/// Of two transactions that record one key, the second fails as `Conflict`, is to be rolled back
/// and repeated, and then sees the duplicate.
///
/// Behind a step of the store's that failed, no other begins, and [`commit`](Transactional::commit) aborts and
/// fails as `Conflict`, without effect: the server may have done a part of the step. What is refused before
/// anything is sent (`Invalid`) is no such failure.
#[async_trait]
impl Transactional for MongoStore {
    type Transaction = MongoTransaction;

    async fn open(&self) -> Result<Self::Transaction> {
        let opened = open(&self.database).await;
        opened.map_err(|error| error.in_operation("open"))
    }

    /// Also makes the leases last for as long as the server lets a transaction be open
    /// ([`transaction_lifetime`](crate::MongoOptions::transaction_lifetime)), and does not renew them
    /// before its end: a renewal in between would make the settlement in the transaction fail.
    async fn open_for(&self, leases: &[Lease]) -> Result<Self::Transaction> {
        let opened = open_for(&self.database, leases).await;
        opened.map_err(|error| error.in_operation("open_for"))
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<()> {
        let committed = commit(&self.database, transaction).await;
        committed.map_err(|error| error.in_operation("commit"))
    }

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        let rolled_back = roll_back(&self.database, transaction).await;
        rolled_back.map_err(|error| error.in_operation("roll_back"))
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        let received = receive_in(&self.database, transaction, messages).await;
        received.map_err(|error| error.in_operation("receive_in"))
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        let recorded = record_in(&self.database, transaction, message, result).await;
        recorded.map_err(|error| error.in_operation("record_in"))
    }

    async fn keep_result_in(
        &self,
        transaction: &mut Self::Transaction,
        key: &Key,
        result: Bytes,
    ) -> Result<()> {
        let kept = keep_result_in(&self.database, transaction, key, result).await;
        kept.map_err(|error| error.in_operation("keep_result_in"))
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let settled = settle_in(&self.database, transaction, settlements).await;
        settled.map_err(|error| error.in_operation("settle_in"))
    }
}
