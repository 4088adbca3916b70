//! What a message of SQS is in words that all brokers share.

use std::{
    collections::HashMap,
    time::{Duration, UNIX_EPOCH},
};

use aws_sdk_sqs::{
    error::BuildError,
    types::{Message, MessageAttributeValue as Value, MessageSystemAttributeName as System},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use inbox_source::Envelope;
use sha2::{Digest as _, Sha256};

/// The attribute of [`Envelope::id`], whatever the queue.
pub const ID: &str = "message-id";
/// The attribute of [`Envelope::kind`].
pub const KIND: &str = "message-type";
/// The attribute of [`Envelope::key`], where the queue has no groups, or the key is no name of one.
pub const KEY: &str = "ordering-key";
/// The attribute of [`Envelope::content_type`].
pub const CONTENT_TYPE: &str = "content-type";
/// The attribute with headers, as a JSON array of pairs, that are no attributes: SQS takes ten, and not all names and values.
pub const HEADERS: &str = "inbox-headers";
/// The attribute that says how the body stands for a payload that is no text: `base64`, or `empty`.
pub const ENCODING: &str = "inbox-encoding";

/// How many attributes a message may have.
pub(crate) const MAX_ATTRIBUTES: usize = 10;
const MAX_NAME: usize = 256;
/// Of deduplication ids and groups.
const MAX_TOKEN: usize = 128;
/// What ids for deduplication begin with of messages that have no id.
const NO_ID: &str = "inbox-none-";

/// Attributes by name.
pub(crate) type Attributes = HashMap<String, Value>;

/// `address` is the queue.
pub(crate) fn envelope(address: &str, message: &Message) -> Envelope {
    let body = message.body.as_deref().unwrap_or_default();
    let attributes = message.message_attributes.as_ref();
    let mut envelope = Envelope::new(address, Vec::new());
    if let Some(attributes) = attributes {
        add_headers(&mut envelope, attributes);
    }
    envelope.payload = match envelope.header(ENCODING) {
        Some("empty") => Vec::new().into(),
        Some("base64") => STANDARD
            .decode(body)
            .unwrap_or_else(|_| body.as_bytes().to_vec())
            .into(),
        _ => body.as_bytes().to_vec().into(),
    };
    envelope.headers.retain(|(name, _)| name != ENCODING);
    let system = |name: System| message.attributes.as_ref()?.get(&name).map(String::as_str);
    let deduplication = system(System::MessageDeduplicationId);
    // Those of a standard queue are for fairness, and keep no order.
    let group = system(System::MessageGroupId).filter(|_| is_fifo(address));
    let known = |name: &str| envelope.header(name).map(String::from);
    let id = known(ID).or_else(|| {
        // A queue that deduplicates by content makes its own, the same for all messages that are alike.
        let own =
            deduplication.filter(|id| !id.starts_with(NO_ID) && *id != digest(body.as_bytes()));
        own.map(String::from)
    });
    let key = known(KEY).or_else(|| {
        // A message without a key is a group by itself.
        group
            .filter(|group| Some(*group) != deduplication)
            .map(String::from)
    });
    let (kind, content_type) = (known(KIND), known(CONTENT_TYPE));
    envelope.kind = kind;
    envelope.content_type = content_type;
    envelope.id = id;
    envelope.key = key;
    envelope.position = message.message_id.clone();
    envelope.time = system(System::SentTimestamp)
        .and_then(|millis| millis.parse().ok())
        .and_then(|millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
    envelope
}

/// Whether a queue keeps the order of groups.
pub(crate) fn is_fifo(queue: &str) -> bool {
    queue.ends_with(".fifo")
}

/// The client keeps no order of names, so they are sorted. Those in [`HEADERS`] come first, in their order.
fn add_headers(envelope: &mut Envelope, attributes: &Attributes) {
    let mut all: Vec<_> = attributes.iter().collect();
    all.sort_by_key(|(name, _)| name.as_str());
    for (name, value) in all {
        match (&value.string_value, &value.binary_value) {
            (Some(text), _) if name == HEADERS => {
                let packed = serde_json::from_str::<Vec<(String, String)>>(text);
                for (name, value) in packed.unwrap_or_default() {
                    envelope.add_header(&name, value.as_bytes());
                }
            }
            (Some(text), _) => envelope.add_header(name, text.as_bytes()),
            (None, Some(bytes)) => envelope.add_header(name, bytes.as_ref()),
            (None, None) => {}
        }
    }
}

/// What is sent for an envelope.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) body: String,
    pub(crate) attributes: Attributes,
    /// Deduplication id and group, of a FIFO queue.
    pub(crate) fifo: Option<(String, String)>,
    /// As the service counts.
    pub(crate) bytes: usize,
}

impl Parts {
    /// Of a FIFO queue.
    pub(crate) fn group(&self) -> Option<&str> {
        let (_, group) = self.fifo.as_ref()?;
        Some(group)
    }
}

/// Leaves out the message's own headers that would stand for what it has elsewhere, and one that would be the key of a
/// message that has none.
pub(crate) fn parts(envelope: &Envelope, is_fifo: bool) -> Result<Parts, BuildError> {
    let mut fixed = Vec::new();
    let body = match std::str::from_utf8(&envelope.payload) {
        Ok("") => {
            fixed.push((ENCODING, "empty".to_owned()));
            "-".to_owned()
        }
        Ok(text) if is_text(text) => text.to_owned(),
        _ => {
            fixed.push((ENCODING, "base64".to_owned()));
            STANDARD.encode(&envelope.payload)
        }
    };
    let fifo = is_fifo.then(|| {
        let id = match &envelope.id {
            Some(id) => token(id),
            None => format!("{NO_ID}{}", uuid::Uuid::new_v4()),
        };
        let group = envelope.key.as_deref().map_or_else(|| id.clone(), token);
        (id, group)
    });
    let stands =
        |text: &Option<String>, sent: Option<&String>| text.is_some() && text.as_ref() == sent;
    let (id, group) = fifo.as_ref().map(|(id, group)| (id, group)).unzip();
    for (name, value, is_there) in [
        (ID, &envelope.id, stands(&envelope.id, id)),
        (
            KEY,
            &envelope.key,
            stands(&envelope.key, group) && id != group,
        ),
        (KIND, &envelope.kind, false),
        (CONTENT_TYPE, &envelope.content_type, false),
    ] {
        if let (Some(value), false) = (value, is_there) {
            fixed.push((name, value.clone()));
        }
    }
    let mut attributes = Attributes::new();
    let mut rest = Vec::new();
    for (name, value) in &fixed {
        add(&mut attributes, &mut rest, name, value)?;
    }
    for (name, value) in envelope.headers_without(KEY) {
        if !stands_for_another(envelope, name) {
            add(&mut attributes, &mut rest, name, value)?;
        }
    }
    if !rest.is_empty() {
        // Pairs of texts are always JSON.
        let packed = serde_json::to_string(&rest).unwrap_or_default();
        attributes.insert(HEADERS.into(), text(&packed)?);
    }
    let bytes = body.len() + attributes.iter().map(size).sum::<usize>();
    Ok(Parts {
        body,
        attributes,
        fifo,
        bytes,
    })
}

/// Whether a consumer would take a message's own header of this name for what the message has elsewhere. It goes by
/// such an attribute rather than by the deduplication id of a FIFO queue.
fn stands_for_another(envelope: &Envelope, name: &str) -> bool {
    let properties = [
        (ID, envelope.id.is_some()),
        (KIND, envelope.kind.is_some()),
        (CONTENT_TYPE, envelope.content_type.is_some()),
        (ENCODING, true),
        (HEADERS, true),
    ];
    properties
        .iter()
        .any(|(property, is_there)| *is_there && name.eq_ignore_ascii_case(property))
}

/// As an attribute, if it can be one and there is room, and else among the rest.
fn add(
    attributes: &mut Attributes,
    rest: &mut Vec<(String, String)>,
    name: &str,
    value: &str,
) -> Result<(), BuildError> {
    let fits = is_attribute(name) && is_text(value);
    // One is left for the rest.
    let has_room = attributes.len() < MAX_ATTRIBUTES - 1 && !attributes.contains_key(name);
    if fits && has_room {
        attributes.insert(name.into(), text(value)?);
    } else {
        rest.push((name.into(), value.into()));
    }
    Ok(())
}

pub(crate) fn text(value: &str) -> Result<Value, BuildError> {
    let value = Value::builder().data_type("String").string_value(value);
    value.build()
}

/// What it counts for the service.
fn size((name, value): (&String, &Value)) -> usize {
    let text = value.string_value.as_ref().map_or(0, String::len);
    let bytes = value
        .binary_value
        .as_ref()
        .map_or(0, |bytes| bytes.as_ref().len());
    name.len() + value.data_type.len() + text + bytes
}

/// Whether SQS takes it as an attribute's name.
fn is_attribute(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let lower = name.to_ascii_lowercase();
    (1..=MAX_NAME).contains(&name.len())
        && name.chars().all(fits)
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !lower.starts_with("aws.")
        && !lower.starts_with("amazon.")
}

/// Whether SQS takes it as text: some characters of XML 1.0.
pub(crate) fn is_text(text: &str) -> bool {
    let fits = |c: char| match c {
        '\t' | '\n' | '\r' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        _ => c >= ' ',
    };
    !text.is_empty() && text.chars().all(fits)
}

/// An id for deduplication or a group: as it is if SQS takes it, and else its digest.
fn token(text: &str) -> String {
    let fits = (1..=MAX_TOKEN).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    match fits && !text.starts_with(NO_ID) {
        true => text.to_owned(),
        false => digest(text.as_bytes()),
    }
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What arrives of what is sent.
    fn sent(envelope: &Envelope, is_fifo: bool) -> Envelope {
        let parts = parts(envelope, is_fifo).unwrap();
        assert!(parts.attributes.len() <= MAX_ATTRIBUTES);
        let mut message = Message::builder().body(parts.body);
        for (name, value) in parts.attributes {
            message = message.message_attributes(name, value);
        }
        if let Some((id, group)) = parts.fifo {
            message = message
                .attributes(System::MessageDeduplicationId, id)
                .attributes(System::MessageGroupId, group);
        }
        let queue = if is_fifo { "orders.fifo" } else { "orders" };
        super::envelope(queue, &message.build())
    }

    #[test]
    fn what_is_sent_arrives() {
        for is_fifo in [false, true] {
            for payload in ["text".as_bytes(), b"", b"\xff\x00", "\u{1}".as_bytes()] {
                let mut message = Envelope::new("orders", payload.to_vec());
                message.id = Some("order 7".into());
                message.key = Some("k-1".into());
                message.kind = Some("placed".into());
                message.headers = vec![("a:b".into(), "v".into()), ("empty".into(), String::new())];
                for number in 0..12 {
                    message
                        .headers
                        .push((format!("h-{number}"), number.to_string()));
                }
                let came = sent(&message, is_fifo);
                assert_eq!(came.payload, message.payload);
                assert_eq!(
                    (&came.id, &came.key, &came.kind),
                    (&message.id, &message.key, &message.kind)
                );
                for (name, value) in &message.headers {
                    assert_eq!(came.header(name), Some(value.as_str()), "{name}");
                }
            }
        }
    }

    #[test]
    fn no_header_stands_for_what_the_message_has_elsewhere() {
        for is_fifo in [false, true] {
            let mut message = Envelope::new("orders", "text");
            message.id = Some("evt-2".into());
            message.key = Some("c-2".into());
            message.kind = Some("placed".into());
            message.content_type = Some("text/plain".into());
            for name in [ID, "Message-Id", KEY, KIND, CONTENT_TYPE, ENCODING, HEADERS] {
                message.headers.push((name.into(), "base64".into()));
            }
            message.headers.push(("app".into(), "shop".into()));
            let came = sent(&message, is_fifo);
            assert_eq!(came.payload, message.payload);
            assert_eq!(
                (&came.id, &came.key, &came.kind, &came.content_type),
                (
                    &message.id,
                    &message.key,
                    &message.kind,
                    &message.content_type
                )
            );
            assert_eq!(came.header("app"), Some("shop"));
            message.key = None;
            assert_eq!(sent(&message, is_fifo).key, None);
        }
    }

    #[test]
    fn without_an_id_or_a_key_there_is_none() {
        for is_fifo in [false, true] {
            let came = sent(&Envelope::new("orders", "text"), is_fifo);
            assert_eq!((came.id, came.key), (None, None));
        }
        let mut alike = Message::builder().body("text");
        alike = alike.attributes(System::MessageDeduplicationId, digest(b"text"));
        assert_eq!(envelope("orders", &alike.build()).id, None);
    }

    #[test]
    fn what_is_no_attribute_is_told() {
        for name in ["", "a b", ".a", "a..b", "AWS.a", "amazon.b", "\u{e9}"] {
            assert!(!is_attribute(name), "{name}");
        }
        assert!(is_attribute("event-id") && is_attribute("ce_id"));
        assert!(!is_text("\u{0}") && is_text("caf\u{e9}\n"));
    }
}
