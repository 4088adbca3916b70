//! Recording, receiving and settling inside the caller's own transaction.

use std::{future::Future, sync::Arc, time::Instant};

use async_trait::async_trait;
use inbox_api::{
    Bytes, Effect, Error, ErrorKind, Lease, Message, Receipt, Recorded, Result, Settled,
    Settlement, Transactional, check_size, from_micros,
};
use mongodb::{
    ClientSession,
    bson::{DateTime, Document, doc, oid::ObjectId},
    error::{Error as DriverError, ErrorKind as Driver, UNKNOWN_TRANSACTION_COMMIT_RESULT},
    options::{ReadConcern, ReadPreference, TransactionOptions},
};

use crate::{
    begin::{Obstacle, find, obstacle},
    database::{Change, Database, On, number, write_concern},
    error::in_operation,
    ordering::{is_first, is_first_now, rehead},
    receive::{self, Plan, no_transactions},
    resting::Rest,
    rows::{Beginning, document, identifier, those},
    schema::ORDERING_INDEX,
    settle::{self, Repetition},
    stages,
    store::{Inner, MongoStore},
};

/// How often a commit is sent whose outcome is not known. Each waits for the server anew.
const COMMITS: usize = 5;

/// A transaction of a [`MongoStore`], in a session of the driver's.
///
/// Dropping it aborts it.
pub struct MongoTransaction {
    /// With the task that works on it while an operation is under way.
    held: Option<Held>,
    /// Whether an operation took longer than it may.
    timed_out: bool,
}

impl std::fmt::Debug for MongoTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MongoTransaction")
            .field("usable", &self.held.is_some())
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
        match &mut self.held {
            Some(held) => Ok(&mut held.session),
            None => Err(given_up("session", self.timed_out)),
        }
    }

    fn opened(held: Held) -> Self {
        Self {
            held: Some(held),
            timed_out: false,
        }
    }

    fn take(&mut self, operation: &'static str) -> Result<Held> {
        let timed_out = self.timed_out;
        let held = self.held.take();
        held.ok_or_else(|| given_up(operation, timed_out))
    }
}

fn given_up(operation: &'static str, timed_out: bool) -> Error {
    let (kind, context) = if timed_out {
        let context = "an operation in this transaction took too long, which aborted it";
        (ErrorKind::Unavailable, context)
    } else {
        let context = "an operation in this transaction was cancelled, which aborted it";
        (ErrorKind::Invalid, context)
    };
    Error::new(kind, operation, context)
}

/// What a task needs of a transaction.
pub(crate) struct Held {
    pub(crate) session: ClientSession,
    /// Messages whose ordering keys are to be looked at after the commit, and their marks.
    ordered: Vec<String>,
    marks: Vec<ObjectId>,
    /// Of the leases for whose messages it was opened.
    rest: Option<Rest>,
}

impl Held {
    pub(crate) async fn open(database: &Database, operation: &'static str) -> Result<Self> {
        if !database.server.replicates() {
            return Err(no_transactions(operation));
        }
        let mapped = |error| in_operation(operation)(error).with_effect(Effect::None);
        let mut session = database.client.start_session().await.map_err(mapped)?;
        start_transaction(&mut session).await.map_err(mapped)?;
        Ok(Self {
            session,
            ordered: Vec::new(),
            marks: Vec::new(),
            rest: None,
        })
    }

    fn note(&mut self, ordered: &[String], mark: ObjectId) {
        if !ordered.is_empty() {
            self.ordered.extend_from_slice(ordered);
            self.marks.push(mark);
        }
    }

    /// Fails when the transaction is not the one that was opened any more: a driver's session takes
    /// requests after its transaction was committed or aborted through it, and commits twice.
    async fn check_open(&mut self, operation: &'static str) -> Result<()> {
        match self.session.start_transaction().await {
            // This is asked of the driver, which says so without a request.
            Err(error) if matches!(error.kind.as_ref(), Driver::Transaction { .. }) => Ok(()),
            Err(error) => Err(in_operation(operation)(error)),
            Ok(()) => {
                let _ = self.session.abort_transaction().await;
                let context = "the handler has ended the transaction by itself";
                Err(Error::new(ErrorKind::Other, operation, context).with_effect(Effect::Unknown))
            }
        }
    }

    pub(crate) async fn commit(mut self, operation: &'static str) -> Result<()> {
        self.check_open(operation).await?;
        let committed = commit_transaction(&mut self.session).await;
        committed.map_err(in_operation(operation))
    }

    /// An abort that fails is made up for by the server, which aborts after a while.
    pub(crate) async fn abort(mut self) {
        let _ = self.session.abort_transaction().await;
    }
}

