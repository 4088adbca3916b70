//! Receiving a batch: one statement for all of it, unless it is larger than SQLite takes.

use std::collections::HashSet;

use inbox_api::{Message, Receipt, Result};
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};
use tokio::time::Instant;

use crate::{
    batch::{Chunk, json},
    connection::Database,
    error::failed,
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
);

/// A batch, checked and laid out.
pub(crate) struct Prepared<'a> {
    receipts: Vec<Receipt>,
    /// Rows, each with its place in the input.
    chunks: Vec<(Chunk<MessageRow<'a>>, Vec<usize>)>,
    messages: &'a [Message],
}

impl Prepared<'_> {
    /// How many statements it takes.
    pub(crate) fn statements(&self) -> usize {
        self.chunks.len()
    }
}

pub(crate) async fn receive(database: &Database, messages: &[Message]) -> Result<Vec<Receipt>> {
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
            let mut connection = database.writer(until).await?;
            let now = database.now();
            let receipts = insert(database, &mut connection, prepared, now).await?;
            (receipts, now)
        }
        _ => {
            let mut transaction = database.begin(until).await?;
            let now = database.now();
            let receipts = insert(database, &mut transaction, prepared, now).await?;
            transaction.commit().await.map_err(failed)?;
            (receipts, now)
        }
    };
    let is_due = |(receipt, message): (&Receipt, &Message)| {
        *receipt == Receipt::Accepted && message.due().resolve(now) <= now
    };
    if receipts.iter().zip(messages).any(is_due) {
        database.signal.raise();
    }
    Ok(receipts)
}

/// Refuses what is too large, and lays out the others.
pub(crate) fn prepare(messages: &[Message], payload_limit: usize) -> Prepared<'_> {
    let mut receipts = Vec::with_capacity(messages.len());
    let mut chunks: Vec<(Chunk<MessageRow<'_>>, Vec<usize>)> = Vec::new();
    for (place, message) in messages.iter().enumerate() {
        if let Err(invalid) = message.check_payload(payload_limit) {
            receipts.push(Receipt::Refused(invalid));
            continue;
        }
        receipts.push(Receipt::Duplicate);
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
        for (row, place) in chunk.rows.iter_mut().zip(&places) {
            let due = prepared.messages.get(*place).map(Message::due);
            row.7 = due.unwrap_or_default().resolve(now);
        }
        let returned = sqlx::query(database.statements.receive.clone())
            .bind(json(&chunk.rows)?)
            .bind(chunk.bytes)
            .bind(now)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed)?;
        let mut accepted = HashSet::with_capacity(returned.len());
        for row in &returned {
            accepted.insert(handler_and_id(row).map_err(failed)?);
        }
        for (row, place) in chunk.rows.iter().zip(places) {
            if accepted.remove(&(row.0, row.1))
                && let Some(receipt) = receipts.get_mut(place)
            {
                *receipt = Receipt::Accepted;
            }
        }
    }
    Ok(receipts)
}

fn handler_and_id(row: &SqliteRow) -> sqlx::Result<(&str, &str)> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}
