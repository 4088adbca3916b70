//! Receiving a batch: one statement for all of it, unless it is larger than SQLite takes.

use std::{collections::HashMap, sync::Arc};

use inbox_api::{Message, Receipt, Result};
use sqlx::{Connection as _, Row as _, SqliteConnection, sqlite::SqliteRow};
use tokio::time::Instant;

use crate::{
    batch::{Chunk, json},
    connection::Database,
    error::failed,
    shared_transaction,
    statements::BEGIN,
};

type MessageRow<'a> = (
    &'a str,
    &'a str,
    &'a str,
    Option<&'a str>,
    usize,
    usize,
    Option<&'a str>,
    i64,
    usize,
    usize,
    i64,
);

/// A batch, checked and laid out.
pub(crate) struct Prepared<'a> {
    receipts: Vec<Receipt>,
    /// Rows, each with its place in the input.
    chunks: Vec<(Chunk<MessageRow<'a>>, Vec<usize>)>,
    messages: Vec<&'a Message>,
}

/// What a statement takes of a batch.
pub(crate) struct Parameters {
    pub(crate) rows: String,
    pub(crate) contents: Vec<u8>,
}

impl Prepared<'_> {
    /// How many statements it takes.
    pub(crate) fn statements(&self) -> usize {
        self.chunks.len()
    }

    /// What the statement takes of a batch that needs no more than one.
    pub(crate) fn only_parameters(&mut self, now: i64) -> Result<Option<Parameters>> {
        let messages = &self.messages;
        let first = self.chunks.first_mut();
        first
            .map(|(chunk, places)| parameters(chunk, places, messages, now))
            .transpose()
    }

    /// The receipts of such a batch, and whether each was accepted and can be claimed.
    pub(crate) fn only_receipts(
        mut self,
        returned: &[SqliteRow],
        now: i64,
    ) -> Result<(Vec<Receipt>, Vec<bool>)> {
        if let Some((chunk, places)) = self.chunks.first() {
            read(chunk, places, returned, &mut self.receipts)?;
        }
        let is_due = self
            .receipts
            .iter()
            .zip(&self.messages)
            .map(|(receipt, message)| is_due(receipt, message, now))
            .collect();
        Ok((self.receipts, is_due))
    }
}

/// About how much of a statement's room messages take, in bytes.
pub(crate) fn bytes(messages: &[Message]) -> usize {
    let bytes = |message: &Message| {
        let headers = message.headers().iter();
        let headers = headers.map(|(name, value)| name.len() + value.len());
        message.payload().len() + headers.sum::<usize>()
    };
    messages.iter().map(bytes).sum()
}

pub(crate) async fn receive(
    database: &Arc<Database>,
    messages: &[Message],
) -> Result<Vec<Receipt>> {
    let payload_limit = database.options.payload_limit;
    let mut checks = messages.iter().map(|m| m.check_payload(payload_limit));
    let is_any_taken = checks.any(|check| check.is_ok());
    if is_any_taken && shared_transaction::is_small(messages.len(), bytes(messages)) {
        return shared_transaction::receive(database, messages.to_vec()).await;
    }
    database
        .run(|until| attempt(database, messages, until))
        .await
}

async fn attempt(
    database: &Database,
    messages: &[Message],
    until: Instant,
) -> Result<Vec<Receipt>> {
    let prepared = prepare(messages, database.options.payload_limit);
    let (receipts, now) = match prepared.statements() {
        0 => return Ok(prepared.receipts),
        1 => {
            let mut writer = database.writer(until).await?;
            let now = database.now();
            let receipts = insert(database, &mut writer, prepared, now).await?;
            database.keep(writer);
            (receipts, now)
        }
        _ => {
            let mut writer = database.writer(until).await?;
            let mut transaction = writer.begin_with(BEGIN).await.map_err(failed)?;
            let now = database.now();
            let receipts = insert(database, &mut transaction, prepared, now).await?;
            transaction.commit().await.map_err(failed)?;
            database.keep(writer);
            (receipts, now)
        }
    };
    let mut answered = receipts.iter().zip(messages);
    if answered.any(|(receipt, message)| is_due(receipt, message, now)) {
        database.signal.raise();
    }
    Ok(receipts)
}

/// Whether a claim may take the message that was just received.
fn is_due(receipt: &Receipt, message: &Message, now: i64) -> bool {
    *receipt == Receipt::Accepted && message.due().resolve(now) <= now
}

