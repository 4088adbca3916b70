//! Documents: how a message is written, and read back. One that does not read back as what was
//! written is reported, never a panic and never a reason to fail the others.

use std::{str::FromStr, time::SystemTime};

use inbox_api::{
    Attempts, Bytes, CorruptRow, Cursor, FencingToken, Fingerprint, HandlerName, Headers, History,
    InboxName, Invalid, Key, Lease, LeaseTerms, Leased, Message, MessageId, OrderingKey, Record,
    State, duration_micros, from_micros,
};
use mongodb::bson::{
    Binary, Bson, Document, RawDocumentBuf, cstr, oid::ObjectId, raw::RawBinaryRef,
    spec::BinarySubtype,
};

type Decoded<T> = std::result::Result<T, String>;

/// `lane` of a message that may be claimed once it is visible: one without ordering key, or the
/// first of its ordering key.
pub(crate) const CLAIMABLE: i32 = 1;
/// `lane` of a message after whose change its ordering key must be looked at again. Messages that
/// are neither have no `lane`.
pub(crate) const MARKED: i32 = 2;

pub(crate) fn code(state: State) -> i32 {
    i32::from(state.code())
}

/// A whole number, whatever type the server gave it.
pub(crate) fn number(document: &Document, field: &str) -> Option<i64> {
    match document.get(field)? {
        Bson::Int64(number) => Some(*number),
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Double(number) => {
            let whole = *number as i64;
            let same = (whole as f64 - *number).abs() < f64::EPSILON;
            same.then_some(whole)
        }
        _ => None,
    }
}

/// Between handler and id in `_id`. Neither may contain it, so no two keys give the same text.
const SEPARATOR: char = '\u{1f}';

/// `_id`: what the server compares byte for byte, and keeps unique.
pub(crate) fn identifier(key: &Key) -> String {
    format!("{}{SEPARATOR}{}", key.handler, key.id)
}

/// The handler in an [`identifier`].
pub(crate) fn handler_of(identifier: &str) -> &str {
    identifier.split(SEPARATOR).next().unwrap_or_default()
}

/// The messages of these identifiers, with their handlers, by which a cluster is sharded.
pub(crate) fn those<'a>(identifiers: impl IntoIterator<Item = &'a str>) -> Document {
    let mut identifiers: Vec<&str> = identifiers.into_iter().collect();
    identifiers.sort_unstable();
    let mut handlers: Vec<&str> = identifiers.iter().map(|id| handler_of(id)).collect();
    handlers.dedup();
    let mut filter = Document::new();
    let one_of = |texts: Vec<&str>| match texts.as_slice() {
        [only] => Bson::from(*only),
        _ => mongodb::bson::doc! { "$in": texts }.into(),
    };
    filter.insert("_id", one_of(identifiers));
    filter.insert("handler", one_of(handlers));
    filter
}

/// The identifiers and the marks of marked messages.
pub(crate) fn marks_of(marked: &[&Document]) -> (Vec<String>, Vec<ObjectId>) {
    let ids = marked.iter().filter_map(|document| id_of(document));
    let marks = marked
        .iter()
        .filter_map(|document| document.get_object_id("mark").ok());
    (ids.map(str::to_owned).collect(), marks.collect())
}

