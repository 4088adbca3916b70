//! Decoding. A row that does not read back as what was written is reported, never a panic and
//! never a reason to fail the other rows.

use std::{str::FromStr, time::SystemTime};

use inbox_api::{
    Attempts, Bytes, CorruptRow, Cursor, FencingToken, Fingerprint, Headers, History, Invalid, Key,
    Lease, Message, Record, State, WorkerName, from_micros,
};
use sqlx::{Decode, MySql, Row as _, mysql::MySqlRow};

type Decoded<T> = std::result::Result<T, String>;

/// Unchecked, since the server gives expressions other types than columns.
fn column<'r, T: Decode<'r, MySql>>(row: &'r MySqlRow, index: usize, name: &str) -> Decoded<T> {
    row.try_get_unchecked(index)
        .map_err(|_| format!("{name} cannot be read"))
}

fn string<'r>(row: &'r MySqlRow, index: usize, name: &str) -> Decoded<&'r str> {
    std::str::from_utf8(column(row, index, name)?).map_err(|_| format!("{name} is not UTF-8"))
}

fn text<T>(row: &MySqlRow, index: usize, name: &str) -> Decoded<T>
where
    T: FromStr<Err = Invalid>,
{
    string(row, index, name)?
        .parse()
        .map_err(|e: Invalid| e.to_string())
}

fn is_null(row: &MySqlRow, index: usize) -> bool {
    matches!(row.try_get_unchecked::<Option<&[u8]>, _>(index), Ok(None))
}

fn optional<T>(row: &MySqlRow, index: usize, name: &str) -> Decoded<Option<T>>
where
    T: FromStr<Err = Invalid>,
{
    if is_null(row, index) {
        return Ok(None);
    }
    text(row, index, name).map(Some)
}

/// None when it is the room that `receive_queue.sql` leaves for a name.
fn worker(row: &MySqlRow, index: usize) -> Decoded<Option<WorkerName>> {
    if let Ok(Some([0, ..])) = row.try_get_unchecked::<Option<&[u8]>, _>(index) {
        return Ok(None);
    }
    optional(row, index, "worker")
}

/// None when it is the 0 of `receive_queue.sql`.
fn leased_at(row: &MySqlRow, index: usize) -> Decoded<Option<SystemTime>> {
    let micros: i64 = column(row, index, "lease time")?;
    Ok((micros != 0).then(|| from_micros(micros)))
}

fn count(row: &MySqlRow, index: usize, name: &str) -> Decoded<u32> {
    u32::try_from(column::<i64>(row, index, name)?).map_err(|_| format!("{name} is out of range"))
}

fn blob(row: &MySqlRow, index: usize, name: &str) -> Decoded<Option<Bytes>> {
    Ok(column::<Option<&[u8]>>(row, index, name)?.map(Bytes::copy_from_slice))
}

fn headers(row: &MySqlRow, index: usize) -> Decoded<Headers> {
    Headers::from_json(string(row, index, "headers")?)
}

/// A line of JSON for each past attempt or intervention.
fn history(row: &MySqlRow, index: usize) -> Decoded<History> {
    if is_null(row, index) {
        return Ok(History::default());
    }
    let lines = string(row, index, "history")?.replace('\n', ",");
    History::from_json(&format!("[{lines}]"))
}

/// Where a row is, for people with the server's own tools.
pub(crate) fn corrupt_row(inbox: &str, seq: i64, reason: String) -> CorruptRow {
    CorruptRow {
        place: format!("{inbox}_message, seq {seq}"),
        reason,
    }
}

/// A row of `claim_rows.sql`.
pub(crate) struct Claimed {
    pub(crate) message: Message,
    pub(crate) attempts: Attempts,
    pub(crate) replays: u32,
    pub(crate) accepted_at: i64,
}

pub(crate) fn read_claimed(row: &MySqlRow) -> Decoded<Claimed> {
    let mut message = Message::new(
        text(row, 1, "handler")?,
        text(row, 2, "id")?,
        text(row, 3, "kind")?,
        blob(row, 12, "payload")?.ok_or("payload is missing")?,
    )
    .with_headers(headers(row, 5)?);
    if let Some(content_type) = optional(row, 4, "content type")? {
        message = message.with_content_type(content_type);
    }
    if let Some(ordering_key) = optional(row, 6, "ordering key")? {
        message = message.with_ordering_key(ordering_key);
    }
    Ok(Claimed {
        message,
        attempts: Attempts {
            started: count(row, 9, "started attempts")?,
            finished: count(row, 10, "finished attempts")?,
        },
        replays: count(row, 11, "replays")?,
        accepted_at: column(row, 7, "acceptance time")?,
    })
}

