//! Encoding and decoding. A message that does not read back as what was written is reported,
//! never a panic and never a reason to fail the others.

use std::str::FromStr;

use inbox_api::{
    Attempts, Bytes, CorruptRow, Cursor, Error, ErrorKind, FencingToken, Fingerprint, HandlerName,
    Headers, History, Invalid, Key, Lease, Leased, Message, MessageId, Record, State, from_micros,
};
use redis::Value;

use crate::{
    keys::{Layout, locator},
    reply::{self, Reply, Taker, Unexpected},
};

type Decoded<T> = std::result::Result<T, String>;

const HAS_ERROR_TEXT: i64 = 1;
const BLOCKS: i64 = 4;
/// The state of a message whose state cannot be read.
const UNREADABLE: i64 = -1;

/// What of a message changes only when it is edited, and is not its key: fingerprint, kind, content type,
/// headers.
fn static_part(message: &Message) -> Vec<u8> {
    let kind = message.kind().as_str();
    let content_type = message.content_type().map_or("", AsRef::as_ref);
    let headers = message.headers().to_json();
    let mut bytes = Vec::with_capacity(10 + kind.len() + content_type.len() + headers.len());
    bytes.extend_from_slice(&message.fingerprint().get().to_be_bytes());
    for text in [kind, content_type] {
        bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes.extend_from_slice(headers.as_bytes());
    bytes
}

/// The length of the static part in four bytes, the static part, the payload.
pub(crate) fn body(message: &Message) -> Vec<u8> {
    let fixed = static_part(message);
    let mut bytes = Vec::with_capacity(4 + fixed.len() + message.payload().len());
    bytes.extend_from_slice(&u32::try_from(fixed.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(&fixed);
    bytes.extend_from_slice(message.payload());
    bytes
}

/// Adds a message to what a part of a batch has in one string for the log, and in one with the
/// payloads. `distance`: of its place from the part's first.
pub(crate) fn add_item(log: &mut Vec<u8>, blob: &mut Vec<u8>, distance: u16, message: &Message) {
    let start = log.len();
    let (handler, id) = (message.handler().as_str(), message.id().as_str());
    let length = u16::try_from(handler.len() + 1 + id.len()).unwrap_or(u16::MAX);
    log.extend_from_slice(&distance.to_be_bytes());
    log.extend_from_slice(&length.to_be_bytes());
    log.extend_from_slice(handler.as_bytes());
    log.push(0);
    log.extend_from_slice(id.as_bytes());
    let fixed = static_part(message);
    log.extend_from_slice(&u32::try_from(fixed.len()).unwrap_or(u32::MAX).to_be_bytes());
    log.extend_from_slice(&fixed);
    let payload = message.payload();
    log.extend_from_slice(
        &u32::try_from(payload.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes(),
    );
    blob.extend_from_slice(log.get(start..).unwrap_or_default());
    blob.extend_from_slice(payload);
}

/// Takes numbers and strings off the front of a run's blob.
struct Blob {
    bytes: Bytes,
    at: usize,
}

impl Blob {
    fn take(&mut self, length: usize) -> Reply<Bytes> {
        let end = self.at.checked_add(length).ok_or(Unexpected)?;
        if end > self.bytes.len() {
            return Err(Unexpected);
        }
        let part = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(part)
    }

    fn short(&mut self) -> Reply<u16> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes(
            bytes.as_ref().try_into().map_err(|_| Unexpected)?,
        ))
    }

    fn long(&mut self) -> Reply<usize> {
        let bytes = self.take(4)?;
        let number = u32::from_be_bytes(bytes.as_ref().try_into().map_err(|_| Unexpected)?);
        usize::try_from(number).map_err(|_| Unexpected)
    }
}

/// The messages of a run as `claim.lua` hands it out.
pub(crate) fn read_taken_run(shard: u16, value: Value) -> Reply<Vec<Taken>> {
    let mut run = Taker::of(value)?;
    let origin = run.unsigned()?;
    let held = Held {
        accepted: run.number()?,
        token: run.number()?,
        until: run.number()?,
        attempts: Attempts {
            started: u32::try_from(run.number()?).unwrap_or(u32::MAX),
            finished: u32::try_from(run.number()?).unwrap_or(u32::MAX),
        },
        // A replay takes its message out of the run.
        replays: 0,
    };
    let at = run.number()?;
    let mut blob = Blob {
        bytes: run.bytes()?.ok_or(Unexpected)?,
        at: 0,
    };
    let mut taken = Vec::new();
    // Neighbours mostly have the same handler and the same static part.
    let mut same: Option<(HandlerName, Bytes, Fixed)> = None;
    while blob.at < blob.bytes.len() {
        let seq = origin + u64::from(blob.short()?);
        let length = usize::from(blob.short()?);
        let field = blob.take(length)?;
        let field = std::str::from_utf8(&field)
            .map_err(|_| Unexpected)?
            .to_owned();
        let length = blob.long()?;
        let head = blob.take(length)?;
        let length = blob.long()?;
        let payload = blob.take(length)?;
        let read = || -> Decoded<Leased> {
            let (name, id) = field.split_once('\0').ok_or("the key has no handler")?;
            let known = same
                .take()
                .filter(|(handler, bytes, _)| handler.as_str() == name && *bytes == head);
            let (handler, _, parts) = same.insert(match known {
                Some(known) => known,
                None => (parse_name(name)?, head.clone(), fixed(&head)?),
            });
            let message = Message::new(
                handler.clone(),
                parse_name(id)?,
                parts.kind.clone(),
                payload,
            )
            .with_headers(parts.headers.clone());
            Ok(held.leased(
                match &parts.content_type {
                    Some(content_type) => message.with_content_type(content_type.clone()),
                    None => message,
                },
                shard,
                seq,
            ))
        };
        let leased = read();
        taken.push(Taken {
            shard,
            field,
            seq,
            at,
            first: seq,
            token: held.token,
            leased,
        });
    }
    Ok(taken)
}

/// What a claim draws for a message.
struct Held {
    accepted: i64,
    token: i64,
    until: i64,
    attempts: Attempts,
    replays: u32,
}

impl Held {
    fn leased(&self, message: Message, shard: u16, seq: u64) -> Leased {
        Leased {
            lease: Lease {
                key: message.key().clone(),
                token: FencingToken::new(self.token),
                locator: locator(shard, seq),
                until: from_micros(self.until),
            },
            message,
            attempts: self.attempts,
            replays: self.replays,
            accepted_at: from_micros(self.accepted),
        }
    }
}

#[derive(Clone)]
struct Fixed {
    fingerprint: Fingerprint,
    kind: inbox_api::Kind,
    content_type: Option<inbox_api::ContentType>,
    headers: Headers,
}

fn short<'a>(bytes: &mut &'a [u8], name: &str) -> Decoded<&'a str> {
    let cut = || format!("{name} is cut off");
    let (length, rest) = bytes.split_first().ok_or_else(cut)?;
    let (text, rest) = rest
        .split_at_checked(usize::from(*length))
        .ok_or_else(cut)?;
    *bytes = rest;
    std::str::from_utf8(text).map_err(|_| format!("{name} is not UTF-8"))
}

