//! Decoding. A row that does not read back as what was written is reported, never a panic and
//! never a reason to fail the other rows.

use std::{str::FromStr, time::SystemTime};

use inbox_api::{
    Attempts, Bytes, CorruptRow, Cursor, Error, ErrorKind, FencingToken, Fingerprint, Headers,
    History, InboxName, Invalid, Key, Lease, Leased, Message, Record, Result, State, from_micros,
};
use sqlx::{Row as _, postgres::PgRow};

use crate::{
    error::{failed, unknown_answer},
    time::Instant,
};

type Decoded<T> = std::result::Result<T, String>;

pub(crate) fn column<'r, T>(row: &'r PgRow, index: usize, name: &str) -> Decoded<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(index)
        .map_err(|_| format!("{name} cannot be read"))
}

fn text<T>(row: &PgRow, index: usize, name: &str) -> Decoded<T>
where
    T: FromStr<Err = Invalid>,
{
    let text: &str = column(row, index, name)?;
    text.parse().map_err(|e: Invalid| e.to_string())
}

fn optional<T>(row: &PgRow, index: usize, name: &str) -> Decoded<Option<T>>
where
    T: FromStr<Err = Invalid>,
{
    let text: Option<&str> = column(row, index, name)?;
    text.map(str::parse)
        .transpose()
        .map_err(|e: Invalid| e.to_string())
}

fn number(row: &PgRow, index: usize, name: &str) -> Decoded<u32> {
    u32::try_from(column::<i32>(row, index, name)?).map_err(|_| format!("{name} is out of range"))
}

fn blob(row: &PgRow, index: usize, name: &str) -> Decoded<Option<Bytes>> {
    Ok(column::<Option<&[u8]>>(row, index, name)?.map(Bytes::copy_from_slice))
}

fn instant(row: &PgRow, index: usize, name: &str) -> Decoded<i64> {
    Ok(column::<Instant>(row, index, name)?.0)
}

fn optional_instant(row: &PgRow, index: usize, name: &str) -> Decoded<Option<SystemTime>> {
    Ok(column::<Option<Instant>>(row, index, name)?.map(|time| from_micros(time.0)))
}

/// Where a row is, for people with PostgreSQL's own tools.
pub(crate) fn corrupt_row(inbox: &InboxName, seq: i64, reason: String) -> CorruptRow {
    CorruptRow {
        place: format!("{inbox}_message, seq {seq}"),
        reason,
    }
}

/// The same, as the error of an operation on one message.
pub(crate) fn corrupt(inbox: &InboxName, seq: i64, reason: String) -> Error {
    let row = corrupt_row(inbox, seq, reason);
    Error::new(ErrorKind::Corrupt, format!("{}: {}", row.place, row.reason))
}

/// The one row that a function answers.
pub(crate) fn only(answer: &[PgRow]) -> Result<&PgRow> {
    answer.first().ok_or_else(unknown_answer)
}

/// A count in the first row.
pub(crate) fn count(answer: &[PgRow], index: usize) -> Result<u64> {
    let first = answer.first().map(|row| row.try_get::<i64, _>(index));
    let count = first.transpose().map_err(failed)?;
    Ok(count.and_then(|n| u64::try_from(n).ok()).unwrap_or(0))
}

/// Which row a lease is on, and whether it has an ordering key: what settling needs to know
/// beforehand.
pub(crate) fn locator(seq: i64, ordered: bool) -> u64 {
    seq.unsigned_abs() << 1 | u64::from(ordered)
}

/// The reverse of [`locator`].
pub(crate) fn read_locator(locator: u64) -> (i64, bool) {
    (
        i64::try_from(locator >> 1).unwrap_or(i64::MAX),
        locator & 1 == 1,
    )
}

/// The number of a lease's row, and its token.
pub(crate) fn row_and_token(lease: &Lease) -> (i64, i64) {
    (read_locator(lease.locator).0, lease.token.get())
}

/// The number and token of a claimed row: all that is needed to set it aside.
pub(crate) fn read_row_and_token(row: &PgRow) -> sqlx::Result<(i64, i64)> {
    Ok((row.try_get(0)?, row.try_get(8)?))
}

fn has_message(row: &PgRow) -> Decoded<()> {
    let handler: Option<&str> = column(row, 1, "handler")?;
    handler
        .map(drop)
        .ok_or_else(|| "its message is missing".into())
}