/// What a new message begins its life with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beginning<'a> {
    /// Waiting to be claimed; with an ordering key, marked with this.
    Pending(ObjectId),
    /// Leased from the start. Never one with an ordering key.
    Leased(&'a LeaseTerms, ObjectId),
    /// Completed from the start, in a transaction.
    Processed(Option<&'a Bytes>, Option<mongodb::bson::DateTime>, bool),
}

/// The document of a new message.
pub(crate) fn document(
    message: &Message,
    seq: i64,
    now: i64,
    beginning: Beginning<'_>,
) -> RawDocumentBuf {
    let due = message.due().resolve(now);
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("_id"), identifier(message.key()).as_str());
    document.append(cstr!("seq"), seq);
    document.append(cstr!("handler"), message.handler().as_str());
    document.append(cstr!("id"), message.id().as_str());
    document.append(cstr!("kind"), message.kind().as_str());
    if let Some(content_type) = message.content_type() {
        document.append(cstr!("contentType"), content_type.as_str());
    }
    if let Some(ordering_key) = message.ordering_key() {
        document.append(cstr!("orderingKey"), ordering_key.as_str());
    }
    document.append(cstr!("headers"), message.headers().to_json().as_str());
    document.append(cstr!("fingerprint"), message.fingerprint().get());
    document.append(cstr!("acceptedAt"), now);
    document.append(cstr!("dueAt"), due);
    document.append(cstr!("replays"), 0);
    let keeps_payload = !matches!(beginning, Beginning::Processed(_, _, true));
    match beginning {
        Beginning::Pending(mark) => {
            let ordered = message.ordering_key().is_some();
            let visible_at = if ordered { now } else { due };
            append_attempts(&mut document, State::Pending, visible_at, 0, 0, 0);
            if ordered {
                document.append(cstr!("open"), true);
                document.append(cstr!("lane"), MARKED);
                document.append(cstr!("mark"), mark);
            } else {
                document.append(cstr!("lane"), CLAIMABLE);
            }
        }
        Beginning::Leased(terms, claim) => {
            let until = now.saturating_add(duration_micros(terms.length()));
            append_attempts(&mut document, State::Leased, until, now, 1, 0);
            document.append(cstr!("leasedAt"), now);
            document.append(cstr!("worker"), terms.worker().as_str());
            document.append(cstr!("claim"), claim);
            document.append(cstr!("lane"), CLAIMABLE);
        }
        Beginning::Processed(result, expire_at, _) => {
            append_attempts(&mut document, State::Processed, now, now, 1, 1);
            document.append(cstr!("finishedAt"), now);
            document.append(cstr!("emptied"), !keeps_payload && result.is_none());
            if let Some(result) = result {
                document.append(cstr!("result"), generic(result));
            }
            if let Some(expire_at) = expire_at {
                document.append(cstr!("expireAt"), expire_at);
            }
        }
    }
    if keeps_payload {
        let payload = message.payload();
        document.append(
            cstr!("payloadBytes"),
            i64::try_from(payload.len()).unwrap_or(i64::MAX),
        );
        document.append(cstr!("payload"), generic(payload));
    }
    document
}

fn append_attempts(
    document: &mut RawDocumentBuf,
    state: State,
    visible_at: i64,
    token: i64,
    started: i32,
    finished: i32,
) {
    document.append(cstr!("state"), code(state));
    document.append(cstr!("visibleAt"), visible_at);
    document.append(cstr!("token"), token);
    document.append(cstr!("started"), started);
    document.append(cstr!("finished"), finished);
}

fn generic(bytes: &[u8]) -> RawBinaryRef<'_> {
    RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes,
    }
}

fn integer(document: &Document, field: &str) -> Decoded<i64> {
    number(document, field).ok_or_else(|| format!("{field} is not a number"))
}

fn small(document: &Document, field: &str) -> Decoded<u32> {
    u32::try_from(integer(document, field)?).map_err(|_| format!("{field} is out of range"))
}

fn time(document: &Document, field: &str) -> Decoded<Option<SystemTime>> {
    let there = document.contains_key(field);
    let micros = there.then(|| integer(document, field)).transpose()?;
    Ok(micros.map(from_micros))
}

fn text<'d>(document: &'d Document, field: &str) -> Decoded<Option<&'d str>> {
    match document.get(field) {
        None => Ok(None),
        Some(Bson::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{field} is not a text")),
    }
}

fn optional<T: FromStr<Err = Invalid>>(document: &Document, field: &str) -> Decoded<Option<T>> {
    text(document, field)?
        .map(str::parse)
        .transpose()
        .map_err(|invalid: Invalid| invalid.to_string())
}

fn required<T: FromStr<Err = Invalid>>(document: &Document, field: &str) -> Decoded<T> {
    optional(document, field)?.ok_or_else(|| format!("{field} is missing"))
}