fn parse_name<T: FromStr<Err = Invalid>>(text: &str) -> Decoded<T> {
    text.parse().map_err(|e: Invalid| e.to_string())
}

fn fixed(bytes: &[u8]) -> Decoded<Fixed> {
    let (fingerprint, mut bytes) = bytes
        .split_first_chunk()
        .ok_or("the fingerprint is cut off")?;
    let fingerprint = Fingerprint::new(i64::from_be_bytes(*fingerprint));
    let kind = parse_name(short(&mut bytes, "kind")?)?;
    let content_type = match short(&mut bytes, "content type")? {
        "" => None,
        text => Some(parse_name(text)?),
    };
    let headers = std::str::from_utf8(bytes).map_err(|_| "headers are not UTF-8")?;
    Ok(Fixed {
        fingerprint,
        kind,
        content_type,
        headers: Headers::from_json(headers)?,
    })
}

/// Takes a body apart without copying the payload.
fn split(body: &Bytes) -> Decoded<(Bytes, Bytes)> {
    let cut = "the body is cut off";
    let length: [u8; 4] = body
        .get(..4)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(cut)?;
    let end = usize::try_from(u32::from_be_bytes(length))
        .ok()
        .and_then(|length| length.checked_add(4))
        .filter(|end| *end <= body.len())
        .ok_or(cut)?;
    Ok((body.slice(4..end), body.slice(end..)))
}

pub(crate) fn payload(body: &Bytes) -> Decoded<Bytes> {
    split(body).map(|(_, payload)| payload)
}

pub(crate) fn key(field: &str) -> Decoded<Key> {
    let (handler, id) = field.split_once('\0').ok_or("the key has no handler")?;
    Ok(Key::new(
        HandlerName::new(handler).map_err(|e| e.to_string())?,
        MessageId::new(id).map_err(|e| e.to_string())?,
    ))
}

/// Where a message is, for people with Redis's own tools.
pub(crate) fn corrupt_row(layout: &Layout, shard: u16, field: &str, reason: String) -> CorruptRow {
    CorruptRow {
        place: format!(
            "{}:ids, field {:?}",
            layout.tag(shard),
            field.replace('\0', "\\0")
        ),
        reason,
    }
}

