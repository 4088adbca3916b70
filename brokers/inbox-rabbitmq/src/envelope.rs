//! What a message of RabbitMQ is in words that all brokers share.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use inbox_source::Envelope;
use lapin::{
    BasicProperties,
    message::Delivery,
    types::{AMQPValue, FieldTable, ShortString},
};

use crate::clean::NoText;

/// The header of [`Envelope::key`]: AMQP has no property for it.
pub const KEY: &str = "ordering-key";

/// Headers of a quorum queue that are not the same when a message comes again.
const COUNTS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];
/// Headers that say where else a message goes.
const ORDERS: [&str; 2] = ["CC", "BCC"];
const PERSISTENT: u8 = 2;

/// The payload is taken out of the delivery, not copied. What is no text is a header of bytes, in place of what
/// the client has read there.
pub(crate) fn envelope(queue: &str, delivery: &mut Delivery, no_text: &[NoText]) -> Envelope {
    let address = [delivery.routing_key.as_str(), delivery.exchange.as_str()];
    let address = address.into_iter().find(|name| !name.is_empty());
    let payload = std::mem::take(&mut delivery.data);
    let mut envelope = Envelope::new(address.unwrap_or(queue), payload);
    add_properties(&mut envelope, &delivery.properties);
    for NoText { place, bytes } in no_text {
        let name = place.replace(' ', "-");
        match name.as_str() {
            "message-id" => envelope.id = None,
            "type" => envelope.kind = None,
            "content-type" => envelope.content_type = None,
            name => envelope.headers.retain(|(one, _)| one != name),
        }
        envelope.add_header(&name, bytes);
    }
    envelope
}

fn add_properties(envelope: &mut Envelope, properties: &BasicProperties) {
    let text = |text: &Option<ShortString>| text.as_ref().map(|text| text.as_str().to_owned());
    for (name, value) in [
        ("correlation-id", properties.correlation_id()),
        ("reply-to", properties.reply_to()),
        ("app-id", properties.app_id()),
    ] {
        if let Some(value) = value {
            envelope.add_header(name, value.as_str().as_bytes());
        }
    }
    for (name, value) in properties.headers().iter().flatten() {
        let name = name.as_str();
        if let Some(value) = bytes(value).filter(|_| !COUNTS.contains(&name)) {
            envelope.add_header(name, &value);
        }
    }
    envelope.id = text(properties.message_id());
    envelope.kind = text(properties.kind());
    envelope.content_type = text(properties.content_type());
    envelope.key = envelope.header(KEY).map(String::from);
    let time = properties.timestamp().map(Duration::from_secs);
    envelope.time = time.and_then(|time| SystemTime::UNIX_EPOCH.checked_add(time));
}

/// The value of a header as bytes; tables and lists have no place in a message.
fn bytes(value: &AMQPValue) -> Option<Cow<'_, [u8]>> {
    let text: String = match value {
        AMQPValue::LongString(text) => return Some(text.as_bytes().into()),
        AMQPValue::ByteArray(bytes) => return Some(bytes.as_slice().into()),
        AMQPValue::ShortString(text) => return Some(text.as_str().as_bytes().into()),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Timestamp(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::DecimalValue(_)
        | AMQPValue::FieldArray(_)
        | AMQPValue::FieldTable(_)
        | AMQPValue::Void => return None,
    };
    Some(text.into_bytes().into())
}

/// The properties of a message that is sent, or why AMQP has no place for one. Headers that give orders to the
/// server are left out: who wrote the message was not asked. So is one that would be the key of a message
/// that has none.
pub(crate) fn properties(envelope: &Envelope) -> Result<BasicProperties, &'static str> {
    let mut headers = FieldTable::default();
    let key = envelope.key.as_deref().map(|key| (KEY, key));
    let own = envelope.headers_without(KEY);
    let own = own.filter(|(name, _)| !ORDERS.contains(name));
    for (name, value) in own.chain(key) {
        let value = AMQPValue::LongString(value.into());
        headers.insert(short("the name of a header", name)?, value);
    }
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers);
    if let Some(id) = &envelope.id {
        properties = properties.with_message_id(short("the id", id)?);
    }
    if let Some(kind) = &envelope.kind {
        properties = properties.with_type(short("the kind", kind)?);
    }
    if let Some(content_type) = &envelope.content_type {
        properties = properties.with_content_type(short("the content type", content_type)?);
    }
    let time = envelope.time;
    let time = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    Ok(match time {
        Some(time) => properties.with_timestamp(time.as_secs()),
        None => properties,
    })
}