fn headers(document: &Document) -> Decoded<Headers> {
    Headers::from_json(text(document, "headers")?.ok_or("headers are missing")?)
}

/// Takes bytes out, so that they are not copied.
pub(crate) fn take_bytes(document: &mut Document, field: &str) -> Decoded<Option<Bytes>> {
    match document.remove(field) {
        None => Ok(None),
        Some(Bson::Binary(Binary { bytes, .. })) => Ok(Some(bytes.into())),
        Some(_) => Err(format!("{field} is not binary")),
    }
}

fn key(document: &Document) -> Decoded<Key> {
    let key = Key::new(
        required::<HandlerName>(document, "handler")?,
        required::<MessageId>(document, "id")?,
    );
    if text(document, "_id")? != Some(identifier(&key).as_str()) {
        return Err("handler and id are not those of _id".into());
    }
    Ok(key)
}

/// Whether this is a message that nobody has worked on since it was stored.
pub(crate) fn is_untouched(document: &Document) -> bool {
    let is_numbered = number(document, "seq").is_some();
    key(document).is_ok() && is_numbered && number(document, "token") == Some(0)
}

/// `_id` as it is stored.
pub(crate) fn id_of(document: &Document) -> Option<&str> {
    document.get_str("_id").ok()
}

/// Where a document is, for people with MongoDB's own tools.
pub(crate) fn corrupt_row(inbox: &InboxName, document: &Document, reason: String) -> CorruptRow {
    let place = match number(document, "seq") {
        Some(seq) => format!("{inbox}_message, seq {seq}"),
        None => format!("{inbox}_message, a document without seq"),
    };
    CorruptRow { place, reason }
}

/// What settling needs to know beforehand: whether the message has an ordering key.
pub(crate) fn locator(seq: i64, ordered: bool) -> u64 {
    seq.unsigned_abs() << 1 | u64::from(ordered)
}

/// The sequence number in a [`locator`].
pub(crate) fn seq_of(locator: u64) -> i64 {
    (locator >> 1).cast_signed()
}

/// The reverse of [`locator`].
pub(crate) fn is_ordered(locator: u64) -> bool {
    locator & 1 == 1
}

/// What is stored as the state, whether or not a lease has run out.
pub(crate) fn stored_state(document: &Document) -> Decoded<State> {
    State::from_code(integer(document, "state")?).ok_or_else(|| "state is out of range".into())
}

/// A message under the lease that it has just been given.
pub(crate) fn leased(mut document: Document) -> std::result::Result<Leased, (Document, String)> {
    read_leased(&mut document).map_err(|reason| (document, reason))
}

fn read_leased(document: &mut Document) -> Decoded<Leased> {
    let key = key(document)?;
    let kind = required(document, "kind")?;
    let headers = headers(document)?;
    let attempts = Attempts {
        started: small(document, "started")?,
        finished: small(document, "finished")?,
    };
    let content_type = optional(document, "contentType")?;
    let ordering_key: Option<OrderingKey> = optional(document, "orderingKey")?;
    let payload = take_bytes(document, "payload")?.ok_or("payload is missing")?;
    let mut message =
        Message::new(key.handler.clone(), key.id.clone(), kind, payload).with_headers(headers);
    if let Some(content_type) = content_type {
        message = message.with_content_type(content_type);
    }
    let ordered = ordering_key.is_some();
    if let Some(ordering_key) = ordering_key {
        message = message.with_ordering_key(ordering_key);
    }
    Ok(Leased {
        lease: Lease {
            key,
            token: FencingToken::new(integer(document, "token")?),
            locator: locator(integer(document, "seq")?, ordered),
            until: from_micros(integer(document, "visibleAt")?),
        },
        attempts,
        replays: small(document, "replays")?,
        accepted_at: from_micros(integer(document, "acceptedAt")?),
        message,
    })
}