/// The error of an operation on one message that cannot be read.
pub(crate) fn corrupt_error(layout: &Layout, shard: u16, field: &str, reason: String) -> Error {
    let row = corrupt_row(layout, shard, field, reason);
    Error::new(ErrorKind::Corrupt, format!("{}: {}", row.place, row.reason))
}

/// A message as `claim.lua` hands it out.
pub(crate) struct Taken {
    pub(crate) shard: u16,
    pub(crate) field: String,
    pub(crate) seq: u64,
    /// When it became claimable, or the first of its ordering key that it was taken with.
    pub(crate) at: i64,
    /// The number of that one, or its own.
    pub(crate) first: u64,
    pub(crate) token: i64,
    pub(crate) leased: Decoded<Leased>,
}

impl Taken {
    /// Its place in the order in which a claim hands out.
    pub(crate) fn place(&self) -> (i64, u64, u64) {
        (self.at, self.first, self.seq)
    }
}

pub(crate) fn read_taken(shard: u16, value: Value) -> Reply<Taken> {
    let mut row = Taker::of(value)?;
    let field = reply::text(&row.next()?)?.ok_or(Unexpected)?.to_owned();
    let seq = row.unsigned()?;
    let held = Held {
        accepted: row.number()?,
        token: row.number()?,
        until: row.number()?,
        attempts: Attempts {
            started: u32::try_from(row.number()?).unwrap_or(u32::MAX),
            finished: u32::try_from(row.number()?).unwrap_or(u32::MAX),
        },
        replays: u32::try_from(row.number()?).unwrap_or(u32::MAX),
    };
    let ordering_key = row.next()?;
    let body = row.bytes()?.ok_or(Unexpected)?;
    let at = row.number()?;
    let first = row.unsigned()?;
    let message = || -> Decoded<Message> {
        let (head, payload) = split(&body)?;
        let fixed = fixed(&head)?;
        let key = key(&field)?;
        let mut message =
            Message::new(key.handler, key.id, fixed.kind, payload).with_headers(fixed.headers);
        if let Some(content_type) = fixed.content_type {
            message = message.with_content_type(content_type);
        }
        if let Some(text) = reply::text(&ordering_key).map_err(|_| "ordering key is not UTF-8")? {
            message = message.with_ordering_key(parse_name(text)?);
        }
        Ok(message)
    };
    let leased = message().map(|message| held.leased(message, shard, seq));
    Ok(Taken {
        shard,
        field,
        seq,
        at,
        first,
        token: held.token,
        leased,
    })
}

/// A message as `get.lua` and `list.lua` show it, with its payload and result yet to be loaded.
pub(crate) struct Row {
    pub(crate) shard: u16,
    pub(crate) field: String,
    pub(crate) seq: u64,
    /// As stored: a lease that has run out is still a lease here.
    pub(crate) state: i64,
    /// When it became final, for one that is.
    pub(crate) at: i64,
    pub(crate) accepted: i64,
    pub(crate) record: Decoded<Record>,
}

/// `seq`: the message's number where the row itself cannot be read.
pub(crate) fn row(shard: u16, seq: u64, now: i64, value: Value) -> Reply<Row> {
    let mut values = Taker::of(value)?;
    let field = reply::text(&values.next()?)?.ok_or(Unexpected)?.to_owned();
    let state = values.number()?;
    if state == UNREADABLE {
        return Ok(Row {
            shard,
            field,
            seq,
            state,
            at: 0,
            accepted: 0,
            record: Err("its state cannot be read".into()),
        });
    }
    let seq = values.unsigned()?;
    let accepted = values.number()?;
    let due = values.number()?;
    let leased = match values.next()? {
        Value::Nil => None,
        leased => Some(reply::number(&leased)?),
    };
    let at = values.number()?;
    let record = record(seq, state, accepted, due, leased, at, now, &field, values);
    Ok(Row {
        shard,
        field,
        seq,
        state,
        at,
        accepted,
        record,
    })
}

