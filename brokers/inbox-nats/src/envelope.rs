//! What a message of JetStream is in words that all brokers share.

use std::borrow::Cow;

use async_nats::{HeaderMap, HeaderName, HeaderValue, Message, jetstream::message::Info};
use inbox_source::Envelope;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// The header of [`Envelope::id`], by which a stream drops what it has already.
pub const ID: &str = "Nats-Msg-Id";
/// The header of [`Envelope::kind`].
pub const KIND: &str = "message-type";
/// The header of [`Envelope::key`].
pub const KEY: &str = "ordering-key";
/// The header of [`Envelope::content_type`].
pub const CONTENT_TYPE: &str = "content-type";

/// What headers of this beginning say to the server, and not to a consumer.
const ORDERS: &str = "nats-";
/// The attributes of a CloudEvent.
const EVENT: &str = "ce-";
/// What the NATS binding of CloudEvents encodes, with what is not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// `created` is when the stream was created, in nanoseconds: a stream of the same name that was made
/// again begins again at sequence 1.
pub(crate) fn envelope(message: &Message, info: &Info<'_>, created: i128) -> Envelope {
    let mut envelope = Envelope::new(message.subject.as_str(), message.payload.clone());
    envelope.position = Some(position(info.stream, created, info.stream_sequence));
    envelope.time = Some(info.published.into());
    if let Some(headers) = &message.headers {
        add_headers(&mut envelope, headers);
    }
    envelope
}

pub(crate) fn position(stream: &str, created: i128, sequence: u64) -> String {
    format!("{stream}@{created}/{sequence}")
}

/// The client keeps no order of names, so they are sorted; values of one name stay in theirs, of which
/// the last counts.
fn add_headers(envelope: &mut Envelope, headers: &HeaderMap) {
    let mut all: Vec<_> = headers.iter().collect();
    all.sort_by(|(one, _), (other, _)| {
        AsRef::<str>::as_ref(*one).cmp(AsRef::<str>::as_ref(*other))
    });
    for (name, values) in all {
        let name: &str = name.as_ref();
        for value in values {
            let value = value.as_str();
            // The NATS binding of CloudEvents percent-encodes what is no printable ASCII.
            if begins(name, EVENT) {
                let bytes: Vec<u8> = percent_decode_str(value).collect();
                envelope.add_header(name, &bytes);
            } else {
                envelope.add_header(name, value.as_bytes());
            }
        }
    }
    add_names(envelope);
}

/// What headers say that have a meaning here.
pub(crate) fn add_names(envelope: &mut Envelope) {
    envelope.id = envelope.header(ID).map(String::from);
    envelope.kind = envelope.header(KIND).map(String::from);
    envelope.key = envelope.header(KEY).map(String::from);
    envelope.content_type = envelope.header(CONTENT_TYPE).map(String::from);
}

/// The headers of a message that is sent, or why NATS has no place for one. Its own that give orders to a stream
/// are left out: who wrote the message was not asked. So is one that would be the key of a message that has none.
pub(crate) fn headers(envelope: &Envelope) -> Result<HeaderMap, &'static str> {
    let mut headers = HeaderMap::new();
    for (name, value) in envelope.headers_without(KEY) {
        if begins(name, ORDERS) {
            continue;
        }
        let value = match begins(name, EVENT) {
            true => utf8_percent_encode(value, ENCODED).into(),
            false => Cow::Borrowed(value),
        };
        headers.append(header_name(name)?, header_value(&value)?);
    }
    for (name, value) in [
        (ID, &envelope.id),
        (KIND, &envelope.kind),
        (KEY, &envelope.key),
        (CONTENT_TYPE, &envelope.content_type),
    ] {
        if let Some(value) = value {
            headers.insert(header_name(name)?, header_value(value)?);
        }
    }
    Ok(headers)
}

fn begins(name: &str, with: &str) -> bool {
    let begin = name.get(..with.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(with))
}

