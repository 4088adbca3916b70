//! Recording, receiving and settling inside the caller's own transaction.

use std::{future::Future, sync::Arc};

use async_trait::async_trait;
use inbox_api::{
    Bytes, Effect, Error, ErrorKind, Message, Receipt, Recorded, Result, Settled, Settlement,
    State, Transactional, check_size, from_micros,
};
use mongodb::{
    ClientSession,
    bson::{DateTime, Document, doc, oid::ObjectId},
    error::{Error as DriverError, UNKNOWN_TRANSACTION_COMMIT_RESULT},
    options::{ReadConcern, ReadPreference, TransactionOptions},
};

use crate::{
    begin::{Obstacle, find, obstacle},
    database::{Database, On, number, write_concern},
    error::in_operation,
    ordering::{is_first, rehead},
    receive::{self, Plan, no_transactions},
    rows::{Beginning, document, identifier, those},
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
    /// had ended: the transaction is aborted then.
    pub fn session(&mut self) -> Result<&mut ClientSession> {
        match &mut self.held {
            Some(held) => Ok(&mut held.session),
            None => Err(given_up("session")),
        }
    }
}

fn given_up(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        operation,
        "an operation in this transaction was cancelled, which aborted it",
    )
}

/// What a task needs of a transaction.
pub(crate) struct Held {
    pub(crate) session: ClientSession,
    /// Messages whose ordering keys are to be looked at after the commit, and their marks.
    ordered: Vec<String>,
    marks: Vec<ObjectId>,
}

impl Held {
    pub(crate) async fn open(database: &Database, operation: &'static str) -> Result<Self> {
        if !database.server.replicates() {
            return Err(no_transactions(operation));
        }
        let mapped = |error| in_operation(operation)(error).with_effect(Effect::None);
        let mut session = database.client.start_session().await.map_err(mapped)?;
        let mut options = TransactionOptions::builder()
            .read_concern(ReadConcern::snapshot())
            .write_concern(write_concern())
            .build();
        options.selection_criteria = Some(ReadPreference::Primary.into());
        session
            .start_transaction()
            .with_options(options)
            .await
            .map_err(mapped)?;
        Ok(Self {
            session,
            ordered: Vec::new(),
            marks: Vec::new(),
        })
    }

    fn note(&mut self, ordered: &[String], mark: ObjectId) {
        if !ordered.is_empty() {
            self.ordered.extend_from_slice(ordered);
            self.marks.push(mark);
        }
    }

    /// Commits, again and again while the outcome is not known, as the driver's documentation
    /// says: a commit may be repeated.
    pub(crate) async fn commit(mut self, operation: &'static str) -> Result<()> {
        let mut sent = 0;
        loop {
            sent += 1;
            match self.session.commit_transaction().await {
                Ok(()) => return Ok(()),
                Err(error) if sent < COMMITS && may_be_committed(&error) => {}
                Err(error) => return Err(in_operation(operation)(error)),
            }
        }
    }

    /// An abort that fails is made up for by the server, which aborts after a while.
    pub(crate) async fn abort(mut self) {
        let _ = self.session.abort_transaction().await;
    }
}

fn may_be_committed(error: &DriverError) -> bool {
    error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT)
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
        let held = transaction.held.take().ok_or_else(|| given_up(operation))?;
        let task = tokio::spawn(work(Arc::clone(&self.inner), held));
        let (held, outcome) = self.wait(operation, task).await?;
        transaction.held = Some(held);
        outcome
    }
}

/// Decides about a message within a transaction, and records it if it may be.
async fn record(
    inner: &Inner,
    on: &mut On<'_>,
    message: &Message,
    result: Option<&Bytes>,
    mark: ObjectId,
) -> Result<Recorded> {
    let id = identifier(message.key());
    let Some(found) = find(on, &id).await? else {
        return record_new(inner, on, message, result, mark).await;
    };
    record_known(inner, on, &id, found, result, mark).await
}

async fn record_known(
    inner: &Inner,
    on: &mut On<'_>,
    id: &str,
    mut found: Document,
    result: Option<&Bytes>,
    mark: ObjectId,
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
    let leased_before = number(&found, "state") == Some(i64::from(stages::code(State::Leased)));
    if found.contains_key("orderingKey") && !is_first(on, id, leased_before).await? {
        return Ok(Recorded::Blocked);
    }
    if let Some((seq, now)) = number(&found, "seq").zip(number(&found, "now")) {
        on.open([seq], now).await?;
    }
    let mut filter = those([id]);
    filter.extend(doc! { "token": number(&found, "token"), "state": number(&found, "state") });
    let pipeline = stages::record(on.database, result, inner.keeping(), mark);
    match on.change(filter, pipeline).await? {
        Some(_) => Ok(Recorded::First),
        None => Err(on.error(ErrorKind::Conflict, "the message was changed just now")),
    }
}

async fn record_new(
    inner: &Inner,
    on: &mut On<'_>,
    message: &Message,
    result: Option<&Bytes>,
    mark: ObjectId,
) -> Result<Recorded> {
    let (seq, now) = on.draw(1).await?;
    let due = message.due().resolve(now);
    let blocked = match message.ordering_key() {
        None => false,
        Some(ordering_key) => !on
            .aggregate(vec![
                doc! { "$match": {
                    "handler": message.handler().as_str(),
                    "orderingKey": ordering_key.as_str(),
                    "open": true,
                } },
                doc! { "$limit": 1 },
                doc! { "$project": { "_id": 1 } },
            ])
            .await?
            .is_empty(),
    };
    let beginning = if due > now || blocked {
        Beginning::Pending(mark)
    } else {
        let age = inner.options.expire_processed_after;
        let expire_at = age.map(|age| {
            let millis = now / 1000 + i64::try_from(age.as_millis()).unwrap_or(i64::MAX / 4);
            DateTime::from_millis(millis)
        });
        Beginning::Processed(result, expire_at, inner.options.drop_processed_payloads)
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
        Ok(MongoTransaction { held: Some(held) })
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "commit";
        let held = transaction.held.ok_or_else(|| given_up(OPERATION))?;
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

    async fn roll_back(&self, transaction: Self::Transaction) -> Result<()> {
        const OPERATION: &str = "roll_back";
        let held = transaction.held.ok_or_else(|| given_up(OPERATION))?;
        self.task(OPERATION, |_| async move {
            held.abort().await;
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
            let outcome = record(&inner, &mut on, &message, result.as_ref(), mark).await;
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
