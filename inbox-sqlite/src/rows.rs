//! Decoding. A row that does not read back as what was written is reported, never a panic and
//! never a reason to fail the other rows.

use std::str::FromStr;

use inbox_api::{
    Attempts, Bytes, CorruptRow, Cursor, Error, ErrorKind, Fingerprint, HandlerName, Headers,
    History, Invalid, Key, Lease, Message, Record, Result, State, from_micros,
};
use sqlx::{Row, sqlite::SqliteRow};

type Decoded<T> = std::result::Result<T, String>;

fn column<'r, T>(row: &'r SqliteRow, index: usize, name: &str) -> Decoded<T>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(index)
        .map_err(|_| format!("{name} cannot be read"))
}

fn text<T>(row: &SqliteRow, index: usize, name: &str) -> Decoded<T>
where
    T: FromStr<Err = Invalid>,
{
    let text: &str = column(row, index, name)?;
    text.parse().map_err(|e: Invalid| e.to_string())
}

fn optional<T>(row: &SqliteRow, index: usize, name: &str) -> Decoded<Option<T>>
where
    T: FromStr<Err = Invalid>,
{
    let text: Option<&str> = column(row, index, name)?;
    text.map(str::parse)
        .transpose()
        .map_err(|e: Invalid| e.to_string())
}

fn number(row: &SqliteRow, index: usize, name: &str) -> Decoded<u32> {
    u32::try_from(column::<i64>(row, index, name)?).map_err(|_| format!("{name} is out of range"))
}

fn blob(row: &SqliteRow, index: usize, name: &str) -> Decoded<Option<Bytes>> {
    Ok(column::<Option<&[u8]>>(row, index, name)?.map(Bytes::copy_from_slice))
}

fn handler(row: &SqliteRow, index: usize) -> Decoded<HandlerName> {
    // Missing when there is no row of messages. The driver takes NULL for an empty text.
    column::<Option<&str>>(row, index, "handler")?.ok_or("message is missing")?;
    text(row, index, "handler")
}

fn headers(row: &SqliteRow, index: usize) -> Decoded<Headers> {
    Headers::from_json(column(row, index, "headers")?)
}

fn history(row: &SqliteRow, index: usize) -> Decoded<History> {
    let json: Option<&str> = column(row, index, "history")?;
    json.map_or_else(|| Ok(History::default()), History::from_json)
}

fn state(row: &SqliteRow, index: usize) -> Decoded<State> {
    // Missing when there is no row of states. The driver takes NULL for 0.
    let code = column::<Option<i64>>(row, index, "state")?.ok_or("state is missing")?;
    State::from_code(code).ok_or_else(|| "state is out of range".into())
}

/// Where a row is, for people with SQLite's own tools.
pub(crate) fn corrupt_row(inbox: &str, seq: i64, reason: String) -> CorruptRow {
    CorruptRow {
        place: format!("{inbox}_message and {inbox}_state, seq {seq}"),
        reason,
    }
}

/// The only row that an operation is about, which fails with it.
pub(crate) fn read_one(row: &SqliteRow, inbox: &str, now: i64) -> Result<Stored> {
    read_stored(row, now).map_err(|reason| {
        let found = corrupt_row(inbox, row.try_get(0).unwrap_or_default(), reason);
        Error::new(
            ErrorKind::Corrupt,
            format!("{}: {}", found.place, found.reason),
        )
    })
}

/// A paused handler whose name breaks the rules.
pub(crate) fn corrupt_name(invalid: Invalid) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a paused handler: {invalid}"))
}

/// The row and the token that a lease names. Sequence numbers are positive, so a locator that is
/// not one of this store's finds nothing.
pub(crate) fn lease_row(lease: &Lease) -> (i64, i64) {
    let seq = i64::try_from(lease.locator).unwrap_or(-1);
    (seq, lease.token.get())
}

/// The sequence number in the first column.
pub(crate) fn seq(row: &SqliteRow) -> sqlx::Result<i64> {
    row.try_get(0)
}