#[expect(clippy::too_many_arguments, reason = "the columns of one row")]
fn record(
    seq: u64,
    state: i64,
    accepted: i64,
    due: i64,
    leased_at: Option<i64>,
    at: i64,
    now: i64,
    field: &str,
    mut rest: Taker,
) -> Decoded<Record> {
    let mut number = |name: &str| rest.number().map_err(|_| format!("{name} is not a number"));
    let started = number("started attempts")?;
    let finished = number("finished attempts")?;
    let replays = number("replays")?;
    let bytes = number("payload length")?;
    let flags = number("flags")?;
    let small = |n: i64| u32::try_from(n).map_err(|_| "a count is out of range".to_owned());
    let mut text = |name: &str| -> Decoded<Option<String>> {
        let value = rest.next().map_err(|_| format!("{name} is missing"))?;
        let text = reply::text(&value).map_err(|_| format!("{name} is not UTF-8"))?;
        Ok(text.map(str::to_owned))
    };
    let worker = text("worker")?.filter(|worker| !worker.is_empty());
    let ordering_key = text("ordering key")?;
    let head = rest
        .bytes()
        .ok()
        .flatten()
        .ok_or("kind and headers are missing")?;
    let fixed = fixed(&head)?;
    let last_error = rest
        .bytes()
        .map_err(|_| "the last error cannot be read")?
        .map(|bytes| String::from_utf8(bytes.to_vec()))
        .transpose()
        .map_err(|_| "the last error is not UTF-8")?;
    let stored = State::from_code(state).ok_or("state is out of range")?;
    let leased = stored == State::Leased && at > now;
    Ok(Record {
        key: key(field)?,
        kind: fixed.kind,
        fingerprint: fixed.fingerprint,
        content_type: fixed.content_type,
        headers: fixed.headers,
        ordering_key: ordering_key.as_deref().map(parse_name).transpose()?,
        payload: None,
        payload_bytes: u64::try_from(bytes).ok(),
        state: if stored == State::Leased && !leased {
            State::Pending
        } else {
            stored
        },
        attempts: Attempts {
            started: small(started)?,
            finished: small(finished)?,
        },
        replays: small(replays)?,
        accepted_at: from_micros(accepted),
        due_at: from_micros(due),
        leased_at: leased_at.map(from_micros),
        lease_until: leased.then(|| from_micros(at)),
        worker: worker.as_deref().map(parse_name).transpose()?,
        finished_at: stored.is_final().then(|| from_micros(at)),
        last_error: last_error.filter(|_| flags & HAS_ERROR_TEXT != 0),
        blocks_ordering_key: flags & BLOCKS != 0,
        result: None,
        cursor: Cursor::from(i64::try_from(seq).unwrap_or(i64::MAX)),
        history: Vec::new(),
        interventions: Vec::new(),
    })
}

/// What became of it before: a line of JSON for each attempt and intervention, as the scripts write them.
pub(crate) fn history(lines: Option<Bytes>) -> Decoded<History> {
    let Some(lines) = lines else {
        return Ok(History::default());
    };
    let lines = std::str::from_utf8(&lines).map_err(|_| "the history is not UTF-8")?;
    History::from_json(&format!("[{}]", lines.replace('\n', ",")))
}

pub(crate) fn add_history(record: &mut Record, history: History) {
    record.history = history.attempts;
    record.interventions = history.interventions;
}

#[cfg(test)]
mod tests {
    use super::*;
    use inbox_api::{ContentType, Kind};

    fn message() -> Message {
        Message::new(
            HandlerName::new("h").unwrap(),
            MessageId::new("1").unwrap(),
            Kind::new("k".repeat(255)).unwrap(),
            &b"\0\xff"[..],
        )
        .with_content_type(ContentType::new("c".repeat(255)).unwrap())
        .with_header("n", "v")
        .unwrap()
    }

    #[test]
    fn bodies_round_trip() {
        let sent = message();
        let body = Bytes::from(body(&sent));
        let (head, payload) = split(&body).unwrap();
        let read = fixed(&head).unwrap();
        assert_eq!(&payload, sent.payload());
        assert_eq!(&read.kind, sent.kind());
        assert_eq!(read.content_type.as_ref(), sent.content_type());
        assert_eq!(&read.headers, sent.headers());
    }

    #[test]
    fn what_is_cut_off_anywhere_is_refused_and_never_panics() {
        let whole = body(&message());
        let payload = message().payload().len();
        for end in 0..whole.len() - payload {
            let cut = Bytes::copy_from_slice(&whole[..end]);
            let read = split(&cut).and_then(|(head, _)| fixed(&head).map(drop));
            assert!(read.is_err(), "{end}");
        }
    }

    #[test]
    fn answers_of_any_bytes_are_read_or_refused() {
        let corpus = include_str!("../../hostile/corpus/redis-rows.txt");
        hostile::hold(&hostile::Target::new("redis-rows", corpus, |input| {
            let parsed = hostile::uncounted(|| redis::parse_redis_value(input));
            let Ok(answer) = parsed else { return Ok(()) };
            if let Ok(Taken {
                leased: Ok(leased), ..
            }) = read_taken(3, answer.clone())
            {
                let _ = format!("{leased:?}");
            }
            if let Ok(row) = row(3, 7, 1_700_000_000_000_000, answer.clone()) {
                let _ = row.record.map(|record| format!("{record:?}"));
            }
            for taken in read_taken_run(3, answer).unwrap_or_default() {
                let _ = (taken.place(), taken.leased.map(|leased| leased.message));
            }
            let _ = payload(&Bytes::copy_from_slice(input));
            Ok(())
        }));
    }
}
