//! Storing messages.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use inbox_api::{ErrorKind, Fingerprint, Key, Message, Receipt, Result};
use mongodb::bson::{RawDocumentBuf, doc, oid::ObjectId};
use tokio::time::sleep;

use crate::{
    connection::{Connection, Database},
    ordering::promote_key_heads,
    rows::{Beginning, document, id_of, identifier, number, those},
    schema::version::checked_task,
    transaction::OpenTransaction,
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
    repeats: Vec<Repeat>,
}

struct Fresh {
    /// The place in the input.
    input: usize,
    /// The place among those that are to be stored, in order of the input.
    place: i64,
    identifier: String,
    message: Message,
}

/// A later copy of a key within the batch.
struct Repeat {
    /// Its place in the input, and that of the first copy.
    input: usize,
    first: usize,
    fingerprint: Fingerprint,
}

/// The messages that were stored before, by their place among the fresh ones, with the fingerprints of
/// their keys. One that was purged since has none.
type Known = HashMap<usize, Option<i64>>;

fn is_duplicate(kept: Option<i64>, fingerprint: Fingerprint) -> Receipt {
    Receipt::Duplicate {
        differs: kept.is_some_and(|kept| kept != fingerprint.get()),
    }
}

impl Plan {
    pub(crate) fn new(messages: &[Message], payload_limit: usize) -> Self {
        let mut seen: HashMap<&Key, usize> = HashMap::with_capacity(messages.len());
        let mut fresh: Vec<Fresh> = Vec::with_capacity(messages.len());
        let mut repeats = Vec::new();
        let receipts = messages
            .iter()
            .enumerate()
            .map(|(input, message)| {
                if let Err(invalid) = message.check_payload(payload_limit) {
                    return Receipt::Refused(invalid);
                }
                if let Some(&first) = seen.get(message.key()) {
                    repeats.push(Repeat {
                        input,
                        first,
                        fingerprint: message.fingerprint(),
                    });
                    return Receipt::Duplicate { differs: false };
                }
                seen.insert(message.key(), input);
                fresh.push(Fresh {
                    input,
                    place: i64::try_from(fresh.len()).unwrap_or(i64::MAX),
                    identifier: identifier(message.key()),
                    message: message.clone(),
                });
                Receipt::Accepted
            })
            .collect();
        fresh.sort_unstable_by(|a, b| a.identifier.cmp(&b.identifier));
        Self {
            receipts,
            fresh,
            repeats,
        }
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
    database: &Arc<Database>,
    messages: &[Message],
) -> Result<Vec<Receipt>> {
    database.check_open()?;
    let plan = Plan::new(messages, database.options.payload_limit);
    if plan.is_empty() {
        return Ok(plan.receipts());
    }
    checked_task(database, |database| async move {
        let mut connection = database.connection();
        let received = if database.server.replicates() && plan.fans_out() {
            receive_together(&database, &mut connection, plan).await?
        } else {
            receive_apart(&mut connection, plan).await?
        };
        if !received.ordered.is_empty() {
            connection.has_changed();
            promote_key_heads(&mut connection, &received.ordered, &[received.mark]).await?;
        }
        database.wakers.raise();
        Ok(received.receipts)
    })
    .await
}

/// Each message by itself. The unique `_id` decides.
async fn receive_apart(connection: &mut Connection<'_>, plan: Plan) -> Result<Received> {
    let mark = ObjectId::new();
    let documents = documents(connection, &plan, mark).await?;
    let places = connection.insert(&documents).await?;
    let known = look_up(connection, &plan, &places).await?;
    Ok(finish(plan, &known, mark))
}

/// Looks the fingerprints of those up that were stored before. No request when there are none.
async fn look_up(connection: &mut Connection<'_>, plan: &Plan, places: &[usize]) -> Result<Known> {
    if places.is_empty() {
        return Ok(Known::new());
    }
    let identifier = |place: &usize| Some(plan.fresh.get(*place)?.identifier.as_str());
    let kept = fingerprints(connection, places.iter().filter_map(identifier)).await?;
    let known = places.iter().map(|place| {
        let kept = identifier(place).and_then(|id| kept.get(id).copied());
        (*place, kept)
    });
    Ok(known.collect())
}

/// The fingerprints of those of the messages that are stored, by identifier.
async fn fingerprints<'a>(
    connection: &mut Connection<'_>,
    identifiers: impl Iterator<Item = &'a str>,
) -> Result<HashMap<String, i64>> {
    let found = connection
        .look(vec![
            doc! { "$match": those(identifiers) },
            doc! { "$project": { "fingerprint": 1 } },
        ])
        .await?;
    let kept = found.iter().filter_map(|found| {
        // One that is no number is that of a corrupt message, which claims and listings report.
        Some((
            id_of(found)?.to_owned(),
            number(found, "fingerprint").unwrap_or(0),
        ))
    });
    Ok(kept.collect())
}