/// The sequence number and the token in the first two columns.
pub(crate) fn seq_and_token(row: &SqliteRow) -> sqlx::Result<(i64, i64)> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// The number of the first message of the run that a row of `claim_runs.sql` belongs to.
pub(crate) fn first_of_run(row: &SqliteRow) -> sqlx::Result<i64> {
    row.try_get(14)
}

/// A row of `claim.sql` or `claim_runs.sql`, before its lease is written.
pub(crate) struct Candidate {
    pub(crate) message: Message,
    pub(crate) token: i64,
    pub(crate) attempts: Attempts,
    pub(crate) replays: u32,
    pub(crate) accepted_at: i64,
}

pub(crate) fn read_candidate(row: &SqliteRow) -> Decoded<Candidate> {
    let mut message = Message::new(
        handler(row, 1)?,
        text(row, 2, "id")?,
        text(row, 3, "kind")?,
        blob(row, 13, "payload")?.ok_or("payload is missing")?,
    )
    .with_headers(headers(row, 5)?);
    if let Some(content_type) = optional(row, 4, "content type")? {
        message = message.with_content_type(content_type);
    }
    if let Some(ordering_key) = optional(row, 6, "ordering key")? {
        message = message.with_ordering_key(ordering_key);
    }
    if state(row, 8)?.is_final() {
        return Err("a claimable row is in a final state".into());
    }
    Ok(Candidate {
        message,
        token: column(row, 9, "token")?,
        attempts: Attempts {
            started: number(row, 10, "started attempts")?.saturating_add(1),
            finished: number(row, 11, "finished attempts")?,
        },
        replays: number(row, 12, "replays")?,
        accepted_at: column(row, 7, "acceptance time")?,
    })
}

/// A row of `columns.sql` and what the store needs in addition to the record.
pub(crate) struct Stored {
    pub(crate) seq: i64,
    pub(crate) record: Record,
    pub(crate) stored_state: State,
    pub(crate) visible_at: i64,
}

pub(crate) fn read_stored(row: &SqliteRow, now: i64) -> Decoded<Stored> {
    let seq = column(row, 0, "seq")?;
    let stored_state = state(row, 9)?;
    let visible_at: i64 = column(row, 10, "visibility time")?;
    let lease_until: Option<i64> = column(row, 12, "lease end")?;
    let leased = stored_state == State::Leased && lease_until.is_some_and(|until| until > now);
    let shown = match stored_state {
        State::Leased if !leased => State::Pending,
        other => other,
    };
    let payload_bytes = column::<Option<i64>>(row, 8, "payload length")?
        .map(u64::try_from)
        .transpose()
        .map_err(|_| "payload length is out of range")?;
    let history = history(row, 25)?;
    let record = Record {
        key: Key::new(handler(row, 1)?, text(row, 2, "id")?),
        kind: text(row, 3, "kind")?,
        content_type: optional(row, 4, "content type")?,
        headers: headers(row, 5)?,
        ordering_key: optional(row, 6, "ordering key")?,
        payload: blob(row, 23, "payload")?,
        payload_bytes,
        fingerprint: Fingerprint::new(column(row, 21, "fingerprint")?),
        state: shown,
        attempts: Attempts {
            started: number(row, 14, "started attempts")?,
            finished: number(row, 15, "finished attempts")?,
        },
        replays: number(row, 16, "replays")?,
        accepted_at: from_micros(column(row, 7, "acceptance time")?),
        due_at: from_micros(column(row, 11, "due time")?),
        lease_until: lease_until.filter(|_| leased).map(from_micros),
        leased_at: column::<Option<i64>>(row, 22, "time of the lease")?.map(from_micros),
        worker: optional(row, 17, "worker")?,
        finished_at: column::<Option<i64>>(row, 18, "finish time")?.map(from_micros),
        last_error: column(row, 19, "last error")?,
        history: history.attempts,
        interventions: history.interventions,
        blocks_ordering_key: column::<i64>(row, 20, "blocking flag")? == 1,
        result: blob(row, 24, "result")?,
        cursor: Cursor::from(seq),
    };
    Ok(Stored {
        seq,
        record,
        stored_state,
        visible_at,
    })
}