/// A row of `claim.sql` or `claim_runs.sql`.
pub(crate) fn read_leased(row: &PgRow) -> Decoded<Leased> {
    has_message(row)?;
    let message = Message::new(
        text(row, 1, "handler")?,
        text(row, 2, "id")?,
        text(row, 3, "kind")?,
        blob(row, 12, "payload")?.ok_or("payload is missing")?,
    );
    let message = with_parts(
        message,
        Headers::from_json(column(row, 6, "headers")?)?,
        optional(row, 4, "content type")?,
        optional(row, 5, "ordering key")?,
    );
    Ok(Leased {
        lease: Lease {
            key: message.key().clone(),
            token: FencingToken::new(column(row, 8, "token")?),
            locator: locator(column(row, 0, "seq")?, message.ordering_key().is_some()),
            until: from_micros(instant(row, 11, "lease end")?),
        },
        attempts: Attempts {
            started: number(row, 9, "started attempts")?,
            finished: number(row, 10, "finished attempts")?,
        },
        replays: number(row, 13, "replays")?,
        accepted_at: from_micros(instant(row, 7, "acceptance time")?),
        message,
    })
}

fn with_parts(
    mut message: Message,
    headers: Headers,
    content_type: Option<inbox_api::ContentType>,
    ordering_key: Option<inbox_api::OrderingKey>,
) -> Message {
    message = message.with_headers(headers);
    if let Some(content_type) = content_type {
        message = message.with_content_type(content_type);
    }
    if let Some(ordering_key) = ordering_key {
        message = message.with_ordering_key(ordering_key);
    }
    message
}

/// The answer `run` of `begin.sql`: the message of `key` as it is stored, under its new lease.
pub(crate) fn read_begun(row: &PgRow, key: &Key) -> Decoded<Leased> {
    let message = Message::new(
        key.handler.clone(),
        key.id.clone(),
        text(row, 9, "kind")?,
        blob(row, 13, "payload")?.ok_or("payload is missing")?,
    );
    let message = with_parts(
        message,
        Headers::from_json(column(row, 12, "headers")?)?,
        optional(row, 10, "content type")?,
        optional(row, 11, "ordering key")?,
    );
    Ok(Leased {
        lease: Lease {
            key: key.clone(),
            token: FencingToken::new(column(row, 5, "token")?),
            locator: locator(column(row, 4, "seq")?, message.ordering_key().is_some()),
            until: from_micros(instant(row, 1, "lease end")?),
        },
        attempts: Attempts {
            started: number(row, 6, "started attempts")?,
            finished: number(row, 7, "finished attempts")?,
        },
        replays: number(row, 14, "replays")?,
        accepted_at: from_micros(instant(row, 8, "acceptance time")?),
        message,
    })
}

/// A row of `list.sql` and its like.
pub(crate) fn read_record(row: &PgRow) -> Decoded<Record> {
    has_message(row)?;
    let seq: i64 = column(row, 0, "seq")?;
    let stored = State::from_code(i64::from(column::<i16>(row, 9, "state")?))
        .ok_or("state is out of range")?;
    let visible_at = instant(row, 20, "visibility time")?;
    let leased = stored == State::Leased && visible_at > instant(row, 22, "the time")?;
    let payload_bytes = column::<Option<i32>>(row, 8, "payload length")?
        .map(u64::try_from)
        .transpose()
        .map_err(|_| "payload length is out of range")?;
    let history = match column::<Option<&str>>(row, 25, "history")? {
        Some(history) => History::from_json(history)?,
        None => History::default(),
    };
    Ok(Record {
        key: Key::new(text(row, 1, "handler")?, text(row, 2, "id")?),
        kind: text(row, 3, "kind")?,
        content_type: optional(row, 4, "content type")?,
        headers: Headers::from_json(column(row, 5, "headers")?)?,
        ordering_key: optional(row, 6, "ordering key")?,
        payload: blob(row, 23, "payload")?,
        payload_bytes,
        fingerprint: Fingerprint::new(column(row, 17, "fingerprint")?),
        state: match stored {
            State::Leased if !leased => State::Pending,
            other => other,
        },
        attempts: Attempts {
            started: number(row, 11, "started attempts")?,
            finished: number(row, 12, "finished attempts")?,
        },
        replays: number(row, 13, "replays")?,
        accepted_at: from_micros(instant(row, 7, "acceptance time")?),
        due_at: from_micros(instant(row, 10, "due time")?),
        leased_at: optional_instant(row, 18, "lease time")?,
        lease_until: leased.then(|| from_micros(visible_at)),
        worker: optional(row, 14, "worker")?,
        finished_at: optional_instant(row, 15, "finish time")?,
        last_error: column(row, 16, "last error")?,
        blocks_ordering_key: column(row, 19, "blocking flag")?,
        result: blob(row, 24, "result")?,
        cursor: Cursor::from(seq),
        history: history.attempts,
        interventions: history.interventions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locators_say_row_and_order() {
        for (seq, ordered) in [(1000, false), (1001, true), (i64::MAX, true)] {
            assert_eq!(read_locator(locator(seq, ordered)), (seq, ordered));
        }
    }
}