/// Nothing is sent yet: the transaction begins with its first request.
pub(crate) async fn start_transaction(session: &mut ClientSession) -> Result<(), DriverError> {
    let mut options = TransactionOptions::builder()
        .read_concern(ReadConcern::snapshot())
        .write_concern(write_concern())
        .build();
    options.selection_criteria = Some(ReadPreference::Primary.into());
    session.start_transaction().with_options(options).await
}

/// Commits, again and again while the outcome is not known, as the driver's documentation says: a
/// commit may be repeated.
pub(crate) async fn commit_transaction(session: &mut ClientSession) -> Result<(), DriverError> {
    let mut sent = 0;
    loop {
        sent += 1;
        match session.commit_transaction().await {
            Err(error)
                if sent < COMMITS && error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {}
            ended => return ended,
        }
    }
}

impl MongoStore {
    /// Does `work` on the transaction in a task of its own. If the caller's future is dropped
    /// meanwhile, the task goes on to its end and then aborts the transaction.
    async fn in_transaction<T, F>(
        &self,
        operation: &'static str,
        transaction: &mut MongoTransaction,
        work: impl FnOnce(Arc<Inner>, Held) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = (Held, Result<T>)> + Send + 'static,
    {
        self.check_open(operation)?;
        let mut held = transaction.take(operation)?;
        held.check_open(operation).await?;
        let task = tokio::spawn(work(Arc::clone(&self.inner), held));
        let waited = self.wait(operation, task).await;
        transaction.timed_out = waited.is_err();
        let (held, outcome) = waited?;
        transaction.held = Some(held);
        outcome
    }
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
    async fn is_first_now(&self, inner: &Inner, seq: Option<i64>) -> Result<bool> {
        let Some(ordering_key) = self.message.ordering_key() else {
            return Ok(true);
        };
        let mut mine: Vec<&str> = self.mine.iter().map(String::as_str).collect();
        mine.push(&self.id);
        is_first_now(
            &inner.database.on("record_in"),
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
async fn record(inner: &Inner, on: &mut On<'_>, recording: &Recording<'_>) -> Result<Recorded> {
    if let Some(guard) = guard(recording.message) {
        // Two of one key that see nothing of each other would both be the first.
        on.guard(&guard).await?;
    }
    match find(on, &recording.id).await? {
        Some(found) => record_known(inner, on, recording, found).await,
        None => record_new(inner, on, recording).await,
    }
}

async fn record_known(
    inner: &Inner,
    on: &mut On<'_>,
    recording: &Recording<'_>,
    mut found: Document,
) -> Result<Recorded> {
    if let Some(obstacle) = obstacle(on, &mut found)? {
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
        || is_first(on, id).await? && recording.is_first_now(inner, number(&found, "seq")).await?;
    if !is_first {
        return Ok(Recorded::Blocked);
    }
    if let Some((seq, now)) = number(&found, "seq").zip(number(&found, "now")) {
        on.open([seq], now).await?;
    }
    let mut filter = those([id]);
    filter.extend(doc! { "token": number(&found, "token"), "state": number(&found, "state") });
    let pipeline = stages::record(
        on.database,
        recording.result,
        inner.keeping(),
        recording.mark,
    );
    match on.change(filter, pipeline).await? {
        Change::Done(_) | Change::Unread => Ok(Recorded::First),
        Change::NoneSuch | Change::Held => {
            Err(on.error(ErrorKind::Conflict, "the message was changed just now"))
        }
    }
}

async fn record_new(inner: &Inner, on: &mut On<'_>, recording: &Recording<'_>) -> Result<Recorded> {
    let message = recording.message;
    let (seq, now) = on.draw(1).await?;
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
            !on.aggregate(Some(ORDERING_INDEX), open).await?.is_empty()
                || !recording.is_first_now(inner, None).await?
        }
    };
    let beginning = if due > now || blocked {
        Beginning::Pending(recording.mark)
    } else {
        let age = inner.options.expire_processed_after;
        let expire_at = age.map(|age| {
            let millis = now / 1000 + i64::try_from(age.as_millis()).unwrap_or(i64::MAX / 4);
            DateTime::from_millis(millis)
        });
        Beginning::Processed(
            recording.result,
            expire_at,
            inner.options.drop_processed_payloads,
        )
    };
    let stored = document(message, seq, now, beginning);
    on.insert(std::slice::from_ref(&stored)).await?;
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

/// On replica sets and sharded clusters; on a standalone server [`open`](Transactional::open)
/// fails as `Unsupported`, and [`Capabilities::transactions`](inbox_api::Capabilities) is false.
///
/// Of two transactions that record one key, the second fails as `Conflict`, is to be rolled back
/// and repeated, and then sees the duplicate.
#[async_trait]
impl Transactional for MongoStore {
    type Transaction = MongoTransaction;

    async fn open(&self) -> Result<Self::Transaction> {
        const OPERATION: &str = "open";
        let held = self
            .task(OPERATION, |inner| async move {
                Held::open(&inner.database, OPERATION).await
            })
            .await?;
        Ok(MongoTransaction::opened(held))
    }

    /// Also makes the leases last for as long as the server lets a transaction be open
    /// ([`transaction_lifetime`](crate::MongoOptions::transaction_lifetime)), and lets their renewal
    /// rest until its end: a renewal in between would make the settlement in the transaction fail.
    async fn open_for(&self, leases: &[Lease]) -> Result<Self::Transaction> {
        const OPERATION: &str = "open";
        let leases = leases.to_vec();
        let held = self
            .task(OPERATION, |inner| async move {
                let lifetime = inner.options.transaction_lifetime;
                let ends = Instant::now() + lifetime;
                let mut on = inner.database.on(OPERATION);
                let until = settle::prolong(&mut on, &leases, lifetime).await?;
                let lasting = leases
                    .iter()
                    .zip(until)
                    // The settlement finds out which are lost.
                    .filter_map(|(lease, until)| Some((lease, until?)))
                    .collect();
                let rest = inner.database.resting.begin(lasting, ends);
                let mut held = Held::open(&inner.database, OPERATION).await?;
                held.rest = Some(rest);
                Ok(held)
            })
            .await?;
        Ok(MongoTransaction::opened(held))
    }

    async fn commit(&self, mut transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "commit";
        let held = transaction.take(OPERATION)?;
        self.task(OPERATION, |inner| async move {
            let (ordered, marks) = (held.ordered.clone(), held.marks.clone());
            held.commit(OPERATION).await?;
            if !ordered.is_empty() {
                // It is committed, whatever becomes of this; claims find what is left of it.
                let _ = rehead(&mut inner.database.on(OPERATION), &ordered, &marks).await;
            }
            inner.wakers.raise();
            Ok(())
        })
        .await
    }

    async fn roll_back(&self, mut transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "roll_back";
        let held = transaction.take(OPERATION)?;
        self.task(OPERATION, |inner| async move {
            held.abort().await;
            // What it held may be claimed now.
            inner.wakers.raise();
            Ok(())
        })
        .await
    }

    async fn receive_in(
        &self,
        transaction: &mut Self::Transaction,
        messages: &[Message],
    ) -> Result<Vec<Receipt>> {
        const OPERATION: &str = "receive_in";
        let plan = Plan::new(messages, self.inner.options.payload_limit);
        if plan.is_empty() {
            return Ok(plan.receipts());
        }
        self.in_transaction(OPERATION, transaction, |inner, mut held| async move {
            let mut on = inner.database.within(OPERATION, &mut held.session);
            let outcome = receive::receive_in(&mut on, plan).await;
            let outcome = outcome.map(|received| {
                held.note(&received.ordered, received.mark);
                received.receipts
            });
            (held, outcome)
        })
        .await
    }

    async fn record_in(
        &self,
        transaction: &mut Self::Transaction,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Recorded> {
        const OPERATION: &str = "record_in";
        let limit = self.inner.options.payload_limit;
        message
            .check_payload(limit)
            .and_then(|()| check_size("result", result.as_ref().map_or(0, Bytes::len), limit))
            .map_err(|invalid| invalid.in_operation(OPERATION))?;
        let message = message.clone();
        self.in_transaction(OPERATION, transaction, |inner, mut held| async move {
            let mark = ObjectId::new();
            let mut on = inner.database.within(OPERATION, &mut held.session);
            let recording = Recording {
                message: &message,
                id: identifier(message.key()),
                result: result.as_ref(),
                mark,
                mine: &held.ordered,
            };
            let outcome = record(&inner, &mut on, &recording).await;
            held.note(&[identifier(message.key())], mark);
            (held, outcome)
        })
        .await
    }

    async fn settle_in(
        &self,
        transaction: &mut Self::Transaction,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        const OPERATION: &str = "settle_in";
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let settlements = settlements.to_vec();
        self.in_transaction(OPERATION, transaction, |inner, mut held| async move {
            let mut on = inner.database.within(OPERATION, &mut held.session);
            let limit = inner.options.payload_limit;
            let keeping = inner.keeping();
            let outcome =
                settle::settle(&mut on, &settlements, limit, keeping, Repetition::Lost).await;
            let outcome = outcome.map(|settled| {
                held.note(&settled.ordered, settled.mark);
                settled.answers
            });
            (held, outcome)
        })
        .await
    }
}
