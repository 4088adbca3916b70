//! Storing messages.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use inbox_api::{Error, ErrorKind, Message, Receipt, Result};
use mongodb::bson::{RawDocumentBuf, doc, oid::ObjectId};
use tokio::time::sleep;

use crate::{
    database::On,
    ordering::rehead,
    rows::{Beginning, document, id_of, identifier, those},
    store::Inner,
    transactional::Held,
};

/// How long a delivery to several handlers rests before it is begun again because others store the
/// same, in milliseconds: up to this after the first time, and up to the last of it later.
const FIRST_REST: u64 = 5;
const LONGEST_REST: u64 = 200;

/// Answers that need no request, and the messages that do.
pub(crate) struct Plan {
    receipts: Vec<Receipt>,
    /// First copies that fit, in order of their keys: two batches of the same messages in opposite
    /// orders must not wait for each other.
    fresh: Vec<Fresh>,
}

struct Fresh {
    /// The place in the input.
    input: usize,
    /// The place among those that are to be stored, in order of the input.
    place: i64,
    identifier: String,
    message: Message,
}

impl Plan {
    pub(crate) fn new(messages: &[Message], payload_limit: usize) -> Self {
        let mut seen = HashSet::with_capacity(messages.len());
        let mut fresh: Vec<Fresh> = Vec::with_capacity(messages.len());
        let receipts = messages
            .iter()
            .enumerate()
            .map(
                |(input, message)| match message.check_payload(payload_limit) {
                    Err(invalid) => Receipt::Refused(invalid),
                    Ok(()) if seen.insert(message.key()) => {
                        fresh.push(Fresh {
                            input,
                            place: i64::try_from(fresh.len()).unwrap_or(i64::MAX),
                            identifier: identifier(message.key()),
                            message: message.clone(),
                        });
                        Receipt::Accepted
                    }
                    Ok(()) => Receipt::Duplicate,
                },
            )
            .collect();
        fresh.sort_unstable_by(|a, b| a.identifier.cmp(&b.identifier));
        Self { receipts, fresh }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fresh.is_empty()
    }

    pub(crate) fn receipts(self) -> Vec<Receipt> {
        self.receipts
    }

    /// Whether one delivery is for several handlers here: those are to be stored together.
    fn fans_out(&self) -> bool {
        let ids: HashSet<_> = self.fresh.iter().map(|fresh| fresh.message.id()).collect();
        ids.len() < self.fresh.len()
    }
}

/// Those of a batch that were stored, and what is left to do for their ordering keys.
pub(crate) struct Received {
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) ordered: Vec<String>,
    pub(crate) mark: ObjectId,
}

pub(crate) async fn receive(
    inner: &Inner,
    operation: &'static str,
    plan: Plan,
) -> Result<Vec<Receipt>> {
    let mut on = inner.database.on(operation);
    let received = if inner.database.server.replicates() && plan.fans_out() {
        together(inner, operation, plan).await?
    } else {
        apart(&mut on, plan).await?
    };
    if !received.ordered.is_empty() {
        on.has_changed();
        rehead(&mut on, &received.ordered, &[received.mark]).await?;
    }
    inner.wakers.raise();
    Ok(received.receipts)
}

/// Each message by itself. The unique `_id` decides.
async fn apart(on: &mut On<'_>, plan: Plan) -> Result<Received> {
    let mark = ObjectId::new();
    let documents = documents(on, &plan, mark).await?;
    let known = on.insert(&documents).await?;
    Ok(received(plan, &known.into_iter().collect(), mark))
}

/// The batch in a transaction of its own.
async fn together(inner: &Inner, operation: &'static str, plan: Plan) -> Result<Received> {
    let mark = ObjectId::new();
    let documents = documents(&inner.database.on(operation), &plan, mark).await?;
    let deadline = Instant::now() + inner.options.operation_timeout;
    let mut longest = FIRST_REST;
    let known = loop {
        let mut held = Held::open(&inner.database, operation).await?;
        let mut on = inner.database.within(operation, &mut held.session);
        let outcome = match insert_missing(&mut on, &plan, &documents).await {
            Ok(known) => held.commit(operation).await.map(|()| known),
            Err(error) => {
                held.abort().await;
                Err(error)
            }
        };
        match outcome {
            Ok(known) => break known,
            // As long as one by itself would wait for the others.
            Err(error) if error.kind() == ErrorKind::Conflict && Instant::now() < deadline => {
                sleep(Duration::from_millis(fastrand::u64(1..=longest))).await;
                longest = (longest * 2).min(LONGEST_REST);
            }
            Err(error) => return Err(error),
        }
    };
    Ok(received(plan, &known, mark))
}

/// As [`receive`], within the caller's transaction, where a unique violation would be the end of
/// it: what is known is looked for first. Leaves the marks, since only the commit makes the
/// messages visible to those who would look at their ordering keys.
pub(crate) async fn receive_in(on: &mut On<'_>, plan: Plan) -> Result<Received> {
    let mark = ObjectId::new();
    let documents = documents(on, &plan, mark).await?;
    let known = insert_missing(on, &plan, &documents).await?;
    Ok(received(plan, &known, mark))
}

async fn insert_missing(
    on: &mut On<'_>,
    plan: &Plan,
    documents: &[RawDocumentBuf],
) -> Result<HashSet<usize>> {
    let identifiers = plan.fresh.iter().map(|fresh| fresh.identifier.as_str());
    let found = on
        .look(vec![
            doc! { "$match": those(identifiers) },
            doc! { "$project": { "_id": 1 } },
        ])
        .await?;
    let found: HashSet<&str> = found.iter().filter_map(id_of).collect();
    let mut known = HashSet::new();
    let mut missing = Vec::new();
    for (place, (fresh, document)) in plan.fresh.iter().zip(documents).enumerate() {
        if found.contains(fresh.identifier.as_str()) {
            known.insert(place);
        } else {
            missing.push(document.clone());
        }
    }
    if !missing.is_empty() {
        on.insert(&missing).await?;
    }
    Ok(known)
}

async fn documents(on: &On<'_>, plan: &Plan, mark: ObjectId) -> Result<Vec<RawDocumentBuf>> {
    let (first, now) = on.draw(plan.fresh.len()).await?;
    Ok(plan
        .fresh
        .iter()
        .map(|fresh| {
            let seq = first + fresh.place;
            document(&fresh.message, seq, now, Beginning::Pending(mark))
        })
        .collect())
}

/// `known` has the places, among the fresh ones, of those that were stored before.
fn received(mut plan: Plan, known: &HashSet<usize>, mark: ObjectId) -> Received {
    let mut ordered = Vec::new();
    for (place, fresh) in plan.fresh.iter().enumerate() {
        if known.contains(&place) {
            if let Some(receipt) = plan.receipts.get_mut(fresh.input) {
                *receipt = Receipt::Duplicate;
            }
        } else if fresh.message.ordering_key().is_some() {
            ordered.push(fresh.identifier.clone());
        }
    }
    Received {
        receipts: plan.receipts,
        ordered,
        mark,
    }
}

/// The error of a transaction on a server that has none.
pub(crate) fn no_transactions(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        operation,
        "a standalone server has no transactions; they need a replica set or a sharded cluster",
    )
}