/// A document to which the query has added the time, as `now`.
pub(crate) fn record(document: &mut Document) -> Decoded<Record> {
    let stored = stored_state(document)?;
    let visible_at = integer(document, "visibleAt")?;
    let leased = stored == State::Leased && visible_at > integer(document, "now")?;
    let payload_bytes = document
        .contains_key("payloadBytes")
        .then(|| integer(document, "payloadBytes"))
        .transpose()?
        .map(u64::try_from)
        .transpose()
        .map_err(|_| "payloadBytes is out of range")?;
    let history = history(document)?;
    Ok(Record {
        key: key(document)?,
        kind: required(document, "kind")?,
        content_type: optional(document, "contentType")?,
        headers: headers(document)?,
        ordering_key: optional(document, "orderingKey")?,
        payload_bytes,
        fingerprint: Fingerprint::new(integer(document, "fingerprint")?),
        state: match stored {
            State::Leased if !leased => State::Pending,
            other => other,
        },
        attempts: Attempts {
            started: small(document, "started")?,
            finished: small(document, "finished")?,
        },
        replays: small(document, "replays")?,
        accepted_at: from_micros(integer(document, "acceptedAt")?),
        due_at: from_micros(integer(document, "dueAt")?),
        leased_at: time(document, "leasedAt")?,
        lease_until: leased.then(|| from_micros(visible_at)),
        worker: optional(document, "worker")?,
        finished_at: time(document, "finishedAt")?,
        last_error: text(document, "error")?.map(str::to_owned),
        blocks_ordering_key: document.get_bool("blocks").unwrap_or(false),
        cursor: Cursor::from(integer(document, "seq")?),
        payload: take_bytes(document, "payload")?,
        result: take_bytes(document, "result")?,
        history: history.attempts,
        interventions: history.interventions,
    })
}

/// What became of it before, where the query asked for it.
fn history(document: &Document) -> Decoded<History> {
    let Some(entries) = document.get("history") else {
        return Ok(History::default());
    };
    mongodb::bson::deserialize_from_bson(entries.clone())
        .map_err(|_| "the history cannot be read".to_owned())
}

#[cfg(test)]
mod tests {
    use inbox_api::Kind;
    use mongodb::bson::doc;

    use super::*;

    fn message() -> Message {
        Message::new(
            HandlerName::new("orders").unwrap(),
            MessageId::new("a/b").unwrap(),
            Kind::new("order.placed").unwrap(),
            "payload",
        )
    }

    #[test]
    fn numbers_are_read_in_each_type() {
        let document = doc! { "a": 1_i32, "b": 2_i64, "c": 3.0, "d": 3.5, "e": "4" };
        let read = |field| number(&document, field);
        assert_eq!(
            (read("a"), read("b"), read("c"), read("d"), read("e")),
            (Some(1), Some(2), Some(3), None, None)
        );
    }

    #[test]
    fn locators_say_whether_there_is_an_ordering_key() {
        for (seq, ordered) in [(1000, false), (1001, true), (i64::MAX, true)] {
            assert_eq!(is_ordered(locator(seq, ordered)), ordered);
        }
    }

    #[test]
    fn no_two_keys_have_one_identifier() {
        let key = |handler: &str, id: &str| {
            identifier(&Key::new(
                HandlerName::new(handler).unwrap(),
                MessageId::new(id).unwrap(),
            ))
        };
        assert_ne!(key("a/b", "c"), key("a", "b/c"));
        assert_eq!(handler_of(&key("a/b", "c")), "a/b");
    }

    #[test]
    fn requests_name_the_handlers_of_their_messages() {
        assert_eq!(
            those(["b\u{1f}1", "a\u{1f}2", "a\u{1f}1"]),
            doc! {
                "_id": { "$in": ["a\u{1f}1", "a\u{1f}2", "b\u{1f}1"] },
                "handler": { "$in": ["a", "b"] },
            }
        );
        assert_eq!(
            those(["a\u{1f}1"]),
            doc! { "_id": "a\u{1f}1", "handler": "a" }
        );
    }

