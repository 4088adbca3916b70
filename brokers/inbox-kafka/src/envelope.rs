//! A record of Kafka as an envelope.
//!
//! The client's record lives in the client's memory, as long as the client does. Its body, key and headers
//! are copied once, into the envelope; the message of the inbox shares the body with that.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use inbox_source::Envelope;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};

/// The header that is a message's id: [`Envelope::id`].
pub const ID: &str = "message-id";
/// The header that is a message's kind: [`Envelope::kind`].
pub const KIND: &str = "message-type";
/// The header that is a body's content type.
pub const CONTENT_TYPE: &str = "content-type";
/// The header, with the value `true`, of a record that has no body at all, as one has that marks its
/// key as deleted.
pub const TOMBSTONE: &str = "kafka-tombstone";

/// Why a record is no message whose headers the client cannot hand out.
pub(crate) const UNREADABLE: &str = "a header's name is not UTF-8";

/// Whether the client can hand out the headers. It panics at a name that is not UTF-8, which Kafka takes, and has no
/// other way to them.
pub(crate) fn is_readable<H: Headers>(headers: Option<&H>) -> bool {
    let Some(headers) = headers else {
        return true;
    };
    catch_unwind(AssertUnwindSafe(|| headers.iter().for_each(drop))).is_ok()
}

/// The headers, if they are [readable](is_readable) as the caller knows.
fn headers_if<M: Message>(message: &M, readable: bool) -> Option<&M::Headers> {
    message.headers().filter(|_| readable)
}

/// Without its headers if they are not [readable](is_readable).
pub(crate) fn read<M: Message>(message: &M, readable: bool) -> Envelope {
    let topic = message.topic();
    let payload = message.payload();
    let mut envelope = Envelope::new(topic, Bytes::copy_from_slice(payload.unwrap_or_default()));
    envelope.position = Some(format!(
        "{topic}/{}/{}",
        message.partition(),
        message.offset()
    ));
    envelope.key = message.key().map(|key| match text(key) {
        Some(text) => text.to_owned(),
        None => STANDARD.encode(key),
    });
    let sent = message.timestamp().to_millis();
    let sent = sent.and_then(|sent| u64::try_from(sent).ok());
    envelope.time = sent.and_then(|sent| UNIX_EPOCH.checked_add(Duration::from_millis(sent)));
    if let Some(headers) = headers_if(message, readable) {
        for header in headers.iter() {
            envelope.add_header(header.key, header.value.unwrap_or_default());
        }
    }
    envelope.id = envelope.header(ID).map(String::from);
    envelope.kind = envelope.header(KIND).map(String::from);
    envelope.content_type = envelope.header(CONTENT_TYPE).map(String::from);
    if payload.is_none() {
        envelope.add_header(TOMBSTONE, b"true");
    }
    envelope
}

fn text(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.contains('\0')).then_some(text)
}

/// What an envelope does not have as it came, to be written to another topic. Most records have
/// nothing of the kind.
pub(crate) struct Original {
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) headers: OwnedHeaders,
}

impl Original {
    /// Without its headers if they are not [readable](is_readable).
    pub(crate) fn of<M: Message>(message: &M, readable: bool) -> Option<Box<Self>> {
        let is_text = |bytes: Option<&[u8]>| bytes.is_some_and(|bytes| text(bytes).is_some());
        let key_is_text = message.key().is_none_or(|key| text(key).is_some());
        let headers = headers_if(message, readable);
        let headers_are_text =
            headers.is_none_or(|headers| headers.iter().all(|header| is_text(header.value)));
        if key_is_text && headers_are_text {
            return None;
        }
        let mut copy = OwnedHeaders::new();
        for header in headers.iter().flat_map(|headers| headers.iter()) {
            copy = copy.insert(header);
        }
        let key = message.key().map(<[u8]>::to_vec);
        Some(Box::new(Self { key, headers: copy }))
    }

    pub(crate) fn bytes(&self) -> usize {
        let headers = self.headers.iter();
        let headers = headers.map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len));
        size_of::<Self>() + self.key.as_ref().map_or(0, Vec::len) + headers.sum::<usize>()
    }
}

/// The headers of an envelope as a record has them: those of its own, and its properties where they are
/// not among these.
pub(crate) fn headers(envelope: &Envelope) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new();
    let own = envelope.headers.iter();
    for (name, value) in own.filter(|(name, _)| name != TOMBSTONE) {
        headers = headers.insert(Header {
            key: name,
            value: Some(value),
        });
    }
    for (name, value) in [
        (ID, &envelope.id),
        (KIND, &envelope.kind),
        (CONTENT_TYPE, &envelope.content_type),
    ] {
        if let Some(value) = value
            && envelope.header(name) != Some(value)
        {
            headers = headers.insert(Header {
                key: name,
                value: Some(value),
            });
        }
    }
    headers
}

/// Whether it is to have no body at all.
pub(crate) fn is_tombstone(envelope: &Envelope) -> bool {
    envelope.payload.is_empty() && envelope.header(TOMBSTONE) == Some("true")
}

#[cfg(test)]
mod tests {
    use rdkafka::Timestamp;
    use rdkafka::message::OwnedMessage;