/// A row of `columns.sql` with payload, result and history behind it, and what the store needs in addition to the
/// record.
pub(crate) struct Stored {
    pub(crate) seq: i64,
    pub(crate) record: Record,
    pub(crate) stored_state: State,
    pub(crate) visible_at: Option<i64>,
    pub(crate) token: i64,
}

/// Whether such a row is leased, and the lease has run out.
pub(crate) fn has_run_out(row: &MySqlRow, now: i64) -> bool {
    let state: sqlx::Result<Option<i64>> = row.try_get_unchecked(9);
    let until: sqlx::Result<Option<i64>> = row.try_get_unchecked(10);
    let is_leased =
        state.is_ok_and(|state| state.and_then(State::from_code) == Some(State::Leased));
    is_leased && until.is_ok_and(|until| until.is_some_and(|until| until <= now))
}

pub(crate) fn read_stored(row: &MySqlRow, now: i64) -> Decoded<Stored> {
    let seq = column(row, 0, "seq")?;
    if is_null(row, 1) {
        return Err("message is missing".into());
    }
    let stored_state = column::<Option<i64>>(row, 9, "state")?
        .and_then(State::from_code)
        .ok_or("state is out of range")?;
    let visible_at: Option<i64> = column(row, 10, "visibility time")?;
    let leased = stored_state == State::Leased && visible_at.is_some_and(|until| until > now);
    let shown = match stored_state {
        State::Leased if !leased => State::Pending,
        other => other,
    };
    let payload_bytes = column::<Option<i64>>(row, 8, "payload length")?
        .map(u64::try_from)
        .transpose()
        .map_err(|_| "payload length is out of range")?;
    let last_error = if is_null(row, 18) {
        None
    } else {
        Some(string(row, 18, "last error")?.to_owned())
    };
    let history = history(row, 24)?;
    let record = Record {
        key: Key::new(text(row, 1, "handler")?, text(row, 2, "id")?),
        kind: text(row, 3, "kind")?,
        content_type: optional(row, 4, "content type")?,
        headers: headers(row, 5)?,
        ordering_key: optional(row, 6, "ordering key")?,
        payload: blob(row, 22, "payload")?,
        payload_bytes,
        fingerprint: Fingerprint::new(column(row, 20, "fingerprint")?),
        state: shown,
        attempts: Attempts {
            started: count(row, 13, "started attempts")?,
            finished: count(row, 14, "finished attempts")?,
        },
        replays: count(row, 15, "replays")?,
        accepted_at: from_micros(column(row, 7, "acceptance time")?),
        due_at: from_micros(column(row, 11, "due time")?),
        leased_at: leased_at(row, 21)?,
        lease_until: visible_at.filter(|_| leased).map(from_micros),
        worker: worker(row, 16)?,
        finished_at: column::<Option<i64>>(row, 17, "finish time")?.map(from_micros),
        last_error,
        blocks_ordering_key: column::<i64>(row, 19, "blocking flag")? == 1,
        result: blob(row, 23, "result")?,
        cursor: Cursor::from(seq),
        history: history.attempts,
        interventions: history.interventions,
    };
    Ok(Stored {
        seq,
        record,
        stored_state,
        visible_at,
        token: column(row, 12, "token")?,
    })
}

/// The row and the token that a lease names, whether the message has an ordering key, and whether it was
/// leased in a run of several: the locator is the sequence number, shifted by two bits for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeasedRow {
    pub(crate) seq: i64,
    pub(crate) token: i64,
    pub(crate) ordered: bool,
    pub(crate) in_run: bool,
}

impl LeasedRow {
    pub(crate) fn of(lease: &Lease) -> Self {
        Self {
            seq: i64::try_from(lease.locator >> 2).unwrap_or(-1),
            token: lease.token.get(),
            ordered: lease.locator & 1 == 1,
            in_run: lease.locator & 2 == 2,
        }
    }

    /// What tells it from other leases of the same message.
    pub(crate) fn seq_and_token(&self) -> (i64, i64) {
        (self.seq, self.token)
    }
}

/// The lease of a message, by itself or in a run of several.
pub(crate) fn lease(message: &Message, seq: i64, token: i64, in_run: bool, until: i64) -> Lease {
    let ordered = message.ordering_key().is_some();
    Lease {
        key: message.key().clone(),
        token: FencingToken::new(token),
        locator: seq.unsigned_abs() << 2 | u64::from(in_run) << 1 | u64::from(ordered),
        until: from_micros(until),
    }
}

/// The first two columns.
pub(crate) fn pair(row: &MySqlRow) -> sqlx::Result<(i64, i64)> {
    Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?))
}