/// The batch in its own transaction, which the connection sees then.
async fn receive_together<'a>(
    database: &'a Arc<Database>,
    connection: &mut Connection<'a>,
    plan: Plan,
) -> Result<Received> {
    let mark = ObjectId::new();
    let documents = documents(connection, &plan, mark).await?;
    let deadline = Instant::now() + database.options.operation_timeout;
    let mut longest = FIRST_REST;
    let known = loop {
        let mut open = OpenTransaction::open(database).await?;
        let mut inserting = database.in_transaction(&mut open.session);
        let outcome = match insert_missing(&mut inserting, &plan, &documents).await {
            Ok(known) => {
                open.note_opening(database, connection.opening.clone());
                let committed = open.commit().await;
                committed.map(|(session, _)| (known, session))
            }
            Err(error) => {
                open.abort().await;
                Err(error)
            }
        };
        match outcome {
            Ok((known, session)) => {
                *connection = database.connection_after(session);
                break known;
            }
            // As long as one by itself would wait for the others.
            Err(error) if error.kind() == ErrorKind::Conflict && Instant::now() < deadline => {
                sleep(Duration::from_millis(fastrand::u64(1..=longest))).await;
                longest = (longest * 2).min(LONGEST_REST);
            }
            Err(error) => return Err(error),
        }
    };
    Ok(finish(plan, &known, mark))
}

/// As [`receive`], within the caller's transaction, where a unique violation would be the end of
/// it: what is known is looked for first. Leaves the marks, since only the commit makes the
/// messages visible to those who would look at their ordering keys.
pub(crate) async fn receive_in(connection: &mut Connection<'_>, plan: Plan) -> Result<Received> {
    let mark = ObjectId::new();
    let documents = documents(connection, &plan, mark).await?;
    let known = insert_missing(connection, &plan, &documents).await?;
    Ok(finish(plan, &known, mark))
}

async fn insert_missing(
    connection: &mut Connection<'_>,
    plan: &Plan,
    documents: &[RawDocumentBuf],
) -> Result<Known> {
    let identifiers = plan.fresh.iter().map(|fresh| fresh.identifier.as_str());
    let found = fingerprints(connection, identifiers).await?;
    let mut known = Known::new();
    let mut missing = Vec::new();
    for (place, (fresh, document)) in plan.fresh.iter().zip(documents).enumerate() {
        match found.get(&fresh.identifier) {
            Some(kept) => {
                known.insert(place, Some(*kept));
            }
            None => missing.push(document.clone()),
        }
    }
    if !missing.is_empty() {
        connection.insert(&missing).await?;
    }
    Ok(known)
}

async fn documents(
    connection: &mut Connection<'_>,
    plan: &Plan,
    mark: ObjectId,
) -> Result<Vec<RawDocumentBuf>> {
    let (first, now) = connection.draw(plan.fresh.len()).await?;
    connection.open_by_drawing(plan.fresh.iter().map(|fresh| first + fresh.place));
    Ok(plan
        .fresh
        .iter()
        .map(|fresh| {
            let seq = first + fresh.place;
            document(&fresh.message, seq, now, Beginning::Pending(mark))
        })
        .collect())
}

fn finish(mut plan: Plan, known: &Known, mark: ObjectId) -> Received {
    let mut ordered = Vec::new();
    for (place, fresh) in plan.fresh.iter().enumerate() {
        if let Some(kept) = known.get(&place) {
            if let Some(receipt) = plan.receipts.get_mut(fresh.input) {
                *receipt = is_duplicate(*kept, fresh.message.fingerprint());
            }
        } else if fresh.message.ordering_key().is_some() {
            ordered.push(fresh.identifier.clone());
        }
    }
    if !plan.repeats.is_empty() {
        let fresh = plan.fresh.iter().enumerate();
        let kept: HashMap<usize, Option<i64>> = fresh
            .map(|(place, fresh)| {
                let own = || Some(fresh.message.fingerprint().get());
                (fresh.input, known.get(&place).copied().unwrap_or_else(own))
            })
            .collect();
        for repeat in &plan.repeats {
            if let Some(receipt) = plan.receipts.get_mut(repeat.input) {
                let kept = kept.get(&repeat.first).copied().flatten();
                *receipt = is_duplicate(kept, repeat.fingerprint);
            }
        }
    }
    Received {
        receipts: plan.receipts,
        ordered,
        mark,
    }
}