/// What the client takes without a panic.
pub(crate) fn short(what: &'static str, text: &str) -> Result<ShortString, &'static str> {
    ShortString::try_new(text).map_err(|_| match what {
        "the id" => "the id is longer than the 255 bytes that AMQP has for it",
        "the kind" => "the kind is longer than the 255 bytes that AMQP has for it",
        _ => {
            "a name, an address or a content type is longer than the 255 bytes that AMQP has for it"
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_arrives_and_gives_no_orders() {
        let mut sent = Envelope::new("orders", "");
        sent.id = Some("m-1".into());
        sent.kind = Some("order.placed".into());
        sent.key = Some("k".into());
        sent.content_type = Some("application/json".into());
        sent.time = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
        sent.headers = vec![
            ("caf\u{e9}".into(), "caf\u{e9} 100%".into()),
            ("BCC".into(), "other".into()),
        ];
        let mut arrived = Envelope::default();
        add_properties(&mut arrived, &properties(&sent).unwrap());
        assert_eq!(arrived.header("caf\u{e9}"), Some("caf\u{e9} 100%"));
        assert_eq!(arrived.header("BCC"), None);
        assert_eq!((&arrived.id, &arrived.kind), (&sent.id, &sent.kind));
        assert_eq!((&arrived.key, &arrived.time), (&sent.key, &sent.time));
        assert_eq!(arrived.content_type, sent.content_type);
    }

    #[test]
    fn no_header_is_the_key_of_a_message_without_one() {
        let mut sent = Envelope::new("orders", "");
        sent.headers = vec![
            (KEY.into(), "other".into()),
            ("Ordering-Key".into(), "other".into()),
        ];
        let mut arrived = Envelope::default();
        add_properties(&mut arrived, &properties(&sent).unwrap());
        assert_eq!(arrived.key, None);
    }

    #[test]
    fn what_is_no_text_and_what_changes() {
        let mut headers = FieldTable::default();
        headers.insert("number".into(), AMQPValue::LongInt(-7));
        headers.insert("yes".into(), AMQPValue::Boolean(true));
        headers.insert("table".into(), AMQPValue::FieldTable(FieldTable::default()));
        headers.insert("x-delivery-count".into(), AMQPValue::LongInt(3));
        headers.insert("bytes".into(), AMQPValue::ByteArray(vec![0xff].into()));
        let mut envelope = Envelope::default();
        let properties = BasicProperties::default().with_headers(headers);
        add_properties(&mut envelope, &properties);
        assert_eq!(envelope.header("number"), Some("-7"));
        assert_eq!(envelope.header("yes"), Some("true"));
        assert_eq!(envelope.header("bytes-bin"), Some("/w=="));
        assert_eq!(envelope.headers.len(), 3);
    }

    #[test]
    fn what_has_no_place_is_refused() {
        let long = "x".repeat(256);
        let mut envelope = Envelope::new("orders", "");
        envelope.id = Some(long.clone());
        assert!(properties(&envelope).is_err());
        envelope.id = None;
        envelope.headers = vec![(long, "v".into())];
        assert!(properties(&envelope).is_err());
    }

    #[test]
    fn properties_of_any_bytes_are_read_and_written() {
        let corpus = include_str!("../../../hostile/corpus/mapping.txt");
        hostile::hold(&hostile::Target::new(
            "rabbitmq-properties",
            corpus,
            |input| {
                let (lines, body) = hostile::head(input);
                let mut headers = FieldTable::default();
                let mut sent = BasicProperties::default();
                for (number, (name, value)) in lines.into_iter().enumerate() {
                    let text = String::from_utf8_lossy(value);
                    let read = text.parse::<i64>().unwrap_or_default();
                    let Ok(name) = ShortString::try_new(String::from_utf8_lossy(name)) else {
                        continue;
                    };
                    if let Ok(short) = ShortString::try_new(&*text) {
                        sent = match name.as_str() {
                            ":id" => sent.with_message_id(short),
                            ":kind" => sent.with_type(short),
                            ":key" => sent.with_correlation_id(short),
                            ":time" => sent.with_timestamp(read.cast_unsigned()),
                            _ => sent.with_content_type(short),
                        };
                    }
                    headers.insert(
                        name,
                        match number % 5 {
                            0 => AMQPValue::LongString(value.into()),
                            1 => AMQPValue::ByteArray(value.to_vec().into()),
                            2 => AMQPValue::LongLongInt(read),
                            3 => AMQPValue::Double(text.parse().unwrap_or(f64::NAN)),
                            _ => AMQPValue::Void,
                        },
                    );
                }
                let mut envelope = Envelope::new("orders", body.to_vec());
                add_properties(&mut envelope, &sent.with_headers(headers));
                let _ = properties(&envelope);
                Ok(())
            },
        ));
    }
}