/// Refuses what is too large, and lays out the others.
pub(crate) fn prepare<'a>(
    messages: impl IntoIterator<Item = &'a Message>,
    payload_limit: usize,
) -> Prepared<'a> {
    let messages: Vec<_> = messages.into_iter().collect();
    let mut receipts = Vec::with_capacity(messages.len());
    let mut chunks: Vec<(Chunk<MessageRow<'_>>, Vec<usize>)> = Vec::new();
    for (place, message) in messages.iter().copied().enumerate() {
        if let Err(invalid) = message.check_payload(payload_limit) {
            receipts.push(Receipt::Refused(invalid));
            continue;
        }
        receipts.push(Receipt::Duplicate { differs: false });
        let headers = message.headers().to_json();
        let more = message.payload().len() + headers.len();
        if chunks
            .last()
            .is_none_or(|(chunk, _)| chunk.is_full_for(more))
        {
            chunks.push((Chunk::new(), Vec::new()));
        }
        let Some((chunk, places)) = chunks.last_mut() else {
            continue;
        };
        let headers_at = chunk.append(headers.as_bytes());
        let at = chunk.append(message.payload());
        chunk.rows.push((
            message.handler().as_str(),
            message.id().as_str(),
            message.kind().as_str(),
            message.content_type().map(AsRef::as_ref),
            headers_at,
            headers.len(),
            message.ordering_key().map(AsRef::as_ref),
            // Resolved when it is stored.
            0,
            at,
            message.payload().len(),
            message.fingerprint().get(),
        ));
        places.push(place);
    }
    Prepared {
        receipts,
        chunks,
        messages,
    }
}

/// Stores what is not there yet.
pub(crate) async fn insert(
    database: &Database,
    connection: &mut SqliteConnection,
    prepared: Prepared<'_>,
    now: i64,
) -> Result<Vec<Receipt>> {
    let mut receipts = prepared.receipts;
    for (mut chunk, places) in prepared.chunks {
        let parameters = parameters(&mut chunk, &places, &prepared.messages, now)?;
        let returned = sqlx::query(database.statements.receive.clone())
            .bind(parameters.rows)
            .bind(parameters.contents)
            .bind(now)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed)?;
        read(&chunk, &places, &returned, &mut receipts)?;
    }
    Ok(receipts)
}

/// What the statement takes of a chunk, which is without its contents then.
fn parameters(
    chunk: &mut Chunk<MessageRow<'_>>,
    places: &[usize],
    messages: &[&Message],
    now: i64,
) -> Result<Parameters> {
    for (row, place) in chunk.rows.iter_mut().zip(places) {
        let due = messages.get(*place).map(|message| message.due());
        row.7 = due.unwrap_or_default().resolve(now);
    }
    Ok(Parameters {
        rows: json(&chunk.rows)?,
        contents: std::mem::take(&mut chunk.bytes),
    })
}

/// A key that was returned.
struct Stored {
    fingerprint: i64,
    /// How often it was returned beyond once for each copy that differs: once more if it was stored just now.
    surplus: i64,
}

/// Takes note of what was accepted, and of duplicates that differ from what is stored.
fn read(
    chunk: &Chunk<MessageRow<'_>>,
    places: &[usize],
    returned: &[SqliteRow],
    receipts: &mut [Receipt],
) -> Result<()> {
    let mut stored: HashMap<_, Stored> = HashMap::with_capacity(returned.len());
    for row in returned {
        let fingerprint = row.try_get(3).map_err(failed)?;
        let new = Stored {
            fingerprint,
            surplus: 0,
        };
        let key = handler_and_id(row).map_err(failed)?;
        stored.entry(key).or_insert(new).surplus += 1;
    }
    for row in &chunk.rows {
        if let Some(stored) = stored.get_mut(&(row.0, row.1))
            && stored.fingerprint != row.10
        {
            stored.surplus -= 1;
        }
    }
    for (row, place) in chunk.rows.iter().zip(places) {
        let (Some(receipt), Some(stored)) =
            (receipts.get_mut(*place), stored.get_mut(&(row.0, row.1)))
        else {
            // Known, and the same.
            continue;
        };
        *receipt = if stored.surplus > 0 {
            stored.surplus = 0;
            Receipt::Accepted
        } else {
            Receipt::Duplicate {
                differs: stored.fingerprint != row.10,
            }
        };
    }
    Ok(())
}

/// Of a row that `receive.sql` returned.
pub(crate) fn handler_and_id(row: &SqliteRow) -> sqlx::Result<(&str, &str)> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}
