//! What a record of a stream is in words that all brokers share.

use std::{
    borrow::Cow,
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use inbox_source::Envelope;

use super::{
    amqp::{Body, Message, Property, Value},
    chunk::Record,
};
use crate::KEY;

/// What a server notes about a message that was sent over AMQP 0.9.1.
const EXCHANGE: &[u8] = b"x-exchange";
const ROUTING_KEY: &[u8] = b"x-routing-key";
const KIND: &[u8] = b"x-basic-type";
const APP_ID: &[u8] = b"x-basic-app-id";
const OTHER_NOTES: [&[u8]; 3] = [
    b"x-basic-delivery-mode",
    b"x-basic-expiration",
    b"x-basic-priority",
];

/// The envelope of a record, and why it can be no message, if it cannot. Nothing in it holds the chunk that the record came in.
pub(crate) fn envelope(
    stream: &str,
    written: i64,
    record: &Record,
) -> (Envelope, Option<&'static str>) {
    let position = Some(format!("{stream}/{}", record.offset));
    let as_it_is = || Envelope {
        position: position.clone(),
        ..Envelope::new(stream, Bytes::copy_from_slice(&record.bytes))
    };
    let Ok(message) = Message::read(&record.bytes) else {
        return (as_it_is(), Some("it is no message of AMQP 1.0"));
    };
    let Some(payload) = payload(&message.body) else {
        return (as_it_is(), Some("its body is neither bytes nor a text"));
    };
    let mut envelope = Envelope::new(address(stream, &message), payload);
    envelope.position = position;
    add_properties(&mut envelope, &message);
    envelope.time = time(written);
    if let Value::Timestamp(sent) = message.property(Property::CreationTime) {
        envelope.time = time(sent).or(envelope.time);
    }
    (envelope, None)
}

/// A copy: an inbox may keep a message for long, and is not to keep the whole chunk with it.
fn payload(body: &Body<'_>) -> Option<Bytes> {
    match body {
        Body::None | Body::Value(Value::Null) => Some(Bytes::new()),
        Body::Data(parts) => match parts.as_slice() {
            [part] => Some(Bytes::copy_from_slice(part)),
            parts => Some(parts.concat().into()),
        },
        Body::Value(Value::Binary(bytes) | Value::Text(bytes)) => {
            Some(Bytes::copy_from_slice(bytes))
        }
        Body::Value(_) | Body::Sequence => None,
    }
}

/// The routing key, or else the exchange, of a message that was sent over AMQP 0.9.1.
fn address<'a>(stream: &'a str, message: &Message<'a>) -> Cow<'a, str> {
    let notes = [ROUTING_KEY, EXCHANGE].map(|name| text(find(&message.annotations, name)));
    let mut notes = notes.into_iter().flatten();
    notes.find(|name| !name.is_empty()).unwrap_or(stream.into())
}

fn add_properties(envelope: &mut Envelope, message: &Message<'_>) {
    let property = |property| text(message.property(property));
    // Newer servers put the application's id where its group belongs.
    let is_converted = find(&message.annotations, EXCHANGE) != Value::Null;
    let group = property(Property::GroupId);
    let (app_id, group) = match is_converted {
        true => (group, None),
        false => (None, group),
    };
    let app_id = text(find(&message.application, APP_ID)).or(app_id);
    for (name, value) in [
        ("correlation-id", property(Property::CorrelationId)),
        ("reply-to", property(Property::ReplyTo)),
        ("app-id", app_id),
    ] {
        if let Some(value) = value {
            envelope.add_header(name, value.as_bytes());
        }
    }
    let known = [EXCHANGE, ROUTING_KEY, KIND, APP_ID];
    let is_header = |name: &[u8]| !known.contains(&name) && !OTHER_NOTES.contains(&name);
    for (name, value) in message.annotations.iter().chain(&message.application) {
        if let (true, Some(value)) = (is_header(name), bytes(*value)) {
            envelope.add_header(&String::from_utf8_lossy(name), &value);
        }
    }
    let kind = [&message.annotations, &message.application].map(|pairs| text(find(pairs, KIND)));
    let owned = |text: Option<Cow<'_, str>>| text.map(Cow::into_owned);
    envelope.id = owned(property(Property::MessageId));
    envelope.kind = owned(
        kind.into_iter()
            .flatten()
            .next()
            .or(property(Property::Subject)),
    );
    envelope.content_type = owned(property(Property::ContentType));
    let key = envelope.header(KEY).map(String::from);
    envelope.key = key.or(owned(group));
}

fn find<'a>(pairs: &[(&'a [u8], Value<'a>)], name: &[u8]) -> Value<'a> {
    let found = pairs.iter().find(|(one, _)| *one == name);
    found.map_or(Value::Null, |(_, value)| *value)
}

fn time(milliseconds: i64) -> Option<SystemTime> {
    let since = Duration::from_millis(u64::try_from(milliseconds).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// A value as bytes; what is made of several has no place in a header.
fn bytes(value: Value<'_>) -> Option<Cow<'_, [u8]>> {
    let text: String = match value {
        Value::Text(bytes) | Value::Binary(bytes) => return Some(bytes.into()),
        Value::Boolean(value) => value.to_string(),
        Value::Unsigned(value) => value.to_string(),
        Value::Signed(value) | Value::Timestamp(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Double(value) => value.to_string(),
        Value::Char(value) => char::from_u32(value)?.to_string(),
        Value::Uuid(bytes) => uuid(bytes),
        Value::Null | Value::Other => return None,
    };
    Some(text.into_bytes().into())
}

/// A value as text, and bytes that are none in hexadecimal digits: so two that differ stay different.
fn text(value: Value<'_>) -> Option<Cow<'_, str>> {
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    };
    Some(match bytes(value)? {
        Cow::Borrowed(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => hex(bytes).into(),
        },
        Cow::Owned(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
    })
}

/// As it was written when it was sent over AMQP 0.9.1: servers make a UUID of such a text.
fn uuid(bytes: [u8; 16]) -> String {
    let mut text = String::from("urn:uuid:");
    for (place, byte) in bytes.into_iter().enumerate() {
        if [4, 6, 8, 10].contains(&place) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A described section.
    fn section(code: u8, content: &[u8]) -> Vec<u8> {
        [&[0, 0x53, code], content].concat()
    }

    fn sized(code: u8, content: &[u8]) -> Vec<u8> {
        [&[code, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn map(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut content = vec![u8::try_from(pairs.len() * 2).unwrap()];
        for (name, value) in pairs {
            content.extend(sized(0xa1, name.as_bytes()));
            content.extend(value);
        }
        sized(0xc1, &content)
    }

    fn string(text: &str) -> Vec<u8> {
        sized(0xa1, text.as_bytes())
    }

    fn properties(values: &[(usize, Vec<u8>)]) -> Vec<u8> {
        let mut content = vec![13];
        for place in 0..13 {
            let set = values.iter().find(|(one, _)| *one == place);
            content.extend(set.map_or(vec![0x40], |(_, value)| value.clone()));
        }
        sized(0xc0, &content)
    }

    fn read(bytes: Vec<u8>) -> (Envelope, Option<&'static str>) {
        let bytes = bytes.into();
        envelope("orders", 2_500, &Record { offset: 17, bytes })
    }

    #[test]
    fn what_was_sent_over_amqp_0_9_1() {
        let notes = [
            ("x-exchange", string("")),
            ("x-routing-key", string("orders.eu")),
            ("x-basic-delivery-mode", vec![0x50, 2]),
            ("x-shop", string("north")),
        ];
        let own = [
            ("x-basic-type", string("order.placed")),
            ("x-basic-app-id", string("shop")),
            ("ordering-key", string("c-1")),
            ("number", vec![0x54, 0xf9]),
            ("raw", sized(0xa0, b"\xff\x00")),
            ("list", vec![0x45]),
        ];
        let known = [
            (0, string("m-1")),
            (5, string("r-1")),
            (6, sized(0xa3, b"application/json")),
            (9, [&[0x83][..], &1_500_u64.to_be_bytes()].concat()),
        ];
        let (envelope, fault) = read(
            [
                section(0x72, &map(&notes)),
                section(0x73, &properties(&known)),
                section(0x74, &map(&own)),
                section(0x75, &sized(0xa0, b"{}")),
            ]
            .concat(),
        );
        assert_eq!(fault, None);
        assert_eq!(
            (envelope.address.as_str(), &*envelope.payload),
            ("orders.eu", &b"{}"[..])
        );
        assert_eq!(envelope.position.as_deref(), Some("orders/17"));
        assert_eq!(envelope.id.as_deref(), Some("m-1"));
        assert_eq!(envelope.kind.as_deref(), Some("order.placed"));
        assert_eq!(envelope.key.as_deref(), Some("c-1"));
        assert_eq!(envelope.content_type.as_deref(), Some("application/json"));
        assert_eq!(envelope.time, time(1_500));
        for (name, value) in [
            ("x-shop", "north"),
            ("app-id", "shop"),
            ("correlation-id", "r-1"),
            ("number", "-7"),
            ("raw-bin", "/wA="),
            ("ordering-key", "c-1"),
        ] {
            assert_eq!(envelope.header(name), Some(value), "{name}");
        }
        assert_eq!(envelope.headers.len(), 6, "{envelope:?}");
    }

    /// RabbitMQ 4 notes the type and the application's id elsewhere, and makes a UUID of a text that is one.
    #[test]
    fn what_newer_servers_make_of_it() {
        let notes = [("x-exchange", string("e")), ("x-basic-type", string("t"))];
        let id = [&[0x98][..], &[0xab; 16]].concat();
        let known = properties(&[(0, id), (10, string("shop"))]);
        let (envelope, _) = read([section(0x72, &map(&notes)), section(0x73, &known)].concat());
        let id = "urn:uuid:abababab-abab-abab-abab-abababababab";
        assert_eq!(envelope.id.as_deref(), Some(id));
        assert_eq!(
            (envelope.kind.as_deref(), envelope.key.as_deref()),
            (Some("t"), None)
        );
        assert_eq!(envelope.header("app-id"), Some("shop"));
        assert_eq!(envelope.address, "e");
        assert_eq!(envelope.payload, "");
    }

    #[test]
    fn what_a_client_for_streams_sends() {
        let known = properties(&[
            (0, sized(0xa0, b"\xff\x01")),
            (3, string("order.placed")),
            (10, string("c-1")),
        ]);
        let body = section(0x77, &string("text"));
        let (envelope, _) = read([section(0x73, &known), body].concat());
        assert_eq!(envelope.id.as_deref(), Some("ff01"));
        assert_eq!(envelope.kind.as_deref(), Some("order.placed"));
        assert_eq!(envelope.key.as_deref(), Some("c-1"));
        assert_eq!(
            (envelope.address.as_str(), &*envelope.payload),
            ("orders", &b"text"[..])
        );
        assert_eq!(envelope.time, time(2_500));
    }

    #[test]
    fn what_is_no_message_is_kept_as_it_is() {
        let (envelope, fault) = read(b"{\"order\": 7}".to_vec());
        assert!(fault.is_some_and(|fault| fault.contains("AMQP")));
        assert_eq!(envelope.payload, "{\"order\": 7}");
        assert_eq!(envelope.position.as_deref(), Some("orders/17"));
        let (_, fault) = read(section(0x77, &[0x45]));
        assert!(fault.is_some_and(|fault| fault.contains("body")));
    }

    #[test]
    fn records_of_any_bytes_are_read() {
        let corpus = r"\x00\x53\x72\xc1\x10\x02\xa3\x0ax-exchange\xa1\x01e\x00\x53\x73\xc0\x05\x02\xa1\x01i\x40\x00\x53\x74\xc1\x07\x02\xa1\x01n\xa1\x01v\x00\x53\x75\xa0\x02{}
\x00\x53\x77\xb1\x00\x00\x00\x02ab
\x00\x53\x76\x45\x00\x53\x78\xd1\x00\x00\x00\x04\x00\x00\x00\x00
\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xb0\x00\x00\x00\x01x
plain text
";
        hostile::hold(&hostile::Target::new("rabbitmq-records", corpus, |input| {
            let bytes = Bytes::copy_from_slice(input);
            let (envelope, _) = envelope(
                "s",
                i64::MAX,
                &Record {
                    offset: u64::MAX,
                    bytes,
                },
            );
            match envelope.payload.len() <= input.len() {
                true => Ok(()),
                false => Err("a payload is longer than its record".into()),
            }
        }));
    }
}