fn header_name(name: &str) -> Result<HeaderName, &'static str> {
    const REASON: &str = "a header's name has to be printable ASCII without a colon";
    if name.is_empty() {
        return Err(REASON);
    }
    name.parse().map_err(|_| REASON)
}

fn header_value(value: &str) -> Result<HeaderValue, &'static str> {
    let value = value.parse();
    value.map_err(|_| "a header's value has to be one line")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_name_counts() {
        let mut headers = HeaderMap::new();
        headers.append("b", "1");
        headers.append("b", "2");
        headers.append(ID, "m-1");
        headers.append("ce-subject", "caf%C3%A9 %41");
        headers.append("plain", "%41");
        let mut envelope = Envelope::default();
        add_headers(&mut envelope, &headers);
        assert_eq!(envelope.header("b"), Some("2"));
        assert_eq!(envelope.id.as_deref(), Some("m-1"));
        assert_eq!(envelope.header("ce-subject"), Some("café A"));
        assert_eq!(envelope.header("plain"), Some("%41"));
    }

    #[test]
    fn a_stream_that_was_made_again_has_other_positions() {
        assert_ne!(position("orders", 1, 7), position("orders", 2, 7));
    }

    #[test]
    fn what_is_sent_arrives_and_gives_no_orders() {
        let mut sent = Envelope::new("orders", "");
        sent.id = Some("m-1".into());
        sent.key = Some("k".into());
        sent.headers = vec![
            ("ce-subject".into(), "caf\u{e9} 100%".into()),
            ("NATS-Expected-Stream".into(), "other".into()),
        ];
        let mut arrived = Envelope::default();
        add_headers(&mut arrived, &headers(&sent).unwrap());
        assert_eq!(arrived.header("ce-subject"), Some("caf\u{e9} 100%"));
        assert_eq!(arrived.header("Nats-Expected-Stream"), None);
        assert_eq!((arrived.id, arrived.key), (sent.id, sent.key));
    }

    #[test]
    fn no_header_is_the_key_of_a_message_without_one() {
        let mut sent = Envelope::new("orders", "");
        sent.headers = vec![("Ordering-Key".into(), "other".into())];
        let mut arrived = Envelope::default();
        add_headers(&mut arrived, &headers(&sent).unwrap());
        assert_eq!(arrived.key, None);
    }

    #[test]
    fn what_has_no_place_is_refused() {
        for (name, value) in [("a:b", "v"), ("", "v"), ("\u{e9}", "v"), ("a", "b\r\nc: d")] {
            let mut envelope = Envelope::new("orders", "");
            envelope.headers = vec![(name.into(), value.into())];
            assert!(headers(&envelope).is_err(), "{name:?}: {value:?}");
        }
        let mut envelope = Envelope::new("orders", "");
        envelope.id = Some("a\nb".into());
        assert!(headers(&envelope).is_err());
    }

    #[test]
    fn headers_of_any_bytes_are_read_and_written() {
        let corpus = include_str!("../../../hostile/corpus/mapping.txt");
        let target = hostile::Target::new("nats-headers", corpus, |input| {
            let (lines, body) = hostile::head(input);
            let mut sent = HeaderMap::new();
            for (name, value) in lines {
                let name = header_name(&String::from_utf8_lossy(name));
                let value = header_value(&String::from_utf8_lossy(value));
                if let (Ok(name), Ok(value)) = (name, value) {
                    sent.append(name, value);
                }
            }
            let mut envelope = Envelope::new("orders", body.to_vec());
            add_headers(&mut envelope, &sent);
            let Ok(again) = headers(&envelope) else {
                return Ok(());
            };
            let mut arrived = Envelope::new("orders", body.to_vec());
            add_headers(&mut arrived, &again);
            match arrived.id == envelope.id && arrived.key == envelope.key {
                true => Ok(()),
                false => Err("what is passed on has another id or key".into()),
            }
        });
        // A header of two bytes is an entry of two maps and two texts in each of two lists.
        hostile::hold(&target.limit(512, 64 * 1024));
    }
}
