//! What receive, claim, settle, extend and begin do on one connection, inside or outside of a
//! transaction: the store's own operations and the transactional ones are the same SQL.
//!
//! A change that returns rows is always read to its end (`fetch_all`): sqlx answers
//! `fetch_optional` with the first row and drops SQLite's verdict on the commit that follows.

use std::{collections::HashSet, time::Duration};

use inbox_api::{
    ClaimRequest, Claims, Error, ErrorKind, Extended, FencingToken, Lease, Leased, Message,
    Receipt, Result, duration_micros, from_micros,
};
use serde::Serialize;
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use crate::{error::in_operation, options::SqliteOptions, rows, statements::Statements};

/// What one statement takes at most. SQLite holds no value over 1 GB.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024 * 1024;
pub(crate) const CHUNK_ROWS: usize = 1000;

/// Statements and settings, without a connection.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) statements: Statements,
    pub(crate) inbox: String,
    pub(crate) payload_limit: usize,
    pub(crate) drop_processed_payloads: bool,
}

/// Rows for one statement: JSON arrays, and the bytes that JSON cannot carry one behind the
/// other.
pub(crate) struct Chunk<R> {
    pub(crate) rows: Vec<R>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) text_bytes: usize,
}

impl<R> Chunk<R> {
    pub(crate) fn new() -> Self {
        // Never empty: SQLite's substr of an empty blob is NULL rather than an empty blob.
        let bytes = vec![0];
        Self {
            rows: Vec::new(),
            bytes,
            text_bytes: 0,
        }
    }

    /// Where `more` begins, counted from 1.
    pub(crate) fn append(&mut self, more: &[u8]) -> usize {
        let at = self.bytes.len() + 1;
        self.bytes.extend_from_slice(more);
        at
    }

    pub(crate) fn is_full_for(&self, more: usize) -> bool {
        !self.rows.is_empty()
            && (self.rows.len() >= CHUNK_ROWS
                || self.bytes.len() + self.text_bytes + more > CHUNK_BYTES)
    }
}

pub(crate) fn json(operation: &'static str, value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| {
        Error::new(ErrorKind::Other, operation, "cannot write JSON").with_source(error)
    })
}

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

/// A receive, checked and laid out.
pub(crate) struct Receive<'a> {
    pub(crate) receipts: Vec<Receipt>,
    /// Rows, each with its place in the input.
    chunks: Vec<(Chunk<MessageRow<'a>>, Vec<usize>)>,
    messages: &'a [Message],
}

impl Receive<'_> {
    pub(crate) fn statements(&self) -> usize {
        self.chunks.len()
    }
}

impl Work {
    pub(crate) fn new(options: &SqliteOptions) -> Self {
        Self {
            statements: Statements::new(&options.inbox),
            inbox: options.inbox.as_str().to_owned(),
            payload_limit: options.payload_limit,
            drop_processed_payloads: options.drop_processed_payloads,
        }
    }