    #[test]
    fn what_is_written_reads_back() {
        let mark = ObjectId::new();
        let raw = document(&message(), 7, 1_000_000, Beginning::Pending(mark));
        let mut read = Document::try_from(raw).unwrap();
        read.insert("now", 2_000_000_i64);
        let record = record(&mut read).unwrap();
        assert_eq!(record.state, State::Pending);
        assert_eq!(record.cursor, Cursor::from(7));
        assert_eq!(record.message().unwrap(), message());
    }

    #[test]
    fn spoiled_documents_are_told_apart_from_sound_ones() {
        let sound = document(&message(), 7, 1, Beginning::Pending(ObjectId::new()));
        for (field, value, reason) in [
            ("headers", Bson::from("[1]"), "JSON object"),
            ("state", Bson::from(9), "out of range"),
            ("id", Bson::from("other"), "_id"),
            ("kind", Bson::Null, "not a text"),
            ("payload", Bson::from(1), "not binary"),
            ("fingerprint", Bson::from("x"), "not a number"),
            ("token", Bson::from("x"), "not a number"),
        ] {
            let mut spoiled = Document::try_from(sound.clone()).unwrap();
            spoiled.insert(field, value);
            spoiled.insert("now", 1_i64);
            let found = if field == "token" {
                leased(spoiled).unwrap_err().1
            } else {
                record(&mut spoiled).unwrap_err()
            };
            assert!(found.contains(reason), "{field}: {found}");
        }
    }

    /// Parts with a zero between: a byte for the field, one for the type, and the value.
    fn spoil(document: &mut Document, input: &[u8]) {
        const OTHERS: [&str; 9] = [
            "contentType",
            "orderingKey",
            "worker",
            "leasedAt",
            "finishedAt",
            "error",
            "history",
            "result",
            "blocks",
        ];
        for part in input.split(|byte| *byte == 0).take(8) {
            let [field, kind, value @ ..] = part else {
                continue;
            };
            let names: Vec<String> = document.keys().cloned().collect();
            let names = names.into_iter().chain(OTHERS.map(String::from));
            let Some(name) = names.cycle().nth(usize::from(*field)) else {
                continue;
            };
            let text = String::from_utf8_lossy(value);
            let value =
                match kind % 9 {
                    0 => Bson::Null,
                    1 => Bson::Int64(text.parse().unwrap_or(i64::MIN)),
                    2 => Bson::Double(text.parse().unwrap_or(f64::NAN)),
                    3 => Bson::String(text.into_owned()),
                    4 => Bson::Binary(Binary {
                        subtype: BinarySubtype::Generic,
                        bytes: value.to_vec(),
                    }),
                    5 => Bson::Boolean(value.len() % 2 == 0),
                    6 => Bson::Array(vec![Bson::String(text.into_owned())]),
                    7 => Bson::Array(vec![doc! {
                    "attempt": text.parse::<i64>().unwrap_or(3), "replays": 0, "worker": "w",
                    "leased_at": text.parse::<i64>().unwrap_or(i64::MIN), "ended_at": 5_i64,
                    "end": "retried", "error": "e",
                }
                .into()]),
                    _ => {
                        document.remove(&name);
                        continue;
                    }
                };
            document.insert(name, value);
        }
    }

    #[test]
    fn documents_of_any_values_are_read_or_refused() {
        let corpus = include_str!("../../hostile/corpus/sqlite-rows.txt");
        let sound = document(&message(), 7, 1, Beginning::Pending(ObjectId::new()));
        let mut sound = Document::try_from(sound).unwrap();
        sound.insert("now", 2_000_000_i64);
        hostile::hold(
            &hostile::Target::new("mongodb-documents", corpus, move |input| {
                let mut spoiled = sound.clone();
                spoil(&mut spoiled, input);
                if let Ok(record) = record(&mut spoiled.clone()) {
                    let _ = format!("{record:?}");
                }
                match leased(spoiled) {
                    Ok(leased) => drop(format!("{leased:?}")),
                    Err((document, reason)) => {
                        let name = InboxName::new("inbox").unwrap();
                        drop(corrupt_row(&name, &document, reason));
                    }
                }
                Ok(())
            })
            .limit(256, 64 * 1024),
        );
    }
}