    use super::*;

    fn record(key: Option<&[u8]>, payload: Option<&[u8]>, headers: OwnedHeaders) -> OwnedMessage {
        let (key, payload) = (key.map(<[u8]>::to_vec), payload.map(<[u8]>::to_vec));
        let time = Timestamp::CreateTime(1_500);
        OwnedMessage::new(payload, key, "orders".into(), time, 2, 17, Some(headers))
    }

    #[test]
    fn a_record_is_read_whole() {
        let mut headers = OwnedHeaders::new();
        for (key, value) in [
            (ID, &b"evt-1"[..]),
            (CONTENT_TYPE, b"application/json"),
            ("raw", b"\xff\x00"),
        ] {
            let value = Some(value);
            headers = headers.insert(Header { key, value });
        }
        let record = record(Some(b"c-1"), Some(b"{}"), headers);
        let envelope = read(&record, true);
        assert_eq!(envelope.payload, "{}");
        assert_eq!(envelope.key.as_deref(), Some("c-1"));
        assert_eq!(envelope.position.as_deref(), Some("orders/2/17"));
        assert_eq!(envelope.id.as_deref(), Some("evt-1"));
        assert_eq!(envelope.content_type.as_deref(), Some("application/json"));
        assert_eq!(envelope.header("raw-bin"), Some("/wA="));
        assert_eq!(
            envelope.time,
            Some(UNIX_EPOCH + Duration::from_millis(1_500))
        );
        let original = Original::of(&record, true).unwrap();
        assert_eq!(original.headers.get(2).value, Some(&b"\xff\x00"[..]));
        assert!(!envelope.headers.iter().any(|(name, _)| name == TOMBSTONE));
    }

    #[test]
    fn a_key_that_is_no_text_is_base64() {
        let record = record(Some(b"\xff\xfe"), Some(b""), OwnedHeaders::new());
        assert_eq!(read(&record, true).key.as_deref(), Some("//4="));
        assert_eq!(
            Original::of(&record, true).unwrap().key.unwrap(),
            b"\xff\xfe"
        );
    }

    #[test]
    fn a_tombstone_is_told_from_an_empty_body() {
        let tombstone = read(&record(Some(b"k"), None, OwnedHeaders::new()), true);
        let empty = read(&record(Some(b"k"), Some(b""), OwnedHeaders::new()), true);
        assert!(is_tombstone(&tombstone) && !is_tombstone(&empty));
        assert_eq!(tombstone.payload, "");
        assert_eq!(headers(&tombstone).count(), 0);
    }

    /// Names as the client has them, which it takes for text.
    struct Raw(Vec<&'static [u8]>);

    impl Headers for Raw {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn try_get(&self, place: usize) -> Option<Header<'_, &[u8]>> {
            let key = std::str::from_utf8(self.0.get(place)?).unwrap();
            Some(Header { key, value: None })
        }
    }

    #[test]
    fn headers_that_the_client_cannot_hand_out_are_left_out() {
        assert!(is_readable::<Raw>(None));
        assert!(is_readable(Some(&Raw(vec![b"a", "\u{e9}".as_bytes()]))));
        assert!(!is_readable(Some(&Raw(vec![b"a", b"\xff"]))));
        let key = ID;
        let one = || {
            OwnedHeaders::new().insert(Header {
                key,
                value: Some("evt-1"),
            })
        };
        let record = record(Some(b"k"), None, one());
        let envelope = read(&record, false);
        assert_eq!((envelope.id, envelope.key.as_deref()), (None, Some("k")));
        assert_eq!(
            envelope.headers,
            [(TOMBSTONE.to_owned(), "true".to_owned())]
        );
        assert!(Original::of(&record, false).is_none());
    }

    #[test]
    fn records_of_any_bytes_are_read_and_written() {
        let corpus = include_str!("../../../hostile/corpus/mapping.txt");
        let target = hostile::Target::new("kafka-records", corpus, |input| {
            let (lines, body) = hostile::head(input);
            let mut all = OwnedHeaders::new();
            // With a name that is no text there are none.
            let readable = lines.iter().all(|(name, _)| str::from_utf8(name).is_ok());
            for (name, value) in &lines {
                // As the client has them: text without a zero.
                let key = &*String::from_utf8_lossy(name).replace('\0', "");
                let value = (!value.is_empty()).then_some(*value);
                all = all.insert(Header { key, value });
            }
            let key = lines.first().map(|(_, value)| *value);
            let record = record(key, (!body.is_empty()).then_some(body), all);
            let envelope = read(&record, readable);
            let _ = (Original::of(&record, readable), headers(&envelope));
            if !readable && envelope.headers.iter().any(|(name, _)| name != TOMBSTONE) {
                return Err("a record has headers that cannot be read".into());
            }
            if is_tombstone(&envelope) != body.is_empty() && envelope.payload.is_empty() {
                return Err("a record without a body has one, or none where it had".into());
            }
            Ok(())
        });
        // A header of two bytes is three texts in lists.
        hostile::hold(&target.limit(256, 64 * 1024));
    }
}