    pub(crate) fn prepare_receive<'a>(&self, messages: &'a [Message]) -> Receive<'a> {
        let mut receipts = Vec::with_capacity(messages.len());
        let mut chunks: Vec<(Chunk<MessageRow<'_>>, Vec<usize>)> = Vec::new();
        for (place, message) in messages.iter().enumerate() {
            if let Err(invalid) = message.check_payload(self.payload_limit) {
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
        Receive {
            receipts,
            chunks,
            messages,
        }
    }

    pub(crate) async fn receive(
        &self,
        connection: &mut SqliteConnection,
        receive: Receive<'_>,
        now: i64,
    ) -> Result<Vec<Receipt>> {
        const OPERATION: &str = "receive";
        let mut receipts = receive.receipts;
        for (mut chunk, places) in receive.chunks {
            for (row, place) in chunk.rows.iter_mut().zip(&places) {
                let due = receive.messages.get(*place).map(Message::due);
                row.7 = due.unwrap_or_default().resolve(now);
            }
            let returned = sqlx::query(self.statements.receive.clone())
                .bind(json(OPERATION, &chunk.rows)?)
                .bind(chunk.bytes)
                .bind(now)
                .fetch_all(&mut *connection)
                .await
                .map_err(in_operation(OPERATION))?;
            let mut accepted = HashSet::with_capacity(returned.len());
            for row in &returned {
                accepted.insert(texts(row).map_err(in_operation(OPERATION))?);
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

    /// In a transaction that has the write lock.
    pub(crate) async fn claim(
        &self,
        connection: &mut SqliteConnection,
        request: &ClaimRequest,
        now: i64,
    ) -> Result<Claims> {
        const OPERATION: &str = "claim";
        let mapped = in_operation(OPERATION);
        let handlers: HashSet<_> = request.handlers.iter().map(AsRef::as_ref).collect();
        let handlers: Vec<&str> = handlers.into_iter().collect();
        let returned = sqlx::query(self.statements.claim_select.clone())
            .bind(json(OPERATION, &handlers)?)
            .bind(now)
            .bind(i64::from(request.limit))
            .fetch_all(&mut *connection)
            .await
            .map_err(mapped)?;

        let until = now.saturating_add(duration_micros(request.terms.length()));
        let mut claims = Claims::default();
        let (mut good, mut bad) = (Vec::with_capacity(returned.len()), Vec::new());
        for row in &returned {
            let seq: i64 = row.try_get(0).map_err(mapped)?;
            match rows::candidate(row) {
                Ok(found) => {
                    good.push(seq);
                    claims.leased.push(Leased {
                        lease: Lease {
                            key: found.message.key().clone(),
                            token: FencingToken::after(found.token, now),
                            locator: seq.unsigned_abs(),
                            until: from_micros(until),
                        },
                        message: found.message,
                        attempts: found.attempts,
                        accepted_at: from_micros(found.accepted_at),
                    });
                }
                Err(reason) => {
                    tracing::error!(inbox = %self.inbox, seq, %reason, "corrupt message set aside");
                    bad.push((seq, format!("corrupt: {reason}")));
                    claims
                        .corrupt
                        .push(rows::corrupt_row(&self.inbox, seq, reason));
                }
            }
        }
        if !bad.is_empty() {
            sqlx::query(self.statements.set_aside.clone())
                .bind(json(OPERATION, &bad)?)
                .bind(now)
                .execute(&mut *connection)
                .await
                .map_err(mapped)?;
        }
        if !good.is_empty() {
            sqlx::query(self.statements.claim_lease.clone())
                .bind(json(OPERATION, &good)?)
                .bind(now)
                .bind(until)
                .bind(request.terms.worker().as_str())
                .execute(&mut *connection)
                .await
                .map_err(mapped)?;
        }
        Ok(claims)
    }

    pub(crate) async fn extend(
        &self,
        connection: &mut SqliteConnection,
        leases: &[Lease],
        length: Duration,
        now: i64,
    ) -> Result<Vec<Extended>> {
        const OPERATION: &str = "extend";
        let mapped = in_operation(OPERATION);
        let until = now.saturating_add(duration_micros(length));
        let held: Vec<_> = leases.iter().map(held).collect();
        let returned = sqlx::query(self.statements.extend.clone())
            .bind(json(OPERATION, &held)?)
            .bind(until)
            .fetch_all(connection)
            .await
            .map_err(mapped)?;
        let mut extended = HashSet::with_capacity(returned.len());
        for row in &returned {
            extended.insert(numbers(row).map_err(mapped)?);
        }
        Ok(held
            .iter()
            .map(|held| {
                if extended.contains(held) {
                    Extended::Until(from_micros(until))
                } else {
                    Extended::LeaseLost
                }
            })
            .collect())
    }
}

/// The row and the token that a lease names. Sequence numbers are positive, so a locator that is
/// not one of this store's finds nothing.
pub(crate) fn held(lease: &Lease) -> (i64, i64) {
    let seq = i64::try_from(lease.locator).unwrap_or(-1);
    (seq, lease.token.get())
}

/// The first two columns.
pub(crate) fn numbers(row: &SqliteRow) -> sqlx::Result<(i64, i64)> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}

fn texts(row: &SqliteRow) -> sqlx::Result<(&str, &str)> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}
